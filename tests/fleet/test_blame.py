"""Whom a failed round points at, and with whom suspects are tried again."""

from hypothesis import given
from hypothesis import strategies as st

from preflight.fleet.blame import cleared_ranks, confirm, repeat_of, suspects_of
from preflight.model import Failure, Measurement
from tests.builders import make_measurement, make_probe


def failed(*ranks: int, points_at: int | None = None) -> Measurement:
    return Measurement(probe=make_probe(ranks), failure=Failure(kind="timed_out", text="x", rank=points_at))


def test_what_failed_is_repeated_as_a_new_attempt():
    (again,) = repeat_of([failed(0, 1)], set())
    assert (again.ranks, again.attempt) == ((0, 1), 1)
    assert again.key != make_probe((0, 1)).key


def test_what_can_not_work_is_not_repeated():
    assert repeat_of([failed(0, 1), make_measurement((2, 3))], {1}) == ()


def test_a_failure_points_at_the_rank_that_it_names():
    assert suspects_of([failed(0, 1, points_at=1), failed(2, 3, points_at=1)]) == (1,)


def test_a_failure_that_names_nobody_points_at_its_ranks_but_not_at_a_whole_large_group():
    assert suspects_of([failed(0, 1)]) == (0, 1)
    assert suspects_of([failed(*range(8))]) == (0, 1, 2, 3)


def test_ranks_are_cleared_by_their_latest_probe_most_recent_first():
    seen = [make_measurement((0, 1)), make_measurement((2, 3)), failed(1, 2), make_measurement((4, 5))]
    assert cleared_ranks(seen, {5}) == [4, 3, 0]


def test_a_rank_that_failed_and_then_worked_is_cleared():
    assert set(cleared_ranks([failed(0, 1), make_measurement((0, 1))], set())) == {0, 1}


def test_each_suspect_is_tried_with_a_cleared_partner_of_its_own():
    trial = confirm([5, 1], [0, 1, 2, 3], "gloo", 7)
    assert [probe.ranks for probe in trial] == [(0, 5), (1, 2)]
    assert {probe.attempt for probe in trial} == {7}


def test_suspects_without_a_partner_are_not_tried():
    assert confirm([0, 1], [1, 0], "gloo", 1) == ()


@given(st.lists(st.integers(0, 30), unique=True, max_size=8), st.lists(st.integers(0, 30), unique=True, max_size=20))
def test_a_trial_is_one_round_on_disjoint_ranks_each_pair_with_one_suspect(suspects, cleared):
    trial = confirm(suspects, cleared, "gloo", 1)
    ranks = [rank for probe in trial for rank in probe.ranks]
    assert len(set(ranks)) == len(ranks)
    assert all(len(set(probe.ranks) & set(suspects)) == 1 for probe in trial)
    assert len(trial) == min(len(suspects), len(set(cleared) - set(suspects)))
