"""The findings of two runs by what they are about: those that came, those that went (pure). Ranks and groups in their subjects are compared by place."""

import re
from collections import defaultdict
from collections.abc import Mapping

from preflight.model import Finding, Plan, Report, Verdict
from preflight.model.baseline import places_of
from preflight.model.hostlist import unfold
from preflight.report.difference import FindingChange

TOLD = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN)  # a PASS that became a SKIP is told by the checks of the run
JUDGED = {Verdict.FAIL, Verdict.WARN, Verdict.PASS}
MAX_GROUPS = 4096  # of one subject that are unfolded

_RANKS = re.compile(r"(pair|rank|gpu|ranks) ([0-9]+)(?:-([0-9]+))?")


def compare_findings(before: Report, after: Report) -> tuple[tuple[FindingChange, ...], tuple[FindingChange, ...]]:
    """Those that came (or became worse), worst first, and those that went (or became better).

    A FAIL that came counts if the first run judged that check and knew the node; one that went is gone only where the second run judged the check. An UNKNOWN of a required check counts if there was a judgement before.
    """
    old, new = _by_subject(before), _by_subject(after)
    judged = [_judged(report) for report in (before, after)]
    strangers = _nodes(after) - _nodes(before) if _nodes(before) else set()
    came, went = [], []
    for key, finding in new.items():
        earlier = old.get(key)
        if finding.verdict in TOLD and (earlier is None or earlier.verdict.rank > finding.verdict.rank):
            came.append(_came(finding, earlier, judged[0], strangers))
    for key, finding in old.items():
        later = new.get(key)
        if finding.verdict in TOLD and (later is None or later.verdict.rank > finding.verdict.rank):
            went.append(_went(finding, later, judged[1]))
    return tuple(sorted(came, key=_order)), tuple(sorted(went, key=_order))


def _came(finding: Finding, earlier: Finding | None, judged: Mapping[str, bool], strangers: set[str]) -> FindingChange:
    note = ""
    if not judged.get(finding.check):
        note = "the first run did not judge this"
    elif _about(finding) & strangers:
        note = "about a node that the first run did not have"
    decisive = finding.verdict is Verdict.FAIL or (finding.verdict is Verdict.UNKNOWN and finding.need == "required")
    return FindingChange(
        check=finding.check,
        subject=finding.subject,
        before=earlier.verdict.value if earlier else None,
        after=finding.verdict.value,
        observed=finding.observed,
        counts=decisive and not note,
        note=note,
    )


def _went(finding: Finding, later: Finding | None, judged: Mapping[str, bool]) -> FindingChange:
    unjudged = not judged.get(finding.check)
    return FindingChange(
        check=finding.check,
        subject=finding.subject,
        before=finding.verdict.value,
        after=later.verdict.value if later else None,
        observed=finding.observed,
        note="the second run did not judge this: it may still be so" if unjudged else "",
    )


def _judged(report: Report) -> dict[str, bool]:
    """Check -> whether it said anything that is neither UNKNOWN nor SKIP."""
    found: dict[str, bool] = defaultdict(bool)
    for finding in report.findings:
        found[finding.check] |= finding.verdict in JUDGED
    return found


def _nodes(report: Report) -> set[str]:
    plan, inventory = report.evidence.plan, report.evidence.inventory
    found = set(plan.placement.nodes) if plan else set()
    return found | {node.name for node in inventory.nodes} if inventory else found


def _about(finding: Finding) -> set[str]:
    """The words of subject and blamed part, among which are the names of nodes."""
    text = f"{finding.subject} {finding.blames.name if finding.blames else ''}"
    return set(re.split(r"[ ,;:()]+", text))


def _order(change: FindingChange) -> tuple[int, str, str]:
    return (
        min(Verdict(verdict).rank for verdict in (change.before, change.after) if verdict),
        change.check,
        change.subject,
    )


def _by_subject(report: Report) -> dict[tuple[str, object], Finding]:
    """(check, what it is about by place) -> the worst finding of that."""
    plan = report.evidence.plan
    groups = {group.name: group.ranks for axis in plan.groups for group in plan.on_axis(axis)} if plan else {}
    found: dict[tuple[str, object], Finding] = {}
    for finding in report.findings:
        key = (finding.check, _subject(finding.subject, plan, groups))
        if key not in found or finding.verdict.rank < found[key].verdict.rank:
            found[key] = finding
    return found


def _subject(subject: str, plan: Plan | None, groups: Mapping[str, tuple[int, ...]]) -> object:
    """Where the subject's ranks sit; the text itself where it names none."""
    if plan is None:
        return subject
    match = _RANKS.fullmatch(subject)
    if match:
        ranks = [int(text[:9]) for text in match.groups()[1:] if text]
        return places_of(plan, ranks) or subject
    names = [subject]
    if "[" in subject:
        try:
            names = unfold(subject)
        except ValueError:
            return subject
    if len(names) > MAX_GROUPS or any(name not in groups for name in names):
        return subject
    return tuple(places_of(plan, groups[name]) for name in names)
