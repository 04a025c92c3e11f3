"""This cluster's own history, from earlier reports (pure).

A group is known again by where its ranks sit (node and place on it), not by its name: "tp0" of another allocation is other hardware.
"""

from collections.abc import Iterable
from typing import NamedTuple

from preflight.model.evidence import Baseline, BaselineEntry, Evidence
from preflight.model.group_series import series_of
from preflight.model.measurement import median
from preflight.model.plan import Plan
from preflight.model.report import Report

PAIR = "pair"  # in place of an axis
MAX_RUNS = 50  # newest runs that count, of each group

Place = tuple[str, int]  # node name, local rank
Key = tuple[str, str, int, frozenset[Place]]  # axis or PAIR, collective, message size, members


def baseline_of(reports: Iterable[Report], plan: Plan | None = None, backend: str | None = None) -> Baseline:
    """What the groups and pairs of this plan measured in earlier runs, in bytes per second of busbw, oldest first: one figure for each run, the median of its repeats alone.

    `plan`, `backend`: of the run to be judged; None: of the newest report. Left out are simulated runs, runs with another backend, a run given twice, skewed exchanges, and what sits elsewhere now.
    """
    runs = {report.run_id: _run(report.evidence, report.started_at_s) for report in reports if _counts(report)}
    ordered = sorted(runs.values(), key=lambda run: run.started_at_s)  # of each report only that is kept
    if not ordered:
        return Baseline()
    plan = plan or ordered[-1].plan
    backend = backend or ordered[-1].backend
    found: dict[Key, list[float]] = {}
    for run in ordered:
        for key, rate in run.rates.items() if run.backend == backend else ():
            found.setdefault(key, []).append(rate)
    names, ranks = _names(plan), _ranks(plan)

    def name_of(axis: str, places: frozenset[Place]) -> str | None:
        if axis != PAIR:
            return names.get((axis, places))
        ends = sorted(ranks[place] for place in places if place in ranks)
        return f"pair {ends[0]}-{ends[1]}" if len(ends) == 2 else None

    return Baseline(
        entries=tuple(
            BaselineEntry(
                subject=name, collective=collective, size_bytes=size, busbw_bytes_per_s=tuple(rates[-MAX_RUNS:])
            )
            for (axis, collective, size, places), rates in found.items()
            if (name := name_of(axis, places))
        )
    )


class _Run(NamedTuple):
    started_at_s: float
    backend: str | None
    plan: Plan
    rates: dict[Key, float]


def _run(evidence: Evidence, started_at_s: float) -> _Run:
    assert evidence.plan is not None
    return _Run(started_at_s, evidence.settings.backend, evidence.plan, rates_of(evidence))


def _counts(report: Report) -> bool:
    evidence = report.evidence
    return evidence.plan is not None and bool(evidence.measurements) and not evidence.settings.simulated


def rates_of(evidence: Evidence) -> dict[Key, float]:
    """busbw of each group alone and of each pair, in bytes per second, the median of its repeats. The evidence must have a plan."""
    assert evidence.plan is not None
    found: dict[Key, float] = {}
    for series in series_of(evidence.measurements or ()):
        places = places_of(evidence.plan, series.ranks)
        if series.mode == "alone" and not series.split and places:
            found[series.axis, series.collective, series.size_bytes, places] = series.typical
    pairs: dict[Key, list[float]] = {}
    for measurement in evidence.measurements or ():
        probe, busbw = measurement.probe, measurement.busbw_bytes_per_s
        if probe.axis is None and len(probe.ranks) == 2 and busbw and not measurement.failure and not probe.attempt:
            places = places_of(evidence.plan, probe.ranks)
            if places and probe.collective == "send_recv":  # "send" has a direction, which a set of places doesn't tell
                pairs.setdefault((PAIR, probe.collective, probe.size_bytes, places), []).append(busbw)
    return found | {key: median(rates) for key, rates in pairs.items()}


def places_of(plan: Plan, ranks: Iterable[int]) -> frozenset[Place] | None:
    """Where these ranks sit; None: the plan has no such rank."""
    placement = plan.placement
    wanted = tuple(ranks)
    if any(not 0 <= rank < len(placement.node_ranks) for rank in wanted):
        return None
    return frozenset((placement.nodes[placement.node_ranks[rank]], placement.local_ranks[rank]) for rank in wanted)


def _names(plan: Plan) -> dict[tuple[str, frozenset[Place]], str]:
    return {
        (axis, places): group.name
        for axis in plan.groups
        for group in plan.on_axis(axis)
        if (places := places_of(plan, group.ranks))
    }


def _ranks(plan: Plan) -> dict[Place, int]:
    """Place -> rank."""
    placement = plan.placement
    return {
        (placement.nodes[node], local): rank
        for rank, (node, local) in enumerate(zip(placement.node_ranks, placement.local_ranks, strict=True))
    }
