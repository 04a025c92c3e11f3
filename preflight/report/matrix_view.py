"""The measured pairs of a run as squares: GPU x GPU, node x node, leaf x leaf, each square the worst of the pairs that it stands for (pure).

What a pair is held against is what healthy pairs of the same route gave in this run (as the localiser learned it), or, where the localiser found the way between two sets of nodes slow, what it
held that way against. Where it judged nothing, nothing is held against anything.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

from preflight.model import Evidence
from preflight.model.base import Record
from preflight.model.hostlist import natural_key
from preflight.report.rates import leaf_of, pair_rates
from preflight.report.run_pairs import ratios_of

Kind = Literal["GPU", "node", "leaf"]


class End(Record, frozen=True):
    """One end of a pair. `node` None: no plan says where the rank sits; `leaf` None: nobody told."""

    rank: int
    node: str | None = None
    slot: int = 0
    leaf: str | None = None

    @property
    def name(self) -> str:
        """As the localiser calls it: "n3 GPU 2"."""
        return f"rank {self.rank}" if self.node is None else f"{self.node} GPU {self.slot}"


class Pair(Record, frozen=True):
    """One pair. `rate`: busbw in bytes per second, None: every attempt failed. `level`: what it is held against, None: nothing."""

    a: End
    b: End
    rate: float | None
    level: float | None = None

    @property
    def ratio(self) -> float | None:
        """Rate / level; None if either is missing."""
        return self.rate / self.level if self.rate is not None and self.level else None

    @property
    def badness(self) -> tuple[int, float]:
        """Sort key, worst first: what failed, then by ratio, then by rate what has none."""
        if self.rate is None:
            return 0, 0.0
        return (2, self.rate) if self.ratio is None else (1, self.ratio)


class Square(Record, frozen=True):
    """Names in the order of rows and columns; (row, column), row <= column -> the worst pair there. A square that is missing was not measured. `pairs`: how many it stands for in all."""

    kind: Kind
    names: tuple[str, ...]
    squares: dict[tuple[int, int], Pair]
    pairs: int

    def at(self, row: int, column: int) -> Pair | None:
        """The worst pair of that square; None: not measured."""
        return self.squares.get((min(row, column), max(row, column)))


def pairs_of(evidence: Evidence) -> list[Pair]:
    """Every pair that was measured or failed, worst first. A pair that was left out is not there: nothing is known of it."""
    rates = pair_rates(evidence.measurements or ())
    ends = _ends(evidence, {rank for pair in rates for rank in pair})
    ratios = ratios_of(evidence)
    places = {rank: (end.node or "", end.slot) for rank, end in ends.items()}
    found = []
    for (a, b), rate in rates.items():
        one, other = places[a], places[b]
        ratio = ratios.get((one, other) if one <= other else (other, one))
        level = rate / ratio if ratio and rate else None
        found.append(Pair(ends[a], ends[b], rate, level))
    return sorted(found, key=lambda pair: pair.badness)


def _ends(evidence: Evidence, ranks: Iterable[int]) -> dict[int, End]:
    plan = evidence.plan
    places = plan.placement.node_ranks if plan else ()
    leaves: dict[str, str | None] = {}
    found = {}
    for rank in ranks:
        if plan is None or rank >= len(places):
            found[rank] = End(rank)
            continue
        node = plan.placement.nodes[places[rank]]
        if node not in leaves:
            leaves[node] = leaf_of(evidence, rank)
        found[rank] = End(rank, node, plan.placement.local_ranks[rank], leaves[node])
    return found


def square_of(pairs: Sequence[Pair], kind: Kind) -> Square | None:
    """The pairs, worst first, by GPU, node or leaf, sorted by leaf, then as people count. None: some end's place is not known, or there are no pairs. GPUs need no place: without one they are ranks.

    Pairs inside a leaf stand on the diagonal of leaf x leaf, those inside a node on that of node x node; pairs inside a node say nothing of leaves.
    """
    if kind == "leaf":
        pairs = [pair for pair in pairs if pair.a.node != pair.b.node]
    ends = {end.rank: end for pair in pairs for end in (pair.a, pair.b)}.values()
    named = {end.rank: _name(end, kind) for end in ends}
    if not ends or (kind != "GPU" and None in named.values()):
        return None
    order = sorted({(_order(end, kind), str(named[end.rank])) for end in ends})
    names = list(dict.fromkeys(name for _, name in order))
    numbers = {name: number for number, name in enumerate(names)}
    place = {rank: numbers[str(name)] for rank, name in named.items()}
    worst: dict[tuple[int, int], Pair] = {}
    for pair in pairs:
        one, other = place[pair.a.rank], place[pair.b.rank]
        square = (one, other) if one <= other else (other, one)
        worst.setdefault(square, pair)
    return Square(kind, tuple(names), worst, len(pairs))


def _name(end: End, kind: Kind) -> str | None:
    return {"GPU": end.name, "node": end.node, "leaf": end.leaf}[kind]


def _order(end: End, kind: Kind) -> tuple[object, ...]:
    leaf = natural_key(end.leaf) if end.leaf else ((), "")
    if kind == "leaf":
        return (leaf,)
    node = natural_key(end.node) if end.node else ((), "")
    return (leaf, node) if kind == "node" else (leaf, node, end.slot, end.rank)
