"""Which nodes a layout wants close together, and how to pack them into NVLink domains, leaves and racks.

With block placement each position in the order of nodes holds a fixed set of ranks. Positions that share a group of tp, cp or ep form a block: its nodes
belong into one domain. Blocks are packed whole: a domain of 18 nodes takes two blocks of 8, and the 2 nodes left over
make up blocks with what other domains leave over. That is constructive, not a search: linear in the number of nodes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Labels = tuple[str | None, ...]

# what binds most comes first: a group of tp talks twice per layer, experts once, cp once
TIGHT_AXES = (("tp", "etp"), ("cp", "hcp1", "hcp2", "hcp3"), ("ep",))
WIDE_AXES = ("dp", "edp"), ("pp",)  # either of them may be kept together, whichever costs less


class Level(NamedTuple):
    """One step of packing: `size` units of the level below belong under one label (a domain, a leaf, a rack)."""

    labels: Labels
    size: int


def find_blocks(groups: Mapping[str, Sequence[Sequence[int]]], axes: Sequence[str], per_node: int, nodes: int) -> Any:
    """For each position in the order of nodes the number of its block, an array (nodes,), where the groups of these axes join positions.

    Example: 2 ranks per node, groups [0, 1, 2, 3] and [4, 5, 6, 7]: blocks 0, 0, 1, 1.
    """
    import numpy as np

    labels = np.arange(nodes)
    edges = [np.empty(0, dtype=np.int64)]  # first position x nodes + another position of the same group
    for axis in axes:
        if groups.get(axis):
            members = (
                np.asarray(groups[axis], dtype=np.int64) // per_node
            )  # (groups, degree): the position of each member
            edges.append(np.unique(members[:, :1] * nodes + members))
    first, other = np.divmod(np.concatenate(edges), nodes)
    while True:  # the smallest number spreads through a block
        low = np.minimum(labels[first], labels[other])
        spread = labels.copy()
        np.minimum.at(spread, first, low)
        np.minimum.at(spread, other, low)
        spread = spread[spread]
        if (spread == labels).all():
            return labels
        labels = spread


def block_size(blocks: Any) -> int | None:
    """Positions in each block; None if blocks differ."""
    import numpy as np

    sizes = np.unique(np.unique(blocks, return_counts=True)[1])
    return int(sizes[0]) if len(sizes) == 1 else None


def arrange(
    groups: Mapping[str, Sequence[Sequence[int]]],
    per_node: int,
    *,
    domains: Labels,
    leaves: Labels,
    racks: Labels,
    wide: Sequence[str],
) -> tuple[int, ...] | None:
    """For each position in the order of nodes the index of the node to put there. None: blocks don't nest evenly, or nothing is known that nodes share.

    `domains`, `leaves`, `racks`: of each node, by its present index. `wide`: the axes to keep near each other after tp, cp and ep.
    """
    import numpy as np

    num = len(domains)
    scopes = [labels for labels in (domains, leaves, racks) if _joins(labels)]
    axes: list[str] = []
    keys, levels, below = [], [], 1
    for more in (*TIGHT_AXES, tuple(wide)):
        axes += more
        blocks = find_blocks(groups, axes, per_node, num)
        size = block_size(blocks)
        if size is None:
            return None
        scope = next((labels for labels in scopes if size <= max(Counter(labels).values())), None)
        if size in (below, num):
            continue
        keys.append(blocks)
        if scope is not None:  # a block larger than any leaf is only kept together
            levels.append(Level(scope, size // below))
            below = size
    if not scopes:
        return None
    positions = np.lexsort((np.arange(num), *keys))  # the last key, the widest block, counts most
    packed = pack(levels, num, scopes[::-1])
    order = np.empty(num, dtype=np.int64)
    order[positions] = packed
    return tuple(order.tolist())


def pack(levels: Sequence[Level], num: int, near: Sequence[Labels] = ()) -> list[int]:
    """The node indexes in an order in which, at each level, as many consecutive runs as possible lie under one label.

    `near`: labels by which whole domains are put side by side, coarsest first.
    Worked example, domains a a a b b b, runs of two: 0 1 | 3 4 | 2 5, the last one split since nothing else is left.
    """
    first_seen = [{label: index for index, label in reversed(list(enumerate(labels)))} for labels in near]
    nodes = sorted(
        range(num), key=lambda node: [seen[labels[node]] for seen, labels in zip(first_seen, near, strict=True)]
    )
    units = [[node] for node in nodes]
    for labels, size in levels:
        bins: dict[str | None, list[list[int]]] = {}
        loose: list[list[int]] = []
        for unit in units:
            found = {labels[node] for node in unit}
            if len(found) == 1 and None not in found:
                bins.setdefault(found.pop(), []).append(unit)
            else:
                loose.append(unit)
        whole: list[list[int]] = []
        rest: list[list[int]] = []
        for members in bins.values():
            cut = len(members) // size * size
            whole += _joined(members[:cut], size)
            rest += members[cut:]
        rest += loose
        units = whole + _joined(rest, size)
    return [node for unit in units for node in unit]


def _joined(units: Sequence[Sequence[int]], size: int) -> list[list[int]]:
    """Every `size` units as one."""
    return [[node for unit in units[i : i + size] for node in unit] for i in range(0, len(units), size)]


def _joins(labels: Labels) -> bool:
    """Whether some label is known and stands for several nodes."""
    return any(count > 1 for label, count in Counter(labels).items() if label is not None)
