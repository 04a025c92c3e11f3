"""Two placements of one job are compared rank by rank, and the first that differs is named with both places."""

import pytest

from preflight.model import Placement, compare_placements


def place(nodes, node_ranks, local_ranks=None, source="predicted"):
    if local_ranks is None:
        seen = {}
        local_ranks = [seen.setdefault(n, []).append(0) or len(seen[n]) - 1 for n in node_ranks]
    return Placement(
        source=source, method="x", nodes=tuple(nodes), node_ranks=tuple(node_ranks), local_ranks=tuple(local_ranks)
    )


BLOCK = place(["a", "b"], [0, 0, 1, 1])


def test_equal_placements_do_not_differ_however_nodes_are_numbered():
    assert compare_placements(BLOCK, BLOCK) is None
    assert compare_placements(BLOCK, place(["b", "a"], [1, 1, 0, 0])) is None


def test_the_first_rank_on_another_node_is_named_with_both_places():
    difference = compare_placements(BLOCK, place(["a", "b"], [0, 1, 0, 1]))
    assert difference.rank == 1
    assert (difference.predicted.node, difference.predicted.local_rank) == ("a", 1)
    assert (difference.measured.node, difference.measured.local_rank) == ("b", 0)
    assert difference.text == "rank 1: predicted node a local rank 1, found node b local rank 0 (2 of 4 ranks differ)"


def test_another_local_rank_on_the_same_node_differs():
    difference = compare_placements(BLOCK, place(["a", "b"], [0, 0, 1, 1], [1, 0, 0, 1]))
    assert (difference.rank, difference.num_differing) == (0, 2)


@pytest.mark.parametrize(("shorter", "longer"), [(3, 4), (4, 3)])
def test_a_rank_that_one_side_lacks_differs(shorter, longer):
    nodes = [0, 0, 1, 1]
    difference = compare_placements(place(["a", "b"], nodes[:shorter]), place(["a", "b"], nodes[:longer]))
    assert (difference.rank, difference.num_differing, difference.num_ranks) == (3, 1, 4)
    assert (difference.predicted is None) == (shorter < longer)
    assert "no such rank" in difference.text


def test_a_short_name_and_the_full_one_are_one_node_and_two_domains_are_two():
    full = place(["a.x.org", "b.x.org"], [0, 0, 1, 1])
    assert compare_placements(BLOCK, full) is None
    assert compare_placements(full, BLOCK) is None
    assert compare_placements(full, place(["a.y.org", "b.x.org"], [0, 0, 1, 1])).rank == 0
    both = place(["a.x.org", "a.y.org"], [0, 0, 1, 1])
    assert compare_placements(both, place(["a", "a.y.org"], [0, 0, 1, 1])).rank == 0  # which one "a" is can't be known


def test_other_names_differ_unless_names_are_to_be_ignored():
    others = place(["x", "y"], [0, 0, 1, 1])
    assert compare_placements(BLOCK, others).rank == 0
    assert compare_placements(BLOCK, others, ignore_names=True) is None
    assert compare_placements(BLOCK, place(["x", "y"], [0, 1, 0, 1]), ignore_names=True).rank == 1


def test_all_of_131072_ranks_may_differ():
    nodes = [f"n{i}" for i in range(16384)]
    big = place(nodes, [i // 8 for i in range(131072)], [i % 8 for i in range(131072)])
    swapped = place(nodes, [(i // 8) ^ 1 for i in range(131072)], [i % 8 for i in range(131072)])
    assert compare_placements(big, swapped).num_differing == 131072
