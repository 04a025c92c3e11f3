"""How much of what a run plans was measured (pure)."""

from collections import Counter
from collections.abc import Iterable, Sequence

from preflight.model import Measurement, Plan
from preflight.model.localisation import Ends
from preflight.model.report import Coverage


def coverage_of(
    plan: Plan, ends: Ends, measurements: Iterable[Measurement], *, all_slots: bool, scan: str = ""
) -> Coverage:
    """Pairs: inside nodes, like slots between nodes (`all_slots`: unlike ones too), and inside tensor-parallel groups. Groups: those of every axis that is timed, in any mode.

    Links: of each rank of a run over several nodes. Uplinks and pairs of leaves: of leaves that are known.
    """
    group_of = {rank: number for number, group in enumerate(plan.groups.get("tp", ())) for rank in group}
    pairs: set[tuple[int, int]] = set()
    groups: set[str] = set()
    for measurement in measurements:
        probe = measurement.probe
        if not measurement.samples:
            continue
        if probe.axis is not None:
            groups.add(probe.subject)
        elif len(probe.ranks) == 2:
            pairs.add((min(probe.ranks), max(probe.ranks)))
    crossing = [pair for pair in pairs if ends.node[pair[0]] != ends.node[pair[1]]]
    planned = [
        (a, b)
        for a, b in pairs
        if all_slots
        or ends.node[a] == ends.node[b]
        or ends.slot[a] == ends.slot[b]
        or group_of.get(a, -1) == group_of.get(b, -2)
    ]
    leaves = {leaf for leaf in _leaves_of_ends(ends) if leaf is not None}
    met = {
        frozenset(pair)
        for pair in (_leaves(ends, pair) for pair in crossing)
        if None not in pair and len(set(pair)) > 1
    }
    several = len(set(ends.node)) > 1
    return Coverage(
        pairs_planned=num_pairs(plan, ends, all_slots=all_slots),
        pairs_measured=len(planned),
        groups_planned=sum(len(plan.groups[axis]) for axis in plan.timed_axes),
        groups_measured=len(groups),
        links_planned=len(ends.node) if several else 0,
        links_measured=len({end for pair in crossing for end in pair}),
        uplinks_planned=len(leaves) if len(leaves) > 1 else 0,
        uplinks_measured=len({leaf for pair in met for leaf in pair}),
        leaf_pairs_planned=len(leaves) * (len(leaves) - 1) // 2,
        leaf_pairs_measured=len(met),
        scan=scan,
    )


def num_pairs(plan: Plan, ends: Ends, *, all_slots: bool) -> int:
    """Pairs of ranks that a run plans, counted without listing them.

    Worked example, 8 nodes of 8, tp 8: 8 x 28 inside nodes and 8 x 28 of like slots between them, 448.
    """
    if all_slots:
        return _two(len(ends.node))
    inside = sum(_two(number) for number in Counter(ends.node).values())
    like = sum(_two(number) for number in Counter(ends.slot).values())
    return inside + like + sum(_unlike_pairs(ends, group) for group in plan.groups.get("tp", ()))


def _unlike_pairs(ends: Ends, group: Sequence[int]) -> int:
    """Of a group's pairs those on different nodes in unlike slots: all, less those of one node, less those of one slot."""
    nodes, slots = (Counter(where[rank] for rank in group) for where in (ends.node, ends.slot))
    return _two(len(group)) - sum(_two(number) for counted in (nodes, slots) for number in counted.values())


def _two(number: int) -> int:
    return number * (number - 1) // 2


def _leaves_of_ends(ends: Ends) -> set[str | None]:
    return set() if ends.leaves is None else {ends.leaves[node] for node in set(ends.node)}


def _leaves(ends: Ends, pair: tuple[int, int]) -> tuple[str | None, str | None]:
    if ends.leaves is None:
        return None, None
    return ends.leaves[ends.node[pair[0]]], ends.leaves[ends.node[pair[1]]]
