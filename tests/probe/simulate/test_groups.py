"""How long groups take on the simulated fabric: against published figures and formulas, alone, together and mixed."""

import pytest

from preflight.model import busbw_factor
from preflight.probe.simulate import Fabric, Fault, plain_cluster
from preflight.probe.simulate.groups import Exchange, durations

GIB = 2**30


def cluster(*faults, leaves=(4, 4), **more):
    return plain_cluster(leaves, **{"noise": 0.0, "faults": faults, **more})


def seconds(model, op, ends, *others, size=8 * GIB, split=(), number=0):
    exchanges = [Exchange(op, tuple(ends), size, split), *(Exchange(op, tuple(other), size) for other in others)]
    return durations(Fabric(model, 0), exchanges, number)[0]


def busbw(model, op, ends, *others, size=8 * GIB):
    """In GB/s, as nccl-tests counts it."""
    return size / seconds(model, op, ends, *others, size=size) * busbw_factor(op, len(ends)) / 1e9


RAIL = range(0, 64, 8)


@pytest.mark.parametrize(
    ("op", "ends", "expected"),
    [
        ("all_reduce", range(8), 370),  # H100 x 8 by rings: 370 (Azure HPC guide, NVIDIA slides)
        ("all_reduce", range(64), 384),  # 8 x 48 GB/s: DGX H100 with eight NDR ports reaches 370 to 396
        ("all_gather", RAIL, 48),  # one GPU of each node: its NIC
        ("reduce_scatter", RAIL, 48),
        ("broadcast", RAIL, 48),
        ("all_reduce", RAIL, 48),
        ("all_to_all", range(16), 48 * 15 / 8),  # NIC x (n - 1) / (n - g): nccl-tests issues 130, 267
        ("all_to_all", range(64), 48 * 63 / 56),
        ("all_to_all", range(8), 370),
        ("send_recv", (0, 8), 48),
        ("send", (0, 8), 48),
        ("send_recv", (0, 8, 16, 24), 24),  # a pipeline's inner stages send to two neighbours over one NIC
    ],
)
def test_a_healthy_group_reaches_what_formulas_and_published_tables_say(op, ends, expected):
    assert busbw(cluster(), op, ends) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("gpus", "expected"), [(4, 370), (5, 438), (8, 479)])
def test_switches_that_reduce_make_an_all_reduce_in_a_node_faster_from_five_gpus_on(gpus, expected):
    reducing = cluster(nvls_share=0.74)
    assert busbw(reducing, "all_reduce", range(gpus)) == pytest.approx(expected, rel=0.01)
    assert busbw(reducing, "all_gather", range(gpus)) == pytest.approx(370, rel=0.01)
    assert busbw(reducing, "all_reduce", range(64)) == pytest.approx(384, rel=0.01)


def test_small_messages_take_the_time_of_their_hops():
    assert seconds(cluster(), "all_reduce", range(8), size=8) == pytest.approx(29e-6, rel=0.02)


def test_groups_with_their_own_nics_run_together_as_fast_as_alone():
    others = [range(slot, 64, 8) for slot in range(1, 8)]
    assert busbw(cluster(), "all_reduce", RAIL, *others) == pytest.approx(48, rel=0.01)


def test_groups_that_share_a_nic_divide_it_when_they_run_together():
    others = [range(slot, 64, 8) for slot in range(1, 8)]
    shared = cluster(gpus_per_nic=4)
    assert busbw(shared, "all_reduce", RAIL) == pytest.approx(48, rel=0.01)
    assert busbw(shared, "all_reduce", RAIL, *others) == pytest.approx(12, rel=0.01)


def test_an_oversubscribed_fabric_slows_an_all_to_all_across_leaves_and_not_inside_one():
    narrow = cluster(oversubscription=4.0, rails=False)
    assert busbw(narrow, "all_to_all", range(32)) == pytest.approx(48 * 31 / 24, rel=0.01)
    # of each GPU's data 32 / 64 leaves the leaf, at a quarter of its NIC
    assert busbw(narrow, "all_to_all", range(64)) == pytest.approx(12 * 63 / 32, rel=0.01)


def test_groups_of_several_axes_share_what_they_have_in_common():
    fabric = Fabric(cluster(gpus_per_nic=2), 0)
    both = durations(fabric, [Exchange("all_reduce", tuple(RAIL), GIB), Exchange("send_recv", (1, 9), GIB)], 0)
    alone = durations(fabric, [Exchange("send_recv", (1, 9), GIB)], 0)
    assert both[1] == pytest.approx(2 * alone[0], rel=0.01)


def test_one_expert_with_thirty_percent_of_the_tokens_costs_what_its_nic_must_take():
    ends = tuple(range(0, 64, 8))
    even = seconds(cluster(), "all_to_all", ends, size=GIB)
    skewed = seconds(cluster(), "all_to_all", ends, size=GIB, split=(0.3, *(0.1,) * 7))
    assert skewed / even == pytest.approx(0.3 / 0.125, rel=0.02)


SETS = (tuple(f"n{i}" for i in range(4)), tuple(f"n{i}" for i in range(4, 8)))


@pytest.mark.parametrize(
    ("fault", "op", "ends", "factor"),
    [
        (Fault(kind="nic", ends=(8,), depth=0.5), "all_reduce", RAIL, 0.5),
        (Fault(kind="nic", ends=(9,), depth=0.5), "all_reduce", RAIL, 1),
        (Fault(kind="gpu", ends=(3,), depth=0.5), "all_reduce", range(8), 0.5),
        (Fault(kind="nic", ends=(3,), depth=0.5), "all_reduce", range(8), 1),
        (Fault(kind="node", nodes=("n1",), depth=0.3), "all_to_all", range(64), 0.7),
        (Fault(kind="uplink", leaf="leaf0", depth=0.4), "all_reduce", RAIL, 0.6),
        (Fault(kind="path", nodes=SETS[0], other_nodes=SETS[1], depth=0.5), "all_reduce", RAIL, 0.5),
        # 32 of the 56 GPUs elsewhere lie behind the path, which carries half
        (Fault(kind="path", nodes=SETS[0], other_nodes=SETS[1], depth=0.5), "all_to_all", range(64), 56 / 64),
        (Fault(kind="environment", depth=0.5), "all_to_all", range(64), 0.5),
    ],
)
def test_a_fault_slows_the_groups_that_cross_it(fault, op, ends, factor):
    assert busbw(cluster(fault), op, ends) == pytest.approx(busbw(cluster(), op, ends) * factor, rel=0.02)


def test_a_member_that_hangs_fails_its_group_and_no_other():
    model = cluster(Fault(kind="hang", ends=(8,)))
    both = [Exchange("all_reduce", (0, 8), GIB), Exchange("all_reduce", (1, 9), GIB)]
    failed, well = durations(Fabric(model, 0), both, 0)
    assert failed is None
    assert well == pytest.approx(seconds(cluster(), "all_reduce", (1, 9), size=GIB))


def test_a_path_that_lets_nothing_through_fails_the_groups_across_it():
    model = cluster(Fault(kind="path", nodes=SETS[0], other_nodes=SETS[1], failed=True))
    exchanges = [Exchange("all_reduce", tuple(RAIL), GIB), Exchange("all_reduce", (0, 8, 16), GIB)]
    across, inside = durations(Fabric(model, 0), exchanges, 0)
    assert across is None
    assert inside is not None


def test_an_all_to_all_of_two_thousand_members_is_looked_at_in_parts():
    wide = cluster(leaves=(64,) * 8)
    members = tuple(range(0, 4096, 2))
    assert busbw(wide, "all_to_all", members) == pytest.approx(48 * 2047 / 2044, rel=0.05)


@pytest.mark.parametrize(
    "exchange",
    [
        Exchange("all_reduce", (0,), 8),
        Exchange("all_reduce", (0, 0), 8),
        Exchange("all_reduce", (0, 64), 8),
        Exchange("dance", (0, 1), 8),
        Exchange("all_to_all", (0, 1), 8, (1.0,)),
    ],
)
def test_an_exchange_that_can_not_be_meant_is_refused(exchange):
    with pytest.raises(ValueError, match=r"ends|group|split"):
        durations(Fabric(cluster(), 0), [exchange], 0)


def test_no_groups_take_no_time():
    assert durations(Fabric(cluster(), 0), [], 0) == []
