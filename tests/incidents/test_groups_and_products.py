"""Incidents of groups, network cards and products: what a formula, peers of the same shape and other sizes say of a rate, and what they don't."""

import functools
import tempfile
from dataclasses import replace as with_fields
from pathlib import Path

import pytest
from msgspec.structs import replace

from preflight.model import Topology, Verdict
from tests.incidents.boxes import changed, direct, h100_nvl, healthy, with_gpus
from tests.incidents.live import discovered, kinds
from tests.incidents.measured import GB, all_judged, fleet, measured, nodes_of, plan_of, usual

GBIT = 10**9 // 8
PARTS = {"node", "gpu", "nic", "rank", "link", "slot", "leaf"}


def with_ports(node, gbit, **facts):
    """The node with all ports of its HCAs at this rate."""
    return changed(
        node,
        hcas=tuple(
            changed(hca, ports=(changed(hca.ports[0], rate_bytes_per_s=gbit * GBIT),), **facts) for hca in node.hcas
        ),
    )


def one_group(node, number, rate, *, topology=None, **speeds):
    """All GPUs of so many of these nodes as one group, at this busbw in GB/s; all pairs are as fast as they should be."""
    nodes = fleet(node, number)
    plan = plan_of(nodes, tp=1, dp=len(node.gpus) * number)
    pairs = usual(plan, **speeds)
    found = topology and Topology(switches={n.name: (leaf, "spine") for n, leaf in zip(nodes, topology, strict=True)})
    return all_judged(
        measured(
            nodes,
            plan,
            lambda probe: (
                rate * GB if len(nodes_of(plan, probe)) == number > 1 and len(probe.ranks) > 2 else pairs(probe)
            ),
            topology=found,
        )
    )


# --- groups beyond two nodes ---


@pytest.mark.parametrize(
    ("number", "rate", "answer"), [(2, 100, "go"), (3, 70, "no-go"), (4, 58, "no-go"), (6, 40, "no-go")]
)
def test_two_nodes_above_their_cards_prove_nothing_and_larger_groups_are_held_against_the_cards(number, rate, answer):
    """NVIDIA/nccl-tests issue 169: eight cards of 100 Gbit/s: 100, 70, 58 and 40 GB/s over 2, 3, 4 and 6 nodes, though each pair is well. No node is to blame for it."""
    found = one_group(with_ports(healthy("HGX A100"), 100), number, rate, ring=230, nic=11.8, copy=25)
    assert found.answer == answer
    assert set(found.failed) <= {"group_busbw"}
    assert not PARTS & kinds(found.suspected)
    said = found.said("group_busbw")
    if answer == "no-go":
        assert "8 NICs x 12.0 GB/s = 96.0 GB/s" in said
        assert "NIC settings or their route" in said
        assert {finding.verdict for finding in found.of("slow_part")} == {Verdict.PASS}


def test_three_nodes_over_two_racks_fail_as_a_group_though_any_two_of_them_are_good():
    """NVIDIA/nccl issue 1453: pairs are not enough, and clear every node: it is how they come together."""
    found = one_group(healthy("HGX H100"), 3, 5.0, topology="aab")
    assert found.answer == "no-go"
    assert found.failed == {"group_busbw": {"dp0"}}
    assert not PARTS & kinds(found.suspected)
    assert "if no pair of them is slow" in found.said("group_busbw")
    assert one_group(healthy("HGX H100"), 2, 360.0, topology="ab").answer == "go"


@pytest.mark.parametrize("rate", [40.0, 20.0])
def test_a_group_without_a_like_one_is_never_compared_with_groups_over_other_numbers_of_nodes(rate):
    """NVIDIA/nccl issue 1856: two cards of 400 Gbit/s: 40 GB/s over two and four nodes, 20 over three, which the formula and no peer finds: all of them are below 96."""
    node = healthy("HGX H100")
    near = {i: {"nics": {"mlx5_0": "PIX" if i == 0 else "SYS", "mlx5_4": "PIX" if i == 4 else "SYS"}} for i in range(8)}
    node = with_gpus(changed(node, hcas=(node.hcas[0], node.hcas[4])), near)
    for number in (2, 3, 4):
        found = one_group(node, number, rate, nic=11.5)
        assert not PARTS & kinds(found.suspected)
        assert "of its peers" not in found.said("group_busbw")


@pytest.mark.parametrize(("collective", "answer"), [("reduce_scatter", "no-go"), (None, "go")])
def test_more_than_one_operation_of_a_group_is_timed(collective, answer):
    """NVIDIA/nccl issue 1114: reduce-scatter alone was very slow. A plan that shards its optimiser times reduce-scatter and all-gather."""
    nodes = fleet(healthy("HGX H100"), 3)
    plan = plan_of(nodes, tp=1, dp=24, zero_stage=1)
    speed = usual(plan)
    slow = lambda probe: probe.collective == collective and len(probe.ranks) > 2  # noqa: E731 - as short as a table
    found = all_judged(measured(nodes, plan, lambda probe: 20 * GB if slow(probe) else speed(probe)))
    assert found.answer == answer
    assert set(found.failed) <= {"group_busbw"}
    assert not PARTS & kinds(found.suspected)


@pytest.mark.parametrize("members", [(0,), (0, 1)])
def test_groups_of_other_members_than_planned_fail_however_fast(members):
    """ml-explore/mlx issue 4283: N groups of one, each of which reports a figure."""
    nodes = fleet(healthy("HGX H100"), 2)
    plan = plan_of(nodes)
    run = measured(nodes, plan)
    alone = tuple(
        replace(m, members=tuple(m.probe.ranks[i] for i in members)) if m.probe.axis == "tp" else m
        for m in run.measurements
    )
    found = all_judged(replace(run, measurements=alone))
    assert found.failed == {"group_busbw": {"tp0", "tp1"}}
    assert not PARTS & kinds(found.suspected)
    assert f"the communicator had {len(members)} member" in found.said("group_busbw")
    assert "same rendezvous address" in found.said("group_busbw")


def test_wrong_data_on_a_pair_fails_though_it_is_fast():
    """NVIDIA/nccl-tests issue 131: 50 values out of bounds between two GPUs below one host bridge; which of both is at fault the pair alone can't tell."""
    node = healthy("L40S")
    plan = plan_of([node], tp=8, dp=1)
    run = measured([node], plan, usual(plan, pair=22, ring=22, copy=25))
    wrong = tuple(replace(m, data_correct=False) if m.probe.ranks == (2, 3) else m for m in run.measurements)
    found = all_judged(replace(run, measurements=wrong))
    assert found.answer == "no-go"
    assert found.failed == {"data_correct": {"pair 2-3"}}
    assert found.suspected == set()


def test_wrong_data_with_every_partner_names_the_rank():
    node = healthy("L40S")
    plan = plan_of([node], tp=8, dp=1)
    run = measured([node], plan, usual(plan, pair=22, ring=22, copy=25))
    wrong = tuple(
        replace(m, data_correct=False) if 5 in m.probe.ranks and len(m.probe.ranks) > 1 else m for m in run.measurements
    )
    found = all_judged(replace(run, measurements=wrong))
    assert kinds(found.blamed) == {"rank"}
    assert {name for _, name in found.blamed} == {"rank 5"}


# --- cards ---


def every_second(node):
    """Four cards for eight GPUs: each beside two of them."""
    kept = node.hcas[::2]
    near = {
        i: {"nics": {hca.name: "PXB" if place == i // 2 else "SYS" for place, hca in enumerate(kept)}} for i in range(8)
    }
    return with_gpus(changed(node, hcas=kept), near)


@pytest.mark.parametrize(
    ("rate", "request_bytes", "answer"), [(93.25, 4096, "go"), (60.0, 4096, "no-go"), (60.0, 128, "no-go")]
)
def test_a_setting_of_the_cards_shows_as_a_rate_below_the_formula_and_blames_no_card(rate, request_bytes, answer):
    """NVIDIA/nccl-tests issue 152: four cards of 200 Gbit/s give 93.25 GB/s once their outstanding reads were raised. What sysfs tells of it is said; that firmware setting isn't in it."""
    node = every_second(healthy("HGX A100"))
    node = changed(node, hcas=tuple(changed(hca, max_read_request_bytes=request_bytes) for hca in node.hcas))
    found = one_group(node, 2, rate, ring=230, nic=11.7, copy=25)
    assert found.answer == answer
    assert set(found.failed) <= {"group_busbw"}
    assert not PARTS & kinds(found.blamed)
    assert "4 NICs x 24.0 GB/s = 96.0 GB/s" in found.of("group_busbw")[0].expected
    assert ("Max_Read_Request_Size 128 bytes" in found.said("hca_read_request")) is (request_bytes == 128)


def dual_port(*, bond=False):
    """GPUs of which all have the two ports of one card of PCIe Gen3, or a bond of both."""
    node = healthy("HGX A100")
    first = changed(with_ports(node, 100).hcas[0], pcie=changed(node.hcas[0].pcie, generation=3, max_generation=3))
    if bond:
        port = changed(first.ports[0], rate_bytes_per_s=400 * GBIT)
        card = changed(node.hcas[0], name="mlx5_bond_0", ports=(port,))
        hcas = (card,)
    else:
        hcas = tuple(changed(first, name=f"mlx5_{i}", pci_bus_id=f"0000:60:00.{i}") for i in range(2))
    return with_gpus(changed(node, hcas=hcas), {i: {"nics": {hca.name: "PXB" for hca in hcas}} for i in range(8)})


@pytest.mark.parametrize(("rate", "answer"), [(13.0, "go"), (6.0, "no-go")])
def test_two_ports_of_one_card_share_its_pcie_link(rate, answer):
    """openucx/ucx issue 9520: two ports of one card give 13 GB/s, one port of each of two cards 23.6."""
    found = one_group(dual_port(), 2, rate, ring=230, nic=rate / 8, copy=25)
    assert found.answer == answer, found.text(Verdict.FAIL, Verdict.UNKNOWN)
    assert "200 Gbit/s behind PCIe Gen3 x16: 12.0 GB/s" in found.of("group_busbw")[0].expected
    assert not PARTS & kinds(found.suspected)


@pytest.mark.parametrize(("rate", "verdict"), [(30.0, Verdict.PASS), (12.0, Verdict.WARN)])
def test_what_a_bond_carries_differs_by_tool_and_is_worth_a_look_no_more(rate, verdict):
    """NVIDIA/nccl-tests issue 265: two ports of 200 Gbit/s as a bond: 395 Gbit/s by RDMA test, 240 by NCCL."""
    found = one_group(dual_port(bond=True), 2, rate, ring=230, nic=rate / 8, copy=25)
    assert found.text(Verdict.FAIL) == []
    assert min(finding.verdict.rank for finding in found.of("group_busbw")) == verdict.rank


# --- products ---


@pytest.mark.parametrize(
    ("box", "ring", "pair"),
    [
        ("HGX A100", 230.0, 200.0),  # NVIDIA/nccl-tests issues 149 and 258: 230 of 300 GB/s
        ("board of four A100", 230.0, 72.0),  # issue 331: 72 of 100 GB/s between two
        ("HGX H100", 476.0, 330.0),  # issue 290: with NVLS
        ("HGX H100", 367.0, 330.0),  # and by ring
        ("HGX B200", 690.0, 600.0),
    ],
)
def test_what_products_reach_is_below_their_data_sheets_and_healthy(box, ring, pair):
    """NVIDIA/nccl issue 1054: about 80 % of what links promise. Issue 1264: 783 of 900 GB/s, both ways, on H100."""
    node = healthy(box)
    plan = plan_of([node], tp=len(node.gpus), dp=1)
    found = all_judged(measured([node], plan, usual(plan, ring=ring, pair=pair, copy=25)))
    assert found.answer == "go", found.text(Verdict.FAIL, Verdict.UNKNOWN)
    assert found.text(Verdict.WARN) == []


def bridged(plan, *, near=116.0, far=40.0, dead=()):
    speed = usual(plan, ring=near, pair=near)

    def answer(probe):
        joined = {rank // 2 for rank in probe.ranks}
        slow = len(joined) > 1 or joined & set(dead)
        return far * GB if slow and len(probe.ranks) > 1 else speed(probe)

    return answer, lambda a, b: "P2P/CUMEM" if a // 2 == b // 2 not in dead else "SHM/direct/direct"


def test_bridged_pairs_are_fast_and_the_ways_between_them_are_as_slow_as_pcie():
    """NVIDIA/nccl issue 1161: 116 GB/s between two bridged H100 cards at 1 to 4 GB. What lies between pairs is held against PCIe, not against network cards or bridges."""
    node = healthy("H100 NVL in bridged pairs")
    plan = plan_of([node], tp=2, dp=2)
    speed, via = bridged(plan)
    found = all_judged(measured([node], plan, speed, via=via))
    assert found.answer == "go", found.text(Verdict.FAIL, Verdict.UNKNOWN)
    assert found.text(Verdict.WARN) == []


@functools.cache
def half_down():
    """Four H100 NVL of which GPUs 2 and 3 are joined by twelve links, and 0 and 1 by none."""
    box = h100_nvl()
    links = [[0] * 4, [0] * 4, [0, 0, 0, 12], [0, 0, 12, 0]]
    gpus = [with_fields(gpu, links=direct(i, links, 12)) for i, gpu in enumerate(box.gpus)]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        return discovered(with_fields(box, gpus=gpus), Path(folder), patch)


def test_a_dead_bridge_is_the_pair_s_and_neither_gpu_s():
    """The course page "Your NVLink Is Half-Down": the group on the dead pair is slow; its GPUs are as good over PCIe as the others are."""
    node = half_down()
    plan = plan_of([node], tp=2, dp=2)
    speed, via = bridged(plan, near=240.0, dead=(0,))
    found = all_judged(measured([node], plan, speed, via=via))
    assert found.answer == "no-go"
    assert found.blamed == {("link", "node1 GPU 0 - GPU 1")}
    assert found.failed["group_busbw"] == {"tp0"}
    assert "slow_part" not in found.failed


def test_two_boxes_are_not_one_nvlink_domain():
    """NVIDIA/nvbandwidth issue 44: two HGX B200, IMEX connected, links at 50 GB/s: still two domains. A tensor-parallel group over both is the plan's fault, and the network's rate is healthy."""
    nodes = fleet(healthy("HGX B200"), 2)
    plan = plan_of(nodes, tp=16, dp=1)
    found = all_judged(measured(nodes, plan, usual(plan, ring=690)))
    assert found.answer == "no-go"
    assert set(found.failed) == {"tp_in_nvlink_domain"}
    assert kinds(found.blamed) == {"plan"}
    assert "no NVLink between them" in found.said("tp_in_nvlink_domain")


@pytest.mark.parametrize("shared", [True, False])
def test_one_card_behind_two_sockets_is_not_counted_twice(shared):
    """NVIDIA/nccl issue 307: two cables of 100 Gbit/s look like four interfaces (socket direct); 24 GB/s is all that they carry. Where one card is behind several PCIe links, a formula that counts
    interfaces is a hint, no limit.
    """
    node = every_second(with_ports(healthy("HGX A100"), 100))
    cards = ("b83f:d203:00aa:0001", "b83f:d203:00aa:0002")
    hcas = tuple(changed(hca, card_guid=cards[i % 2] if shared else f"card{i}") for i, hca in enumerate(node.hcas))
    found = one_group(changed(node, hcas=hcas), 2, 23.0, ring=230, nic=2.9, copy=25)
    assert not PARTS & kinds(found.suspected)
    assert ("group_busbw" in found.failed) is not shared
    if shared:
        assert "a hint" in found.of("group_busbw")[0].expected
