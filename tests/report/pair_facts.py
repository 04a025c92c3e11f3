"""The measured pairs of a run one by one, with what the columns of run_pairs.py must say of each: the plain way to work it out, which tests hold the fast one against."""

from typing import NamedTuple

from preflight.model import Evidence, Plan
from preflight.model.localisation import Ends
from preflight.report.rates import leaf_of, pair_rates
from preflight.report.run_pairs import references_of
from preflight.report.slow_ways import slow_ways


class PairFact(NamedTuple):
    """One pair of GPUs. `slot`: place on the node; `rate`: busbw in bytes per second; `ratio`: to its reference, None: nobody can say; leaves None: nobody told."""

    node: str
    slot: int
    other_node: str
    other_slot: int
    rate: float
    ratio: float | None = None
    leaf: str | None = None
    other_leaf: str | None = None

    @property
    def route(self) -> str:
        """Both ends inside a node, or between nodes."""
        return "inside" if self.node == self.other_node else "between"


def facts_of(evidence: Evidence) -> list[PairFact]:
    """Every pair that gave a figure and whose places the plan tells."""
    plan = evidence.plan
    if plan is None:
        return []
    placement, references, found = plan.placement, references_of(evidence.localisation), []
    ways = slow_ways(evidence.localisation)
    leaf_by_node = {node: leaf_of(evidence, rank) for rank, node in _first_ranks(plan).items()}
    ends = [
        (node, slot, leaf_by_node[node])
        for number, slot in zip(placement.node_ranks, placement.local_ranks, strict=True)
        for node in (placement.nodes[number],)
    ]
    for pair, rate in pair_rates(evidence.measurements or ()).items():
        if rate is None or not all(0 <= rank < len(ends) for rank in pair):
            continue
        (node, slot, leaf), (other_node, other_slot, other_leaf) = sorted(
            (ends[rank] for rank in pair), key=lambda end: end[:2]
        )
        reference = references.get(_route(evidence.localisation.ends, pair)) if evidence.localisation else None
        if reference:
            reference = max([reference, *(way.bytes_per_s for way in ways if way.takes(*pair))])
        ratio = rate / reference if reference else None
        found.append(PairFact(node, slot, other_node, other_slot, rate, ratio, leaf, other_leaf))
    return found


def _first_ranks(plan: Plan) -> dict[int, str]:
    """A rank of each node -> its name."""
    placement = plan.placement
    return {
        rank: placement.nodes[number] for number, rank in {n: r for r, n in enumerate(placement.node_ranks)}.items()
    }


def _route(ends: Ends, pair: tuple[int, int]) -> str:
    """The class of routes of a pair, as the localiser calls it; empty: an end that it doesn't know."""
    a, b = pair
    if not 0 <= a < len(ends.node) or not 0 <= b < len(ends.node):
        return ""
    if ends.node[a] == ends.node[b]:
        return "inside nodes"
    if ends.slot[a] != ends.slot[b]:
        return "unlike slots"
    leaves = [ends.leaves[ends.node[end]] if ends.leaves else None for end in pair]
    if None in leaves:
        return "leaves not known, like slots"
    return "same leaf, like slots" if leaves[0] == leaves[1] else "other leaf, like slots"
