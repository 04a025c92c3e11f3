"""Whom failures point at, how they are tried again, and with whom suspects are paired."""

from hypothesis import given
from hypothesis import strategies as st

from preflight.fleet.blame import (
    TIMES_SMALLER,
    again,
    cleared_ranks,
    confirmation_of,
    named_rank,
    partners_of,
    progressed,
    trial_of,
)
from preflight.model import Failure, Measurement
from preflight.model.measurement import FailureKind
from tests.builders import make_measurement, make_probe

NODES = {rank: f"node{rank // 2}" for rank in range(64)}


def failed(*ranks: int, points_at: int | None = None, kind: FailureKind = "timed_out", stage: str = "") -> Measurement:
    return Measurement(probe=make_probe(ranks), failure=Failure(kind=kind, text="x", rank=points_at, stage=stage))


def slow(*ranks: int) -> Measurement:
    """The ranks met, and the operation was not over in time."""
    return failed(*ranks, stage="first operation")


def test_a_failure_points_at_the_rank_that_it_names():
    assert named_rank(failed(0, 1, points_at=1)) == 1
    assert named_rank(failed(0, 1)) is None


def test_what_a_rank_does_alone_can_only_be_its_own_fault():
    alone = make_probe((3,), collective="matmul", subject="gpu 3")
    assert named_rank(Measurement(probe=alone, failure=Failure(kind="error", text="x"))) == 3


def test_ranks_that_met_and_ran_into_the_deadline_are_slow_not_missing():
    assert progressed(slow(0, 1))
    assert not progressed(failed(0, 1, stage="rendezvous"))
    assert not progressed(failed(0, 1))
    assert not progressed(failed(0, 1, points_at=1, stage="first operation"))
    assert not progressed(failed(0, 1, kind="crashed", stage="first operation"))
    assert not progressed(make_measurement((0, 1)))


def test_a_repetition_is_a_new_attempt_with_a_key_of_its_own():
    probe = again(failed(0, 1))
    assert (probe.ranks, probe.attempt, probe.size_bytes) == ((0, 1), 1, make_probe((0, 1)).size_bytes)
    assert probe.key != make_probe((0, 1)).key


def test_a_slow_probe_is_repeated_with_a_smaller_message_of_whole_elements():
    first = slow(0, 1, 2)
    probe = again(first)
    assert probe.size_bytes <= first.probe.size_bytes / TIMES_SMALLER
    assert probe.size_bytes % 12 == 0
    assert probe.size_name == "smaller"
    once_more = again(Measurement(probe=probe, failure=slow(0, 1).failure))
    assert once_more.size_bytes == probe.size_bytes


def test_a_named_rank_is_tried_with_another_partner_and_the_innocent_one_is_left_in_peace():
    seen = [failed(0, 3, points_at=3, kind="no_answer"), make_measurement((4, 5))]
    trial = trial_of(seen[:1], seen, NODES, (), "gloo")
    (probe,) = trial.probes
    assert trial.suspects == (3,)
    assert set(probe.ranks) in ({3, 4}, {3, 5})
    assert trial.hosts == ("node1",)


def test_a_failure_that_names_nobody_is_repeated_as_it_was():
    seen = [failed(0, 2), make_measurement((4, 6))]
    trial = trial_of(seen[:1], seen, NODES, (), "gloo")
    assert [(p.ranks, p.attempt) for p in trial.probes] == [((0, 2), 1)]
    assert trial.suspects == ()


def test_where_no_other_partner_is_left_a_named_rank_is_tried_with_the_same_one():
    seen = [failed(0, 1, points_at=1)]
    trial = trial_of(seen, seen, NODES, (), "gloo")
    assert [(p.ranks, p.attempt) for p in trial.probes] == [((0, 1), 1)]


def test_a_rank_that_failed_alone_is_tried_alone_where_nobody_is_cleared():
    alone = Measurement(
        probe=make_probe((3,), collective="matmul", subject="gpu 3"),
        failure=Failure(kind="no_answer", text="x", rank=3),
    )
    trial = trial_of([alone], [alone], NODES, (), "gloo")
    assert [p.ranks for p in trial.probes] == [(3,)]


def test_what_is_left_out_already_is_not_tried():
    assert trial_of([failed(0, 1, points_at=1)], [], NODES, {1}, "gloo").probes == ()


def test_ranks_of_a_probe_that_failed_twice_without_a_name_are_each_tried_with_a_cleared_partner():
    seen = [failed(0, 2), make_measurement((4, 6)), make_measurement((8, 10)), failed(0, 2)]
    trial = confirmation_of([seen[-1]], seen, NODES, (), "gloo")
    assert set(trial.suspects) == {0, 2}
    assert all(len(set(p.ranks) & {0, 2}) == 1 for p in trial.probes)


def test_of_a_large_group_only_some_ranks_are_suspected_at_once():
    big = failed(*range(16))
    good = [make_measurement((a, a + 1)) for a in range(20, 60, 2)]
    assert len(confirmation_of([big], [*good, big], NODES, (), "gloo").suspects) == 4


def test_without_cleared_partners_nobody_is_tried_and_nobody_is_a_suspect():
    trial = confirmation_of([failed(0, 1)], [failed(0, 1)], NODES, (), "gloo")
    assert (trial.probes, trial.suspects) == ((), ())


def test_the_other_partner_is_rather_on_a_node_that_the_first_one_was_not_on():
    bad = [failed(0, 2, points_at=0)]
    assert partners_of([0], [3, 4], bad, NODES) == {0: 4}
    assert partners_of([0], [3], bad, NODES) == {0: 3}
    assert partners_of([0], [1, 4], bad, NODES) == {0: 1}


def test_ranks_are_cleared_by_their_latest_probe_with_others_most_recent_first():
    seen = [make_measurement((0, 1)), make_measurement((2, 3)), failed(1, 2), make_measurement((4, 5))]
    assert cleared_ranks(seen, {5}) == [4, 3, 0]


def test_a_rank_that_failed_and_then_worked_is_cleared():
    assert set(cleared_ranks([failed(0, 1), make_measurement((0, 1))], set())) == {0, 1}


ranks = st.integers(0, 30)


@given(
    st.lists(st.tuples(ranks, ranks, st.integers(0, 2)).filter(lambda t: t[0] != t[1]), max_size=8),
    st.lists(st.tuples(ranks, ranks).filter(lambda t: t[0] != t[1]), max_size=20),
    st.sets(ranks, max_size=5),
)
def test_a_trial_is_one_round_on_disjoint_ranks_that_asks_nobody_who_is_left_out(bad, good, out):
    taken: set[int] = set()
    failures = []
    for a, b, which in bad:  # the probes of one round are disjoint
        if not taken & {a, b}:
            taken |= {a, b}
            failures.append(failed(a, b, points_at=(None, a, b)[which]))
    seen = [*(make_measurement(pair) for pair in good), *failures]
    for trial in (trial_of(failures, seen, NODES, out, "gloo"), confirmation_of(failures, seen, NODES, out, "gloo")):
        asked = [rank for probe in trial.probes for rank in probe.ranks]
        assert len(set(asked)) == len(asked)
        assert len({probe.key for probe in trial.probes} | {m.probe.key for m in seen}) == len(
            {m.probe.key for m in seen}
        ) + len(trial.probes)
    assert not set(confirmation_of(failures, seen, NODES, out, "gloo").suspects) & out
