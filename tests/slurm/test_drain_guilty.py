"""Which nodes findings are reason enough to drain, and above all which they are not."""

import pytest

from preflight.model import Evidence, Finding, Inventory, Node, Part, Verdict
from preflight.slurm.guilty import guilty_nodes
from tests.builders import make_plan


def evidence(*names: str, **facts) -> Evidence:
    return Evidence(inventory=Inventory(nodes=tuple(Node(name=name) for name in names)), **facts)


NODES = ("n1", "n2", "n3", "n4", "n12")
FIVE = evidence(*NODES)


def blaming(kind, name, check="slow_part", verdict=Verdict.FAIL, confidence="likely"):
    part = Part(kind=kind, name=name, confidence=confidence)
    return Finding(check=check, subject=name, verdict=verdict, observed="bad", remedy="mend it", blames=part)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("node", "n1"),
        ("gpu", "n1 GPU 2 (GPU-2222aaaa-0000-0000-0000-000000000002)"),
        ("gpu", "n1 GPU 2"),
        ("gpu", "n1 GPU at 0000:3b:00.0"),
        ("gpu", "the GPU of rank 3 on n1"),
        ("nic", "NIC of n1 GPU 2"),
        ("nic", "n1 mlx5_0"),
        ("link", "n1 GPU 2 (GPU-2222aaaa-0000-0000-0000-000000000002) link 3"),
        ("link", "n1 GPU 0 - GPU 3"),
        ("link", "n1 GPU 0 to n1 GPU 3"),
        ("switch", "n1 NVSwitch 0000:07:00.0"),
    ],
)
def test_a_part_that_lies_in_one_node_drains_it(kind, name):
    finding = blaming(kind, name)
    assert guilty_nodes([finding], FIVE) == {"n1": (finding,)}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("link", "n1 GPU 0 to n2 GPU 0"),
        ("link", "n1 GPU 0 to n99 GPU 0"),
        ("link", "ranks 3,7"),
        ("nic", "NIC of n1 GPU 2 and n2 GPU 2"),
        ("node", "n[1-2]"),
        ("node", "n9"),
        ("gpu", "n9 GPU 1"),
        ("path", "n1 to n2"),
        ("path", "n1"),
        ("leaf", "n1"),
        ("uplink", "uplink of leaf1"),
        ("rail", "rail 2"),
        ("slot", "slot 2"),
        ("rank", "rank 3 on n1"),
        ("class", "driver 570.86.15"),
        ("environment", "clock of n1"),
        ("plan", "launch.master"),
    ],
)
def test_a_part_that_lies_in_several_nodes_or_in_none_drains_nobody(kind, name):
    assert guilty_nodes([blaming(kind, name)], FIVE) == {}


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict is not Verdict.FAIL])
def test_what_is_not_a_fail_drains_nobody(verdict):
    assert guilty_nodes([blaming("node", "n1", verdict=verdict)], FIVE) == {}


def test_a_mere_possibility_drains_nobody_and_neither_does_a_fail_that_blames_nothing():
    nothing = Finding(check="x", subject="n1", verdict=Verdict.FAIL, observed="bad")
    assert guilty_nodes([blaming("node", "n1", confidence="possible"), nothing], FIVE) == {}


@pytest.mark.parametrize("check", ["reachable", "hca_addressing", "gpu_count", "group_uniform", "gpu_per_rank"])
def test_what_a_plan_asks_for_and_an_agent_that_is_silent_are_no_fault_of_the_node(check):
    assert guilty_nodes([blaming("node", "n1", check)], FIVE) == {}


@pytest.mark.parametrize(
    "check", ["slow_part", "gpu_speed", "nvlink_speed", "hca_ports", "node_uniform", "of_the_site"]
)
def test_the_same_on_all_of_four_nodes_or_more_is_the_environment(check):
    alike = [blaming("gpu", f"{name} GPU 1", check) for name in NODES]
    assert guilty_nodes(alike, FIVE) == {}
    assert set(guilty_nodes(alike[:-1], FIVE)) == set(NODES[:-1])
    assert set(guilty_nodes(alike[:3], evidence(*NODES[:3]))) == set(NODES[:3])


def test_what_all_have_does_not_excuse_what_one_has_beside_it():
    alike = [blaming("node", name, "gpu_speed") for name in NODES]
    own = blaming("gpu", "n3 GPU 1", "slow_part")
    assert guilty_nodes([*alike, own], FIVE) == {"n3": (own,)}


@pytest.mark.parametrize("check", ["xid", "row_remap", "gpus_answer", "gpu_census", "ecc_errors", "recovery_action"])
def test_hard_evidence_is_never_excused_by_company(check):
    assert set(guilty_nodes([blaming("gpu", f"{name} GPU 1", check) for name in NODES], FIVE)) == set(NODES)


def test_a_silent_node_does_not_make_the_others_less_alike():
    alike = [blaming("gpu", f"{name} GPU 1", "gpu_speed") for name in NODES[:4]]
    assert guilty_nodes([*alike, blaming("node", "n12", "reachable")], FIVE) == {}


def test_a_node_that_only_the_plan_knows_counts():
    """Its agent may be lost, so that the inventory lacks it."""
    plan = make_plan(nodes=2, tp=8, pp=2, dp=1)
    far = plan.placement.nodes[1]
    assert guilty_nodes([blaming("node", far)], Evidence(plan=plan))[far]
    assert guilty_nodes([blaming("node", "n1")], Evidence()) == {}


def test_nodes_whose_names_are_numbers_are_told_from_numbers_of_gpus():
    numbered = evidence("1", "2")
    finding = blaming("gpu", "1 GPU 2")
    assert guilty_nodes([finding], numbered) == {"1": (finding,)}
    assert guilty_nodes([blaming("gpu", "the GPU of rank 1 on 2")], numbered) == {}
