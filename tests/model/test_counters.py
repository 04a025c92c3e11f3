"""counters: what grew between two snapshots, and what can't be said."""

from typing import Any

import pytest

from preflight.model import Clocks, Ecc, Gpu, Hca, Link, Node, PcieLink, Port
from preflight.model.counters import (
    CEILINGS,
    LINK_COUNTERS,
    Counter,
    Growth,
    compare,
    counters_of,
    half_of_others,
    held_down_by_fault,
    owner_of,
    saturated,
)
from tests.builders import make_gpu

RECOVERY = Counter("GPU-node1-0", "link 14", "recovery")


def gpu(recovery: int | None = None, **changes: Any) -> Gpu:
    counters = {} if recovery is None else {"recovery": recovery}
    return make_gpu("node1", changes.pop("index", 0), links=(Link(index=14, counters=counters),), **changes)


def node(*gpus: Gpu, at: float | None = 0.0, ports: dict[str, int] | None = None, **changes: Any) -> Node:
    hcas = None if ports is None else (Hca(name="mlx5_0", ports=(Port(number=1, counters=ports),)),)
    return Node(name="node1", gpus=gpus, taken_at_s=at, hcas=hcas, **changes)


def growth_of(counter: Counter, before: Node, after: Node) -> Growth:
    (growth,) = [growth for growth in compare(before, after).growths if growth.counter == counter]
    return growth


def test_all_kinds_of_counters_are_read_flat_and_absent_ones_are_not_there():
    read = counters_of(
        node(
            gpu(
                505,
                ecc=Ecc(corrected_volatile=7, uncorrected_volatile=None),
                pcie=PcieLink(replays=3),
                clocks=Clocks(throttled_ns={"hw thermal slowdown": 12}),
            ),
            ports={"link_downed": 1},
        )
    )
    assert read == {
        RECOVERY: 505,
        Counter("GPU-node1-0", "memory", "corrected_volatile"): 7,
        Counter("GPU-node1-0", "PCIe", "replays"): 3,
        Counter("GPU-node1-0", "clock", "hw thermal slowdown"): 12,
        Counter("mlx5_0", "port 1", "link_downed"): 1,
    }


def test_the_blank_of_a_vendor_tool_is_no_value():
    assert counters_of(node(gpu(9223372036854775794))) == {}


def test_growth_has_a_delta_and_a_rate():
    compared = compare(node(gpu(505)), node(gpu(508), at=1260.0))
    (growth,) = compared.by_owner()["GPU-node1-0"]
    assert growth == Growth(RECOVERY, 505, 508, "compared", 3)
    assert compared.seconds == 1260.0
    assert compared.per_second(growth) == pytest.approx(3 / 1260)


def test_without_a_time_there_is_a_delta_and_no_rate():
    compared = compare(node(gpu(505), at=None), node(gpu(508)))
    assert compared.seconds is None
    assert compared.growths[0].delta == 3
    assert compared.per_second(compared.growths[0]) is None


def test_a_gpu_is_found_again_by_its_uuid_whatever_its_index():
    moved = gpu(508, index=5, uuid="GPU-node1-0")
    assert growth_of(RECOVERY, node(gpu(505)), node(moved, at=1.0)).delta == 3


@pytest.mark.parametrize(
    ("before", "after", "state"),
    [(None, 5, "absent before"), (5, None, "absent after")],
)
def test_a_counter_that_is_missing_on_a_side_is_not_zero(before, after, state):
    growth = growth_of(RECOVERY, node(gpu(before)), node(gpu(after), at=1.0))
    assert (growth.state, growth.delta) == (state, None)


def test_a_counter_that_went_backwards_makes_all_of_its_gpu_incomparable():
    before = node(gpu(505, ecc=Ecc(uncorrected_volatile=0)), gpu(1, index=1))
    after = node(gpu(2, ecc=Ecc(uncorrected_volatile=0)), gpu(1, index=1), at=1.0)
    compared = compare(before, after)
    assert {growth.state for growth in compared.by_owner()["GPU-node1-0"]} == {"reset"}
    assert {growth.state for growth in compared.by_owner()["GPU-node1-1"]} == {"compared"}


def test_lifelong_counters_are_compared_over_a_reboot_and_the_others_are_not():
    before = node(gpu(0, ecc=Ecc(uncorrected_volatile=0, uncorrected_aggregate=4)), boot_id="a")
    after = node(gpu(0, ecc=Ecc(uncorrected_volatile=0, uncorrected_aggregate=6)), boot_id="b", at=1.0)
    compared = compare(before, after)
    assert compared.restarted == "the node was rebooted between the two snapshots"
    assert {growth.counter.name: growth.delta for growth in compared.growths} == {
        "recovery": None,
        "uncorrected_volatile": None,
        "uncorrected_aggregate": 2,
    }


def test_another_driver_starts_the_counters_over():
    compared = compare(node(gpu(0), driver_version="550.1"), node(gpu(0), driver_version="570.1", at=1.0))
    assert compared.restarted is not None
    assert "550.1 to 570.1" in compared.restarted


def test_snapshots_in_the_wrong_order_are_not_compared():
    compared = compare(node(gpu(5), at=100.0), node(gpu(6), at=50.0))
    assert compared.restarted == "the earlier snapshot is not earlier than this one"
    assert compared.growths[0].delta is None


# ceilings seen in gpud issue 943
@pytest.mark.parametrize(
    ("name", "value"), [("link_downed", 255), ("port_xmit_discards", 65535), ("port_xmit_wait", 4294967295)]
)
def test_a_counter_at_its_ceiling_says_nothing_of_new_events(name, value):
    counter = Counter("mlx5_0", "port 1", name)
    assert saturated(counter, value)
    growth = growth_of(counter, node(ports={name: value}), node(ports={name: value}, at=1.0))
    assert (growth.state, growth.delta) == ("saturated", None)


def test_a_counter_that_reaches_its_ceiling_grew_at_least_so_much():
    counter = Counter("mlx5_0", "port 1", "link_downed")
    growth = growth_of(counter, node(ports={"link_downed": 250}), node(ports={"link_downed": 255}, at=1.0))
    assert (growth.delta, growth.at_least) == (5, True)


def test_a_wider_counter_of_a_newer_driver_is_an_ordinary_one():
    counter = Counter("mlx5_0", "port 1", "symbol_error")
    growth = growth_of(counter, node(ports={"symbol_error": 70000}), node(ports={"symbol_error": 70010}, at=1.0))
    assert (growth.state, growth.delta) == ("compared", 10)


def test_a_gpus_counter_of_that_value_is_not_saturated():
    assert not saturated(Counter("GPU-node1-0", "link 1", "replay"), 255)


def test_pcie_replays_begin_again_at_zero():
    counter = Counter("GPU-node1-0", "PCIe", "replays")
    before = node(make_gpu("node1", 0, pcie=PcieLink(replays=2**32 - 3)))
    after = node(make_gpu("node1", 0, pcie=PcieLink(replays=4)), at=1.0)
    assert growth_of(counter, before, after) == Growth(counter, 2**32 - 3, 4, "compared", 7)
    cleared = node(make_gpu("node1", 0, pcie=PcieLink(replays=0)), at=1.0)
    far = node(make_gpu("node1", 0, pcie=PcieLink(replays=2**31)))
    assert growth_of(counter, far, cleared).state == "reset"


def test_a_gpu_without_a_uuid_is_known_by_its_pci_id_then_by_its_index():
    assert owner_of(make_gpu("node1", 3, uuid=None)) == "0000:13:00.0"
    assert owner_of(Gpu(index=3)) == "GPU 3"


def test_ceilings_are_those_of_the_specification_and_all_link_counters_have_a_meaning():
    assert {CEILINGS[name] for name in ("symbol_error", "link_downed", "local_link_integrity_errors")} == {
        65535,
        255,
        15,
    }
    assert LINK_COUNTERS["received_remote_errors"] == "normal"
    assert LINK_COUNTERS["recovery_failed"] == "failed"


def test_snapshots_in_the_wrong_order_compare_not_even_lifelong_counters():
    before = node(gpu(0, ecc=Ecc(uncorrected_aggregate=4)), at=100.0)
    after = node(gpu(0, ecc=Ecc(uncorrected_aggregate=4)), at=50.0)
    assert {growth.state for growth in compare(before, after).growths} == {"reset"}


@pytest.mark.parametrize(
    ("values", "own", "half"),
    [
        ([505], 505, 0),
        ([0, 505], 505, 0),
        ([0, 505], 0, 505),
        ([1, 2, 3], 3, 1),
        ([1, 2, 3, 4], 4, 2),
        ([7, 7, 7], 7, 7),
    ],
)
def test_a_value_is_held_against_the_half_of_the_others(values, own, half):
    assert half_of_others(values, own) == half


@pytest.mark.parametrize(
    "reason", ["hw slowdown", "hw thermal slowdown", "sw thermal slowdown", "hw power brake slowdown"]
)
def test_slowdown_by_hardware_or_heat_is_a_fault(reason):
    assert held_down_by_fault(reason)


@pytest.mark.parametrize("reason", ["idle", "sw power cap", "applications clocks setting", "sync boost", "display"])
def test_idle_caps_and_locked_clocks_are_normal(reason):
    assert not held_down_by_fault(reason)
