"""Few nodes on few leaves: where the only pair of a leaf is slow it is no measure of itself, and a node that is alone on its leaf can't be told from its leaf's way out."""

import pytest

from preflight.probe.simulate import Cluster, Fault
from tests.fleets.examine import examine


def culprits(sizes, fault, seed=0):
    number, leaf_of = sum(sizes), [leaf for leaf, size in enumerate(sizes) for _ in range(size)]
    cluster = Cluster(
        nodes=tuple(f"n{node}" for node in range(number)),
        leaves=tuple(f"leaf{leaf}" for leaf in leaf_of),
        faults=(fault,) if fault else (),
    )
    return examine(cluster, seed).localisation.culprits


def placed():
    for sizes in ((2, 1), (1, 2), (2, 1, 1), (3, 1), (2, 2)):
        on_leaf = [size for size in sizes for _ in range(size)]
        yield from ((sizes, node, size) for node, size in enumerate(on_leaf))


@pytest.mark.parametrize(("sizes", "node", "on_its_leaf"), list(placed()))
def test_of_a_few_nodes_the_slow_one_is_named_where_another_of_its_leaf_was_slow_with_it_and_no_other_ever_is(
    sizes, node, on_its_leaf
):
    found = culprits(sizes, Fault(kind="node", nodes=(f"n{node}",), depth=0.4))
    blamed = [c for c in found if c.kind and c.confidence != "possible"]
    if on_its_leaf > 1:
        assert [(c.kind, c.nodes) for c in blamed] == [("node", (f"n{node}",))]
    else:
        assert blamed == []
        named = [c for c in found if any((k.kind, k.nodes) == ("node", (f"n{node}",)) for k in c.candidates)]
        assert named or any(f"or n{node} itself" in c.reason for c in found)


@pytest.mark.parametrize("sizes", [(2, 1), (3, 1), (4, 1), (2, 1, 1), (3, 3, 1)])
def test_the_slow_way_out_of_a_leaf_with_one_node_is_never_blamed_on_that_node(sizes):
    found = culprits(sizes, Fault(kind="uplink", leaf=f"leaf{len(sizes) - 1}", depth=0.4))
    assert found
    assert [c for c in found if c.kind in {"node", "nic", "gpu"}] == []


@pytest.mark.parametrize("sizes", [(2, 1), (1, 2), (2, 1, 1), (1, 1, 1, 1), (3, 1)])
def test_a_few_healthy_nodes_are_left_alone(sizes):
    assert culprits(sizes, None) == ()
