"""Whether a planned group crosses a part that the localiser names, and what a class of routes gives by the run's own pairs (pure; checks of groups need it)."""

from collections.abc import Iterable, Sequence

from preflight.model.base import Record
from preflight.model.evidence import Evidence
from preflight.model.expected_rate import Expectations
from preflight.model.group_series import shape_of
from preflight.model.localisation import Culprit, Ends, Localisation, RouteReference
from preflight.model.part_names import part_phrase

DEEPER = 0.15  # so much deeper than the part itself a group that crosses it may be: a collective loses a little more than a pair


class CrossedParts:
    """The parts of one run. `localisation` None, or of another kind of ends than ranks: nothing is known to be crossed."""

    def __init__(self, localisation: Localisation | None, num_ranks: int) -> None:
        usable = localisation is not None and not localisation.ends.whole_nodes
        self._found = localisation if usable and localisation and len(localisation.ends.node) == num_ranks else None
        culprits = self._found.culprits if self._found else ()
        self._culprits = [c for c in culprits if c.kind not in {None, "environment"} and c.confidence != "possible"]

    def explaining(self, ranks: Sequence[int], depth: float) -> Culprit | None:
        """The deepest named part that these ranks cross and that makes a group so slow (`depth`: 1 - observed / reference); None: there is none."""
        assert self._found is not None or not self._culprits
        ends = self._found.ends if self._found else None
        deep_enough = (c for c in self._culprits if c.failed or c.depth is None or c.depth + DEEPER >= depth)
        crossed = [c for c in deep_enough if ends is not None and crosses(c, ends, ranks)]
        return max(crossed, key=lambda c: 1.0 if c.depth is None else c.depth, default=None)

    def named(self, culprit: Culprit) -> str:
        """The part for people, with how slow it is: "node n03, 40% slower than its peers"."""
        assert self._found is not None
        slower = "" if culprit.depth is None else f", {culprit.depth:.0%} slower than its peers"
        return f"{part_phrase(culprit, self._found.ends)}{slower}"

    def named_for(self, ranks: Sequence[int], depth: float) -> str:
        """The name of the part that explains it; empty: there is none."""
        culprit = self.explaining(ranks, depth)
        return self.named(culprit) if culprit else ""

    def between_leaves(self) -> RouteReference | None:
        """What pairs of like slots give between leaves, both ways at once; None: not measured, or the leaves are not known."""
        routes = self._found.references if self._found else ()
        return next((r for r in routes if r.op == "send_recv" and r.route.startswith("other leaf, like")), None)


def crosses(culprit: Culprit, ends: Ends, ranks: Sequence[int]) -> bool:
    """Whether a collective over these ranks sends data through the part. What lies between nodes is crossed only by a group that leaves its node."""
    places = [ends.node[rank] for rank in ranks]
    nodes = {ends.nodes[place] for place in places}
    slots = {ends.slot[rank] for rank in ranks}
    leaves = [ends.leaves[place] for place in set(places)] if ends.leaves else []
    leaves_node, leaves_leaf = len(nodes) > 1, len(set(leaves)) > 1
    in_slot = culprit.slot is None or culprit.slot in slots
    has_end = bool(culprit.ends) and culprit.ends[0] in ranks
    some = bool(nodes & set(culprit.nodes))
    both = some and bool(nodes & set(culprit.other_nodes))
    return {
        "gpu": has_end,
        "link": has_end and culprit.ends[-1] in ranks,
        "nic": has_end and leaves_node,
        "slot": in_slot and leaves_node,
        "rail": in_slot and leaves_node,
        "path": both,
        "class": both if culprit.other_nodes else some and leaves_node,
        "node": some and leaves_node,
        "uplink": in_slot and leaves_leaf and culprit.leaf in leaves,
        "leaf": in_slot and leaves.count(culprit.leaf) > 1,
    }.get(culprit.kind or "", False)


def between_leaves(
    parts: CrossedParts, evidence: Evidence, expected: Expectations
) -> tuple[RouteReference, float] | None:
    """What pairs give between leaves, and its share of what the hardware allows them; None: not known, or no less than that."""
    route = parts.between_leaves()
    if route is None or evidence.plan is None:
        return None
    allowed = route.expected_bytes_per_s
    if allowed is None:
        pairs = (m.probe for m in evidence.measurements or () if m.probe.axis is None and len(m.probe.ranks) == 2)
        pair = next((probe for probe in pairs if shape_of(evidence.plan, probe.ranks)[1]), None)
        allowed = expected.of("send_recv", pair.ranks, pair.size_bytes).bytes_per_s if pair else None
    return (route, route.bytes_per_s / allowed) if allowed and route.bytes_per_s < allowed else None


class Explained(Record, frozen=True):
    """Groups that all cross named parts. `text`: which; `parts`: their names."""

    text: str
    parts: tuple[str, ...]


def all_explained(parts: CrossedParts, groups: Iterable[tuple[Sequence[int], float]]) -> Explained | None:
    """`groups`: ranks and depth of each short group. None: some of them cross no part that explains it."""
    found: dict[str, None] = {}
    for ranks, depth in groups:
        culprit = parts.explaining(ranks, depth)
        if culprit is None:
            return None
        found[parts.named(culprit)] = None
    if not found:
        return None
    names = tuple(found)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return Explained(f"{'; '.join(names[:3])}{more}", names)
