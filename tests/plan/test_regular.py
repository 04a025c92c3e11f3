"""Footprints of regular groups on regular nodes are those that a look at every rank finds."""

import random

import pytest

from preflight.errors import ConfigError
from preflight.model import Placement
from preflight.plan.footprint import find_footprints
from preflight.plan.layout import lay_out
from preflight.plan.regular import regular_footprints
from tests.builders import make_job


def place(nodes: int, per_node: int, **changes) -> Placement:
    facts = {
        "source": "predicted",
        "method": "block",
        "nodes": tuple(f"n{i}" for i in range(nodes)),
        "node_ranks": tuple(rank // per_node for rank in range(nodes * per_node)),
        "local_ranks": tuple(range(per_node)) * nodes,
    }
    return Placement(**{**facts, **changes})


def domains(nodes: int, size: int):
    return tuple(f"d{node // size}" for node in range(nodes))


def layout_on(nodes: int, per_node: int, **parallel):
    return lay_out(make_job(**parallel), nodes=nodes, gpus_per_node=per_node, world_size=nodes * per_node)


def test_random_layouts_touch_what_a_look_at_every_rank_finds():
    chance = random.Random(5)
    compared = 0
    while compared < 60:
        nodes, per_node, size = (chance.choice(some) for some in ([2, 4, 6, 12, 16], [1, 2, 3, 4, 8], [1, 2, 3]))
        sizes = {axis: chance.choice([1, 2, 3, 4, 8]) for axis in ("tp", "cp", "pp", "ep")}
        order = tuple(chance.sample(("tp", "cp", "ep", "dp", "pp"), 5))
        try:
            layout = layout_on(nodes, per_node, **sizes, etp=1, order=order)
        except ConfigError:
            continue
        placement = place(nodes, per_node, domains=domains(nodes, size) if nodes % size == 0 and size > 1 else None)
        found = regular_footprints(placement, layout.patterns)
        assert found == find_footprints(placement, layout.groups)
        assert list(found) == list(layout.groups)
        compared += 1


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"node_ranks": (0, 1) * 8, "local_ranks": tuple(r // 2 for r in range(16))}, id="cyclic"),
        pytest.param({"node_ranks": (0,) * 7 + (1,) * 9, "local_ranks": (*range(7), *range(9))}, id="uneven"),
        pytest.param({"local_ranks": (*range(8), *reversed(range(8)))}, id="rotated"),
        pytest.param({"leaves": ("a", "b")}, id="leaves are known"),
        pytest.param({"domains": ("a", None)}, id="a domain is not known"),
    ],
)
def test_what_is_not_regular_is_left_to_the_look_at_every_rank(changes):
    assert regular_footprints(place(2, 8, **changes), layout_on(2, 8, tp=4).patterns) == {}


@pytest.mark.parametrize("names", [("a", "a", "b"), ("a", "b", "a", "b")])
def test_domains_unlike_in_size_or_scattered_are_not_regular(names):
    placement = place(len(names), 8, domains=names)
    assert regular_footprints(placement, layout_on(len(names), 8, tp=4).patterns) == {}
