"""What a run of a scan says of each of its nodes, and whether it has been said often enough to act on (pure)."""

from collections.abc import Iterable, Mapping

from preflight.model import Report, Verdict
from preflight.model.finding import Finding
from preflight.model.history import NodeVerdict
from preflight.model.history_rows import node_pairs

MAX_TEXT = 240


def verdicts_of(
    report: Report, guilty: Mapping[str, tuple[Finding, ...]], sweep: str | None, texts: Mapping[str, str] | None = None
) -> tuple[NodeVerdict, ...]:
    """One verdict for each node of the run. `guilty`: slurm.guilty.guilty_nodes; `sweep` None: it was no scan's; `texts`: the reasons of the guilty ones.

    FAIL: guilty. UNKNOWN: the run ended early; with `doubt`, something failed that no node is guilty of; a required check could not tell; this node was not measured; or the run judges no rates, being too noisy. Else PASS.
    """
    evidence = report.evidence
    nodes = evidence.plan.placement.nodes if evidence.plan else ()
    pinned = {id(finding) for findings in guilty.values() for finding in findings}
    loose = [f for f in report.findings if f.verdict is Verdict.FAIL and id(f) not in pinned]
    unsure = [f for f in report.findings if f.verdict is Verdict.UNKNOWN and f.need == "required"]
    measured = {node for pair in node_pairs(evidence) for node in pair}
    unjudged = evidence.localisation.unjudged if evidence.localisation else ""
    found = []
    for node in nodes:
        checks: tuple[str, ...] = ()
        if node in guilty:
            verdict, text = Verdict.FAIL, (texts or {}).get(node, guilty[node][0].observed)
            checks = tuple(dict.fromkeys(finding.check for finding in guilty[node]))
        elif report.partial:
            verdict, text = Verdict.UNKNOWN, f"the run ended early: {report.partial_reason or 'interrupted'}"
        elif loose:
            verdict, text = Verdict.UNKNOWN, f"{loose[0].check} of {loose[0].subject}: {loose[0].observed}"
        elif unsure:
            verdict, text = Verdict.UNKNOWN, f"{unsure[0].check} of {unsure[0].subject}: {unsure[0].observed}"
        elif node not in measured:
            verdict, text = Verdict.UNKNOWN, "no pair with another node was measured"
        elif unjudged:
            verdict, text = Verdict.UNKNOWN, f"no rate was judged: {unjudged}"
        else:
            verdict, text = Verdict.PASS, ""
        found.append(
            NodeVerdict(
                node=node,
                verdict=verdict,
                at_s=report.started_at_s,
                run_id=report.run_id,
                text=text[:MAX_TEXT],
                checks=checks,
                partners=tuple(sorted(set(nodes) - {node})),
                sweep=sweep,
                doubt=verdict is Verdict.UNKNOWN and bool(loose) and not report.partial,
            )
        )
    return tuple(found)


def agreeing(
    verdicts: Iterable[NodeVerdict], *, since_s: float, boot_s: float | None = None
) -> tuple[NodeVerdict, ...]:
    """The FAIL verdicts of one node that agree with its newest, newest first. `verdicts`: newest first, from sweeps.

    They name a check that the newest names too, and each comes from another sweep than those before it, or from a job with other partners. What is older than `since_s`, than the node's boot (None: not
    known), than a PASS, or than the drain that followed it, doesn't count; UNKNOWN says nothing either way.
    """
    found: list[NodeVerdict] = []
    for verdict in verdicts:
        if verdict.drained or verdict.verdict is Verdict.PASS or verdict.at_s < max(since_s, boot_s or 0.0):
            break
        if verdict.verdict is not Verdict.FAIL or verdict.sweep is None:
            continue
        again = any(verdict.sweep == other.sweep and verdict.partners == other.partners for other in found)
        if not again and (not found or set(verdict.checks) & set(found[0].checks)):
            found.append(verdict)
    return tuple(found)


def suspects(last: Mapping[str, NodeVerdict], rounds: Mapping[str, int], repeats: int) -> dict[str, frozenset[str]]:
    """Nodes to be measured again soon, with the partners that they had: the newest verdict blames them, or leaves a doubt. `rounds`: jobs of this sweep that had them; `repeats` are enough."""
    return {
        node: frozenset(verdict.partners)
        for node, verdict in last.items()
        if (verdict.verdict is Verdict.FAIL or verdict.doubt) and not verdict.drained and rounds.get(node, 0) < repeats
    }
