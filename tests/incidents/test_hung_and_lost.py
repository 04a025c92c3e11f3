"""Incidents in which something hangs or does not answer: what is at fault is named where the probes that worked single it out, and nobody is blamed where they don't."""

import functools
import tempfile
from pathlib import Path

import pytest

from preflight.model import Failure, Setting, Topology, Verdict
from tests.incidents.boxes import changed, healthy, l40s
from tests.incidents.live import PIX, PXB, SYS, Box, discovered, kinds
from tests.incidents.measured import GB, all_judged, fleet, hung, measured, nodes_of, plan_of, usual
from tests.incidents.test_pcie_and_peer_access import REDIRECTING, two_cards

HOST = "SHM/direct/direct"


# --- case 9: NVIDIA/nccl issue 2079 ---


def two_ada(*, virtual="none", off=False, acs=0x001D):
    """Two RTX 5880 Ada below one host bridge: with peer access the pair hangs, with NCCL_P2P_DISABLE=1 it finishes."""
    settings = (Setting(name="NCCL_P2P_DISABLE", value="1", origin="environment"),) if off else ()
    node = changed(two_cards(virtual=virtual, acs=acs), settings=settings)
    plan = plan_of([node], tp=2, dp=1)
    alone = usual(plan, copy=25)

    def speed(probe):
        if len(probe.ranks) == 1:
            return alone(probe)
        return 20 * GB if off else hung()

    told = {"settings": {"NCCL_P2P_DISABLE": "1"}} if off else {}
    return all_judged(measured([node], plan, speed, via=lambda _a, _b: HOST, told=lambda _: told))


def test_access_control_that_makes_the_pair_hang_is_named_by_bridge_and_bit():
    found = two_ada()
    assert found.answer == "no-go"
    assert set(found.failed) == {"pcie_acs"}
    ((kind, name),) = found.blamed
    assert kind == "path"
    between = [bridge for bridge in REDIRECTING if bridge in name]
    assert between == ["00:03.1", "22:01.0"]  # those above the two cards; the others lead elsewhere
    said = found.said("pcie_acs")
    assert "0x001d (SrcValid+, ReqRedir+, CmpltRedir+, UpstreamFwd+)" in said
    assert "through the root complex" in said
    assert "was not over after 20 s" in said
    # neither GPU, rank nor node: that they did not come to an end is unknown otherwise
    assert kinds(found.suspected) == {"path"}
    assert {finding.verdict for finding in found.of("reachable")} <= {Verdict.UNKNOWN, Verdict.PASS}


def test_in_a_virtual_machine_the_same_hang_fails_nobody():
    found = two_ada(virtual="kvm")
    assert found.answer == "undecided"
    assert found.suspected == set()
    assert {finding.verdict for finding in found.of("pcie_acs")} == {Verdict.WARN}


def test_without_peer_access_the_same_machine_may_run():
    found = two_ada(off=True)
    assert found.answer == "go", found.text(Verdict.FAIL, Verdict.UNKNOWN)
    assert found.blamed == set()
    assert {finding.verdict for finding in found.of("pcie_acs")} == {Verdict.WARN}


def test_a_hang_without_redirection_is_not_laid_on_the_bridges():
    found = two_ada(acs=0)
    assert found.answer == "undecided"
    assert found.suspected == set()
    assert {finding.verdict for finding in found.of("pcie_acs")} == {Verdict.PASS}
    assert "that GPU 0 - GPU 1 hung has another cause" in found.said("pcie_acs")


# --- NVIDIA/nccl issue 667: pairs below switches hang, pairs through host memory work ---


@functools.cache
def four_on_pcie(user):
    near = {frozenset((0, 1)): PXB, frozenset((2, 3)): PIX}
    box = Box(
        list(l40s().gpus[:4]), (0, 0, 1, 1), user=user, acs=0x1D, relation=lambda a, b: near.get(frozenset((a, b)), SYS)
    )
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        return discovered(box, Path(folder), patch), set(near)


@pytest.mark.parametrize("user", [True, False], ids=["registers can't be read", "registers are read"])
def test_pairs_that_would_use_peer_access_hang_and_those_through_host_memory_work(user):
    node, near = four_on_pcie(user)
    plan = plan_of([node], tp=4, dp=1)
    healthy_speed = usual(plan, pair=11, copy=25)

    def speed(probe):
        stuck = len(probe.ranks) > 2 or frozenset(probe.ranks) in near
        return hung() if stuck and len(probe.ranks) > 1 else healthy_speed(probe)

    found = all_judged(measured([node], plan, speed, via=lambda _a, _b: HOST))
    assert found.answer == "no-go"
    assert kinds(found.suspected) <= {"path", "link"}
    assert found.failed["pcie_acs"] == {"node1 GPU 0 - GPU 1", "node1 GPU 2 - GPU 3"}
    said = found.said("pcie_acs")
    assert ("4 that go through host memory work, which is what ACS or the IOMMU do" in said) is user
    assert ("0x001d" in said) is not user


# --- single cards ---


def leaves(nodes, names):
    return Topology(switches={node.name: (leaf, "spine") for node, leaf in zip(nodes, names, strict=True)})


def run(number, stuck, *, names=None, **job):
    """H100 nodes of which the probes hang that `stuck` says."""
    nodes = fleet(healthy("HGX H100"), number)
    plan = plan_of(nodes, **job)
    healthy_speed = usual(plan)
    return all_judged(
        measured(
            nodes,
            plan,
            lambda probe: hung() if stuck(plan, probe) else healthy_speed(probe),
            topology=leaves(nodes, names) if names else None,
        )
    )


def across(plan, probe):
    return len(nodes_of(plan, probe)) > 1


@pytest.mark.parametrize("number", [2, 4])
def test_one_card_that_fails_is_named_though_a_test_of_rdma_passes(number):
    """NVIDIA/nccl issue 1715: only mlx5_3, and only with GPUDirect RDMA. All that GPU 3 sends over the network hangs; inside its node it works, and its partners work with all others."""
    found = run(number, lambda plan, probe: across(plan, probe) and 3 in probe.ranks)
    assert found.answer == "no-go"
    assert found.suspected == {("nic", "NIC of node1 GPU 3")}
    assert "NCCL_NET_GDR_LEVEL=LOC" in found.said("reachable")


@pytest.mark.parametrize(
    ("number", "names", "blamed"),
    [(4, None, {("node", "node2")}), (4, "aabb", {("node", "node2")}), (4, "abcc", set()), (2, None, set())],
    ids=["leaves unknown", "with a neighbour", "alone on its leaf", "two nodes"],
)
def test_a_node_that_reaches_nobody_is_named_only_where_nothing_else_explains_it(number, names, blamed):
    """The same of a whole node: of two nodes either may be it, and alone on its leaf the leaf's way out explains as much."""
    found = run(number, lambda plan, probe: across(plan, probe) and "node2" in nodes_of(plan, probe), names=names)
    assert found.answer == ("no-go" if blamed else "undecided")
    assert found.suspected == blamed


@pytest.mark.parametrize(("number", "blamed"), [(4, {"environment"}), (3, set()), (2, set())])
def test_where_no_pair_between_nodes_works_it_is_what_they_have_in_common(number, blamed):
    """NVIDIA/nccl issues 769 and 426: index 1 of the address table is link-local on every node, and all of it times out. Of two or three nodes it may also be theirs."""
    found = run(number, across)
    assert found.answer == ("no-go" if blamed else "undecided")
    assert kinds(found.suspected) == blamed
    assert ("NCCL_IB_GID_INDEX" in found.said("reachable")) is bool(blamed)


def test_sets_of_cards_that_hang_together_are_no_fault_of_one():
    """NVIDIA/nccl issues 1591 and 719, nccl-tests issue 242: each card and each two of them work, three and four don't. That singles and pairs pass clears no group, and blames no rank."""
    found = run(2, lambda _plan, probe: len(probe.ranks) > 2, tp=1, dp=16)
    assert found.answer == "undecided"
    assert found.suspected == set()
    said = found.said("reachable")
    assert "dp0 failed 2 of 2 times" in said
    assert "several HCAs at once (NCCL_IB_HCA)" in said
    assert {finding.verdict for finding in found.of("group_busbw")} == {Verdict.UNKNOWN}


@pytest.mark.parametrize("number", [2, 4])
def test_rails_that_are_not_joined_are_said_and_no_card_is_blamed(number):
    """NVIDIA/nccl issue 2013: rings work, a gather fails on seven nodes or more: rails are islands, and NCCL_CROSS_NIC=0 is what such networks need."""

    def between_rails(plan, probe):
        slots = {rank % 8 for rank in probe.ranks}
        return across(plan, probe) and len(probe.ranks) == 2 and len(slots) > 1

    found = run(number, between_rails)
    assert found.answer == "undecided"
    assert found.suspected == set()
    said = found.said("reachable")
    assert "the rails are not joined to each other" in said
    assert "NCCL_CROSS_NIC=0" in said


# --- NVIDIA/nccl issue 1730 ---


def test_one_clean_source_does_not_clear_a_rank_that_does_not_answer():
    """The RAS status of all 256 ranks was OK while rank 118 ran into its timeout. Here all checks of its node pass, its agent answers, and its worker doesn't."""
    nodes = fleet(healthy("HGX H100"), 4)
    plan = plan_of(nodes)
    silent = Failure(
        kind="no_answer", text="the worker of rank 13 gave no answer within 20 s", rank=13, stage="first operation"
    )
    healthy_speed = usual(plan)

    def speed(probe):
        return silent if 13 in probe.ranks and len(probe.ranks) > 1 else healthy_speed(probe)

    found = all_judged(measured(nodes, plan, speed))
    assert found.answer == "no-go"
    assert found.suspected == {("rank", "rank 13 on node2")}
    of_nodes = ("gpus_answer", "xid", "nvlink_links", "hca_ports")
    assert {finding.verdict for check in of_nodes for finding in found.of(check)} == {Verdict.PASS}
