"""A report's measurements as rows of the history: figures by where their ranks sit, and pairs of nodes that were measured."""

from typing import cast

from preflight.model.bandwidth import Collective
from preflight.model.base import Record
from preflight.model.baseline import PAIR, members_of, places_of, seen_in
from preflight.model.evidence import Evidence
from preflight.model.expected_rate import Expectations
from preflight.model.measurement import Measurement
from preflight.model.plan import Plan

Pair = tuple[str, str]  # two nodes, in the order of their names


class FigureRow(Record, frozen=True):
    """A row of the table. `busbw` None: it failed; `expected` None: nobody can say. Bytes per second. `transport` None: not known."""

    axis: str
    collective: str
    size_bytes: int
    members: str
    busbw: float | None
    expected: float | None
    transport: str | None = None


def figures_of(evidence: Evidence) -> list[FigureRow]:
    """One row for each pair and group that was timed, or that failed."""
    plan = evidence.plan
    if plan is None or not evidence.measurements:
        return []
    expectations, placement = Expectations(evidence), plan.placement
    seats = enumerate(zip(placement.node_ranks, placement.local_ranks, strict=True))
    rank_of = {(placement.nodes[node], local): rank for rank, (node, local) in seats}
    found: dict[tuple[str, str, int, str], FigureRow] = {}
    for (axis, collective, size, places), seen in seen_in(evidence).items():
        ranks = sorted(rank_of[place] for place in places)
        expected = expectations.of(cast("Collective", collective), ranks, size).bytes_per_s
        key = (axis, collective, size, members_of(places))
        found[key] = FigureRow(*key, seen.busbw, expected, seen.transport)
    for measurement in evidence.measurements:
        probe = measurement.probe
        if measurement.failure and _was_tried(measurement):
            places = places_of(plan, probe.ranks) or frozenset()
            key = (PAIR, probe.collective, probe.size_bytes, members_of(places))
            found.setdefault(key, FigureRow(*key, None, None))
    return list(found.values())


def node_pairs(evidence: Evidence) -> set[Pair]:
    """Pairs of different nodes that a probe was tried between; what was never begun doesn't count."""
    found = set()
    for measurement in evidence.measurements or () if evidence.plan else ():
        if _was_tried(measurement):
            places = places_of(cast("Plan", evidence.plan), measurement.probe.ranks)
            nodes = sorted({node for node, _ in places or ()})
            if len(nodes) == 2:
                found.add((nodes[0], nodes[1]))
    return found


def _was_tried(measurement: Measurement) -> bool:
    """Whether it is of a pair, and something came of it."""
    probe, failure = measurement.probe, measurement.failure
    begun = bool(measurement.samples) if failure is None else failure.kind != "not_run"
    return begun and probe.axis is None and len(probe.ranks) == 2
