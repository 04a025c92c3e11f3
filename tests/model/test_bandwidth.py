"""algbw and busbw are derived from raw durations by nccl-tests' factors."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.model import Measurement, Samples, busbw_factor
from preflight.model.measurement import median
from tests.builders import make_measurement, make_probe


@pytest.mark.parametrize(
    ("collective", "num_ranks", "factor"),
    [
        ("all_reduce", 8, 1.75),
        ("all_reduce", 2, 1.0),
        ("all_gather", 8, 0.875),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 4, 0.75),
        ("broadcast", 8, 1.0),
        ("send_recv", 2, 1.0),
    ],
)
def test_factors_are_those_of_nccl_tests(collective, num_ranks, factor):
    assert busbw_factor(collective, num_ranks) == factor


def test_a_group_of_one_has_no_bus_bandwidth():
    with pytest.raises(ValueError, match="no link is crossed"):
        busbw_factor("all_reduce", 1)


def test_the_worked_example_holds():
    measurement = make_measurement(range(8), subject="tp0", axis="tp", collective="all_reduce", size_bytes=4 * 10**9)
    assert measurement.algbw_bytes_per_s == pytest.approx(100e9)
    assert measurement.busbw_bytes_per_s == pytest.approx(175e9)


def test_the_slowest_rank_of_each_window_counts_and_the_median_of_those():
    samples = (Samples(rank=0, durations_s=(1.0, 1.0, 9.0)), Samples(rank=1, durations_s=(2.0, 3.0, 1.0)))
    measurement = Measurement(probe=make_probe((0, 1), size_bytes=6), samples=samples)
    assert measurement.slowest_s == (2.0, 3.0, 9.0)
    assert measurement.duration_s == 3.0
    assert measurement.algbw_bytes_per_s == 2.0


def test_a_measurement_that_failed_has_no_bandwidth_rather_than_zero():
    measurement = Measurement(probe=make_probe((0, 1)))
    assert measurement.duration_s is None
    assert measurement.algbw_bytes_per_s is None
    assert measurement.busbw_bytes_per_s is None


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=30))
@settings(max_examples=60)
def test_half_of_the_values_lie_on_each_side_of_the_median(values):
    middle = median(values)
    assert sum(v <= middle for v in values) * 2 >= len(values)
    assert sum(v >= middle for v in values) * 2 >= len(values)
