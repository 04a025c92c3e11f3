"""The measured pairs of a run with their places, leaves, and how they compare with what healthy pairs of the same route gave; and the bounded series that are made of such pairs, of one run or of a history (pure)."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from preflight.metrics import Samples
from preflight.model import Evidence, Plan
from preflight.model.localisation import Ends, Localisation
from preflight.model.measurement import median
from preflight.report.rates import leaf_of, pair_rates
from preflight.statistics import spread_of

MAX_WORST = 50  # pairs, and findings, that have a series of their own
MIN_PARTNERS = 2  # nodes: with a single partner nobody can say which of the two is slow
OP = "send_recv"


class Gauge(NamedTuple):
    """One family: its name in the catalogue, and for each series the values of its own labels, in their order, and the figure."""

    name: str
    series: Samples


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
    placement, references, found = plan.placement, _references(evidence.localisation), []
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
        ratio = rate / reference if reference else None
        found.append(PairFact(node, slot, other_node, other_slot, rate, ratio, leaf, other_leaf))
    return found


def _first_ranks(plan: Plan) -> dict[int, str]:
    """A rank of each node -> its name."""
    placement = plan.placement
    return {
        rank: placement.nodes[number] for number, rank in {n: r for r, n in enumerate(placement.node_ranks)}.items()
    }


def _references(found: Localisation | None) -> dict[str, float]:
    """Class of routes -> what its healthy pairs gave. None where the run was too noisy to judge, and where GPUs of one class are joined in several ways, each with its own reference."""
    if found is None or found.unjudged or found.ends.whole_nodes:
        return {}
    ops: dict[str, set[str]] = {}
    for each in found.references:
        if each.op.split(" ", 1)[0] == OP:
            ops.setdefault(each.route, set()).add(each.op)
    return {
        each.route: each.bytes_per_s
        for each in found.references
        if ops.get(each.route) == {OP} and each.op == OP and each.bytes_per_s > 0
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


def pair_families(facts: Sequence[PairFact], *, max_leaves: int) -> Iterator[Gauge]:
    """Minimum and median for each node and route, for each two leaves; ratios; the slowest pairs."""
    by_node: dict[tuple[str, ...], list[float]] = {}
    by_leaves: dict[tuple[str, ...], list[PairFact]] = {}
    for fact in facts:
        for node in dict.fromkeys((fact.node, fact.other_node)):
            by_node.setdefault((node, fact.route), []).append(fact.rate)
        if fact.leaf is not None and fact.other_leaf is not None and fact.route == "between":
            low, high = sorted((fact.leaf, fact.other_leaf))
            by_leaves.setdefault((low, high), []).append(fact)
    yield from low_and_middle("pair_bus_bandwidth", sorted(by_node.items()))
    yield Gauge("node_bandwidth_ratio", node_ratios(facts))
    if len({leaf for leaves in by_leaves for leaf in leaves}) <= max_leaves:
        between = sorted(by_leaves.items())
        yield from low_and_middle("leaf_pair_bus_bandwidth", ((key, [f.rate for f in of]) for key, of in between))
        ratios = [(key, [f.ratio for f in of if f.ratio is not None]) for key, of in between]
        yield Gauge("leaf_pair_bandwidth_ratio", [(key, median(known)) for key, known in ratios if known])
    slowest = sorted(facts, key=lambda f: (f.ratio is None, f.ratio if f.ratio is not None else f.rate))[:MAX_WORST]
    keys = [(f.node, str(f.slot), f.other_node, str(f.other_slot)) for f in slowest]
    yield Gauge(
        "slowest_pair_bus_bandwidth_bytes_per_second", [(k, f.rate) for k, f in zip(keys, slowest, strict=True)]
    )
    told = [(k, f.ratio) for k, f in zip(keys, slowest, strict=True) if f.ratio is not None]
    yield Gauge("slowest_pair_bandwidth_ratio", told)


def node_ratios(facts: Iterable[PairFact]) -> list[tuple[tuple[str, ...], float]]:
    """(node, route) -> ratio. Inside: the median over its pairs. Between: the median with the partner node that it does best with, since a fast pair clears both; only of nodes with MIN_PARTNERS or more."""
    partners: dict[tuple[str, str], dict[str, list[float]]] = {}
    for fact in facts:
        if fact.ratio is None:
            continue
        for node, other in dict.fromkeys(((fact.node, fact.other_node), (fact.other_node, fact.node))):
            partners.setdefault((node, fact.route), {}).setdefault(other, []).append(fact.ratio)
    return [
        (key, max(map(median, by_partner.values())))
        for key, by_partner in sorted(partners.items())
        if key[1] == "inside" or len(by_partner) >= MIN_PARTNERS
    ]


def ratios_by_route(facts: Iterable[PairFact]) -> dict[tuple[str, ...], list[float]]:
    """(route,) -> ratios, for the histogram."""
    found: dict[tuple[str, ...], list[float]] = {}
    for fact in facts:
        if fact.ratio is not None:
            found.setdefault((fact.route,), []).append(fact.ratio)
    return dict(sorted(found.items()))


def low_and_middle(
    name: str, rates: Iterable[tuple[tuple[str, ...], Sequence[float]]], unit: str = "bytes_per_second"
) -> Iterator[Gauge]:
    """The smallest and the middle figure of each."""
    known = [(key, spread) for key, values in rates if (spread := spread_of(values))]
    yield Gauge(f"{name}_minimum_{unit}", [(key, spread.minimum) for key, spread in known])
    yield Gauge(f"{name}_median_{unit}", [(key, spread.median) for key, spread in known])
