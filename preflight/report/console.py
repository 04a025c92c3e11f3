"""A run as text for a person: what was measured, then the findings worst first, then the answer as the last line.

Plain strings; the caller knows the terminal's width and whether it wants colour. Everything from elsewhere is cleaned.
"""

import re
from collections.abc import Collection, Mapping, Sequence

from preflight.model import Answer, Coverage, Evidence, Finding, Report, Verdict
from preflight.model.hostlist import fold
from preflight.model.units import show_seconds
from preflight.report.fabric import fabric_lines
from preflight.report.tables import first_call_lines, gpu_lines, group_lines, pair_lines, pair_unit, worst_pair_lines
from preflight.report.text import clean, hang, paint, shorten

# So many different findings of one check and verdict are shown whole; the rest is counted. All are in the JSON report.
MAX_SHOWN = 12
MAX_SKIPPED = 20  # so many checks that were skipped for one reason are named; more are counted
MAX_LINES = 3  # of what passed
MIN_PHASE_S = 1e-3  # what took less is not worth a word
_WORD = 8  # "UNKNOWN" and a space
_LABEL = 10  # "observed" and two spaces


def findings_text(
    findings: Sequence[Finding], *, width: int = 100, color: bool = False, silent: Collection[str] = ()
) -> str:
    """Findings worst first: each with what was seen, expected and to be done; PASS and SKIP one paragraph for each check.

    Findings that differ in their subject only are folded: "n[1-8]". What is unknown of `silent`, nodes whose agent never answered, has that one reason and one entry. Empty if there are none.
    """
    lines: list[str] = []
    for verdict in Verdict:
        by_check: dict[str, list[Finding]] = {}
        of_silent: dict[str, list[Finding]] = {}
        for finding in findings:
            if finding.verdict is verdict:
                mute = verdict is Verdict.UNKNOWN and finding.subject in silent
                (of_silent if mute else by_check).setdefault(finding.check, []).append(finding)
        if verdict is Verdict.SKIP:
            lines += _skipped(by_check, width=width, color=color)
            continue
        lines += _of_silent(of_silent, width=width, color=color)
        for check, some in by_check.items():
            if verdict is Verdict.PASS:
                lines += _briefly(check, some, width=width, color=color)
            else:
                lines += _in_full(check, some, width=width, color=color)
    return "".join(f"{line}\n" for line in lines)


def report_text(report: Report, *, width: int = 100, color: bool = False) -> str:
    """The whole run. The last line is the answer: "go", "no-go: 2 FAIL ...", "undecided: ..."."""
    lines = head_lines(report, width=width, color=color)
    measured = report.evidence.measurements or ()
    mark = " [SIMULATED]" if report.evidence.settings.simulated else ""
    lines += section(
        f"Bandwidth of pairs, {pair_unit(report.evidence)} (busbw, send_recv both ways){mark}",
        [*pair_lines(report.evidence, width=width), *worst_pair_lines(report.evidence)],
    )
    lines += section(f"GPUs by themselves{mark}", gpu_lines(report.evidence, width=width))
    lines += section(f"Bandwidth of groups (busbw){mark}", group_lines(measured, width=width))
    lines += section(f"Fabric{mark}", fabric_lines(report.evidence.localisation, width=width))
    lines += section("First calls, kept out of the figures above", first_call_lines(measured, width=width))
    lines += section("Incidents", incident_lines(report.evidence, width=width))
    text = "".join(f"{line}\n" for line in lines)
    findings = findings_text(report.findings, width=width, color=color, silent=silent_nodes(report)) or "  none\n"
    banner = "".join(f"{line}\n" for line in banner_lines(report, width=width, color=color))
    return f"{text}\nFindings\n{findings}\n{banner}{answer_line(report, color=color)}\n"


def silent_nodes(report: Report) -> set[str]:
    """The nodes whose agent never answered."""
    incidents = report.evidence.incidents
    return {i.node for i in incidents if i.node and i.kind == "agent_lost" and i.phase == "discovery"}


def answer_line(report: Report, *, color: bool = False) -> str:
    """The answer with its reason, on one line."""
    verdicts: dict[Answer, Verdict] = {"go": Verdict.PASS, "no-go": Verdict.FAIL, "undecided": Verdict.UNKNOWN}
    reason = _reason(report)
    simulated = " [SIMULATED]" if report.evidence.settings.simulated else ""
    return paint(report.answer, verdicts[report.answer], color=color) + (f": {reason}" if reason else "") + simulated


def _reason(report: Report) -> str:
    def of(verdict: Verdict, *, required: bool = False) -> list[Finding]:
        return [f for f in report.findings if f.verdict is verdict and (f.need == "required" or not required)]

    fails, unknowns, warns = of(Verdict.FAIL), of(Verdict.UNKNOWN, required=True), of(Verdict.WARN)
    if report.answer == "no-go":
        return f"{len(fails)} FAIL ({_checks(fails)})"
    if report.answer == "go":
        return f"{len(warns)} WARN ({_checks(warns)})" if warns else ""
    if unknowns:
        return f"{len(unknowns)} UNKNOWN ({_checks(unknowns)})"
    return "the run is partial" if report.partial else "nothing was checked"


def _checks(findings: Sequence[Finding]) -> str:
    return clean(", ".join(dict.fromkeys(finding.check for finding in findings)))


def head_lines(report: Report, *, width: int, color: bool) -> list[str]:
    """What the run was: command, id, date, duration, banners, backend, versions, plan, phases, coverage."""
    import time

    try:
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(report.started_at_s))
    except (OverflowError, OSError, ValueError):
        when = "on a date that no calendar has"
    what = f"{report.command}, run {report.run_id}, {when}, {show_seconds(report.duration_s)}"
    lines = hang("preflight ", what, width=width)
    lines += banner_lines(report, width=width, color=color)
    settings = report.evidence.settings
    versions = ", ".join(f"{name} {version}" for name, version in report.environment.versions.items())
    moved = f"data moved by {settings.backend}" if settings.backend else "no data moved"
    moved += f" ({settings.backend_reason})" if settings.backend_reason else ""
    lines += hang("  with      ", f"{moved}; {versions}" if versions else moved, width=width)
    if report.evidence.plan is not None and report.evidence.plan.fingerprint:
        plan = f"{report.evidence.plan.job.source}, fingerprint {report.evidence.plan.fingerprint}"
        lines += hang("  plan      ", plan, width=width)
    if report.environment.variables:
        variables = " ".join(f"{name}={value}" for name, value in report.environment.variables.items())
        lines += hang("  variables ", variables, width=width)
    if report.phases_s:
        phases = [
            f"{name} {show_seconds(spent_s)}" for name, spent_s in report.phases_s.items() if spent_s >= MIN_PHASE_S
        ]
        lines += hang("  time      ", ", ".join(phases), width=width) if phases else []
    seen = coverage_text(report.coverage)
    if seen:
        lines += hang("  coverage  ", seen, width=width)
    return lines


def coverage_text(seen: Coverage) -> str:
    """How much of what was planned was measured: "56 of 120 pairs, 12 of 12 groups measured; 64 of 64 links"; empty if nothing was planned."""
    if not seen.pairs_planned and not seen.groups_planned:
        return ""
    counts = [(seen.pairs_measured, seen.pairs_planned, "pairs"), (seen.groups_measured, seen.groups_planned, "groups")]
    text = ", ".join(f"{measured} of {planned} {what}" for measured, planned, what in counts if planned) + " measured"
    parts = [
        f"{measured} of {planned} {what}"
        for what, measured, planned in (
            ("GPUs' ways out of their nodes", seen.links_measured, seen.links_planned),
            ("leaves' ways up", seen.uplinks_measured, seen.uplinks_planned),
            ("pairs of leaves", seen.leaf_pairs_measured, seen.leaf_pairs_planned),
        )
        if planned
    ]
    parts += [f"scan {seen.scan}"] if seen.scan else []
    return "; ".join([text, *parts])


def banner_lines(report: Report, *, width: int, color: bool) -> list[str]:
    """That nothing was measured, that not all was: what must not be overlooked."""
    lines = []
    if report.evidence.settings.simulated:
        lines += hang("SIMULATED: ", "a modelled cluster, nothing here was measured", width=width)
    if report.partial:
        lines += hang("PARTIAL: ", report.partial_reason or "the run ended before its plan was done", width=width)
    return [paint(line, Verdict.WARN, color=color) for line in lines]


def section(title: str, lines: Sequence[str]) -> list[str]:
    """A blank line, the title, the lines; nothing where there are none."""
    return ["", title, *lines] if lines else []


def incident_lines(evidence: Evidence, *, width: int) -> list[str]:
    """What went wrong while measuring, the first few."""
    lines: list[str] = []
    for incident in evidence.incidents[:MAX_SHOWN]:
        where = "".join(
            [
                f", {incident.node}" if incident.node else "",
                f", rank {incident.rank}" if incident.rank is not None else "",
            ]
        )
        label = f"{incident.at_s:6.1f} s  "
        lines += hang(label, f"{incident.kind} while {incident.phase}{where}: {incident.text}", width=width, indent=2)
    if len(evidence.incidents) > MAX_SHOWN:
        lines.append(f"  ... and {len(evidence.incidents) - MAX_SHOWN} more")
    return lines


def _of_silent(by_check: Mapping[str, Sequence[Finding]], *, width: int, color: bool) -> list[str]:
    """What is unknown of nodes that were never asked, in one entry for all checks."""
    if not by_check:
        return []
    nodes = fold(dict.fromkeys(finding.subject for findings in by_check.values() for finding in findings))
    word = paint(Verdict.UNKNOWN.value.ljust(_WORD), Verdict.UNKNOWN, color=color)
    lines = [word + shorten(f"{clean(', '.join(by_check))}: {clean(nodes)}", max(width - _WORD, 24))]
    details = (("observed", "nothing: its agent did not answer"), ("remedy", "see reachable"))
    return [
        *lines,
        *(line for label, text in details for line in hang(label.ljust(_LABEL), text, width=width, indent=_WORD)),
    ]


def _skipped(by_check: Mapping[str, Sequence[Finding]], *, width: int, color: bool) -> list[str]:
    """The checks that didn't apply, those with the same reason on one line: "SKIP    gpu_count, reachable: nothing to judge"."""
    alike: dict[str, list[str]] = {}
    for check, findings in by_check.items():
        reasons = list(dict.fromkeys(finding.observed for finding in findings))
        more = f" (and {len(reasons) - 1} other reasons)" if len(reasons) > 1 else ""
        alike.setdefault(reasons[0] + more, []).append(check)
    lines = []
    for reason, checks in alike.items():
        named = ", ".join(checks) if len(checks) <= MAX_SKIPPED else f"{len(checks)} checks"
        first, *rest = hang("SKIP".ljust(_WORD), f"{named}: {reason}", width=width)
        lines += [paint("SKIP", Verdict.SKIP, color=color) + first[len("SKIP") :], *rest]
    return lines


def _briefly(check: str, findings: Sequence[Finding], *, width: int, color: bool) -> list[str]:
    """As in "PASS    tp_in_nvlink_domain: 8 of tp[0-7]"; a single finding with its text."""
    verdict = findings[0].verdict
    if len(findings) == 1:
        text = f"{findings[0].subject}: {findings[0].observed}"
    elif len({subject_kind(finding.subject) for finding in findings}) > 1:
        others = re.sub(r",(?![^\[]*\])", ", ", _fold(findings[1:]))  # commas inside brackets are of a list of numbers
        text = f"{findings[0].subject}: {findings[0].observed} (and {len(findings) - 1} more: {others})"
    else:
        folded = _fold(findings)
        text = folded if folded.endswith(" pairs") else f"{len(findings)}: {folded}"
    room = MAX_LINES * max(width - _WORD, 24) - _WORD
    first, *rest = hang(verdict.value.ljust(_WORD), shorten(f"{clean(check)}: {clean(text)}", room), width=width)
    return [paint(verdict.value, verdict, color=color) + first[len(verdict.value) :], *rest]


def subject_kind(subject: str) -> str:
    """What a subject is a number of: "tp" for "tp0" and "tp[0-7]"."""
    return subject.rstrip("0123456789,-[]")


def _in_full(check: str, findings: Sequence[Finding], *, width: int, color: bool) -> list[str]:
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for f in findings:
        kind, confidence = (f.blames.kind, f.blames.confidence) if f.blames else ("", "")
        alike.setdefault((f.observed, f.expected, f.remedy, f.need, kind, confidence), []).append(f)
    causes: dict[tuple[str, ...], list[list[Finding]]] = {}
    for number, some in enumerate(alike.values()):
        causes.setdefault(_cause(some[0]) or (str(number),), []).append(some)
    lines: list[str] = []
    for number, (some, *others) in enumerate(causes.values()):
        if number == MAX_SHOWN:
            rest = sum(len(some) for groups in list(causes.values())[MAX_SHOWN:] for some in groups)
            lines += hang("... ", f"and {rest} more of {check}: see --format json", width=width, indent=_WORD)
            break
        first = some[0]
        word = paint(first.verdict.value.ljust(_WORD), first.verdict, color=color)
        # of an UNKNOWN alone: a FAIL counts whatever the check's need, a WARN never does
        advisory = " (advisory)" if first.need == "advisory" and first.verdict is Verdict.UNKNOWN else ""
        head = f"{clean(check)}: {_fold(some)}{advisory}"
        lines.append(word + shorten(head, max(width - _WORD, 24)))
        details = [
            ("observed", first.observed),
            ("expected", first.expected),
            ("blames", _blamed(some)),
            ("remedy", first.remedy),
            ("likewise", ",".join(_fold(group) for group in _by_size(others))),
        ]
        for label, text in details:
            if text:
                lines += hang(label.ljust(_LABEL), text, width=width, indent=_WORD)
    return lines


def _cause(finding: Finding) -> tuple[str, ...]:
    """What findings of one cause in the plan have in common: the key it blames and, but for numbers, the remedy. Empty: not blamed on the plan.

    One wrong key sets many groups apart: the first of them is shown whole, of the others ("likewise") only who they are.
    """
    part = finding.blames
    if part is None or part.kind != "plan":
        return ()
    remedy = re.sub(r"^as for [^:]*: ", "", finding.remedy)
    return part.name, part.confidence, finding.need, re.sub(r"[0-9]+", "0", remedy)


def _by_size(groups: Sequence[Sequence[Finding]]) -> list[list[Finding]]:
    """Single subjects together, so that they fold; those that already stand for many ("tp[8-31]") by themselves."""
    flat = [finding for group in groups for finding in group]
    single = [finding for finding in flat if "[" not in finding.subject]
    return [some for some in (single, *([finding] for finding in flat if "[" in finding.subject)) if some]


def _blamed(findings: Sequence[Finding]) -> str:
    parts = [finding.blames for finding in findings if finding.blames]
    if not parts:
        return ""
    kind, names = parts[0].kind, fold(part.name for part in parts)
    told = names.lower().startswith(f"{kind} ")  # "NIC of n3 GPU 2" says itself what it is
    return f"{names if told else f'{kind} {names}'} ({parts[0].confidence})"


def _fold(findings: Sequence[Finding]) -> str:
    """The subjects as a short list; many pairs as their number, since their names don't fold to anything readable."""
    subjects = list(dict.fromkeys(finding.subject for finding in findings))
    if len(subjects) > 4 and all(subject.startswith("pair ") for subject in subjects):
        return f"{len(subjects)} pairs"
    return clean(fold(subjects))
