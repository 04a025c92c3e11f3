"""gpu_per_rank finds ranks that share a GPU, and leaves alone ranks that have one each, or none by intention."""

import msgspec
import pytest

from preflight.model import Placement, Settings, Verdict
from preflight_checks.gpu_per_rank import CHECK
from tests.builders import make_evidence, make_inventory, make_node, make_plan


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
    assert finding.observed == "ranks 0-1 on a share it"
    assert "torch.cuda.set_device" in finding.remedy


def test_a_rank_whose_gpu_is_not_known_is_never_a_pass():
    [finding] = judge(("GPU-1", None, "GPU-3", "GPU-4"))
    assert (finding.verdict, finding.observed) == (Verdict.UNKNOWN, "ranks 1: no GPU known")


def test_without_gpus_or_with_a_prediction_there_is_nothing_to_judge():
    assert judge(None) == []
    assert judge(("GPU-1",) * 4, source="predicted") == []
    assert judge(("GPU-1",) * 4, cpu_declared=True) == []


def crowded(claimed, uuids=None, source="measured", **settings):
    placement = Placement(
        source=source, method="m", nodes=("a", "b"), node_ranks=(0, 0, 0, 1), local_ranks=(0, 1, 2, 0), gpu_uuids=uuids
    )
    plan = make_plan(tp=2, nodes=2, gpus_per_node=2, placement=placement)
    hardware = msgspec.structs.replace(plan.job.hardware, gpus_per_node=claimed)
    plan = msgspec.structs.replace(plan, job=msgspec.structs.replace(plan.job, hardware=hardware))
    return list(CHECK.judge(make_evidence(plan=plan, settings=Settings(**settings))))


@pytest.mark.parametrize("source", ["measured", "predicted"])
def test_more_ranks_on_a_node_than_the_plan_file_gives_it_gpus_fail_where_no_gpu_is_known(source):
    [finding] = crowded(2, source=source)
    assert (finding.subject, finding.verdict) == ("a", Verdict.FAIL)
    assert finding.observed == "3 ranks on one node, and the plan file says that a node has 2 GPUs"


def test_as_many_ranks_as_gpus_and_nodes_of_which_nothing_is_claimed_are_left_alone():
    assert crowded(3) == []
    assert crowded(None) == []
    assert crowded(2, cpu_declared=True) == []
    assert [finding.verdict for finding in crowded(2, uuids=tuple("WXYZ"))] == [Verdict.PASS]  # pods of one machine


def visible(text, inventory=None, **settings):
    plan = make_plan(nodes=2, gpus_per_node=4, tp=4, launch={"visible_devices": text})
    return list(CHECK.judge(make_evidence(plan=plan, inventory=inventory, settings=Settings(**settings))))


def test_a_variable_that_shows_each_rank_a_gpu_passes():
    [finding] = visible("3,2,1,0")
    assert (finding.subject, finding.verdict) == ("node[0-1]", Verdict.PASS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0,1,2", "4 ranks on a node, CUDA_VISIBLE_DEVICES shows 3 GPUs"),
        ("0,1,2,2", "'2' is there twice, and CUDA then shows no GPU"),
        ("0,-1,1,2,3", "shows 1 GPU: "),
    ],
)
def test_gaps_and_duplicates_fail_before_the_job_starts(text, words):
    [finding] = visible(text)
    assert finding.verdict is Verdict.FAIL
    assert words in finding.observed
    assert finding.blames.name == "launch.visible_devices"


def test_an_entry_too_many_warns_and_what_a_node_lacks_fails_there_only():
    [finding] = visible("0,1,2,3,x")
    assert finding.verdict is Verdict.WARN
    inventory = make_inventory(2, 4)
    nodes = (inventory.nodes[0], make_node("node1", gpus=3))
    found = visible("0,1,2,3", msgspec.structs.replace(inventory, nodes=nodes))
    assert [(one.subject, one.verdict) for one in found] == [("node0", Verdict.PASS), ("node1", Verdict.FAIL)]
    assert "'3' is no index of 3 GPUs" in found[1].observed
