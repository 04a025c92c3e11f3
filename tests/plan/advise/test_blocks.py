"""Blocks of nodes that share groups, and how they are packed into domains."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from preflight.plan.advise.blocks import Level, arrange, block_size, find_blocks, pack


def test_positions_that_share_a_group_form_a_block():
    blocks = find_blocks({"tp": [(0, 1, 2, 3), (4, 5, 6, 7)]}, ["tp"], 2, 4)
    assert blocks.tolist() == [0, 0, 2, 2]
    assert block_size(blocks) == 2


def test_blocks_join_through_several_axes_and_long_chains():
    chain = {"tp": [(i, i + 1) for i in range(63)]}
    assert set(find_blocks(chain, ["tp"], 1, 64).tolist()) == {0}
    assert block_size(find_blocks({"tp": [(0, 1)], "ep": [(1, 2)]}, ["tp", "ep"], 1, 5)) is None


def test_a_domain_of_18_nodes_takes_two_blocks_of_8_and_leaves_two_nodes_over():
    domains = ("a",) * 18 + ("b",) * 14
    order = pack([Level(domains, 8)], 32)
    runs = [Counter(domains[node] for node in order[i : i + 8]) for i in range(0, 32, 8)]
    assert runs == [{"a": 8}, {"a": 8}, {"b": 8}, {"a": 2, "b": 6}]


def test_nodes_whose_domain_is_unknown_come_last():
    assert pack([Level((None, "a", None, "a"), 2)], 4) == [1, 3, 0, 2]


@given(st.lists(st.integers(0, 4), min_size=8, max_size=48).filter(lambda labels: len(labels) % 4 == 0))
def test_as_many_blocks_as_domains_can_hold_are_whole(labels):
    domains = tuple(f"d{label}" for label in labels)
    order = pack([Level(domains, 4)], len(domains))
    assert sorted(order) == list(range(len(domains)))
    whole = sum(len({domains[node] for node in order[i : i + 4]}) == 1 for i in range(0, len(domains), 4))
    assert whole >= sum(count // 4 for count in Counter(domains).values())


def test_inner_blocks_stay_in_domains_and_outer_ones_under_leaves():
    """tp of 2 nodes in a domain, dp of 4 nodes under a leaf; the nodes come in turn from both leaves."""
    groups = {"tp": [(0, 1), (2, 3), (4, 5), (6, 7)], "dp": [(0, 2), (1, 3), (4, 6), (5, 7)]}
    domains = ("a", "c", "a", "c", "b", "d", "b", "d")
    leaves = ("x", "y", "x", "y", "x", "y", "x", "y")
    order = arrange(groups, 1, domains=domains, leaves=leaves, racks=(None,) * 8, wide=("dp",))
    assert order is not None
    for axis, labels in (("tp", domains), ("dp", leaves)):
        assert all(len({labels[order[rank]] for rank in group}) == 1 for group in groups[axis])


def test_without_domains_or_leaves_there_is_nothing_to_arrange():
    names = tuple("abcd")
    assert arrange({"tp": [(0, 1)]}, 1, domains=names, leaves=(None,) * 4, racks=(None,) * 4, wide=()) is None


def test_a_block_larger_than_a_leaf_lies_under_as_few_leaves_as_can_be():
    groups = {"tp": [(i,) for i in range(8)], "dp": [(0, 1, 2, 3), (4, 5, 6, 7)]}
    leaves = ("w", "x", "y", "z") * 2
    order = arrange(groups, 1, domains=tuple("abcdefgh"), leaves=leaves, racks=(None,) * 8, wide=("dp",))
    assert order is not None
    assert [len({leaves[order[rank]] for rank in group}) for group in groups["dp"]] == [2, 2]
