"""The simulated fabric: what its probes measure when all is well, and that each planted fault shows where it should and nowhere else."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.probe.schedule import circle_rounds
from preflight.probe.simulate import Fabric, Fault, plain_cluster

NIC, NVLINK = 48e9, 370e9


def cluster(*faults, **more):
    """Three leaves of 4 nodes with 4 GPUs, without noise unless asked for."""
    return plain_cluster((4, 4, 4), **{"gpus_per_node": 4, "noise": 0.0, "faults": faults, **more})


def end(node, slot):
    return node * 4 + slot


def rate(fabric, a, b, op="send_recv", number=0):
    return fabric.pairs(op, [(a, b)], number)[0]


def slow_ones(fabric, op="send_recv", number=0):
    """All pairs of unlike ends (each way, if one way is meant) that reach less than a healthy cluster's; in rounds of disjoint pairs, which share nothing here."""
    healthy = Fabric(msgspec.structs.replace(fabric.cluster, faults=(), collision_rate=0.0), 0)
    rounds = circle_rounds(48)
    if op == "send":
        rounds += [[(b, a) for a, b in pairs] for pairs in rounds]
    slow = set()
    for pairs in rounds:
        measured = zip(pairs, fabric.pairs(op, pairs, number), healthy.pairs(op, pairs, number), strict=True)
        slow |= {pair for pair, mine, well in measured if (mine or 0) < well * 0.999}
    return slow


def test_a_healthy_pair_reaches_its_nic_between_nodes_and_nvlink_inside():
    fabric = Fabric(cluster(), 0)
    assert rate(fabric, end(0, 1), end(5, 1)) == NIC
    assert rate(fabric, end(0, 1), end(0, 3)) == NVLINK
    assert rate(fabric, end(2, 2), end(2, 2), "host_to_device") == 55e9
    assert rate(fabric, end(2, 2), end(2, 2), "matmul") == 7e14


def test_routes_across_leaves_and_between_unlike_slots_reach_less_where_the_cluster_says_so():
    fabric = Fabric(cluster(other_leaf_loss=0.06, unlike_slot_loss=0.1), 0)
    assert rate(fabric, end(0, 1), end(1, 1)) == NIC
    assert rate(fabric, end(0, 1), end(5, 1)) == pytest.approx(NIC * 0.94)
    assert rate(fabric, end(0, 1), end(1, 2)) == pytest.approx(NIC * 0.9)


def test_all_pairs_of_a_round_share_what_they_have_in_common():
    fabric = Fabric(cluster(oversubscription=4.0, rails=False), 0)
    pairs = [(end(node, slot), end(node + 4, slot)) for node in range(4) for slot in range(4)]
    assert fabric.pairs("send_recv", pairs, 0) == pytest.approx([NIC / 4] * 16)
    assert fabric.pairs("send_recv", pairs[:4], 0) == pytest.approx([NIC] * 4)


def test_gpus_that_share_a_nic_halve_it():
    fabric = Fabric(cluster(gpus_per_nic=2), 0)
    assert fabric.pairs("send_recv", [(0, 4), (1, 5), (2, 6)], 0) == pytest.approx([NIC / 2, NIC / 2, NIC])


def test_nodes_of_one_nvlink_domain_reach_each_other_over_nvlink():
    fabric = Fabric(cluster(domains=("rack0",) * 6 + ("rack1",) * 6), 0)
    assert rate(fabric, end(0, 0), end(5, 3)) == NVLINK
    assert rate(fabric, end(0, 0), end(6, 0)) == NIC


FAULTS = [
    (Fault(kind="gpu", ends=(5,), depth=0.3), lambda a, b: 5 in {a, b}),
    (Fault(kind="nic", ends=(5,), depth=0.3), lambda a, b: 5 in {a, b} and a // 4 != b // 4),
    (Fault(kind="node", nodes=("n02",), depth=0.3), lambda a, b: (a // 4 == 2) != (b // 4 == 2)),
    (Fault(kind="slot", slot=3, depth=0.3), lambda a, b: 3 in {a % 4, b % 4} and a // 4 != b // 4),
    (Fault(kind="link", ends=(5, 21), depth=0.3), lambda a, b: {a, b} == {5, 21}),
    (Fault(kind="leaf", leaf="leaf1", depth=0.3), lambda a, b: a // 16 == b // 16 == 1 and a // 4 != b // 4),
    (Fault(kind="uplink", leaf="leaf1", depth=0.3), lambda a, b: (a // 16 == 1) != (b // 16 == 1)),
    (
        Fault(kind="uplink", leaf="leaf1", slot=2, depth=0.3),
        lambda a, b: (a // 16 == 1 and a % 4 == 2 and b // 16 != 1) or (b // 16 == 1 and b % 4 == 2 and a // 16 != 1),
    ),
    (
        Fault(kind="path", nodes=("n00", "n01"), other_nodes=("n08",), depth=0.3),
        lambda a, b: {a // 4, b // 4} in ({0, 8}, {1, 8}),
    ),
    (Fault(kind="class", nodes=("n00", "n07"), depth=0.3), lambda a, b: a // 4 != b // 4 and {a // 4, b // 4} & {0, 7}),
    (
        Fault(kind="class", nodes=("n00", "n07"), other_nodes=("n03",), depth=0.3),
        lambda a, b: {a // 4, b // 4} in ({0, 3}, {7, 3}),
    ),
    (Fault(kind="environment", depth=0.3), lambda a, b: a // 4 != b // 4),
]


@pytest.mark.parametrize(("fault", "crosses"), FAULTS, ids=lambda each: getattr(each, "kind", ""))
@pytest.mark.parametrize("failed", [False, True])
def test_a_fault_shows_in_the_pairs_that_cross_it_to_its_depth_and_in_no_other(fault, crosses, failed):
    fabric = Fabric(cluster(msgspec.structs.replace(fault, failed=failed), other_leaf_loss=0.06), 0)
    slow = slow_ones(fabric)
    assert slow == {(a, b) for a in range(48) for b in range(a + 1, 48) if crosses(a, b)}
    healthy = Fabric(cluster(other_leaf_loss=0.06), 0)
    for pair in list(slow)[:20]:
        expected = None if failed else pytest.approx(rate(healthy, *pair) * 0.7)
        assert rate(fabric, *pair) == expected


@pytest.mark.parametrize(("fault", "crosses"), FAULTS, ids=lambda each: getattr(each, "kind", ""))
def test_a_fault_of_one_direction_slows_one_way_only(fault, crosses):
    def one_way(direction):
        return slow_ones(Fabric(cluster(msgspec.structs.replace(fault, direction=direction)), 0), "send")

    sending, receiving = one_way("sending"), one_way("receiving")
    assert sending | receiving == {(a, b) for a in range(48) for b in range(48) if a != b and crosses(a, b)}
    assert {(b, a) for a, b in sending} == receiving
    if fault.kind in {"nic", "gpu"}:
        assert {a for a, _ in sending} == {5}


def test_part_of_an_uplink_slows_always_the_same_gpus():
    fault = Fault(kind="uplink", leaf="leaf0", share=0.25, depth=0.3)
    slow = slow_ones(Fabric(cluster(fault), 3))
    assert {b // 16 for _, b in slow} == {1, 2}
    assert len({a for a, _ in slow}) == 4
    assert slow == slow_ones(Fabric(cluster(fault), 3), number=8)


def test_a_gpu_that_shows_in_one_operation_only_is_well_in_the_others():
    fabric = Fabric(cluster(Fault(kind="gpu", ends=(5,), depth=0.4, ops=("matmul",))), 0)
    assert fabric.pairs("matmul", [(5, 5), (6, 6)], 0) == pytest.approx([4.2e14, 7e14])
    assert rate(fabric, 5, 9) == NIC


def test_a_rank_that_hangs_fails_with_all_partners_from_its_round_on_and_is_named():
    fabric = Fabric(cluster(Fault(kind="hang", ends=(5,), first_round=2), Fault(kind="crash", ends=(9,))), 0)
    assert rate(fabric, 5, 6, number=1) == NVLINK
    assert rate(fabric, 5, 6, number=2) is None
    assert fabric.failure((6, 5), 2) == ("no_answer", 5)
    assert fabric.failure((9, 1), 0) == ("crashed", 9)
    assert fabric.failure((1, 2), 0) == ("timed_out", None)


def test_a_transient_passes():
    fabric = Fabric(cluster(Fault(kind="transient", nodes=("n01",), depth=0.5, first_round=1, last_round=2)), 0)
    assert [rate(fabric, end(1, 0), end(6, 0), number=number) for number in range(4)] == [NIC, NIC / 2, NIC / 2, NIC]


def test_a_busy_node_is_slow_in_some_rounds_and_well_in_others():
    fabric = Fabric(cluster(Fault(kind="busy", nodes=("n01",), depth=0.5)), 0)
    rates = [rate(fabric, end(1, 0), end(6, 0), number=number) / NIC for number in range(60)]
    assert 15 < sum(each < 1 for each in rates) < 45
    assert min(rates) >= 0.5
    assert max(rates) == 1


def test_noise_has_the_variation_that_was_asked_for():
    fabric = Fabric(cluster(noise=0.03), 0)
    pairs = [(end(node, slot), end(node + 6, slot)) for node in range(6) for slot in range(4)]
    rates = np.array([fabric.pairs("send_recv", pairs, number) for number in range(200)])
    assert rates.std() / rates.mean() == pytest.approx(0.03, rel=0.05)
    assert np.median(rates) == pytest.approx(NIC, rel=0.002)


def test_transients_and_dips_come_as_often_as_was_asked_for():
    for more in ({"transient_rate": 0.05}, {"tail_rate": 0.05, "tail_depth": 5.0}):
        fabric = Fabric(cluster(**more), 0)
        pairs = [(end(node, slot), end(node + 6, slot)) for node in range(6) for slot in range(4)]
        rates = np.array([fabric.pairs("send_recv", pairs, number) for number in range(200)])
        assert (rates < NIC * 0.999).mean() == pytest.approx(0.05, rel=0.2)


def test_collisions_stay_with_their_way_and_happen_across_leaves_only():
    fabric = Fabric(cluster(collision_rate=0.2, collision_depth=0.4), 7)
    slow = slow_ones(fabric, "send")
    across = [(a, b) for a in range(48) for b in range(48) if a // 16 != b // 16]
    like = [(a, b) for a, b in across if a % 4 == b % 4]
    assert len(slow & set(like)) == pytest.approx(0.2 * len(like), rel=0.25)
    assert all(a // 4 != b // 4 for a, b in slow)
    assert slow == slow_ones(fabric, "send", number=5)
    assert slow != slow_ones(Fabric(fabric.cluster, 8), "send")


def test_the_map_tells_what_it_tells():
    assert Fabric(cluster(), 0).ends.leaves == ("leaf0",) * 4 + ("leaf1",) * 4 + ("leaf2",) * 4
    assert Fabric(cluster(leaves_told=False), 0).ends.leaves is None
    wrong = ("leaf2", *("leaf0",) * 3, *("leaf1",) * 4, *("leaf2",) * 4)
    assert Fabric(cluster(told_leaves=wrong), 0).ends.leaves == wrong


@pytest.mark.parametrize(
    ("op", "pair"),
    [
        ("send", (1, 1)),
        ("send_recv", (1, 1)),
        ("matmul", (1, 2)),
        ("send", (0, 48)),
        ("send", (-1, 3)),
        ("dance", (0, 1)),
    ],
)
def test_a_probe_that_can_not_be_meant_is_refused(op, pair):
    with pytest.raises(ValueError, match=r"ends|do"):
        Fabric(cluster(), 0).pairs(op, [pair], 0)


def test_no_probes_measure_nothing():
    assert Fabric(cluster(), 0).pairs("send_recv", [], 0) == []


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 1000))
def test_the_same_seed_and_round_give_the_same_figures_and_others_give_others(seed, number):
    lively = cluster(noise=0.02, transient_rate=0.1, tail_rate=0.1, collision_rate=0.05)
    pairs = [(end(node, slot), end(node + 6, slot)) for node in range(6) for slot in range(4)]
    first = Fabric(lively, seed).pairs("send_recv", pairs, number)
    assert first == Fabric(lively, seed).pairs("send_recv", pairs, number)
    assert first != Fabric(lively, seed).pairs("send_recv", pairs, number + 1)
    assert first != Fabric(lively, seed + 1).pairs("send_recv", pairs, number)
