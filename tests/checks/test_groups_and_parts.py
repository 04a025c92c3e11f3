"""What is said of slow groups where the pairs name a part: the groups that cross it point at it, others don't; the rate of routes between leaves is no fault; transients blame nobody."""

import msgspec
import pytest

from preflight.model import Verdict
from preflight.model.ends import ends_of
from preflight.model.localisation import Culprit, Localisation, RouteReference
from preflight_checks import group_busbw, group_contention
from tests.checks.clusters import said, with_measurements
from tests.fast_machines import evidence_of, inventory_of, timed

GIB = 2**30
STEADY = (1.0, 1.003, 0.997)
HEALTHY = {"tp": 366.0, "dp": 47.0}  # 8 H100 by ring; one NIC of 400 Gbit/s
LEAVES = ("leaf0",) * 4 + ("leaf1",) * 4


def run(rates, *culprits, nodes=8, repeats=STEADY, leaves=None, references=(), modes=("alone",), ratio=1.0):
    """`rates`: group -> busbw in GB/s, or one for all groups of an axis; `ratio`: what is left of it in further modes."""
    evidence = evidence_of(inventory_of(nodes))
    plan = evidence.plan
    placement = msgspec.structs.replace(plan.placement, leaves=leaves)
    plan = msgspec.structs.replace(plan, placement=placement)
    found = []
    for mode in modes:
        for group in (group for axis in plan.groups for group in plan.on_axis(axis)):
            rate = rates.get(group.name, rates.get(group.axis)) * (1.0 if mode == "alone" else ratio)
            share = repeats.get(group.name, STEADY) if isinstance(repeats, dict) else repeats
            busbw = [rate * 1e9 * each for each in share]
            found += timed(plan, group.name, busbw, size_bytes=8 * GIB, collective="all_reduce", mode=mode)
    where = Localisation(ends=ends_of(plan), culprits=culprits, references=references)
    evidence = msgspec.structs.replace(evidence, plan=plan, localisation=where)
    return with_measurements(evidence, found)


def node(name, depth=0.4, **more):
    return Culprit(kind="node", nodes=(name,), depth=depth, **more)


def failed(evidence, check=group_busbw.CHECK):
    return {f.subject: f for f in said(check, evidence, Verdict.FAIL)}


def test_groups_that_all_cross_a_slow_node_point_at_it_and_blame_no_environment():
    found = failed(run({**HEALTHY, "dp": 28.0}, node("node3")))
    assert set(found) == {"dp groups"}
    finding = found["dp groups"]
    assert "each crosses a part that is slow by itself: node3, 40% slower than its peers" in finding.observed
    assert "node3" in finding.remedy
    assert finding.blames is None


@pytest.mark.parametrize(
    "culprit",
    [
        None,
        node("node3", depth=0.12),  # far too little for groups at half their rate
        node("node3", confidence="possible"),
        Culprit(kind="gpu", ends=(5,), depth=0.5),  # only one of the eight groups crosses it
        Culprit(kind=None, candidates=(node("node3"),), depth=0.5),
        Culprit(kind="environment", depth=0.5),
    ],
)
def test_what_does_not_explain_all_groups_leaves_them_to_what_they_have_in_common(culprit):
    found = failed(run({**HEALTHY, "dp": 20.0}, *([culprit] if culprit else [])))
    assert found["dp groups"].blames.kind == "environment"
    assert "slow_part" not in found["dp groups"].observed


def test_one_slow_group_points_at_the_part_that_it_crosses_and_at_no_other():
    sick = {**HEALTHY, "dp5": 28.0}
    nic = Culprit(kind="nic", ends=(13,), depth=0.4)
    finding = failed(run(sick, nic))["dp5"]
    assert "its ranks cross NIC of node1 GPU 5, 40% slower than its peers (slow_part)" in finding.observed
    assert "NIC of node1 GPU 5" in finding.remedy
    other = failed(run(sick, Culprit(kind="nic", ends=(14,), depth=0.4)))["dp5"]
    assert "(slow_part)" not in other.observed


def test_groups_inside_nodes_cross_no_slow_way_between_nodes():
    found = failed(run({**HEALTHY, "tp": 200.0}, node("node3")))
    assert "node3" not in found["tp groups"].observed


def test_healthy_groups_pass_whatever_is_named():
    assert {f.verdict for f in said(group_busbw.CHECK, run(HEALTHY, node("node3")))} == {Verdict.PASS}


def test_groups_that_lose_together_point_at_the_uplink_that_they_cross():
    uplink = Culprit(kind="uplink", leaf="leaf1", depth=0.7)
    both = {"modes": ("alone", "together"), "ratio": 0.3, "leaves": LEAVES}
    found = failed(run(HEALTHY, uplink, **both), group_contention.CHECK)
    assert "its ranks cross uplink of leaf1, 70% slower than its peers (slow_part)" in found["dp0"].observed
    assert "uplink of leaf1" in found["dp0"].remedy
    assert "slow_part" not in found["tp0"].observed
    without = failed(run(HEALTHY, **both), group_contention.CHECK)
    assert "slow_part" not in without["dp0"].observed


# --- the rate of routes between leaves ---


def between_leaves(rate):
    return RouteReference(
        op="send_recv",
        route="other leaf, like slots",
        bytes_per_s=rate,
        shots=500,
        source="upper mode of the best shots of 64 GPUs",
        expected_bytes_per_s=48e9,
    )


def test_groups_as_fast_as_the_pairs_between_leaves_only_warn_and_tell_the_gap():
    evidence = run({**HEALTHY, "dp": 12.0}, leaves=LEAVES, references=(between_leaves(12e9),))
    [finding] = said(group_busbw.CHECK, evidence, Verdict.WARN, Verdict.FAIL)
    assert (finding.subject, finding.verdict, finding.blames) == ("dp groups", Verdict.WARN, None)
    assert "routes between leaves give 25% of that to pairs too (12.0 GB/s, upper mode of" in finding.observed


@pytest.mark.parametrize(
    ("rate", "pairs", "leaves"),
    [
        (6.0, 12e9, LEAVES),  # half of what pairs get there
        (12.0, 48e9, LEAVES),  # pairs get all
        (12.0, 12e9, ("leaf0",) * 8),  # the groups stay inside a leaf
        (12.0, 12e9, None),
    ],
)
def test_groups_slower_than_their_route_still_fail(rate, pairs, leaves):
    evidence = run({**HEALTHY, "dp": rate}, leaves=leaves, references=(between_leaves(pairs),))
    assert set(failed(evidence)) == {"dp groups"}


def lose_together(ratio, pairs, leaves, *culprits):
    """What is said of dp groups that keep this share of their rate together, where pairs between leaves reach `pairs`."""
    both = {"modes": ("alone", "together"), "ratio": ratio, "leaves": leaves}
    evidence = run(HEALTHY, *culprits, references=(between_leaves(pairs),), **both)
    return {f.subject: f for f in said(group_contention.CHECK, evidence)}


@pytest.mark.parametrize("ratio", [0.25, 0.45, 0.6])
def test_groups_that_keep_as_much_together_as_the_pairs_between_leaves_warn_and_tell_the_gap(ratio):
    found = lose_together(ratio, 12e9, LEAVES)
    assert {found[f"dp{i}"].verdict for i in range(8)} == {Verdict.WARN}
    assert "routes between leaves keep 25% of the hardware's rate for pairs too (12.0 GB/s" in found["dp0"].observed
    assert "oversubscribed" in found["dp0"].remedy
    assert "routes" not in found["tp0"].observed  # inside nodes


@pytest.mark.parametrize(
    ("ratio", "pairs", "leaves"),
    [
        (0.15, 12e9, LEAVES),  # less than pairs keep
        (0.45, 48e9, LEAVES),  # pairs get all
        (0.45, 12e9, ("leaf0",) * 8),  # the groups stay inside a leaf
        (0.45, 12e9, None),
    ],
)
def test_groups_that_keep_less_than_their_route_still_fail(ratio, pairs, leaves):
    assert {lose_together(ratio, pairs, leaves)[f"dp{i}"].verdict for i in range(8)} == {Verdict.FAIL}


def test_groups_that_cross_a_named_uplink_fail_for_it_whatever_the_routes_give():
    found = lose_together(0.25, 12e9, LEAVES, Culprit(kind="uplink", leaf="leaf1", depth=0.75))
    assert found["dp0"].verdict is Verdict.FAIL
    assert "uplink of leaf1" in found["dp0"].observed


# --- repeats that something held up ---


def test_one_repeat_that_was_held_up_makes_no_group_unjudgeable():
    held = {"tp3": (1.0, 0.5, 1.003)}
    assert {f.verdict for f in said(group_busbw.CHECK, run(HEALTHY, repeats=held))} == {Verdict.PASS}
    found = failed(run({**HEALTHY, "tp6": 200.0}, repeats=held))
    assert set(found) == {"tp6"}
    both = run(HEALTHY, repeats=held, modes=("alone", "together"))
    assert Verdict.FAIL not in {f.verdict for f in said(group_contention.CHECK, both)}
    assert not [f for f in said(group_contention.CHECK, both) if "noisy" in f.observed]


def test_where_many_repeats_are_held_up_a_group_that_always_was_is_not_failed():
    held = {f"tp{i}": (1.0, 0.6, 0.62) for i in range(6)}
    found = said(group_busbw.CHECK, run({**HEALTHY, "tp7": 240.0}, repeats=held), Verdict.FAIL)
    assert "tp7" not in {f.subject for f in found}
