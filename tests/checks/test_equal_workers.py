"""equal_workers catches a node with another number of workers, and leaves alone nodes that are alike."""

from preflight.model import Finding, Part, Placement, Rank, Verdict
from preflight_checks.equal_workers import CHECK
from tests.builders import make_evidence, make_plan


def judge(tasks_per_node: str | None = None, *, nodes: int = 3, gpus: int = 8, tp: int = 8, **launch) -> Finding:
    launch = {"launcher": "torchrun", "rendezvous": "static", "tasks_per_node": tasks_per_node, **launch}
    plan = make_plan(nodes=nodes, gpus_per_node=gpus, tp=tp, launch=launch)
    [finding] = CHECK.judge(make_evidence(plan=plan))
    return finding


def test_nodes_with_as_many_workers_pass():
    finding = judge()
    assert (finding.verdict, finding.observed, finding.remedy) == (Verdict.PASS, "8 workers on each of 3 nodes", "")
    assert judge("4", tp=4).verdict is Verdict.PASS
    assert judge(nodes=1).observed == "8 workers on each of 1 node"


def test_one_worker_less_tears_every_later_group():
    # 7 + 8 + 8 + 1: the ranks of every tp group but none of the first node's own begin inside a node
    finding = judge("7,8,8,1", nodes=4)
    assert finding.verdict is Verdict.WARN
    assert (
        "8 workers on 2 nodes (node[1-2]), 1 worker on 1 node (node3), 7 workers on 1 node (node0)" in finding.observed
    )
    assert "3 of 3 tp groups lie on several nodes, the first is tp0: ranks 0-7 on node0, node1" in finding.observed


def test_a_single_odd_node_is_named_with_what_to_do():
    finding = judge("8,8,8,16", nodes=4, gpus=16)
    assert finding.blames == Part(kind="node", name="node3", confidence="possible")
    assert "no tp group is torn" in finding.observed
    assert "start as many workers on node3 as on the others" in finding.remedy
    assert "torchrun --nproc-per-node: the same number everywhere, from 8 to 16" in finding.remedy


def test_a_missing_worker_is_blamed_rather_than_a_spare_one():
    finding = judge("7,8", nodes=2, tp=1)
    assert finding.blames == Part(kind="node", name="node0", confidence="possible")


def test_the_remedy_speaks_the_launchers_language():
    assert "srun --ntasks-per-node" in judge("8,8,16", gpus=16, launcher="slurm", rendezvous=None).remedy


def test_measured_placements_are_judged_too():
    ranks = [Rank(rank=i, node=f"n{node}", node_rank=node, local_rank=0) for i, node in enumerate([0, 0, 1])]
    placement = Placement.of(ranks, source="measured", method="environment")
    [finding] = CHECK.judge(make_evidence(plan=make_plan(placement=placement, tp=1, nodes=None)))
    assert finding.verdict is Verdict.WARN
