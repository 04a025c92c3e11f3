"""What becomes of a job, given the report of its run (pure).

A node is called guilty only by what drain.py's rules allow, and what was measured only if it was seen again. What speaks against nodes and is not enough is never laid on the job either: it
starts. What no node is guilty of (the plan, the placement, a path) drains nobody: the job is held or warned, as the site chose.
"""

from collections.abc import Mapping, Sequence

from preflight.config import Nobody
from preflight.model import Evidence, Finding, Report, Verdict
from preflight.model.hostlist import fold, natural_key
from preflight.slurm.controller_evidence import repeated
from preflight.slurm.controller_record import Course, Decision
from preflight.slurm.guilty import guilty_nodes
from preflight.slurm.job import SlurmJobContext
from preflight.slurm.look import others_of
from preflight.slurm.reason import MEASURED, readable, reason_of, shortened

LOST = frozenset({"agent_lost", "agent_busy", "agent_refused", "agent_late", "agent_error", "worker_not_started"})
OWNER_LETTERS = 500  # of what the job's owner reads
SHOWN = 3
# parts that a job meets whatever its plan; those of an agent's own surroundings are none of them
_OF_THE_JOB = frozenset({"plan", "path", "link", "leaf", "uplink", "slot", "rail", "class", "environment"})


def decide(
    report: Report,
    nodes: Sequence[str],
    uses: Mapping[str, Sequence[str]],
    *,
    nobody_guilty: Nobody = "warn",
    crowded: frozenset[str] = frozenset(),
    alike: int = 4,
) -> Decision:
    """The decision. `nodes`: the job's. `uses`: of each check by name, the facts that it needs. `crowded`: nodes on which other jobs run too."""
    measured = MEASURED | {name for name, facts in uses.items() if "measurements" in facts}
    guilty, let_off, again = _guilty(report, nodes, crowded, alike, measured)
    if guilty:
        reasons = {
            node: reason_of(
                found, report.run_id, node=node, kind="fabric" if any(f.check in measured for f in found) else None
            )
            for node, found in guilty.items()
        }
        listed = "; ".join(f"{node}: {reason}" for node, reason in reasons.items())
        return _decision(report, "drain", listed, let_off, guilty=reasons, repeated=again)
    owned = [finding for finding in report.findings if _is_the_jobs(finding, uses)]
    if let_off:  # a group is slow for the node that was let off, too
        owned = [finding for finding in owned if finding.check not in measured]
    if owned:
        held = nobody_guilty == "hold" and any(set(uses.get(f.check, ())) & {"plan", "measurements"} for f in owned)
        return _decision(report, "hold" if held else "warn", owner_text(owned), let_off)
    if let_off or report.answer != "go":
        return _decision(report, "unknown", _what_is_missing(report), let_off)
    return _decision(report, "start", "", ())


def _what_is_missing(report: Report) -> str:
    """Why nothing is known: the first agent that did not answer, else the first check that could not tell."""
    lost = [incident.text for incident in report.evidence.incidents if incident.kind in LOST]
    missing = (f for f in report.findings if f.verdict is Verdict.UNKNOWN and f.need == "required")
    told = [f"{finding.check} {finding.subject}: {finding.observed}" for finding in missing]
    return (lost or told or [""])[0]


def owner_text(findings: Sequence[Finding]) -> str:
    """What the job's owner reads of the worst findings, one of each check: what is wrong, and what mends it. One line of printable ASCII."""
    first = list({finding.check: finding for finding in reversed(findings)}.values())[::-1]
    told = []
    for finding in first[:SHOWN]:
        remedy = f"; do: {finding.remedy}" if finding.remedy else ""
        told.append(readable(f"{finding.check} {finding.subject}: {finding.observed}{remedy}"))
    more = len(findings) - len(told)
    tail = f" / +{more} more" if more else ""
    return shortened(" / ".join(told), OWNER_LETTERS - len(tail)) + tail


def _decision(
    report: Report,
    course: Course,
    text: str,
    let_off: Sequence[str],
    *,
    guilty: dict[str, str] | None = None,
    repeated: tuple[str, ...] = (),
) -> Decision:
    return Decision(
        course=course,
        text=readable(text),
        run_id=report.run_id,
        guilty=guilty or {},
        repeated=repeated,
        let_off=tuple(readable(why) for why in let_off),
        cut=report.partial,
    )


def _guilty(
    report: Report, nodes: Sequence[str], crowded: frozenset[str], alike: int, measured: frozenset[str]
) -> tuple[dict[str, list[Finding]], list[str], tuple[str, ...]]:
    """The nodes to drain with what for; why other findings drain nobody; and the repeated evidence."""
    kept: dict[str, list[Finding]] = {}
    let_off: list[str] = []
    again: list[str] = []
    evidence = report.evidence
    lost = {i.node for i in evidence.incidents if i.kind in LOST and i.node is not None}
    accused = guilty_nodes(report.findings, evidence, alike=alike, let_off=let_off)
    foreign = _foreign_parts(evidence)
    for node in sorted(accused, key=natural_key):
        for finding in accused[node]:
            why, seen = "", None
            if node not in nodes:
                why = "it is no node of the job"
            elif finding.blames is not None and finding.blames.name in foreign:
                why = "it is not about a GPU of the job"
            elif finding.check in measured:
                seen = repeated(finding, node, evidence)
                why = _why_not_measured(node, lost, crowded, seen, partial=report.partial)
            if why:
                let_off.append(f"{node} is not drained for {finding.check}: {why}")
            else:
                kept.setdefault(node, []).append(finding)
                again += [seen] if seen else []
    return kept, list(dict.fromkeys(let_off)), tuple(readable(text) for text in again)


def _why_not_measured(node: str, lost: set[str], crowded: frozenset[str], seen: str | None, *, partial: bool) -> str:
    """Why a measurement is not held against the node; empty: it is."""
    if node in lost:
        return "its agent did not answer all the time, or started no worker"
    if node in crowded:
        return "other jobs run there, whose traffic may be what was seen"
    if partial:
        return "the run was interrupted"
    return "" if seen else "it was seen once only"


def _is_the_jobs(finding: Finding, uses: Mapping[str, Sequence[str]]) -> bool:
    """Whether the job would suffer from it and no node is to blame: something of its plan or placement, or of the way between its nodes."""
    if finding.verdict is not Verdict.FAIL:
        return False
    facts, kind = set(uses.get(finding.check, ())), finding.blames.kind if finding.blames else None
    if finding.check == "reachable":  # a rank that does not answer may be our own worker's fault
        return kind in _OF_THE_JOB - {"environment"}
    if "measurements" in facts:
        return kind is None or kind in _OF_THE_JOB
    return "plan" in facts and (kind is None or kind in _OF_THE_JOB)


def _foreign_parts(evidence: Evidence) -> frozenset[str]:
    """The names of GPUs that are surely not the job's, as findings blame them."""
    known = evidence.inventory.nodes if evidence.inventory is not None else ()
    nobody = SlurmJobContext()
    return frozenset(name for node in known if node.mask is not None for name in others_of(node, nobody))


def summary(decision: Decision, nodes: Sequence[str], outcome: str = "") -> str:
    """The decision on one line, for the log. `outcome`: what follows it there; what that tells is not told twice, or the line would be cut before its end."""
    said = {
        "start": "go",
        "unknown": "not known whether it is well; it starts",
        "warn": "it starts with a warning",
        "hold": "no node is to blame; it is to be held",
        "drain": f"to blame: {fold(decision.guilty)}",
    }[decision.course]
    told = bool(decision.guilty) and all(reason in outcome for reason in decision.guilty.values())
    parts = [f"on {fold(nodes)}: {said}", "" if told else decision.text]
    parts += [f"seen again: {'; '.join(decision.repeated)}"] if decision.repeated else []
    parts += [f"let off: {'; '.join(decision.let_off[:SHOWN])}"] if decision.let_off else []
    return ". ".join(part for part in parts if part) + (f" [{decision.run_id}]" if decision.run_id else "")
