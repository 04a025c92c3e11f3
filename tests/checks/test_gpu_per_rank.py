"""gpu_per_rank finds ranks that share a GPU, and leaves alone ranks that have one each, or none by intention."""

import pytest

from preflight.model import Placement, Settings, Verdict
from preflight_checks.gpu_per_rank import CHECK
from tests.builders import make_evidence, make_plan


def judge(uuids, source="measured", **settings):
    placement = Placement(
        source=source, method="m", nodes=("a", "b"), node_ranks=(0, 0, 1, 1), local_ranks=(0, 1, 0, 1), gpu_uuids=uuids
    )
    plan = make_plan(tp=2, nodes=2, gpus_per_node=2, placement=placement)
    return list(CHECK.judge(make_evidence(plan=plan, settings=Settings(**settings))))


@pytest.mark.parametrize("uuids", [("GPU-1", "GPU-2", "GPU-3", "GPU-4"), ("MIG-1", "MIG-2", "MIG-3", "MIG-4")])
def test_a_gpu_for_each_rank_passes(uuids):
    [finding] = judge(uuids)
    assert (finding.verdict, finding.observed) == (Verdict.PASS, "4 ranks on 4 GPUs")


def test_two_ranks_on_one_gpu_fail_with_both_and_the_remedy():
    [finding] = judge(("GPU-1", "GPU-1", "GPU-3", "GPU-4"))
    assert (finding.subject, finding.verdict) == ("GPU-1", Verdict.FAIL)
    assert finding.observed == "ranks 0-1 on a all have GPU GPU-1"
    assert "torch.cuda.set_device" in finding.remedy


def test_a_rank_whose_gpu_is_not_known_is_never_a_pass():
    [finding] = judge(("GPU-1", None, "GPU-3", "GPU-4"))
    assert (finding.verdict, finding.observed) == (Verdict.UNKNOWN, "ranks 1: no GPU known")


def test_without_gpus_or_with_a_prediction_there_is_nothing_to_judge():
    assert judge(None) == []
    assert judge(("GPU-1",) * 4, source="predicted") == []
    assert judge(("GPU-1",) * 4, cpu_declared=True) == []
