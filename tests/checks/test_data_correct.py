"""data_correct fails on wrong data whatever the speed, and names a rank only where it alone explains all of it."""

from collections.abc import Iterable

import msgspec
import pytest

from preflight.model import Evidence, Failure, Measurement, Verdict
from preflight_checks.data_correct import CHECK
from tests.builders import make_measurement, make_plan, make_probe
from tests.checks.clusters import cluster, said, subjects

PAIRS = [(a, b) for b in range(4) for a in range(b)]


def pairs(wrong: Iterable[tuple[int, int]] = (), unverified: Iterable[tuple[int, int]] = ()) -> Evidence:
    """Four ranks, every pair measured once."""
    found = []
    for pair in PAIRS:
        right = None if pair in unverified else pair not in wrong
        found.append(msgspec.structs.replace(make_measurement(pair), data_correct=right))
    return Evidence(plan=make_plan(tp=4, dp=1, nodes=1, gpus_per_node=4, gpu=None), measurements=tuple(found))


def test_right_data_passes_in_one_finding():
    [finding] = said(CHECK, cluster())
    assert finding.verdict is Verdict.PASS


def test_one_wrong_pair_fails_and_blames_neither_of_its_ranks():
    [finding] = said(CHECK, pairs(wrong=[(0, 2)]))
    assert (finding.subject, finding.verdict) == ("pair 0-2", Verdict.FAIL)
    assert finding.blames is None
    assert "one by one" in finding.remedy


@pytest.mark.parametrize("wrong", [[(0, 2), (1, 2)], [(0, 2), (1, 2), (2, 3)]])
def test_the_only_rank_that_all_wrong_pairs_share_is_named(wrong):
    found = said(CHECK, pairs(wrong=wrong))
    assert {f.subject for f in found} == {f"pair {a}-{b}" for a, b in wrong}
    assert {f.blames.name for f in found} == {"rank 2"}


def test_a_rank_that_is_right_elsewhere_is_blamed_with_less_confidence():
    assert {f.blames.confidence for f in said(CHECK, pairs(wrong=[(0, 2), (1, 2)]))} == {"possible"}
    assert {f.blames.confidence for f in said(CHECK, pairs(wrong=[(0, 2), (1, 2), (2, 3)]))} == {"likely"}


@pytest.mark.parametrize("wrong", [[(0, 1), (2, 3)], PAIRS])
def test_wrong_pairs_that_share_no_single_rank_blame_nobody(wrong):
    found = said(CHECK, pairs(wrong=wrong))
    assert {f.verdict for f in found} == {Verdict.FAIL}
    assert {f.blames for f in found} == {None}


def test_the_same_pair_wrong_twice_is_one_finding_that_names_no_rank():
    evidence = pairs(wrong=[(0, 1)])
    twice = msgspec.structs.replace(evidence, measurements=evidence.measurements * 2)
    [finding] = said(CHECK, twice)
    assert finding.blames is None


def test_a_group_and_a_pair_that_share_one_rank_name_it():
    evidence = pairs(wrong=[(0, 3)])
    group = make_measurement((3, 7), subject="dp3", axis="dp", collective="all_reduce")
    both = (*evidence.measurements, msgspec.structs.replace(group, data_correct=False))
    found = said(CHECK, msgspec.structs.replace(evidence, measurements=both))
    assert {f.subject for f in found} == {"pair 0-3", "dp3"}
    assert {f.blames.name for f in found} == {"rank 3"}


def test_a_failure_that_was_wrong_data_counts_though_nothing_was_timed():
    failure = Failure(kind="wrong_data", text="3 elements differ", rank=1)
    evidence = Evidence(measurements=(Measurement(probe=make_probe((0, 1)), failure=failure), make_measurement((2, 3))))
    assert subjects(CHECK, evidence) == ["pair 0-1"]


def test_data_that_nobody_verified_is_never_a_pass():
    assert [f.verdict for f in said(CHECK, pairs(unverified=[(0, 1)]))] == [Verdict.UNKNOWN]
    found = said(CHECK, pairs(wrong=[(0, 2)], unverified=[(0, 1)]))
    assert {(f.subject, f.verdict) for f in found} == {("pair 0-2", Verdict.FAIL), ("data", Verdict.UNKNOWN)}


def test_a_run_that_measured_nothing_is_unknown():
    failed = Measurement(probe=make_probe((0, 1)), failure=Failure(kind="timed_out", text="late"))
    for measurements in ((), (failed,)):
        [finding] = said(CHECK, Evidence(measurements=measurements))
        assert finding.verdict is Verdict.UNKNOWN
        assert "nothing was measured" in finding.observed


def alone(rank: int, collective: str, *, right: bool) -> Measurement:
    return msgspec.structs.replace(
        make_measurement((rank,), subject=f"gpu {rank}", collective=collective), data_correct=right
    )


@pytest.mark.parametrize(
    ("collective", "words"), [("matmul", "computed a wrong matrix product"), ("host_to_device", "copied wrong data")]
)
def test_what_a_gpu_gets_wrong_by_itself_is_its_own_fault(collective, words):
    evidence = pairs()
    measured = (*evidence.measurements, alone(2, collective, right=False), alone(3, collective, right=True))
    [finding] = said(CHECK, msgspec.structs.replace(evidence, measurements=measured))
    assert (finding.subject, finding.blames.name) == ("gpu 2", "rank 2")
    assert words in finding.observed


def test_two_gpus_that_are_each_wrong_by_themselves_are_both_named():
    evidence = Evidence(measurements=tuple(alone(rank, "matmul", right=rank in {0, 3}) for rank in range(4)))
    assert {f.blames.name for f in said(CHECK, evidence)} == {"rank 1", "rank 2"}


def test_a_pair_with_a_gpu_that_is_wrong_by_itself_blames_that_gpu():
    evidence = pairs(wrong=[(0, 1), (2, 3)])
    measured = (*evidence.measurements, alone(3, "matmul", right=False))
    found = {f.subject: f.blames for f in said(CHECK, msgspec.structs.replace(evidence, measurements=measured))}
    assert found["pair 0-1"] is None
    assert found["pair 2-3"].name == found["gpu 3"].name == "rank 3"


def test_a_one_way_send_says_who_sent_to_whom():
    evidence = Evidence(
        measurements=(msgspec.structs.replace(make_measurement((4, 1), collective="send"), data_correct=False),)
    )
    [finding] = said(CHECK, evidence)
    assert "rank 4 sent arrived wrong at rank 1" in finding.observed


def test_logs_without_validation_are_told_to_be_unverified_and_decide_of_speed():
    """nccl-tests -c 0. In a run of ours the same is UNKNOWN."""
    logged = msgspec.structs.replace(pairs(unverified=[(0, 1), (0, 2)]), plan=None)
    [finding] = said(CHECK, logged)
    assert finding.verdict is Verdict.WARN
    assert "not verified: 2 of" in finding.observed
    wrong = msgspec.structs.replace(pairs(wrong=[(0, 2)], unverified=[(0, 1)]), plan=None)
    assert {f.verdict for f in said(CHECK, wrong)} == {Verdict.FAIL, Verdict.WARN}
    nothing = msgspec.structs.replace(logged, measurements=())
    assert [f.verdict for f in said(CHECK, nothing)] == [Verdict.UNKNOWN]
