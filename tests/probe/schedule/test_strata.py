"""The tournament over nodes: every pair once, no end twice in a round, every leaf's way up equally loaded."""

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.model.localisation import Ends
from preflight.probe.schedule.circle import crossing_round
from preflight.probe.schedule.strata import Tournament, first_rounds
from tests.probe.schedule.fleets import ends_on

LEAVES = st.lists(st.integers(1, 6), min_size=1, max_size=7)
SEEDS = st.integers(0, 2**32)


def rounds_of(tournament: Tournament) -> list[list[tuple[int, int]]]:
    inside = [tournament.inside(number) for number in range(tournament.num_inside)]
    return inside + [tournament.across(number) for number in range(tournament.num_across)]


def like_slots(ends: Ends) -> list[tuple[int, int]]:
    pairs = combinations(range(len(ends.node)), 2)
    return [(a, b) for a, b in pairs if ends.slot[a] == ends.slot[b] and ends.node[a] != ends.node[b]]


def leaf_of(ends: Ends, end: int) -> str:
    assert ends.leaves
    return ends.leaves[ends.node[end]] or ""


def loads(ends: Ends, pairs: list[tuple[int, int]]) -> Counter[str]:
    """Pairs of slot 0 that go over each leaf's way up."""
    met = [(leaf_of(ends, a), leaf_of(ends, b)) for a, b in pairs if ends.slot[a] == 0]
    return Counter(leaf for pair in met if pair[0] != pair[1] for leaf in pair)


@pytest.mark.parametrize(("left", "right"), [(a, b) for a in range(7) for b in range(7)])
def test_two_sides_meet_wholly_in_as_many_rounds_as_the_larger_has(left, right):
    met = [pair for turn in range(max(left, right)) for pair in crossing_round(left, right, turn)]
    assert sorted(met) == [(a, b) for a in range(left) for b in range(right)]
    for turn in range(max(left, right)):
        pairs = crossing_round(left, right, turn)
        assert len({a for a, _ in pairs}) == len({b for _, b in pairs}) == min(left, right)
    assert crossing_round(left, right, max(left, right)) == []


@settings(max_examples=50, deadline=None)
@given(leaves=LEAVES, told=st.booleans(), seed=SEEDS, data=st.data())
def test_every_pair_of_like_slots_is_met_exactly_once_whatever_the_nodes_have(leaves, told, seed, data):
    gpus = data.draw(st.lists(st.integers(1, 3), min_size=sum(leaves), max_size=sum(leaves)))
    ends = ends_on(leaves, gpus, told=told)
    rounds = rounds_of(Tournament(ends, seed))
    assert sorted(pair for pairs in rounds for pair in pairs) == like_slots(ends)
    for pairs in rounds:
        busy = [end for pair in pairs for end in pair]
        assert len(busy) == len(set(busy))


@settings(max_examples=50, deadline=None)
@given(leaves=LEAVES, seed=SEEDS)
def test_rounds_inside_leaves_stay_there_and_rounds_across_never_do(leaves, seed):
    ends = ends_on(leaves)
    tournament = Tournament(ends, seed)
    for number in range(tournament.num_inside):
        assert all(leaf_of(ends, a) == leaf_of(ends, b) for a, b in tournament.inside(number))
    for number in range(tournament.num_across):
        pairs = tournament.across(number)
        assert pairs
        assert all(leaf_of(ends, a) != leaf_of(ends, b) for a, b in pairs)


@settings(max_examples=60, deadline=None)
@given(num=st.integers(2, 8), size=st.integers(1, 7), seed=SEEDS)
def test_leaves_of_one_size_have_the_same_load_in_every_round_across(num, size, seed):
    ends = ends_on([size] * num, 1)
    tournament = Tournament(ends, seed)
    rounds = [loads(ends, tournament.across(number)) for number in range(tournament.num_across)]
    if num % 2 == 0 or size % 2 == 0:
        assert all(set(load.values()) == {size} and len(load) == num for load in rounds)
    elif size > 1:
        for load in rounds[: 2 * (num - 1) * (size // 2)]:
            assert len(load) == num
            assert set(load.values()) <= {size, size - 1}


@settings(max_examples=60, deadline=None)
@given(leaves=LEAVES, seed=SEEDS)
def test_no_way_up_ever_carries_more_pairs_than_its_leaf_has_nodes(leaves, seed):
    ends = ends_on(leaves)
    tournament = Tournament(ends, seed)
    for number in range(tournament.num_across):
        for leaf, load in loads(ends, tournament.across(number)).items():
            assert load <= leaves[int(leaf[4:])]


@settings(max_examples=60, deadline=None)
@given(num=st.integers(4, 9), size=st.integers(2, 6), seed=SEEDS)
def test_a_run_begins_inside_leaves_and_then_meets_another_leaf_in_each_round(num, size, seed):
    ends = ends_on([size] * num, 1)
    first, *others = first_rounds(ends, seed=seed)
    assert len(others) == 4
    assert all(leaf_of(ends, a) == leaf_of(ends, b) for a, b in first)
    assert len(first) == num * (size // 2)
    partners = {leaf: set() for leaf in ends.leaves or ()}
    for pairs in others:
        for a, b in pairs:
            partners[leaf_of(ends, a)].add(leaf_of(ends, b))
            partners[leaf_of(ends, b)].add(leaf_of(ends, a))
    assert all(len(met) >= min(num - 1, 3) for met in partners.values())


@settings(max_examples=60, deadline=None)
@given(nodes=st.integers(2, 40), seed=SEEDS, rounds=st.integers(1, 6))
def test_without_leaves_every_node_has_another_partner_in_each_round_or_rests_once(nodes, seed, rounds):
    ends = ends_on([nodes], 1, told=False)
    found = first_rounds(ends, seed=seed, rounds=rounds)
    assert len(found) == min(rounds, nodes - 1 + nodes % 2)
    partners = Counter(end for pairs in found for pair in pairs for end in pair)
    assert all(partners[end] >= len(found) - nodes % 2 for end in range(nodes))
    met = [pair for pairs in found for pair in pairs]
    assert len(met) == len(set(met))


@settings(max_examples=60, deadline=None)
@given(leaves=LEAVES, told=st.booleans(), seed=SEEDS)
def test_passes_one_after_another_cover_all_pairs(leaves, told, seed):
    ends = ends_on(leaves, 1, told=told)
    met: set[tuple[int, int]] = set()
    for position in range(0, 5 * 100, 5):
        met.update(pair for pairs in first_rounds(ends, seed=seed, position=position) for pair in pairs)
        if len(met) == len(like_slots(ends)):
            break
    assert sorted(met) == like_slots(ends)


@pytest.mark.parametrize("leaves", [[31] * 5, [15] * 33, [7] * 9, [8, 7] * 8])
def test_where_some_must_rest_none_rests_in_most_of_the_first_rounds(leaves):
    ends = ends_on(leaves, 1)
    probes = Counter(end for pairs in first_rounds(ends, seed=5)[1:] for pair in pairs for end in pair)
    assert min(probes[end] for end in range(sum(leaves))) >= 2
    assert sum(probes.values()) >= 0.85 * 4 * sum(leaves)


def test_seeds_decide_the_order_and_the_order_in_which_nodes_are_listed_does_not():
    ends = ends_on([4] * 4, 1)
    assert first_rounds(ends, seed=1) == first_rounds(ends, seed=1)
    assert first_rounds(ends, seed=1) != first_rounds(ends, seed=2)
    turned = Ends(nodes=ends.nodes[::-1], node=ends.node, slot=ends.slot, leaves=(ends.leaves or ())[::-1])
    named = [{frozenset((ends.nodes[a], ends.nodes[b])) for a, b in pairs} for pairs in first_rounds(ends, seed=1)]
    again = [
        {frozenset((turned.nodes[a], turned.nodes[b])) for a, b in pairs} for pairs in first_rounds(turned, seed=1)
    ]
    assert named == again


@pytest.mark.parametrize("leaves", [[1], []])
def test_one_node_or_none_has_no_rounds(leaves):
    assert first_rounds(ends_on(leaves), seed=0) == []
    assert first_rounds(ends_on(leaves, told=False), seed=0) == []


def test_nodes_whose_leaf_alone_is_unknown_take_part():
    ends = ends_on([3, 3], 1)
    ends = Ends(nodes=ends.nodes, node=ends.node, slot=ends.slot, leaves=("a", "a", None, "b", "b", None))
    assert sorted(pair for pairs in rounds_of(Tournament(ends, 0)) for pair in pairs) == like_slots(ends)
