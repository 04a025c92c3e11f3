"""How `preflight plan` prints: text for a person, or the document `preflight.plan/1`."""

from typing import TYPE_CHECKING

from preflight.cli.output import Format, print_bytes, print_text, terminal_width, wants_color
from preflight.model import Verdict
from preflight.report.plan import plan_document, plan_json, plan_text

_BAD = (Verdict.FAIL, Verdict.WARN)

if TYPE_CHECKING:
    from preflight.cli.plan_extras import Extras
    from preflight.model import Report


def print_plan(report: "Report", extras: "Extras", format_: Format) -> None:
    """The plan, what was asked for besides, the findings and the answer."""
    plan = report.evidence.plan
    assert plan is not None
    if format_ == "json":
        for part in plan_json(plan_document(plan, report.findings, report.answer) | extras.document):
            print_bytes(part)
        return
    from preflight.report.console import answer_line, findings_text

    color, width = wants_color(), terminal_width()
    # a check without a run was not asked: it needs a cluster, or the plan file says "off", which stays in sight
    asked = {run.check for run in report.checks} | set(plan.job.rules)
    shown = [finding for finding in report.findings if finding.check in asked]
    findings = findings_text(shown, width=width, color=color)
    others = len(report.findings) - len(shown)
    if others:
        findings += f"{others} more checks need a cluster: preflight run\n"
    findings += _hint(report, extras)
    parts = [
        plan_text(plan, width=width),
        *extras.texts,
        f"Findings\n{findings}",
        f"{answer_line(report, color=color)}\n",
    ]
    print_text("\n".join(parts))


def _hint(report: "Report", extras: "Extras") -> str:
    """Where a placement is bad and nobody asked what to change: how to ask."""
    blamed = {
        finding.blames.name for finding in report.findings if finding.verdict in _BAD and finding.blames is not None
    }
    if {"advice", "layouts"} & set(extras.document) or not any(name.startswith("launch.") for name in blamed):
        return ""
    return "for the smallest change that mends the placement: --advise\n"
