"""What no plan can be: columns of different lengths, ranks on nodes that aren't there. Types alone don't exclude them, and every table, page and verdict relies on them. Pure.

The planner never writes such a thing; a saved run that holds one was changed, or made up, and is refused.
"""

from collections.abc import Iterator, Mapping
from itertools import chain

from preflight.model.plan import Footprint, Placement, Plan

MAX_RANKS = 2**20
MAX_LOCAL = 4096  # ranks of one node
MAX_NAME = 1024  # letters of a node's name, as of discovered ones
Groups = Mapping[str, tuple[tuple[int, ...], ...]]


def impossible_plan(plan: Plan) -> str | None:
    """Why this can't be a plan, with the place in it; None if it can."""
    return next(_problems(plan), None)


def _problems(plan: Plan) -> Iterator[str]:
    world = plan.world_size
    if not 1 <= world <= MAX_RANKS:
        yield f"world_size {_shown(world)}: expected 1 to {MAX_RANKS}"
        return
    for name, placement in (("placement", plan.placement), ("predicted", plan.predicted)):
        if placement is not None:
            yield from (f"{name}: {problem}" for problem in _of_placement(placement))
    if len(plan.placement.node_ranks) != world:
        yield f"placement: has {len(plan.placement.node_ranks)} ranks, and the plan {world}"
    yield from _of_groups("groups", plan.groups, world)
    yield from _of_groups("composites", plan.composites, world)
    for axis, footprint in plan.footprints.items():
        number = len(plan.groups.get(axis, ()))
        if any(len(column) != number for column in _columns(footprint)):
            yield f"footprints.{axis}: expected an entry for each of {number} groups"


def _of_placement(placement: Placement) -> Iterator[str]:
    nodes, ranks = len(placement.nodes), len(placement.node_ranks)
    if not nodes or len(set(placement.nodes)) != nodes:
        yield f"nodes: expected one name or more, each once, got {nodes}"
    if not all(0 < len(name) <= MAX_NAME for name in placement.nodes):
        yield f"nodes: expected names of 1 to {MAX_NAME} letters"
    for what, column, number in (
        ("local_ranks", placement.local_ranks, ranks),
        ("gpu_uuids", placement.gpu_uuids, ranks),
        ("domains", placement.domains, nodes),
        ("leaves", placement.leaves, nodes),
        ("racks", placement.racks, nodes),
    ):
        if column is not None and len(column) != number:
            yield f"{what}: has {len(column)} entries; expected {number}"
    if not all(0 <= node < nodes for node in placement.node_ranks):
        yield f"node_ranks: expected numbers from 0 to {nodes - 1}"
    if not all(0 <= place < MAX_LOCAL for place in placement.local_ranks):
        yield f"local_ranks: expected numbers from 0 to {MAX_LOCAL - 1}"
    if len(set(zip(placement.node_ranks, placement.local_ranks, strict=False))) != ranks:
        yield "two ranks have one node and one local rank"


def _of_groups(what: str, groups: Groups, world: int) -> Iterator[str]:
    for name, of_axis in groups.items():
        if not all(of_axis):
            yield f"{what}.{name}: expected groups of one rank or more"
        elif of_axis and not 0 <= min(map(min, of_axis)) <= max(map(max, of_axis)) < world:
            yield f"{what}.{name}: expected ranks from 0 to {world - 1}"
        elif any(len(set(ranks)) != len(ranks) for ranks in of_axis):
            yield f"{what}.{name}: a rank stands twice in one group"
        elif what == "groups" and len(set(chain.from_iterable(of_axis))) != sum(map(len, of_axis)):
            yield f"{what}.{name}: a rank stands in two groups of one axis"


def _columns(footprint: Footprint) -> Iterator[tuple[int, ...]]:
    for name in footprint.__struct_fields__:
        column = getattr(footprint, name)
        if column is not None:
            yield column


def _shown(number: int) -> str:
    return str(number) if abs(number) < 2**64 else f"of {number.bit_length()} bits"
