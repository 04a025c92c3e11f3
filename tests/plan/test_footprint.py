"""What groups touch: the placement tables of the reference, and where domains, leaves and racks come from."""

import random

import msgspec
import pytest

from preflight.model import NODE_IS_DOMAIN, Placement, Topology
from preflight.plan.footprint import add_topology, find_footprints
from tests.checks import placements


def place(nodes, gpus=8, *, names=None, node_of=None, **columns) -> Placement:
    """Block placement on `nodes` nodes, or rank -> node as `node_of` says; `columns`: further ones of a placement."""
    node_of = node_of or (lambda rank: rank // gpus)
    placed = placements.place(nodes, gpus, node_of, names or [f"n{i}" for i in range(nodes)])
    return msgspec.structs.replace(placed, **columns)


def strided(world, size, step):
    """Groups of `size` ranks, `step` apart, as one axis of a layout makes them."""
    starts = (s for s in range(world) if (s // step) % size == 0)
    return tuple(tuple(range(start, start + size * step, step)) for start in starts)


def touched(placement, what="nodes", **axes):
    """Axis -> the different numbers of nodes (or domains, leaves, ...) that its groups touch."""
    found = find_footprints(placement, axes)
    return {axis: sorted(set(getattr(found[axis], what))) for axis in axes}


def cyclic(rank):
    return rank % 8


def plane(rank):
    return rank // 4 % 8


@pytest.mark.parametrize(("node_of", "tp", "dp", "pp"), [(None, 1, 2, 4), (cyclic, 8, 1, 1), (plane, 2, 2, 2)])
def test_nodes_per_group_of_the_reference_layout_under_three_distributions(node_of, tp, dp, pp):
    axes = {"tp": strided(64, 8, 1), "dp": strided(64, 2, 8), "pp": strided(64, 4, 16)}
    assert touched(place(8, node_of=node_of), **axes) == {"tp": [tp], "dp": [dp], "pp": [pp]}


def leaves_of(numbers):
    """Four nodes to a leaf, in the order of their numbers."""
    return tuple(f"leaf{(number - 1) // 4}" for number in numbers)


def test_leaves_touched_in_numeric_and_in_text_order():
    axes = {"tp": strided(128, 8, 1), "dp": strided(128, 4, 8), "pp": strided(128, 4, 32)}
    numeric = range(1, 17)
    as_text = sorted(numeric, key=str)
    in_order = place(16, leaves=leaves_of(numeric))
    assert touched(in_order, "leaves", **axes) == {"tp": [1], "dp": [1], "pp": [4]}
    assert touched(in_order, "leaves_in_order", **axes) == {"tp": [1], "dp": [1], "pp": [4]}
    scattered = find_footprints(place(16, leaves=leaves_of(as_text)), axes)
    assert set(scattered["tp"].leaves or ()) == {1}
    assert [(scattered["dp"].leaves or ()).count(number) for number in (1, 2)] == [8, 24]
    assert set(scattered["pp"].leaves or ()) == {3, 4}
    assert set(scattered["dp"].leaves_in_order or ()) == {1}


@pytest.mark.parametrize(
    ("first", "second", "size", "inside", "split"),
    [(16, 16, 32, 4, 0), (18, 14, 32, 3, 1), (18, 14, 64, 1, 1), (17, 15, 8, 15, 1)],
)
def test_domains_per_group_on_nodes_of_four_gpus_from_two_racks(first, second, size, inside, split):
    placement = place(32, 4, domains=("a",) * first + ("b",) * second)
    footprint = find_footprints(placement, {"ep": strided(128, size, 1)})["ep"]
    assert [footprint.domains.count(number) for number in (1, 2)] == [inside, split]
    assert max(footprint.chunk) == size


def test_the_chunk_is_the_fewest_ranks_in_one_of_its_domains():
    placement = place(3, 4, domains=("a", "a", "b"))
    footprint = find_footprints(placement, {"x": (tuple(range(12)), (0, 4, 8, 9, 10, 11, 1, 2, 3, 5, 6, 7))})["x"]
    assert footprint.chunk == (4, 4)
    without = find_footprints(place(3, 4), {"x": ((0, 1, 4, 8, 9, 10),)})["x"]
    assert (without.nodes, without.domains, without.chunk, without.slots) == ((3,), (3,), (1,), (3,))
    assert (without.leaves, without.racks) == (None, None)


def test_a_domain_that_nobody_told_makes_its_groups_unknown_and_no_others():
    placement = place(3, 4, domains=("a", "a", None))
    footprint = find_footprints(placement, {"tp": strided(12, 4, 1), "dp": ((0, 4), (0, 8))})
    assert footprint["tp"].domains == (1, 1, 0)
    assert footprint["tp"].chunk == (4, 4, 0)
    assert footprint["dp"].domains == (1, 0)


def test_groups_of_different_sizes_keep_their_order():
    footprint = find_footprints(place(4, 2), {"x": ((0, 1), (0, 2, 4), (6, 7), (1, 3, 5))})["x"]
    assert footprint.nodes == (1, 3, 1, 3)


def test_random_placements_count_as_a_slow_and_simple_count_does():
    chance = random.Random(7)
    for _ in range(50):
        nodes, gpus = chance.randint(1, 6), chance.randint(1, 5)
        domains = tuple(chance.choice(["a", "b", "c", None]) for _ in range(nodes))
        order = [rank // gpus for rank in range(nodes * gpus)]
        chance.shuffle(order)
        placement = place(nodes, gpus, node_of=order.__getitem__, domains=domains, racks=domains)
        size = chance.choice([n for n in range(1, nodes * gpus + 1) if nodes * gpus % n == 0])
        groups = strided(nodes * gpus, size, 1)
        found = find_footprints(placement, {"x": groups})["x"]
        for index, ranks in enumerate(groups):
            names = [domains[order[rank]] for rank in ranks]
            assert found.nodes[index] == len({order[rank] for rank in ranks})
            assert found.slots[index] == len({placement.local_ranks[rank] for rank in ranks})
            assert found.domains[index] == (0 if None in names else len(set(names)))
            assert found.chunk[index] == (0 if None in names else min(map(names.count, names)))
            assert (found.racks or ())[index] == found.domains[index]


def test_nothing_known_leaves_the_placement_as_it_is():
    placement = place(2)
    assert add_topology(placement, None, None) == placement
    assert add_topology(placement, Topology(), None).domain_source == NODE_IS_DOMAIN


def test_a_file_that_names_domains_leaves_and_racks():
    topology = Topology(
        switches={"n0": ("l0", "s"), "n1": ("l1", "s")},
        node_domains={"n0": "a", "n1": "a"},
        racks={"n0": "r"},
        source="t",
    )
    placed = add_topology(place(3), topology, None)
    assert (placed.domains, placed.domain_source) == (("a", "a", None), "NVLink domains from t")
    assert (placed.leaves, placed.racks) == (("l0", "l1", None), ("r", None, None))


def test_a_file_that_knows_none_of_the_nodes_changes_nothing_and_says_so():
    placed = add_topology(place(2), Topology(node_domains={"other": "a"}, source="t"), None)
    assert (placed.domains, placed.leaves) == (None, None)
    assert placed.domain_source == f"{NODE_IS_DOMAIN}; t knows none of these nodes"


def test_the_plan_file_joins_consecutive_nodes_and_the_assumption_is_said():
    placed = add_topology(place(5, 4), None, 2)
    assert placed.domains == ("domain0", "domain0", "domain1", "domain1", "domain2")
    assert placed.domain_source == "taking every 2 nodes in their order as one NVLink domain"
    assert add_topology(place(5, 4), None, 1).domains is None


def test_a_file_that_names_domains_counts_more_than_the_plan_file():
    topology = Topology(node_domains={f"n{i}": "a" for i in range(4)}, source="t")
    assert add_topology(place(4, 4), topology, 2).domains == ("a",) * 4


@pytest.mark.parametrize(
    ("gpus", "gpu", "nodes_per_domain", "are_domains"),
    [
        (4, None, None, True),  # a tray of NVL72
        (8, None, None, False),  # no NVLink product joins nodes of 8
        (4, "GB200-NVL72", None, True),
        (4, "GB300", None, True),
        (4, "A100-80GB", None, False),
        (8, "H100-80GB", None, False),
        (8, None, 18, True),  # the plan file says so
        (4, None, 1, False),
    ],
)
def test_slurm_blocks_are_domains_only_where_nvlink_can_join_nodes(gpus, gpu, nodes_per_domain, are_domains):
    topology = Topology(blocks={f"n{i}": f"b{i // 4}" for i in range(8)}, source="topology.conf")
    placed = add_topology(place(8, gpus), topology, nodes_per_domain, gpu=gpu)
    blocks = ("b0",) * 4 + ("b1",) * 4
    assert (placed.domains, placed.racks) == ((blocks, None) if are_domains else (None, blocks))
    if are_domains:
        assert placed.domain_source == "taking each block of topology.conf as one NVLink domain"
    else:
        assert placed.domain_source.startswith(NODE_IS_DOMAIN)


def test_blocks_larger_than_the_plan_file_says_are_no_domains():
    topology = Topology(blocks={f"n{i}": "b" for i in range(4)}, source="t")
    assert add_topology(place(4, 4), topology, 2).domains == ("domain0", "domain0", "domain1", "domain1")


def test_fabric_information_of_the_gpus_counts_most():
    uuids = tuple(f"GPU-{rank}" for rank in range(8))
    topology = Topology(
        nvlink_domains={"rack.1": uuids[:6]}, node_domains={"n0": "x", "n1": "y", "n2": "x", "n3": "y"}, source="t"
    )
    placed = add_topology(place(4, 2, gpu_uuids=uuids), topology, 2)
    assert placed.domains == ("rack.1", "rack.1", "rack.1", None)
    assert placed.domain_source == "NVLink domains by the fabric information of the GPUs"
    split = Topology(nvlink_domains={"a": uuids[:1], "b": uuids[1:]})
    assert add_topology(place(4, 2, gpu_uuids=uuids), split, None).domains == (None, "b", "b", "b")


def test_fabric_information_without_uuids_of_ranks_is_not_used():
    placed = add_topology(
        place(2, 2), Topology(nvlink_domains={"a": ("GPU-1",)}, node_domains={"n0": "x", "n1": "x"}), None
    )
    assert placed.domains == ("x", "x")
