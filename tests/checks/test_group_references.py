"""group_busbw holds groups against what the hardware allows, the better of two modes, and their own history; what is slow everywhere blames no node. Incidents by their names."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.model import Baseline, BaselineEntry, BaselineRun, GpuDirect, Setting, Verdict
from preflight.model.group_series import peers_reference, shape_of
from preflight_checks.group_busbw import CHECK
from tests.builders import make_plan
from tests.checks.clusters import said, with_measurements
from tests.fast_machines import evidence_of, inventory_of, machine, timed

GIB = 2**30
STEADY = (1.0, 1.003, 0.997)


def run(rates, *, nodes=8, size_bytes=8 * GIB, collective="all_reduce", inventory=None, repeats=STEADY, **job):
    """`rates`: group -> busbw in GB/s, or one for all groups of an axis."""
    evidence = evidence_of(inventory or inventory_of(nodes), **job)
    found = []
    for axis in evidence.plan.groups:
        for group in evidence.plan.on_axis(axis):
            rate = rates.get(group.name, rates.get(axis))
            if rate is not None:
                busbw = [rate * 1e9 * share for share in repeats]
                found += timed(evidence.plan, group.name, busbw, size_bytes=size_bytes, collective=collective)
    return with_measurements(evidence, found)


def verdicts(evidence, axis=""):
    return {f.subject: f.verdict for f in said(CHECK, evidence) if f.subject.startswith(axis)}


def only(evidence, *wanted):
    [finding] = said(CHECK, evidence, *wanted)
    return finding


HEALTHY = {"tp": 366.0, "dp": 47.0}  # 8 H100 by ring; one NIC of 400 Gbit/s


def test_a_healthy_cluster_passes_and_each_reference_is_named():
    found = said(CHECK, run(HEALTHY))
    assert {f.verdict for f in found} == {Verdict.PASS}
    tp, dp = (next(f for f in found if f.subject == name) for name in ("tp0", "dp0"))
    assert "the median of 8 like groups in this run" in tp.expected
    assert "at least 90% of 371 GB/s: ring ceiling 18 links x 20.6 GB/s = 371 GB/s" in tp.expected
    assert "other algorithms reach up to" in tp.expected
    assert "at least 90% of 48.0 GB/s: 400 Gbit/s x 0.96 = 48.0 GB/s" in dp.expected


@settings(max_examples=30, deadline=None)
@given(st.floats(0.91, 3.0), st.floats(0.91, 3.0))
def test_a_value_far_above_the_formula_is_no_fault(tp, dp):
    assert set(verdicts(run({"tp": 371 * tp, "dp": 48 * dp}, nodes=2)).values()) == {Verdict.PASS}


# --- slow everywhere ---


def test_groups_that_are_slow_alike_blame_what_their_nodes_have_in_common():
    finding = only(run({**HEALTHY, "dp": 20.0}), Verdict.FAIL)
    assert finding.subject == "dp groups"
    assert finding.blames.kind == "environment"
    assert "all 8 are short alike, 20.0 GB/s to 20.0 GB/s" in finding.observed
    assert "58% or more below what the hardware allows (48.0 GB/s: 400 Gbit/s x 0.96 = 48.0 GB/s" in finding.observed
    assert "count cables" in finding.remedy
    assert verdicts(run({**HEALTHY, "dp": 20.0}), "tp") == {f"tp{i}": Verdict.PASS for i in range(8)}


def test_on_few_nodes_slow_alike_blames_nothing_without_a_known_cause():
    finding = only(run({"tp": 200.0, "dp": 47.0}, nodes=2), Verdict.FAIL)
    assert finding.subject == "tp groups"
    assert finding.blames is None


def test_a_group_that_is_slow_beyond_what_all_share_is_still_named():
    evidence = run({**HEALTHY, "dp": 20.0, "dp3": 10.0})
    assert verdicts(evidence, "dp") == {"dp groups": Verdict.FAIL, "dp3": Verdict.FAIL}


def test_incident_8_gpudirect_off_on_the_whole_fleet_is_found_and_named():
    """NVIDIA/nccl 1676: all pairs of nodes fell from 180 to 10 GB/s, so that no comparison of nodes finds it."""
    gone = GpuDirect(peermem="nvidia_peermem", memory_peers=None, open_driver=False, dmabuf=False)
    inventory = inventory_of(2, "A100-80GB", gbit=200, gpu_direct=gone, versions={"nccl": "2.22.3"})
    evidence = run({"dp": 10.0}, inventory=inventory, size_bytes=GIB, tp=1, pp=1, dp=16)
    finding = only(evidence, Verdict.FAIL)
    assert finding.subject == "dp0"
    assert finding.blames.kind == "environment"
    assert "GPUDirect RDMA is not active" in finding.blames.name
    assert "node[0-1]" in finding.blames.name
    assert "10.0 GB/s at 1.07 GB" in finding.observed
    assert not said(CHECK, run({"dp": 180.0}, inventory=inventory, size_bytes=GIB, tp=1, pp=1, dp=16), Verdict.FAIL)


def test_incident_12_a_variable_left_over_is_to_blame_and_not_the_node():
    """NVIDIA/nccl-tests 228: NCCL_P2P_DISABLE=1 on 8 A100 whose NVLinks are all well; 220 GB/s once it was unset."""
    setting = Setting(name="NCCL_P2P_DISABLE", value="1", origin="environment")
    sick = inventory_of(1, "A100-80GB", settings=(setting,))
    finding = only(run({"tp": 24.0}, inventory=sick, size_bytes=GIB, tp=8, dp=1), Verdict.FAIL)
    assert (finding.subject, finding.blames.kind) == ("tp0", "environment")
    assert "NCCL_P2P_DISABLE=1 from environment: direct access between GPUs is off (node0)" in finding.blames.name
    assert (
        only(run({"tp": 220.0}, inventory=inventory_of(1, "A100-80GB"), size_bytes=GIB, tp=8, dp=1)).verdict
        is Verdict.PASS
    )


def test_incident_12_no_nvls_on_a100_is_no_fault():
    finding = only(run({"tp": 231.0}, inventory=inventory_of(1, "A100-80GB"), tp=8, dp=1))
    assert finding.verdict is Verdict.PASS
    assert "other algorithms" not in finding.expected


# --- expected values in public bug reports ---


@pytest.mark.parametrize(
    ("nodes", "rate", "short"), [(2, 100.0, False), (3, 70.0, True), (4, 58.0, True), (6, 40.0, True)]
)
def test_nccl_tests_169_two_nodes_prove_little_and_more_are_held_against_the_nics(nodes, rate, short):
    """8 x 100 Gbit/s: 100, 70, 58 and 40 GB/s on 2, 3, 4 and 6 nodes. A tree over two nodes exceeds the NICs, so that their pass says little."""
    inventory = inventory_of(nodes, "A100-80GB", gbit=100)
    finding = only(run({"dp": rate}, inventory=inventory, tp=1, dp=8 * nodes))
    assert (finding.verdict is Verdict.FAIL) is short
    assert "8 NICs x 12.0 GB/s = 96.0 GB/s" in finding.expected
    assert ("reach up to" in finding.expected) is (nodes == 2)


def test_nccl_1856_only_groups_over_the_same_number_of_nodes_are_compared():
    """All-gather with two NICs of 400 Gbit/s: 40 GB/s over two and four nodes, 20 over three. Here: groups of six over nodes of four, on two nodes or three."""
    plan = make_plan(nodes=6, gpus_per_node=4, tp=6, dp=4, gpu=None)
    spans = {shape_of(plan, ranks)[0] for ranks in plan.groups["tp"]}
    assert spans == {(4, 2)}
    plan = make_plan(nodes=6, gpus_per_node=4, tp=1, dp=6, pp=4, gpu=None)
    assert {shape_of(plan, ranks)[0] for ranks in plan.groups["dp"]} == {(4, 2)}
    assert shape_of(plan, (0, 4, 8))[0] != shape_of(plan, (0, 4))[0]


def test_groups_that_leave_their_leaf_are_not_compared_with_those_that_do_not():
    plan = make_plan(nodes=4, gpus_per_node=8, tp=8, dp=4, gpu=None)
    placed = msgspec.structs.replace(plan.placement, leaves=("a", "a", "b", "b"))
    plan = msgspec.structs.replace(plan, placement=placed)
    assert [shape_of(plan, ranks)[1] for ranks in ((0, 8), (0, 16), (0, 1))] == [False, True, False]
    nobody = msgspec.structs.replace(plan, placement=msgspec.structs.replace(placed, leaves=None))
    assert shape_of(nobody, (0, 8))[1] is None


def test_nccl_1453_a_group_of_three_nodes_fails_though_each_two_of_them_are_good():
    """Two nodes fine in a rack and across racks; three over two racks fall to 5 GB/s."""
    assert only(run({"dp": 5.0}, nodes=3, tp=1, dp=24), Verdict.FAIL).subject == "dp0"
    assert only(run({"dp": 370.0}, nodes=2, tp=1, dp=16)).verdict is Verdict.PASS


def test_nccl_tests_152_a_nic_setting_shows_as_a_rate_below_the_formula():
    """Four NICs of 200 Gbit/s: 93.25 GB/s once the NIC's outstanding reads were raised."""
    inventory = inventory_of(2, "A100-80GB", nics=4, gbit=200)
    assert only(run({"dp": 93.25}, inventory=inventory, tp=1, dp=16)).verdict is Verdict.PASS
    assert only(run({"dp": 60.0}, inventory=inventory, tp=1, dp=16)).verdict is Verdict.FAIL


def test_nccl_tests_265_a_bond_below_the_formula_is_worth_a_look_no_more():
    """2 x 200 Gbit/s bonded: 240 Gbit/s by NCCL, 395 by RDMA test."""
    node = machine("node0", gpus=2, nics=1)
    bond = msgspec.structs.replace(node.hcas[0], name="mlx5_bond_0")
    nodes = []
    for name in ("node0", "node1"):
        gpus = tuple(
            msgspec.structs.replace(g, uuid=f"{name}-{g.index}", nvlink_domain=name, nics={"mlx5_bond_0": "PIX"})
            for g in node.gpus
        )
        nodes.append(msgspec.structs.replace(node, name=name, gpus=gpus, hcas=(bond,)))
    inventory = msgspec.structs.replace(inventory_of(1), nodes=tuple(nodes))
    assert only(run({"dp": 30.0}, inventory=inventory, tp=1, dp=4)).verdict is Verdict.PASS
    assert only(run({"dp": 12.0}, inventory=inventory, tp=1, dp=4)).verdict is Verdict.WARN


def test_nccl_tests_290_ring_and_nvls_are_both_in_range():
    for rate in (367.0, 476.0):
        assert only(run({"tp": rate}, nodes=1, tp=8, dp=1)).verdict is Verdict.PASS


def test_nccl_tests_350_a_fall_at_the_largest_size_alone_is_seen_and_the_size_is_named():
    good, bad = run(HEALTHY, size_bytes=GIB), run({**HEALTHY, "tp2": 150.0}, size_bytes=8 * GIB)
    both = with_measurements(good, [*good.measurements, *bad.measurements])
    finding = only(both, Verdict.FAIL)
    assert finding.subject == "tp2"
    assert "150 GB/s at 8.59 GB" in finding.observed
    assert len(said(CHECK, both)) == 16


@pytest.mark.parametrize(("product", "gpus", "rate"), [("A100-80GB", 8, 230.0), ("H100-80GB", 8, 371.0)])
def test_nccl_1054_what_is_usable_is_80_percent_of_the_data_sheet(product, gpus, rate):
    """20 of 25 GB/s per link: thresholds from what is measured, not from what is printed. nccl 1264: 783 of 900 GB/s, both ways, is well."""
    inventory = inventory_of(1, product, gpus=gpus)
    assert only(run({"tp": rate}, inventory=inventory, tp=gpus, dp=1)).verdict is Verdict.PASS


def test_nccl_1161_bridged_cards_are_a_hint():
    """Two H100 PCIe over bridges: 116 GB/s, whatever their links promise."""
    node = machine("node0", "A100-80GB", gpus=2)
    renamed = tuple(msgspec.structs.replace(gpu, name="NVIDIA A100 80GB PCIe") for gpu in node.gpus)
    inventory = msgspec.structs.replace(inventory_of(1), nodes=(msgspec.structs.replace(node, gpus=renamed),))
    finding = only(
        run({"tp": 116.0}, inventory=inventory, tp=2, dp=1, profiles=True), Verdict.PASS, Verdict.WARN, Verdict.FAIL
    )
    assert finding.verdict is not Verdict.FAIL


def test_nvbandwidth_44_two_boxes_of_b200_are_held_against_their_nics():
    assert only(run({"dp": 380.0}, inventory=inventory_of(2, "B200-180GB"), tp=1, dp=16)).verdict is Verdict.PASS


# --- two modes ---


def test_of_two_modes_the_upper_one_is_the_reference():
    """More than half of the groups are slow: the middle one would call nothing."""
    rates = {"dp": 47.0, **{f"tp{i}": 366.0 if i < 3 else 250.0 for i in range(8)}}
    evidence = run(rates, size_bytes=2**26)  # too small for the formula
    assert {name for name, verdict in verdicts(evidence).items() if verdict is Verdict.FAIL} == {
        f"tp{i}" for i in range(3, 8)
    }
    assert "the upper of two modes: 3 of 8 like groups" in said(CHECK, evidence, Verdict.FAIL)[0].expected


@given(st.lists(st.floats(1, 1000), min_size=1, max_size=40), st.floats(0.05, 0.5))
def test_the_reference_is_one_of_the_values_and_never_below_the_middle(values, gap):
    reference = peers_reference(values, gap).bytes_per_s
    assert reference in values
    assert reference >= sorted(values)[len(values) // 2]


def test_one_fast_value_makes_no_mode():
    assert "median" in peers_reference([10.0] * 9 + [20.0], 0.1).how
    assert "median" in peers_reference([10.0, 10.0, 10.0, 20.0], 0.1).how


# --- only as sure as the repeats ---


def test_a_group_that_was_short_once_is_unknown():
    finding = only(run({"tp": 100.0}, nodes=1, tp=8, dp=1, repeats=(1.0,)))
    assert finding.verdict is Verdict.UNKNOWN
    assert "in its only measurement" in finding.observed


def test_what_is_far_below_the_formula_is_called_in_spite_of_noise_and_what_is_near_is_not():
    noisy = (1.0, 0.93, 1.05)
    far = run({**HEALTHY, "tp": 40.0}, repeats=noisy)
    assert verdicts(far, "tp")["tp groups"] is Verdict.FAIL
    near = run({**HEALTHY, "tp": 310.0}, repeats=noisy)
    assert Verdict.FAIL not in verdicts(near, "tp").values()


def test_a_group_near_the_limit_that_does_as_its_peers_do_only_warns():
    rates = {**HEALTHY, **{f"tp{i}": 336.0 for i in range(8)}, "tp3": 331.0}
    assert verdicts(run(rates), "tp3") == {"tp3": Verdict.WARN}


@pytest.mark.parametrize("size", [2**20, 2**26])
def test_small_messages_are_not_held_against_the_formula(size):
    finding = only(run({"tp": 60.0}, nodes=1, tp=8, dp=1, size_bytes=size))
    assert finding.verdict is Verdict.SKIP
    assert "too small to reach the formula's rate" in finding.observed


# --- members ---


def test_mlx_4283_groups_of_one_are_never_taken_for_the_planned_group():
    """Each process made a group of its own, and all of them looked fast."""
    evidence = run(HEALTHY, nodes=2)
    alone = [
        msgspec.structs.replace(m, members=(m.probe.ranks[0],)) if m.probe.subject == "tp1" else m
        for m in evidence.measurements
    ]
    finding = only(with_measurements(evidence, alone), Verdict.FAIL)
    assert finding.subject == "tp1"
    assert finding.observed == "the communicator had 1 member, ranks 8"
    assert finding.blames is None


# --- history ---


def with_history(evidence, *busbw, subject="tp0", size_bytes=8 * GIB):
    entry = BaselineEntry(
        subject=subject, collective="all_reduce", size_bytes=size_bytes, busbw_bytes_per_s=tuple(b * 1e9 for b in busbw)
    )
    return msgspec.structs.replace(evidence, baseline=Baseline(entries=(entry,)))


def one_group(rate, **facts):
    return run({"tp": rate}, nodes=1, tp=8, dp=1, **facts)


USUAL = (480.0, 481.0, 479.0, 480.0, 478.0)


def test_a_group_that_fell_below_its_own_history_is_worth_a_look_though_the_formula_is_met_and_never_more():
    finding = only(with_history(one_group(400.0), *USUAL))
    assert finding.verdict is Verdict.WARN
    assert "16% below its own history (480 GB/s, the median of 5 earlier runs; in this run)" in finding.observed
    assert "see what changed since" in finding.remedy
    assert finding.blames is None


@pytest.mark.parametrize(
    "history",
    [
        USUAL[:4],
        (440.0, 441.0, 439.0, 440.0, 440.0),
        (480.0, 380.0, 560.0, 480.0, 300.0),
        (300.0, 301.0, 299.0, 300.0, 300.0),
    ],
)
def test_a_short_a_near_a_scattered_and_a_slower_history_call_nothing(history):
    assert only(with_history(one_group(400.0), *history)).verdict is Verdict.PASS


def test_a_drop_that_one_measurement_shows_is_told_once_several_runs_show_it():
    once = one_group(400.0, repeats=(1.0,))
    assert only(with_history(once, *USUAL)).verdict is Verdict.PASS
    assert "since" in only(with_history(once, *USUAL, 401.0, 399.0), Verdict.WARN).remedy


def test_history_of_another_size_is_no_history():
    assert only(with_history(one_group(400.0), *USUAL, size_bytes=GIB)).verdict is Verdict.PASS


def test_the_day_of_a_change_and_what_changed_with_it_are_told():
    """node0 got another driver, and NCCL another version, before the third run from the end."""
    evidence = with_history(one_group(400.0), *USUAL, 401.0, 399.0)
    facts = ({"driver": "550.54"}, {"driver": "570.86"}, {"nccl": "2.20"}, {"nccl": "2.23"})
    runs = tuple(
        BaselineRun(at_s=86400.0 * (20_000 + n), facts=2 if n < 5 else 3, nodes={"node0": 0 if n < 5 else 1})
        for n in range(7)
    )
    entries = tuple(msgspec.structs.replace(entry, runs=tuple(range(7))) for entry in evidence.baseline.entries)
    told = Baseline(entries=entries, runs=runs, facts=facts)
    finding = only(msgspec.structs.replace(evidence, baseline=told), Verdict.WARN)
    assert (
        "since 2024-10-09, and with it: driver 550.54 -> 570.86 (node0), nccl 2.20 -> 2.23 (the run)"
        in finding.observed
    )


def test_groups_that_all_fell_together_are_told_as_one_and_blame_no_node():
    evidence = run({"tp": 400.0, "dp": 47.0}, nodes=8)
    entries = tuple(
        BaselineEntry(subject=f"tp{i}", collective="all_reduce", size_bytes=8 * GIB, busbw_bytes_per_s=(480e9,) * 5)
        for i in range(8)
    )
    finding = only(msgspec.structs.replace(evidence, baseline=Baseline(entries=entries)), Verdict.WARN)
    assert finding.subject == "tp groups"
    assert finding.blames is None
    assert "history" in finding.observed


# --- groups that another one on the same nodes stood for ---


def stood_for(**rates) -> object:
    """Two nodes; dp0 was timed alone, and all dp groups together."""
    evidence = evidence_of(inventory_of(2))
    found = []
    for name in (group.name for group in evidence.plan.on_axis("tp")):
        found += timed(evidence.plan, name, (366e9, 366e9))
    found += timed(evidence.plan, "dp0", (47e9, 47.1e9))
    for name in (group.name for group in evidence.plan.on_axis("dp")):
        rate = rates.get(name, 46.0) * 1e9
        found += timed(evidence.plan, name, (rate, rate * 1.002), mode="together")
    return with_measurements(evidence, found)


def test_a_group_that_was_timed_with_the_others_only_is_not_unknown():
    found = verdicts(stood_for(), "dp")
    assert found == {f"dp{i}": Verdict.PASS for i in range(8)}


def test_a_group_that_is_slow_among_the_others_is_worth_a_look():
    found = verdicts(stood_for(dp5=20.0), "dp")
    assert found == {f"dp{i}": Verdict.WARN if i == 5 else Verdict.PASS for i in range(8)}
