"""Rounds over the rank pairs of a plan, whole: what a small run measures."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from preflight.model import Plan
from preflight.probe.schedule.circle import circle_rounds
from preflight.probe.schedule.probes import FULL_CROSS_NODES, Round, pair_probe


def pair_rounds(plan: Plan, backend: str, repeat: int = 0) -> list[Round]:
    """Rounds over rank pairs: inside nodes, then rail by rail between nodes, then what else tensor-parallel groups need.

    Inside nodes every pair, all nodes at once. Between nodes like slots; unlike slots too on up to FULL_CROSS_NODES nodes.
    """
    nodes: dict[str, list[int]] = {}
    for rank in plan.placement.ranks:
        nodes.setdefault(rank.node, []).append(rank.rank)
    done: set[tuple[int, int]] = set()
    rounds: list[Round] = []

    def add(pairs: Iterator[tuple[int, int]]) -> None:
        fresh = [pair for pair in dict.fromkeys((min(p), max(p)) for p in pairs) if pair not in done]
        done.update(fresh)
        if fresh:
            rounds.append(tuple(pair_probe(pair, backend, repeat) for pair in fresh))

    members = list(nodes.values())
    inside = [[[(ranks[a], ranks[b]) for a, b in pairs] for pairs in circle_rounds(len(ranks))] for ranks in members]
    for together in zip_longest(*inside, fillvalue=[]):
        add(pair for pairs in together for pair in pairs)
    widest = max(len(ranks) for ranks in members)
    for shift in range(widest if len(members) <= FULL_CROSS_NODES else 1):
        for pairs in circle_rounds(len(members)):
            add(_slots(members, pairs, shift, widest))
    for together in zip_longest(*(_group_rounds(group.ranks) for group in plan.on_axis("tp")), fillvalue=[]):
        add(pair for pairs in together for pair in pairs)
    return rounds


def _slots(
    members: list[list[int]], node_pairs: Sequence[tuple[int, int]], shift: int, widest: int
) -> Iterator[tuple[int, int]]:
    """Slot s of the one node with slot s + shift of the other."""
    for a, b in node_pairs:
        for slot in range(widest):
            other = (slot + shift) % widest
            if slot < len(members[a]) and other < len(members[b]):
                yield members[a][slot], members[b][other]


def _group_rounds(ranks: tuple[int, ...]) -> list[list[tuple[int, int]]]:
    return [[(ranks[a], ranks[b]) for a, b in pairs] for pairs in circle_rounds(len(ranks))]
