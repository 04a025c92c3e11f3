"""Pairs of a run's ends in rounds that are made when they are asked for: inside nodes, inside tensor-parallel groups, unlike slots (pure)."""

from collections.abc import Callable, Sequence
from functools import cache

from preflight.model.localisation import Ends
from preflight.probe.schedule.circle import circle_round, num_circle_rounds
from preflight.probe.schedule.strata import Pairs

circle = cache(circle_round)  # nodes, and groups of an axis, are of few sizes


class Rounds:
    """So many rounds of pairs, each made when asked for; some may be empty."""

    def __init__(self, count: int, make: Callable[[int], Pairs]) -> None:
        self.count = count
        self.make = make


def inside_nodes(ends: Ends) -> Rounds:
    """Every pair of GPUs of a node, all nodes at once."""
    members: dict[int, list[int]] = {}
    for end, node in enumerate(ends.node):
        members.setdefault(node, []).append(end)
    return _among(list(members.values()))


def inside_groups(ends: Ends, groups: Sequence[Sequence[int]], *, like_slots: bool) -> Rounds:
    """Every pair of each group's ranks that sit on different nodes. `like_slots` False: only those that rail-by-rail rounds don't meet."""
    crossing = [group for group in groups if len({ends.node[rank] for rank in group}) > 1]
    rounds = _among(crossing)

    def make(number: int) -> Pairs:
        return [
            (min(a, b), max(a, b))
            for a, b in rounds.make(number)
            if ends.node[a] != ends.node[b] and (like_slots or ends.slot[a] != ends.slot[b])
        ]

    return Rounds(rounds.count, make)


def unlike_slots(ends: Ends, groups: Sequence[Sequence[int]]) -> Rounds:
    """Slot s of one node with slot s + shift of another, all shifts but 0, without pairs inside one of these groups."""
    slots: dict[int, dict[int, int]] = {}
    for end, (node, slot) in enumerate(zip(ends.node, ends.slot, strict=True)):
        slots.setdefault(node, {})[slot] = end
    nodes, wide = list(slots.values()), max(ends.slot, default=0) + 1
    turns = num_circle_rounds(len(nodes))
    group_of = {rank: number for number, group in enumerate(groups) for rank in group}

    def make(number: int) -> Pairs:
        shift, turn = 1 + number // turns, number % turns
        found: Pairs = []
        for a, b in circle(len(nodes), turn):
            for slot, end in nodes[a].items():
                other = nodes[b].get((slot + shift) % wide)
                if other is not None and group_of.get(end, -1) != group_of.get(other, -2):
                    found.append((min(end, other), max(end, other)))
        return found

    return Rounds(turns * (wide - 1), make)


def _among(sets: Sequence[Sequence[int]]) -> Rounds:
    """All pairs within each of these sets, all sets at once; a smaller set is through earlier."""

    def make(number: int) -> Pairs:
        return [
            (members[a], members[b])
            for members in sets
            if number < num_circle_rounds(len(members))
            for a, b in circle(len(members), number)
        ]

    return Rounds(max((num_circle_rounds(len(members)) for members in sets), default=0), make)
