"""What the groups of a layout touch under block placement, by arithmetic: no group is built, so hundreds of layouts can be compared."""

import math
from collections.abc import Mapping
from functools import lru_cache

from preflight.model import Footprint

Steps = tuple[tuple[int, int], ...]

# axes that stand for several others: name -> the parts they are made of, as far as a layout has them
_MADE_OF: dict[str, tuple[str, ...]] = {
    "dp": ("dp_shard", "dp_replicate"),
    "dp_cp": ("cp", "dp"),
    "fsdp": ("cp", "dp_shard"),
    "edp": ("efsdp", "dp_replicate"),
}


def block_footprints(
    degrees: Mapping[str, int],
    dense: tuple[str, ...],
    expert: tuple[str, ...],
    *,
    per_node: int,
    per_domain: int,
) -> dict[str, Footprint]:
    """Axis -> the most nodes and domains that one of its groups touches, and the most of its ranks that share a domain; one entry each.

    `dense`, `expert`: the axes of each kind of layer, innermost first. `per_node`, `per_domain`: ranks on a node and in an NVLink domain.
    Worked example, tp 8, pp 4, dp 2 on nodes of 8: tp 1 node, dp 2, pp 4.
    """
    strides = _strides(degrees, dense)
    world = math.prod(degrees[axis] for axis in strides)
    if "edp" in degrees:
        strides = _strides(degrees, expert) | strides
    found = {}
    for axis, degree in degrees.items():
        whole = tuple((strides[part], degrees[part]) for part in _parts(axis, strides) if degrees[part] > 1)
        along = whole
        if axis == "embedding":  # the first and the last rank of each pipeline
            whole, along = ((strides["pp"], degrees["pp"]),), ((strides["pp"] * (degrees["pp"] - 1), 2),)
        if degree > 1 and along:
            nodes, _ = _touched(along, whole, world, per_node)
            domains, chunk = _touched(along, whole, world, per_domain)
            found[axis] = Footprint(nodes=(nodes,), domains=(domains,), slots=(1,), chunk=(chunk,))
    return found


def _parts(axis: str, strides: Mapping[str, int]) -> tuple[str, ...]:
    """The axes that make up an axis, as far as this layout has them; empty for one that stands for none."""
    if axis in strides:
        return (axis,)
    parts = _MADE_OF.get(axis, ())
    return parts if all(part in strides for part in parts) else ()


def _strides(degrees: Mapping[str, int], order: tuple[str, ...]) -> dict[str, int]:
    """Axis -> how far apart its neighbours are."""
    strides, below = {}, 1
    for axis in order:
        if axis in degrees:
            strides[axis] = below
            below *= degrees[axis]
    return strides


@lru_cache(maxsize=4096)
def _touched(along: Steps, whole: Steps, world: int, size: int) -> tuple[int, int]:
    """(most bins that one group touches, fewest of its ranks in one of them), with bins of `size` consecutive ranks.

    `along`: (stride, degree) of each part of the axis; groups begin where every coordinate of `whole` is 0.
    """
    import numpy as np

    members = np.zeros(1, dtype=np.int64)
    for stride, degree in along:
        members = np.add.outer(np.arange(degree) * stride, members).ravel()
    first = np.arange(world)
    for stride, degree in whole:
        first = first[first // stride % degree == 0]
    # where groups begin matters only modulo the bin, so a few stand for all
    first = np.unique(first % (size * max(stride for stride, _ in whole)))
    first = first[:: -(-len(first) // 64)]
    bins = np.sort((first[:, None] + members[None, :]) // size, axis=1)
    most = int((np.diff(bins, axis=1) != 0).sum(axis=1).max()) + 1
    fewest = min(int(np.unique(row, return_counts=True)[1].min()) for row in bins)
    return most, fewest
