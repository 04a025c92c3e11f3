"""group_uniform: a mixed partition is no fault unless one planned group mixes classes."""

import pytest
from msgspec.structs import replace

from preflight.model import Evidence, Inventory, Settings, Verdict
from preflight_checks.group_uniform import judge
from tests.builders import make_gpu, make_inventory, make_node, make_plan, uuids_of

A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"


def node(name, *, product=H100, **changes):
    return replace(make_node(name, **changes), gpus=tuple(make_gpu(name, i, name=product) for i in range(8)))


def plan_for(*nodes, measured=False, **degrees):
    names = [node.name for node in nodes]
    uuids = uuids_of(Inventory(nodes=nodes)) if measured else None
    return make_plan(node_names=names, nodes=len(nodes), gpu_uuids=uuids, **degrees)


def judged(*nodes, plan=None, **settings):
    plan = plan or plan_for(*nodes, tp=8, dp=len(nodes), pp=1)
    return list(judge(Evidence(inventory=Inventory(nodes=nodes), plan=plan, settings=Settings(**settings))))


def fails(findings):
    return [f for f in findings if f.verdict is Verdict.FAIL]


def test_a_uniform_job_passes_once():
    [finding] = judged(*make_inventory(4).nodes)
    assert finding.verdict is Verdict.PASS
    assert finding.observed == "GPU product NVIDIA H100 80GB HBM3; GPU memory 85.5 GB; driver version 550.54.15"


def test_a_group_over_two_drivers_fails_and_says_group_classes_and_ranks():
    nodes = [node(f"n{i}", driver_version="535" if i == 2 else "550") for i in range(4)]
    [finding] = fails(judged(*nodes))
    assert finding.subject == "dp[0-7]"
    assert finding.observed == (
        "8 of 8 groups mix driver version; dp0: 550 on ranks 0,8,24 (n[0-1,3]), 535 on ranks 16 (n2)"
    )
    assert (finding.blames.kind, finding.blames.name) == ("node", "n2")


def test_two_kinds_of_nodes_are_no_fault_while_the_jobs_groups_keep_to_one():
    nodes = [
        node("n0"),
        node("n1"),
        node("n2", product=A100, driver_version="535"),
        node("n3", product=A100, driver_version="535"),
    ]
    mixing = judged(*nodes)
    assert {f.subject for f in fails(mixing)} == {"dp[0-7]"}
    assert all(f.blames.name == "choice of nodes" for f in fails(mixing))
    same_kind = judged(*nodes, plan=plan_for(*nodes[:2], tp=8, dp=2, pp=1))
    assert [f.verdict for f in same_kind] == [Verdict.PASS]
    across = judged(nodes[0], nodes[2], plan=plan_for(nodes[0], nodes[2], tp=16, dp=1, pp=1))
    assert [f.subject for f in fails(across)] == ["tp0", "tp0"]


def test_another_product_in_one_pipeline_fails_too():
    nodes = [node("n0"), node("n1", product=A100)]
    found = fails(judged(*nodes, plan=plan_for(*nodes, tp=8, pp=2, dp=1)))
    assert [f.subject for f in found] == ["pp[0-7]"]
    assert "NVIDIA H100 80GB HBM3 on ranks 0 (n0), NVIDIA A100-SXM4-80GB on ranks 8 (n1)" in found[0].observed


def test_a_node_of_two_products_is_judged_rank_by_rank():
    both = replace(make_node("n0"), gpus=tuple(make_gpu("n0", i, name=A100 if i >= 4 else H100) for i in range(8)))
    assert [f.subject for f in fails(judged(both, plan=plan_for(both, tp=8, dp=1, pp=1)))] == ["tp0"]
    halves = judged(both, plan=plan_for(both, tp=4, dp=2, pp=1))
    assert {f.subject for f in fails(halves)} == {"dp[0-3]"}


def test_measured_gpus_count_before_local_ranks():
    both = replace(make_node("n0"), gpus=tuple(make_gpu("n0", i, name=A100 if i % 2 else H100) for i in range(8)))
    plan = plan_for(both, tp=8, dp=1, pp=1, measured=True)
    assert fails(judged(both, plan=plan))


def test_nccl_versions_are_compared_where_they_are_known():
    nodes = [node("n0", versions={"nccl": "2.27.3"}), node("n1", versions={"nccl": "2.21.5"}), node("n2")]
    [finding] = fails(judged(*nodes))
    assert "mix NCCL version" in finding.observed
    assert "unknown on ranks 16 (n2)" in finding.observed


def test_a_driver_that_is_not_known_leaves_the_question_open():
    findings = judged(node("n0"), node("n1", driver_version=None))
    [unknown] = [f for f in findings if f.verdict is Verdict.UNKNOWN]
    assert unknown.subject == "n1"
    assert "driver version unknown" in unknown.observed


def test_a_node_that_discovery_never_saw_is_unknown():
    nodes = [node("n0"), node("n1")]
    plan = plan_for(*nodes, tp=8, dp=2, pp=1)
    findings = judged(nodes[0], plan=plan)
    assert {f.subject for f in findings if f.verdict is Verdict.UNKNOWN} == {"n1"}


def test_memory_that_drivers_reserve_differently_does_not_mix():
    nodes = [
        node("n0"),
        replace(make_node("n1"), gpus=tuple(make_gpu("n1", i, memory_bytes=85_899_345_920) for i in range(8))),
    ]
    assert fails(judged(*nodes)) == []
    forty = replace(make_node("n1"), gpus=tuple(make_gpu("n1", i, memory_bytes=42_949_672_960) for i in range(8)))
    assert "mix GPU memory" in fails(judged(node("n0"), forty))[0].observed


@pytest.mark.parametrize("gpus", [0, None])
def test_without_gpus_nothing_is_said(gpus):
    nodes = [make_node("n0", gpus=gpus), make_node("n1", gpus=gpus)]
    assert judged(*nodes, plan=plan_for(*nodes, tp=8, dp=2, pp=1)) == []
    assert judged(node("n0"), node("n1", product=A100), cpu_declared=True) == []
