"""A report's measurements as rows of the history: figures by where their ranks sit, and pairs of nodes that were measured."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import cast

from preflight.model.bandwidth import Collective
from preflight.model.baseline import PAIR, Place, places_of, rates_of
from preflight.model.evidence import Evidence
from preflight.model.expected_rate import Expectations
from preflight.model.measurement import Measurement
from preflight.model.plan import Plan

MAX_MEMBERS = 1000  # letters
Pair = tuple[str, str]  # two nodes, in the order of their names


def members_of(places: Iterable[Place]) -> str:
    """The places of a group in one spelling, "n1/0 n2/0"; of a large one its digest, since it is only ever looked up."""
    text = " ".join(f"{node}/{local}" for node, local in sorted(places))
    if len(text) <= MAX_MEMBERS:
        return text
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def pair_name(members: str, rank_of: Mapping[Place, int]) -> str | None:
    """What the plan calls a pair of that spelling; None: not both ends are in it."""
    places = [member.rpartition("/") for member in members.split(" ")]
    ranks = [rank_of.get((node, int(local))) for node, _, local in places if local.isdigit()]
    if len(ranks) != 2 or None in ranks:
        return None
    low, high = sorted(rank for rank in ranks if rank is not None)
    return f"pair {low}-{high}"


def figures_of(evidence: Evidence) -> list[tuple[str, str, int, str, float | None, float | None]]:
    """Rows of the table: axis, collective, message size, members, busbw, expected busbw. A pair that failed has no busbw; expected None: nobody can say."""
    plan = evidence.plan
    if plan is None or not evidence.measurements:
        return []
    expectations, placement = Expectations(evidence), plan.placement
    seats = enumerate(zip(placement.node_ranks, placement.local_ranks, strict=True))
    rank_of = {(placement.nodes[node], local): rank for rank, (node, local) in seats}
    found: dict[tuple[str, str, int, str], tuple[float | None, float | None]] = {}
    for (axis, collective, size, places), busbw in rates_of(evidence).items():
        ranks = sorted(rank_of[place] for place in places)
        expected = expectations.of(cast("Collective", collective), ranks, size).bytes_per_s
        found[axis, collective, size, members_of(places)] = (busbw, expected)
    for measurement in evidence.measurements:
        probe = measurement.probe
        if measurement.failure and _was_tried(measurement):
            places = places_of(plan, probe.ranks) or frozenset()
            found.setdefault((PAIR, probe.collective, probe.size_bytes, members_of(places)), (None, None))
    return [(*key, *figures) for key, figures in found.items()]


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
