"""The ways between nodes that the localiser accuses (pure). Where every pair of a class of routes takes one, those pairs themselves are the class's reference: held against it, a slow way looks healthy."""

from typing import NamedTuple

from preflight.model.localisation import Culprit, Ends, Localisation

OP = "send_recv"


class SlowWay(NamedTuple):
    """`side` of each rank: 1 or 2, 0: on neither; pairs of 1 and 2 take the way. `bytes_per_s`: what it was held against; `source`: what that is, in words."""

    side: tuple[int, ...]
    bytes_per_s: float
    source: str

    def takes(self, a: int, b: int) -> bool:
        """Whether a pair of known ranks takes the way."""
        return self.side[a] * self.side[b] == 2


def slow_ways(found: Localisation | None) -> list[SlowWay]:
    """None of a run that judges no rates."""
    ways = []
    for culprit in found.culprits if found and not found.unjudged else ():
        against = culprit.reference_bytes_per_s
        if found is None or not against or (culprit.ops and OP not in {op.split(" ", 1)[0] for op in culprit.ops}):
            continue
        side = _sides(culprit, found.ends)
        if side is not None:
            ways.append(SlowWay(side, against, culprit.reference))
    return ways


def _sides(culprit: Culprit, ends: Ends) -> tuple[int, ...] | None:
    """Of a path between two sets of nodes, or a leaf's way out (of one slot, where only that is slow). None: another part."""
    names = [ends.nodes[node] for node in ends.node]
    if culprit.kind == "path":
        one, other = frozenset(culprit.nodes), frozenset(culprit.other_nodes)
        return tuple(1 if name in one else 2 if name in other else 0 for name in names)
    if culprit.kind == "uplink" and culprit.share is None and ends.leaves:
        leaves = [ends.leaves[node] for node in ends.node]
        slots = zip(leaves, ends.slot, strict=True)
        return tuple(
            0 if leaf is None else 2 if leaf != culprit.leaf else int(culprit.slot in {None, slot})
            for leaf, slot in slots
        )
    return None
