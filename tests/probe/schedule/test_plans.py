"""Every pair and group that the plan asks for is measured, each rank in one probe at a time."""

from itertools import combinations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.model import Estimate, Placement, Plan, Rank
from preflight.model.units import KIB, MIB
from preflight.probe.schedule import (
    AXIS_COLLECTIVE,
    GROUP_REPEATS,
    PAIR_REPEATS,
    SIZES,
    Round,
    circle_rounds,
    full_schedule,
    group_probe,
    group_rounds,
    pair_rounds,
    seconds_of,
)
from tests.builders import make_plan


def layout(nodes: int = 2, per_node: int = 4, **degrees) -> Plan:
    degrees = degrees or {"tp": per_node, "dp": nodes}
    return make_plan(nodes=nodes, gpus_per_node=per_node, gpu=None, **degrees)


def placed_on(plan: Plan, counts: list[int]) -> Plan:
    """The same plan with so many ranks on each node, in rank order."""
    seats = [(node, slot) for node, count in enumerate(counts) for slot in range(count)]
    ranks = tuple(
        Rank(rank=rank, node=f"n{node}", node_rank=node, local_rank=slot) for rank, (node, slot) in enumerate(seats)
    )
    placement = Placement.of(ranks, source="predicted", method="block")
    return msgspec.structs.replace(plan, placement=placement)


def pairs_of(rounds: list[Round]) -> list[tuple[int, int]]:
    return [probe.ranks for probes in rounds for probe in probes]


def assert_disjoint(rounds: list[Round]) -> None:
    for probes in rounds:
        ranks = [rank for probe in probes for rank in probe.ranks]
        assert len(ranks) == len(set(ranks))


@pytest.mark.parametrize("players", range(2, 41))
def test_the_circle_method_meets_every_pair_once_in_the_fewest_rounds(players):
    rounds = circle_rounds(players)
    assert sorted(pair for pairs in rounds for pair in pairs) == list(combinations(range(players), 2))
    assert len(rounds) == (players if players % 2 else players - 1)
    for pairs in rounds:
        assert len(pairs) == players // 2
        assert len({player for pair in pairs for player in pair}) == 2 * len(pairs)


@pytest.mark.parametrize("players", [0, 1])
def test_fewer_than_two_players_have_no_rounds(players):
    assert circle_rounds(players) == []


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 2), (1, 8), (2, 4), (3, 3), (4, 8), (4, 1)])
def test_on_few_nodes_every_pair_is_measured_once(nodes, per_node):
    plan = layout(nodes, per_node)
    rounds = pair_rounds(plan, "gloo")
    assert sorted(pairs_of(rounds)) == list(combinations(range(nodes * per_node), 2))
    assert_disjoint(rounds)


@pytest.mark.parametrize(("nodes", "per_node"), [(5, 4), (8, 8)])
def test_on_many_nodes_pairs_inside_and_like_slots_between_are_measured(nodes, per_node):
    plan = layout(nodes, per_node)
    rounds = pair_rounds(plan, "gloo")
    seats = [(rank.node, rank.local_rank) for rank in plan.placement.ranks]
    wanted = {
        (a, b)
        for a, b in combinations(range(nodes * per_node), 2)
        if seats[a][0] == seats[b][0] or seats[a][1] == seats[b][1]
    }
    assert sorted(pairs_of(rounds)) == sorted(wanted)
    assert_disjoint(rounds)
    assert len(rounds) == len(circle_rounds(per_node)) + len(circle_rounds(nodes))


def test_every_pair_of_a_tensor_parallel_group_is_measured_wherever_its_ranks_sit():
    plan = layout(8, 4, tp=16, dp=2)
    rounds = pair_rounds(plan, "gloo")
    measured = set(pairs_of(rounds))
    for group in plan.groups["tp"]:
        assert set(combinations(group, 2)) <= measured
    assert len(pairs_of(rounds)) == len(measured)
    assert_disjoint(rounds)


@settings(max_examples=60, deadline=None)
@given(counts=st.lists(st.integers(1, 5), min_size=1, max_size=7))
def test_unlike_nodes_lose_no_pair_that_is_asked_for(counts):
    world = sum(counts)
    plan = placed_on(layout(1, world, tp=1, dp=world), counts)
    rounds = pair_rounds(plan, "gloo")
    assert_disjoint(rounds)
    seats = [(rank.node, rank.local_rank) for rank in plan.placement.ranks]
    cross = len(counts) <= 4
    wanted = [
        (a, b)
        for a, b in combinations(range(world), 2)
        if cross or seats[a][0] == seats[b][0] or seats[a][1] == seats[b][1]
    ]
    assert sorted(pairs_of(rounds)) == wanted


def test_inside_nodes_all_nodes_are_measured_at_once():
    first = pair_rounds(layout(4, 4), "gloo")[0]
    assert len(first) == 8
    assert {probe.ranks[0] // 4 for probe in first} == {0, 1, 2, 3}


def test_groups_that_share_no_link_count_as_alone_in_one_round():
    rounds = group_rounds(layout(4, 4), "gloo")
    names = [sorted(probe.subject for probe in probes) for probes in rounds]
    tps, dps = [f"tp{i}" for i in range(4)], [f"dp{i}" for i in range(4)]
    assert names == [tps, tps, *([dp] for dp in dps), dps]
    assert [probes[0].mode for probes in rounds] == ["alone", "together", *["alone"] * 4, "together"]
    assert_disjoint(rounds)


def test_on_one_machine_groups_are_timed_one_by_one():
    rounds = group_rounds(layout(4, 4), "gloo", share_machine=True)
    assert [len(probes) for probes in rounds if probes[0].mode == "alone"] == [1] * 8


def test_two_groups_of_one_node_are_not_timed_alone_at_the_same_time():
    rounds = group_rounds(layout(2, 4, tp=2, dp=4), "gloo")
    alone = [[p.subject for p in probes] for probes in rounds if probes[0].axis == "tp" and probes[0].mode == "alone"]
    assert alone == [["tp0", "tp2"], ["tp1", "tp3"]]


def test_an_axis_with_one_group_has_no_together():
    assert {p.mode for probes in group_rounds(layout(2, 4, tp=8, dp=1), "gloo") for p in probes} == {"alone"}


@pytest.mark.parametrize("job", [{"tp": 8, "pp": 4, "dp": 2}, {"tp": 4, "pp": 2, "dp": 8, "ep": 4}])
def test_each_axis_is_timed_with_the_collective_that_it_uses(job):
    plan = make_plan(**job)
    for probe in (p for probes in group_rounds(plan, "nccl") for p in probes):
        assert probe.collective == AXIS_COLLECTIVE[probe.axis]
        assert probe.ranks in plan.groups[probe.axis]


@settings(max_examples=80, deadline=None)
@given(
    size=st.one_of(st.none(), st.integers(1, 2**40)),
    degree=st.integers(2, 12),
    backend=st.sampled_from(["gloo", "nccl"]),
)
def test_message_sizes_stay_in_range_and_give_every_rank_whole_elements(size, degree, backend):
    plan = layout(1, degree, tp=degree, dp=1)
    estimate = Estimate(message_bytes={} if size is None else {"tp": size})
    plan = msgspec.structs.replace(plan, estimate=estimate)
    probe = group_probe(plan, plan.on_axis("tp")[0], backend, 0)
    _, smallest, largest = SIZES[backend]
    assert probe.size_bytes % (4 * degree) == 0
    assert smallest - 4 * degree < probe.size_bytes <= largest
    if size is not None and smallest <= size <= largest:
        assert size - 4 * degree < probe.size_bytes <= size
        assert probe.size_source == "the plan"
    else:
        assert probe.size_source != "the plan"


def test_where_a_size_comes_from_is_said():
    plan = layout(1, 4, tp=4, dp=1)

    def source(size: int | None) -> str:
        estimate = Estimate(message_bytes={} if size is None else {"tp": size})
        planned = msgspec.structs.replace(plan, estimate=estimate)
        return group_probe(planned, planned.on_axis("tp")[0], "gloo", 0).size_source

    assert source(MIB) == "the plan"
    assert "implies no message size" in source(None)
    assert "the plan's 1024 bytes, kept within" in source(KIB)


def test_a_budget_that_takes_a_prefix_gets_every_pair_then_every_group_then_repeats():
    plan = layout(2, 4)
    rounds = full_schedule(plan, "gloo")
    pairs, groups = pair_rounds(plan, "gloo"), group_rounds(plan, "gloo")
    assert rounds[: len(pairs)] == pairs
    assert rounds[len(pairs) : len(pairs) + len(groups)] == groups
    assert len(rounds) == PAIR_REPEATS * len(pairs) + GROUP_REPEATS * len(groups)
    repeats = [probes[0].repeat for probes in rounds]
    assert repeats == sorted(repeats)
    assert all(len({probe.repeat for probe in probes}) == 1 for probes in rounds)


@pytest.mark.parametrize(
    "plan",
    [layout(2, 4), layout(5, 3), make_plan(), make_plan(tp=4, pp=2, dp=8, ep=4), layout(1, 1, tp=1, dp=1)],
    ids=["2x4", "5x3", "dense", "experts", "one rank"],
)
def test_no_rank_is_in_two_probes_of_a_round_and_every_key_is_unique(plan):
    rounds = full_schedule(plan, "nccl")
    assert_disjoint(rounds)
    keys = [probe.key for probes in rounds for probe in probes]
    assert len(keys) == len(set(keys))
    assert all(probes and seconds_of(probes) > 0 for probes in rounds)


def test_a_single_rank_has_nothing_to_measure():
    assert full_schedule(layout(1, 1, tp=1, dp=1), "gloo") == []


def test_groups_that_two_axes_share_are_timed_once():
    plan = make_plan(nodes=2, gpus_per_node=4, gpu=None, framework="torchtitan", tp=2, dp_shard=4)
    assert plan.groups["fsdp"] == plan.groups["dp_shard"]
    timed = {probe.axis for probes in group_rounds(plan, "gloo") for probe in probes}
    assert timed == set(plan.timed_axes)
    assert len({plan.groups[axis] for axis in timed}) == len(timed)
