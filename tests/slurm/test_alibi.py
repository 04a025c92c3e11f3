"""Small jobs on scattered nodes: what a network does to a healthy node is never held against it, and a sick one is found where its leaf has others to compare it with."""

import msgspec
import pytest

from preflight.config import Site
from preflight.fleet.run import run
from preflight.fleet.simulated import simulated_world
from preflight.model import Evidence, Finding, Part, Topology, Verdict
from preflight.probe.simulate import Fault, plain_cluster
from preflight.registry import load_checks
from preflight.slurm.controller_decide import decide
from preflight.slurm.controller_plan import what_to_measure
from preflight.slurm.directive import Directive
from preflight.slurm.guilty import guilty_nodes
from tests.builders import make_measurement, make_plan

CHECKS = load_checks()
USES = {check.name: check.uses for check in CHECKS}


def measured(leaves, *faults, gpus=2, **more):
    cluster = plain_cluster(leaves, faults=faults, gpus_per_node=gpus, **more)
    world, agents = simulated_world(cluster, 0, "c.toml")
    nodes = tuple(agent.name for agent in agents)
    wanted = what_to_measure(nodes, {node: tuple(range(gpus)) for node in nodes}, Directive(), Site(), (22, 5))
    assert wanted is not None
    return run(wanted.job, CHECKS, progress=lambda *_: None, budget_s=294, agents=agents, world=world), nodes


def judged(*arguments, **more):
    """Whom a scan would suspect, and the decision of the controller prolog."""
    report, nodes = measured(*arguments, **more)
    let_off: list[str] = []
    guilty = guilty_nodes(report.findings, report.evidence, let_off=let_off)
    return set(guilty), decide(report, nodes, USES, nobody_guilty="hold"), let_off


def slow(*nodes):
    return Fault(kind="node", nodes=nodes, depth=0.4)


@pytest.mark.parametrize(
    "leaves", [pytest.param((3, 3), marks=pytest.mark.soak), (2, 1), pytest.param((5,), marks=pytest.mark.soak)]
)
def test_a_slow_node_with_others_on_its_leaf_is_drained(leaves):
    guilty, decision, let_off = judged(leaves, slow("n1"))
    assert (guilty, set(decision.guilty), let_off) == ({"n1"}, {"n1"}, [])


@pytest.mark.parametrize(
    ("leaves", "more"),
    [
        ((6, 1), {"oversubscription": 2.0}),
        pytest.param((4, 1, 1, 2), {"oversubscription": 2.0}, marks=pytest.mark.soak),
        pytest.param((4, 1, 1, 2), {"oversubscription": 2.0, "leaves_told": False}, marks=pytest.mark.soak),
        ((6, 1), {"oversubscription": 2.0, "leaves_told": False}),
    ],
)
def test_a_healthy_node_alone_on_its_leaf_is_not_drained_for_few_uplinks(leaves, more):
    guilty, decision, _ = judged(leaves, gpus=8, **more)
    assert (guilty, decision.guilty) == (set(), {})


def test_where_nobody_tells_the_leaves_nothing_is_drained_for_a_slow_way_and_it_is_said_why():
    guilty, decision, let_off = judged((5,), slow("n1"), leaves_told=False)
    assert (guilty, decision.guilty, decision.course) == (set(), {}, "unknown")
    assert "which leaf it is on is not known" in let_off[0]
    assert decision.let_off == tuple(let_off)


@pytest.mark.soak
def test_where_half_of_the_nodes_are_slow_nobody_is_drained():
    guilty, decision, _ = judged((6,), slow("n0", "n1", "n2"))
    assert (guilty, decision.guilty) == (set(), {})


def test_a_node_that_is_fast_with_another_leaf_is_not_what_holds_its_own_leaf_back():
    fault = Fault(kind="path", nodes=("n0", "n4"), other_nodes=("n1", "n2", "n3"), depth=0.86)
    guilty, decision, _ = judged((1, 4), fault, oversubscription=2.0, gpus=4, gpus_per_nic=2)
    assert (guilty, decision.guilty) == (set(), {})


def told(findings, *, pairs, leaves=("a",) * 4, topology=None):
    """What is left of findings beside pairs of one rank a node, each measured twice."""
    plan = make_plan(tp=1, dp=4, nodes=4, gpus_per_node=1)
    placement = msgspec.structs.replace(plan.placement, nodes=("n0", "n1", "n2", "n3"), leaves=leaves)
    measurements = tuple(make_measurement(pair, algbw_bytes_per_s=rate) for pair, rate in pairs.items() for _ in "12")
    evidence = Evidence(
        plan=msgspec.structs.replace(plan, placement=placement), measurements=measurements, topology=topology
    )
    let_off: list[str] = []
    return set(guilty_nodes(findings, evidence, let_off=let_off)), "; ".join(let_off)


def against(node, kind="node", verdict=Verdict.FAIL, check="slow_part"):
    part = Part(kind=kind, name=node)
    return Finding(check=check, subject=node, verdict=verdict, observed="slow", remedy="look", blames=part)


ALL = [(a, b) for a in range(4) for b in range(a + 1, 4)]
SLOW_N1 = {pair: 5e8 if 1 in pair else 1e9 for pair in ALL}


def test_pairs_that_bear_a_finding_out():
    assert told([against("n1")], pairs=SLOW_N1) == ({"n1"}, "")


def test_a_finding_that_no_pair_bears_out_drains_nobody():
    guilty, why = told([against("n1")], pairs=dict.fromkeys(ALL, 1e9))
    assert guilty == set()
    assert "not seen to be slow with nodes of its own leaf" in why


def test_a_node_that_was_as_fast_with_one_of_its_leaf_is_not_drained():
    guilty, why = told([against("n1")], pairs={**SLOW_N1, (1, 3): 1e9})
    assert guilty == set()
    assert "it was as fast with n3" in why


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.UNKNOWN])
def test_while_the_network_itself_is_slow_somewhere_no_node_is_drained_for_its_way(verdict):
    guilty, why = told([against("n1"), against("n0 to n2", "path", verdict)], pairs=SLOW_N1)
    assert guilty == set()
    assert "more of the network was slow in the same run (n0 to n2)" in why


def test_a_leaf_of_more_nodes_than_a_switch_has_ports_is_none():
    names = [f"n{number}" for number in range(200)]
    whole = Topology(switches=dict.fromkeys(names, ("all",)), source="topology.conf")
    guilty, why = told([against("n1")], pairs=SLOW_N1, topology=whole)
    assert guilty == set()
    assert "more nodes by the topology file than a switch has ports" in why


@pytest.mark.parametrize("kind", ["node", "gpu"])
def test_where_half_of_the_nodes_compute_slower_they_are_a_kind_of_their_own(kind):
    one, two = (against(node if kind == "node" else f"{node} GPU 0", kind, check="gpu_speed") for node in ("n1", "n2"))
    assert told([one], pairs=SLOW_N1) == ({"n1"}, "")
    guilty, why = told([one, two], pairs=SLOW_N1)
    assert guilty == set()
    assert "2 of 4 nodes are as slow" in why
