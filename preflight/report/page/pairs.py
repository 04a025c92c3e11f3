"""The pairs of a run as a page shows them: each with its route, its rate and how that compares; columns that fit 512 nodes into a page."""

import base64
import math
import zlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from preflight.model import Evidence, Measurement
from preflight.model.base import Noun
from preflight.model.ends import ends_of
from preflight.model.localisation import Ends, Localisation, RouteReference
from preflight.model.measurement import median
from preflight.report.rates import pair_rates
from preflight.report.slow_ways import OP, SlowWay, slow_ways

FAILED = 0xFFFF  # of a code: every attempt failed
TOP = 0xFFFE  # the code of the fastest pair
MAX_SENDS = 20_000  # follow-ups; more than a few hundred would be a strange run


class Route(NamedTuple):
    """A class of routes: what its healthy pairs gave in this run, and what a formula allows, both in bytes per second; None: nobody can say. `on_slow_way`: its pairs take a way that the localiser accuses, and the reference is what that was held against."""

    name: str
    reference: float | None
    expected: float | None
    source: str
    on_slow_way: bool = False


class Pair(NamedTuple):
    """Two ranks. `rate`: busbw in bytes per second, both ways at once, None: every attempt failed. `route`: number in Pairs.routes."""

    a: int
    b: int
    rate: float | None
    route: int


class Pairs(Noun, frozen=True, kw_only=True, dict=True):
    """All measured pairs by rank, lower rank first, sorted. `sends`: (from, to, bytes per second or None) of what was measured in one direction. `ends`: where ranks sit, None: no plan tells it."""

    pairs: tuple[Pair, ...]
    routes: tuple[Route, ...]
    sends: tuple[tuple[int, int, float | None], ...]
    ends: Ends | None

    def ratio(self, pair: Pair) -> float | None:
        """Rate / what healthy pairs of the route gave; None: failed, or nobody can say."""
        reference = self.routes[pair.route].reference
        return pair.rate / reference if pair.rate is not None and reference else None

    @cached_property
    def worst_first(self) -> tuple[Pair, ...]:
        """Failed ones, then the lowest share of their reference, then the slowest of those that have none."""

        def badness(pair: Pair) -> tuple[bool, bool, float]:
            ratio = self.ratio(pair)
            return pair.rate is not None, ratio is None, (pair.rate or 0.0) if ratio is None else ratio

        return tuple(sorted(self.pairs, key=badness))


def pairs_of(evidence: Evidence) -> Pairs:
    """The pairs of the evidence; a run that was too noisy to judge has no references."""
    ends = ends_of(evidence.plan, evidence.topology) if evidence.plan else None
    references = _references(evidence.localisation)
    rates = pair_rates(evidence.measurements or ())
    ways = slow_ways(evidence.localisation)
    names: dict[tuple[str, int | None], int] = {}
    pairs = []
    for (a, b), rate in sorted(rates.items()):
        name = _route_name(ends, a, b)
        way = _worst_way(ways, a, b, references.get(name)) if ways else None
        pairs.append(Pair(a, b, rate, names.setdefault((name, way), len(names))))
    routes = tuple(_route(name, references.get(name), None if way is None else ways[way]) for name, way in names)
    sends = tuple(_sends(evidence.measurements or ()))
    return Pairs(pairs=tuple(pairs), routes=routes, sends=sends, ends=ends)


def _worst_way(ways: Sequence[SlowWay], a: int, b: int, reference: RouteReference | None) -> int | None:
    """Of the accused ways that a pair takes the number of the one held against the most; None: none that was held against more than the pair's own class of routes."""
    if reference is None or max(a, b) >= len(ways[0].side):
        return None
    taken = [
        (way.bytes_per_s, -at)
        for at, way in enumerate(ways)
        if way.bytes_per_s > reference.bytes_per_s and way.takes(a, b)
    ]
    return -max(taken)[1] if taken else None


def _route(name: str, reference: RouteReference | None, way: SlowWay | None) -> Route:
    if reference is None:
        return Route(name, None, None, "")
    if way is None:
        return Route(name, reference.bytes_per_s, reference.expected_bytes_per_s, reference.source)
    return Route(
        f"{name}, on a slow way", way.bytes_per_s, reference.expected_bytes_per_s, way.source, on_slow_way=True
    )


def _references(found: Localisation | None) -> dict[str, RouteReference]:
    """Class of routes -> its reference; none of a run that judges no rates, nor where GPUs of one class are joined in several ways, each with a reference of its own."""
    if found is None or found.unjudged or found.ends.whole_nodes:
        return {}
    of_pairs = [reference for reference in found.references if reference.op.split(" ", 1)[0] == OP]
    several = {reference.route for reference in of_pairs if reference.op != OP}
    return {r.route: r for r in of_pairs if r.op == OP and r.route not in several and r.bytes_per_s > 0}


def _route_name(ends: Ends | None, a: int, b: int) -> str:
    """The class of routes between two ranks, in the localiser's words."""
    if ends is None or not (0 <= a < len(ends.node) and 0 <= b < len(ends.node)):
        return "not known"
    if ends.node[a] == ends.node[b]:
        return "inside nodes"
    if ends.slot[a] != ends.slot[b]:
        return "unlike slots"
    leaves = [ends.leaves[ends.node[end]] if ends.leaves else None for end in (a, b)]
    if None in leaves:
        return "leaves not known, like slots"
    return "same leaf, like slots" if leaves[0] == leaves[1] else "other leaf, like slots"


def _sends(measurements: Iterable[Measurement]) -> list[tuple[int, int, float | None]]:
    found: dict[tuple[int, int], list[float]] = {}
    for measurement in measurements:
        probe, failure = measurement.probe, measurement.failure
        if probe.collective != "send" or probe.axis is not None or len(probe.ranks) != 2:
            continue
        if failure is not None and failure.kind == "not_run":
            continue
        rates = found.setdefault((probe.ranks[0], probe.ranks[1]), [])
        if measurement.busbw_bytes_per_s is not None:
            rates.append(measurement.busbw_bytes_per_s)
    return [(a, b, median(rates) if rates else None) for (a, b), rates in sorted(found.items())][:MAX_SENDS]


def packed(pairs: Sequence[Pair], world: int) -> dict[str, Any]:
    """The pairs as columns, deflated, in base64. Per rank how many pairs it begins; per pair the distance of its second rank from the one before, its rate's code, its route.

    Codes are logarithmic between the slowest and the fastest pair, so that a rate is right to 0.01 % over three decades; a page shows three digits, and its tables come from the exact figures.
    """
    import numpy as np

    a = np.fromiter((pair.a for pair in pairs), np.int64, len(pairs))
    b = np.fromiter((pair.b for pair in pairs), np.int64, len(pairs))
    rates = np.fromiter((pair.rate or math.nan for pair in pairs), np.float64, len(pairs))
    logs = np.log(rates)
    known = ~np.isnan(logs)
    low = float(logs[known].min()) if known.any() else 0.0
    step = (float(logs[known].max()) - low) / TOP if known.any() else 0.0
    codes = np.full(len(pairs), FAILED, np.uint16)
    codes[known] = np.round((logs[known] - low) / step).astype(np.uint16) if step else 0
    first = np.ones(len(pairs), bool)
    first[1:] = a[1:] != a[:-1]
    before = np.where(first, a, np.roll(b, 1))
    columns = (
        np.bincount(a, minlength=world).astype("<u4"),
        (b - before).astype("<u4"),
        codes.astype("<u2"),
        np.fromiter((pair.route for pair in pairs), np.uint8, len(pairs)),
    )
    data = zlib.compress(b"".join(column.tobytes() for column in columns), 6)
    return {"count": len(pairs), "low": low, "step": step, "data": base64.b64encode(data).decode()}
