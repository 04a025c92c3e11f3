"""ranks_match says which rank is first elsewhere than expected, and keeps quiet where nothing was expected."""

import msgspec

from preflight.model import Placement, Verdict
from preflight_checks.ranks_match import CHECK
from tests.builders import make_evidence, make_plan


def placed(node_ranks, source="measured"):
    return Placement(
        source=source, method="block", nodes=("node0", "node1"), node_ranks=node_ranks, local_ranks=(0, 1, 0, 1)
    )


BLOCK, CYCLIC = placed((0, 0, 1, 1)), placed((0, 1, 0, 1))


def judge(measured, predicted):
    plan = make_plan(tp=2, nodes=2, gpus_per_node=2, placement=measured, launch={"launcher": "slurm"})
    return list(CHECK.judge(make_evidence(plan=msgspec.structs.replace(plan, predicted=predicted))))


def test_a_map_as_expected_passes():
    [finding] = judge(BLOCK, placed((0, 0, 1, 1), "predicted"))
    assert (finding.subject, finding.verdict) == ("placement", Verdict.PASS)


def test_another_map_fails_with_the_first_rank_that_is_elsewhere():
    [finding] = judge(CYCLIC, placed((0, 0, 1, 1), "predicted"))
    assert finding.verdict is Verdict.FAIL
    assert "rank 1: predicted node node0 local rank 1, found node node1 local rank 1" in finding.observed
    assert "slurm" in finding.expected
    assert finding.blames.name == "rank 1"


def test_a_prediction_that_was_not_certain_only_warns_and_says_why():
    [finding] = judge(CYCLIC, msgspec.structs.replace(placed((0, 0, 1, 1), "predicted"), doubt="names are sorted"))
    assert finding.verdict is Verdict.WARN
    assert "not certain: names are sorted" in finding.observed


def test_where_nothing_was_measured_or_expected_there_is_nothing_to_judge():
    assert judge(BLOCK, None) == []
    assert list(CHECK.judge(make_evidence(plan=make_plan()))) == []
