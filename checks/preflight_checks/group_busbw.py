"""Each planned group reaches the bus bandwidth that it should.

Three references, each named in the finding. (a) What hardware and the group's shape allow: a formula over active links, NICs and group size, or a profile's measured figure; 0.9 of it by default, less for
small messages. (b) Like peers of this run: same axis, message and spread over nodes; of two modes the upper one. (c) The group's own history, from five earlier runs on: a step down or a drift is a WARN with its date, never more.
Where all groups of an axis are short of (a) or (c) alike, no node is blamed: what they have in common is, unless each crosses a part that slow_part names. Between leaves, groups as fast as the pairs there show the route's own rate (uplinks that are oversubscribed), which is told and blamed on nothing. A value above a reference is never a fault. The limits are only as good as the repeats, and a group that was measured once is never called
slow. A communicator with other members than planned is FAIL: N groups of one look fast. Runs without GPUs are compared with peers and history only.
"""

import re
from collections.abc import Iterator, Sequence

from preflight.model import Check, Evidence, Finding, Group, Inventory, Measurement, Part, Verdict
from preflight.model.crossed_parts import CrossedParts, all_explained, between_leaves
from preflight.model.expected_rate import Expectation, Expectations
from preflight.model.group_series import Series, peers_reference, series_of
from preflight.model.group_shortfall import (
    HISTORY_RUNS,
    Case,
    Kind,
    Short,
    beside_peers,
    kinds_of,
    short_of_formula,
    short_of_history,
    short_of_peers,
)
from preflight.model.hostlist import fold_numbers
from preflight.model.measurement import median
from preflight.model.noise import TOO_NOISY_REMEDY
from preflight.model.slow_causes import slow_causes
from preflight.model.units import show_bytes, show_rate

NAME = "group_busbw"
# shortfall: gates in use sit 2 to 13 % under typical inside a node, 4 to 8 % between nodes; 10 % gave no false alarm on a healthy cluster's 360 public measurements.
# unknown_route_shortfall: between nodes whose leaf switches are not known, unlike routes differ by 5 to 12 % on healthy clusters. history_drop: as shortfall.
LIMITS = {"shortfall": 0.10, "unknown_route_shortfall": 0.15, "history_drop": 0.10}
_LEFT_OUT = re.compile(r"rank \d+ is left out: (?!it )")  # why its node is lost tells all
ENVIRONMENT_NODES = 4  # from so many nodes on, slow alike, it is what they have in common
SEVERITY = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN, Verdict.PASS, Verdict.SKIP)


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each group, its worst message; one for an axis whose groups are slow alike; one for each kind of group where the noise forbids to tell."""
    assert evidence.plan is not None
    assert evidence.measurements is not None
    entries = evidence.baseline.entries if evidence.baseline else ()
    history = {(entry.subject, entry.collective, entry.size_bytes): entry for entry in entries}
    expected = Expectations(evidence)
    parts = CrossedParts(evidence.localisation, len(evidence.plan.placement.node_ranks))
    case = Case(
        evidence, evidence.limits(NAME, LIMITS), expected, history, parts, between_leaves(parts, evidence, expected)
    )
    measured = [series for series in series_of(evidence.measurements) if not series.split]
    strangers = {m.probe.subject: m for m in evidence.measurements if m.probe.axis and _wrong_members(m)}
    failures = {m.probe.subject: m.failure for m in evidence.measurements if m.failure and m.probe.axis}
    failed = {m.probe.subject for m in evidence.measurements if m.failure and m.probe.mode == "alone"}
    for axis in evidence.plan.timed_axes:
        groups = evidence.plan.on_axis(axis)
        mine = [s for s in measured if s.axis == axis and s.group not in strangers and s.mode == "alone"]
        together = [s for s in measured if s.axis == axis and s.group not in strangers and s.mode == "together"]
        timed = {series.group for series in mine}
        at_least_together = {series.group for series in together} - timed - failed
        for group in groups:
            if group.name in strangers:
                yield _other_members(group, strangers[group.name])
            elif group.name not in timed and group.name not in at_least_together:
                yield _unmeasured(group, failures[group.name].text if group.name in failures else "")
        found = [finding for kind in kinds_of(case, mine) for finding in _judge_kind(case, axis, kind)]
        found += [f for kind in kinds_of(case, together) for f in _judge_together(kind, at_least_together)]
        worst: dict[str, Finding] = {}
        for finding in found:
            before = worst.get(finding.subject)
            if before is None or SEVERITY.index(finding.verdict) < SEVERITY.index(before.verdict):
                worst[finding.subject] = finding
        yield from worst.values()


def _judge_kind(case: Case, axis: str, kind: Kind) -> Iterator[Finding]:
    expected = [case.expected.of(series.collective, series.ranks, series.size_bytes) for series in kind.series]
    by_formula = [
        short_of_formula(case, kind, series, want) for series, want in zip(kind.series, expected, strict=True)
    ]
    by_history = [short_of_history(case, kind, series) for series in kind.series]
    explained: list[Short] = []
    for shorts in (by_formula, by_history):
        alike = [short for short in shorts if short]
        if len(alike) == len(kind.series) > 1:
            yield _all_alike(case, axis, kind, alike)
            explained += alike
    if kind.noisy and len(kind.series) > 1:
        if not explained:
            yield _too_noisy(axis, kind)
        for series, short in zip(kind.series, by_formula, strict=True):
            if short and short.sure and short not in explained:
                yield _finding(case, kind, series, [short], None)
        return
    for series, want, *shorts in zip(kind.series, expected, by_formula, by_history, strict=True):
        left = [short for short in (short_of_peers(kind, series), *shorts) if short and short not in explained]
        if left or not explained:
            yield _finding(case, kind, series, [beside_peers(kind, series, short) for short in left], want)


def _judge_together(kind: Kind, names: set[str]) -> Iterator[Finding]:
    """Groups of which another one on the same nodes stood for them alone: beside their peers while all were at work. What they share then counts too, so that a slow one is worth a look."""
    for series in kind.series:
        if series.group not in names:
            continue
        short = None if kind.noisy else short_of_peers(kind, series)
        share = f", {series.typical / kind.peers.bytes_per_s:.0%} of its peers" if kind.peers else ""
        yield Finding(
            check=NAME,
            subject=series.group,
            verdict=Verdict.WARN if short else Verdict.PASS if kind.peers else Verdict.SKIP,
            observed=f"{show_rate(series.typical)} at {show_bytes(series.size_bytes)} with all groups of the axis at work{share}"
            if kind.peers
            else f"timed with all groups of the axis at work only, and not comparable: {kind.noisy or 'no other group like it'}",
            expected=f"at least {1 - kind.shortfall:.0%} of {show_rate(kind.peers.bytes_per_s)}, {kind.peers.how}"
            if kind.peers
            else "",
            remedy=f"time it by itself (a larger --budget), and see slow_part for ranks {fold_numbers(series.ranks)}"
            if short
            else "",
            evidence=(f"{series.group} together",),
        )


def _finding(case: Case, kind: Kind, series: Series, shorts: Sequence[Short], want: Expectation | None) -> Finding:
    verdict = min((short.verdict for short in shorts), key=SEVERITY.index, default=Verdict.PASS)
    observed = f"{show_rate(series.typical)} at {show_bytes(series.size_bytes)}"
    observed += f", {series.typical / kind.peers.bytes_per_s:.0%} of its peers" if kind.peers else ""
    observed += "".join(f"; {s.depth:.0%} below {s.reference}" for s in shorts if s.reference != "its peers")
    observed += "".join(f", {unsure}" for unsure in dict.fromkeys(short.unsure for short in shorts) if unsure)
    against = _references(case, kind, series, want)
    if not against and not shorts:
        observed = "no other group of its axis, size and number of nodes to compare it with"
        observed += f"; no formula: {want.unknown[0]}" if want and want.unknown else ""
        verdict = Verdict.SKIP
    causes = _causes(case, [series], across=kind.across) if verdict in (Verdict.FAIL, Verdict.WARN) else ()
    depth = max((short.depth for short in shorts), default=0.0)
    crossed = case.parts.named_for(series.ranks, depth) if depth else ""
    observed += f"; its ranks cross {crossed} (slow_part)" if crossed else ""
    return Finding(
        check=NAME,
        subject=series.group,
        verdict=verdict,
        observed=observed,
        expected="; ".join(against),
        remedy=_remedy(series, shorts, causes, crossed),
        blames=Part(kind="environment", name=causes[0], confidence="likely")
        if causes and verdict is Verdict.FAIL and _is_common(shorts)
        else None,
        evidence=(series.group,),
    )


def _is_common(shorts: Sequence[Short]) -> bool:
    """Short of what the hardware allows, and not beside its peers: then what its nodes have set explains it."""
    names = [short.reference for short in shorts]
    return any("hardware" in name for name in names) and "its peers" not in names


def _references(case: Case, kind: Kind, series: Series, want: Expectation | None) -> list[str]:
    """What it was held against, in words."""
    found = []
    if kind.peers:
        found.append(f"at least {1 - kind.shortfall:.0%} of {show_rate(kind.peers.bytes_per_s)}, {kind.peers.how}")
    if want and want.bytes_per_s is not None and want.at_least:
        more = f" (other algorithms reach up to {show_rate(want.may_reach)})" if want.may_reach else ""
        hint = "" if want.firm else ", a hint"
        found.append(f"at least {want.at_least:.0%} of {show_rate(want.bytes_per_s)}: {want.formula}{more}{hint}")
    entry = case.history.get((series.group, series.collective, series.size_bytes))
    earlier = entry.busbw_bytes_per_s if entry else ()
    if len(earlier) >= HISTORY_RUNS:
        least = f"at least {1 - case.limits['history_drop']:.0%} of {show_rate(median(earlier))}"
        found.append(f"{least}, the median of {len(earlier)} earlier runs")
    return found


def _remedy(series: Series, shorts: Sequence[Short], causes: Sequence[str], crossed: str) -> str:
    if not shorts:
        return ""
    if causes and any(short.sure for short in shorts):
        return f"set right first: {causes[0]}"
    if crossed:
        return f"do first what slow_part says of {crossed}; then time the group again"
    if not any(short.sure for short in shorts):
        return "give a larger --budget, so that it is repeated"
    if all("history" in short.reference for short in shorts):
        return "see what changed since: driver, NCCL, settings, cables"
    ranks = fold_numbers(series.ranks)
    return f"see slow_part for ranks {ranks}; if no pair of them is slow, their ring order, their NIC settings or their route is"


def _all_alike(case: Case, axis: str, kind: Kind, shorts: Sequence[Short]) -> Finding:
    """All groups of an axis short of what the hardware allows, or of their history: what they have in common, no node."""
    assert case.evidence.plan is not None
    causes = _causes(case, kind.series, across=kind.across)
    nodes = case.evidence.plan.placement.nodes_of(rank for series in kind.series for rank in series.ranks)
    slowest = min(kind.series, key=lambda series: series.typical)
    fastest = max(kind.series, key=lambda series: series.typical)
    verdict = max((short.verdict for short in shorts), key=SEVERITY.index)
    groups = [(series.ranks, short.depth) for series, short in zip(kind.series, shorts, strict=True)]
    crossed = all_explained(case.parts, groups)
    blames = None
    if verdict is Verdict.FAIL and (causes or not crossed) and (causes or len(nodes) >= ENVIRONMENT_NODES):
        common = "the nodes, and the network between them," if kind.across else "the nodes"
        cause = causes[0] if causes else f"what {common} of the {axis} groups have in common"
        blames = Part(kind="environment", name=cause, confidence="likely")
    means = f"; {', '.join(causes)}" if causes else ""
    means += f"; each crosses a part that is slow by itself: {crossed.text} (slow_part)" if crossed else ""
    compare = "compare settings, drivers, NCCL and GPUDirect RDMA with a cluster of this kind that is fast"
    compare += "; count cables, not interfaces, and ask whether the uplinks are oversubscribed" if kind.across else ""
    return Finding(
        check=NAME,
        subject=f"{axis} groups",
        verdict=verdict,
        observed=f"all {len(kind.series)} are short alike, {show_rate(slowest.typical)} to {show_rate(fastest.typical)} at "
        f"{show_bytes(slowest.size_bytes)}: {min(short.depth for short in shorts):.0%} or more below {shorts[0].reference}"
        f"{f', {shorts[0].unsure}' if shorts[0].unsure else ''}{means}",
        expected="at least the share of the hardware's rate that healthy clusters reach"
        if "hardware" in shorts[0].reference
        else f"no drop of more than {case.limits['history_drop']:.0%}",
        remedy="give a larger --budget, so that they are repeated"
        if not any(short.sure for short in shorts)
        else f"set right: {causes[0]}"
        if causes
        else f"do first what slow_part says of these, then time the groups again: {crossed.text}"
        if crossed
        else compare,
        blames=blames,
        evidence=tuple(series.group for series in kind.series[:8]),
    )


def _causes(case: Case, some: Sequence[Series], *, across: bool) -> tuple[str, ...]:
    plan, inventory = case.evidence.plan, case.evidence.inventory or Inventory(nodes=())
    assert plan is not None
    names = set(plan.placement.nodes_of(rank for series in some for rank in series.ranks))
    return slow_causes((node for node in inventory.nodes if node.name in names), across=across)


def _too_noisy(axis: str, kind: Kind) -> Finding:
    slowest = min(kind.series, key=lambda series: series.typical)
    reference = peers_reference([series.typical for series in kind.series], kind.shortfall)
    return Finding(
        check=NAME,
        subject=f"{axis} groups",
        verdict=Verdict.WARN,
        observed=f"{kind.noisy}; slowest {slowest.group} at {show_rate(slowest.typical)}, like groups {show_rate(reference.bytes_per_s)}",
        expected=f"repeats alike enough to see a shortfall of {kind.shortfall:.0%}",
        remedy=TOO_NOISY_REMEDY,
    )


def _wrong_members(measurement: Measurement) -> bool:
    return bool(measurement.members) and sorted(measurement.members) != sorted(measurement.probe.ranks)


def _other_members(group: Group, measurement: Measurement) -> Finding:
    """NVIDIA/nccl-tests 27, 182 and 71: programs built without their launcher make N groups of one, each of which reports a figure of its own, or none."""
    members = measurement.members
    return Finding(
        check=NAME,
        subject=group.name,
        verdict=Verdict.FAIL,
        observed=f"the communicator had {len(members)} member{'s' * (len(members) != 1)}, ranks {fold_numbers(sorted(members))}",
        expected=f"the {len(group.ranks)} ranks of the plan, {fold_numbers(group.ranks)}",
        remedy="its figures say nothing of the plan: see that all ranks get the same rendezvous address and their own rank",
        evidence=(measurement.probe.key,),
    )


def _unmeasured(group: Group, failure: str) -> Finding:
    """`failure`: the latest; empty: there was none. Groups without a figure for one reason are told in the same words, so that reports show them as one."""
    remedy = "mend what reachable says of it, and run again" if " is left out: " in failure else ""
    return Finding(
        check=NAME,
        subject=group.name,
        verdict=Verdict.UNKNOWN,
        observed=f"no figure: {_LEFT_OUT.sub('', failure) or 'it was not reached'}",
        expected="a figure for every planned group",
        remedy=remedy if failure else "let the run go on to its end, with a larger --budget if need be",
    )


CHECK = Check(
    name=NAME,
    claim="Each planned group reaches the bus bandwidth that its hardware allows, that of its peers, and that of its own history.",
    why="The job runs at the speed of its slowest group; and where all are slow alike, comparing them with each other finds nothing.",
    source="formulas over active links, NICs and group size, whose constants are NCCL's and which published runs of A100, H100, H200 and B200 confirm; peers measured in the same run; earlier reports; bus bandwidth as nccl-tests defines it (doc/PERFORMANCE.md)",
    remedy="look at the pairs of a slow group: the slowest member holds it up; where all groups are slow, look at settings, drivers and GPUDirect RDMA",
    uses=("plan", "measurements"),
    judge=judge,
    limits=LIMITS,
)
