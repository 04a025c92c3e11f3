"""This cluster's own history, as the judge takes it (pure): what the pairs and groups of a run reached in earlier ones that are comparable.

A group is known again by where its ranks sit (node and place on it), not by its name: "tp0" of another allocation is other hardware. Comparable are runs with the same backend, at the same place (on a cluster; or all on one
machine, with as many agents and workers), over the same transport, on the same GPUs as far as their UUIDs are known; and figures of pairs, which share the network with those that run at the same time, only if the number of nodes
differs by no more than a factor of two.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from preflight.model.evidence import Baseline, BaselineEntry, BaselineRun, Evidence
from preflight.model.group_series import series_of
from preflight.model.localisation import LONE
from preflight.model.measurement import Probe, median
from preflight.model.node_facts import NodeFacts, facts_of
from preflight.model.plan import Plan
from preflight.model.report import Report

PAIR = "pair"  # in place of an axis
MAX_RUNS = 50  # newest runs that count, of each group
MAX_FIGURES = 200_000  # of a baseline, which the report carries: with many parts each has fewer runs
LEAST_RUNS = 12
MAX_MEMBERS = 1000  # letters

Place = tuple[str, int]  # node name, local rank
Key = tuple[str, str, int, frozenset[Place]]  # axis or PAIR, collective, message size, members


class Seen(NamedTuple):
    """What one run saw of one pair or group: the median of its repeats, busbw in bytes per second, and what carried the data (None: not known)."""

    busbw: float
    transport: str | None


class PastRun(NamedTuple):
    """An earlier run. `place`: "" or "local 2x4". `software`: of the whole run."""

    at_s: float
    backend: str | None
    place: str
    num_nodes: int
    software: Mapping[str, str]
    nodes: Mapping[str, NodeFacts]


class PastFigure(NamedTuple):
    """A figure of run number `run` of those given."""

    run: int
    axis: str
    collective: str
    size_bytes: int
    members: str
    busbw: float
    transport: str | None


class Now(NamedTuple):
    """The run to be judged, as far as earlier ones must be like it. `place` None: any. `transports`: what carried its own figures, where that is known."""

    plan: Plan
    backend: str | None
    place: str | None
    transports: Mapping[tuple[str, str, int, str], str]


def baseline_of(
    reports: Iterable[Report], plan: Plan | None = None, backend: str | None = None, *, now: Evidence | None = None
) -> Baseline:
    """From earlier reports, in whatever order; oldest first. `plan`, `backend`: of the run to be judged, None: of the newest report. `now`: all that is known of it. Left out are simulated runs, and a run given twice."""
    known = {
        report.run_id: report
        for report in reports
        if not report.evidence.settings.simulated and report.evidence.plan and report.evidence.measurements
    }
    ordered = sorted(known.values(), key=lambda report: report.started_at_s)
    if not ordered:
        return Baseline()
    newest = ordered[-1].evidence
    plan, backend = plan or newest.plan, backend or newest.settings.backend
    assert plan is not None
    figures = (
        PastFigure(number, axis, collective, size, members_of(places), seen.busbw, seen.transport)
        for number, report in enumerate(ordered)
        for (axis, collective, size, places), seen in seen_in(report.evidence).items()
    )
    return collected(now_of(now, plan, backend), [run_of(report) for report in ordered], figures)


def collected(now: Now, runs: Sequence[PastRun], figures: Iterable[PastFigure]) -> Baseline:
    """The figures that are comparable, by what this run's plan calls their pair or group. `figures`: by run, oldest first."""
    names = _Names(now.plan)
    like = [now.place in (None, run.place) and run.backend == now.backend for run in runs]
    similar = [_like_size(run.num_nodes, len(now.plan.placement.nodes)) for run in runs]
    uuids = _uuids(now.plan)
    other = [_replaced(run, uuids) for run in runs]
    found: dict[tuple[str, str, int], list[tuple[float, int]]] = {}
    for figure in figures:
        named = names[figure.axis, figure.members]
        if named is None or not like[figure.run] or (figure.axis == PAIR and not similar[figure.run]):
            continue
        name, places = named
        transport = now.transports.get((figure.axis, figure.collective, figure.size_bytes, figure.members))
        alike = transport is None or figure.transport is None or transport == figure.transport
        if alike and not (other[figure.run] and other[figure.run] & places):
            found.setdefault((name, figure.collective, figure.size_bytes), []).append((figure.busbw, figure.run))
    most = max(LEAST_RUNS, min(MAX_RUNS, MAX_FIGURES // max(len(found), 1)))
    return _as_baseline({key: rates[-most:] for key, rates in found.items()}, runs, now.plan.placement.nodes)


def now_of(evidence: Evidence | None, plan: Plan, backend: str | None) -> Now:
    """`evidence` None: only the plan is known."""
    if evidence is None:
        return Now(plan, backend, None, {})
    transports = {
        (axis, collective, size, members_of(places)): seen.transport
        for (axis, collective, size, places), seen in seen_in(evidence).items()
        if seen.transport
    }
    return Now(plan, backend, place_of_run(evidence), transports)


def run_of(report: Report) -> PastRun:
    """What of a report decides whether it is comparable, and what may explain a change."""
    evidence = report.evidence
    num_nodes = len(evidence.plan.placement.nodes) if evidence.plan else 0
    software = dict(report.environment.versions)
    return PastRun(
        report.started_at_s, evidence.settings.backend, place_of_run(evidence), num_nodes, software, facts_of(evidence)
    )


def place_of_run(evidence: Evidence) -> str:
    """Empty on a cluster; else how many agents and workers share the one machine, which decides what each gets of it: "local 2x4"."""
    if not evidence.settings.local or evidence.plan is None:
        return ""
    placement = evidence.plan.placement
    return f"local {len(placement.nodes)}x{max(placement.ranks_per_node, default=0)}"


def seen_in(evidence: Evidence) -> dict[Key, Seen]:
    """One figure for each group timed alone, and for each pair: of follow-ups, failures, skewed exchanges and what has a direction none."""
    if evidence.plan is None:
        return {}
    transports: dict[Key, set[str | None]] = {}
    pairs: dict[Key, list[float]] = {}
    for measurement in evidence.measurements or ():
        probe, busbw = measurement.probe, measurement.busbw_bytes_per_s
        places = places_of(evidence.plan, probe.ranks)
        if places is None or not busbw or measurement.failure or probe.attempt or probe.mode != "alone" or probe.split:
            continue
        if probe.axis is None and not is_of_pair(probe):
            continue
        key = (probe.axis or PAIR, probe.collective, probe.size_bytes, places)
        transports.setdefault(key, set()).add(measurement.transport)
        if probe.axis is None:
            pairs.setdefault(key, []).append(busbw)
    rates: dict[Key, float] = {key: median(values) for key, values in pairs.items()}
    for series in series_of(evidence.measurements or ()):
        places = places_of(evidence.plan, series.ranks)
        if series.mode == "alone" and not series.split and places:
            rates[series.axis, series.collective, series.size_bytes, places] = series.typical
    return {key: Seen(rate, _one(transports.get(key, ()))) for key, rate in rates.items()}


def is_of_pair(probe: Probe) -> bool:
    """Whether this is what a pair's history is made of: both ways at once, while others were at work as in every run. Not what has a direction, and not what was asked for to find a culprit."""
    pair = probe.axis is None and len(probe.ranks) == 2 and probe.collective == "send_recv"
    return pair and not probe.attempt and probe.size_name != LONE


def places_of(plan: Plan, ranks: Iterable[int]) -> frozenset[Place] | None:
    """Where these ranks sit; None: the plan has no such rank."""
    placement = plan.placement
    wanted = tuple(ranks)
    if any(not 0 <= rank < len(placement.node_ranks) for rank in wanted):
        return None
    return frozenset((placement.nodes[placement.node_ranks[rank]], placement.local_ranks[rank]) for rank in wanted)


def members_of(places: Iterable[Place]) -> str:
    """The places of a group in one spelling, "n1/0 n2/0"; of a large one its digest, since it is only ever looked up."""
    text = " ".join(f"{node}/{local}" for node, local in sorted(places))
    return text if len(text) <= MAX_MEMBERS else "sha256:" + hashlib.sha256(text.encode()).hexdigest()


class _Names(dict[tuple[str, str], tuple[str, frozenset[Place]] | None]):
    """(axis, members) -> the plan's name for it and its places. Pairs, of which a plan has millions, are looked up when they are asked for."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        placement = plan.placement
        seats = enumerate(zip(placement.node_ranks, placement.local_ranks, strict=True))
        self._ranks = {(placement.nodes[node], local): rank for rank, (node, local) in seats}
        for axis in plan.groups:
            for group in plan.on_axis(axis):
                places = places_of(plan, group.ranks)
                if places:
                    self[axis, members_of(places)] = (group.name, places)

    def __missing__(self, key: tuple[str, str]) -> tuple[str, frozenset[Place]] | None:
        axis, members = key
        found = None
        if axis == PAIR:
            ends = [member.rpartition("/") for member in members.split(" ")]
            places = [(node, int(local)) for node, _, local in ends if local.isascii() and local.isdigit()]
            ranks = sorted(self._ranks[place] for place in places if place in self._ranks)
            if len(ranks) == len(ends) == 2:
                found = (f"pair {ranks[0]}-{ranks[1]}", frozenset(places))
        self[key] = found
        return found


def _like_size(one: int, other: int) -> bool:
    return not one or not other or max(one, other) <= 2 * min(one, other)


def _uuids(plan: Plan) -> dict[Place, str]:
    placement = plan.placement
    seats = zip(placement.node_ranks, placement.local_ranks, placement.gpu_uuids or (), strict=False)
    return {(placement.nodes[node], local): uuid for node, local, uuid in seats if uuid}


def _replaced(run: PastRun, uuids: Mapping[Place, str]) -> frozenset[Place]:
    """Where another GPU sat then, as far as both are known."""
    return frozenset(
        (node, local)
        for (node, local), uuid in uuids.items()
        if node in run.nodes and run.nodes[node].gpus.get(str(local), uuid) != uuid
    )


def _as_baseline(
    found: Mapping[tuple[str, str, int], Sequence[tuple[float, int]]], runs: Sequence[PastRun], names: Sequence[str]
) -> Baseline:
    used = sorted({run for rates in found.values() for _, run in rates})
    position = {run: index for index, run in enumerate(used)}
    facts: dict[tuple[tuple[str, str], ...], int] = {}

    def number_of(software: Mapping[str, str]) -> int:
        return facts.setdefault(tuple(sorted(software.items())), len(facts))

    told = tuple(
        BaselineRun(
            at_s=runs[run].at_s,
            facts=number_of(runs[run].software),
            nodes={name: number_of(runs[run].nodes[name].software) for name in names if name in runs[run].nodes},
        )
        for run in used
    )
    entries = tuple(
        BaselineEntry(
            subject=name,
            collective=collective,
            size_bytes=size,
            busbw_bytes_per_s=tuple(rate for rate, _ in rates),
            runs=tuple(position[run] for _, run in rates),
        )
        for (name, collective, size), rates in found.items()
    )
    return Baseline(entries=entries, runs=told, facts=tuple(dict(items) for items in facts))


def _one(transports: Iterable[str | None]) -> str | None:
    """What carried the data; None: not known of every repeat, or not the same."""
    different = set(transports)
    return different.pop() if len(different) == 1 else None
