"""Robust figures."""

from hypothesis import given
from hypothesis import strategies as st

from preflight.statistics import Spread, spread_of


def test_nothing_has_no_spread():
    assert spread_of([]) is None


def test_the_worked_example_holds():
    assert spread_of([3.0, 1.0, 2.0]) == Spread(minimum=1.0, median=2.0, maximum=3.0, number=3)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=20))
def test_the_figures_are_in_order(values):
    spread = spread_of(values)
    assert spread is not None
    assert spread.minimum <= spread.median <= spread.maximum
    assert spread.number == len(values)
