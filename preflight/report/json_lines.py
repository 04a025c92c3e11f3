"""A run as JSON lines, for log collectors: one line for each finding, worst first, then one for the run. A run without its last line was cut off.

Lines are ASCII whatever the texts hold: nothing in them steers a terminal, and no reader splits a line at a character that only some take for a line's end. Unknown is null.
"""

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

from preflight.model import Report, Verdict

FINDING_SCHEMA = "preflight.finding/1"
RUN_SCHEMA = "preflight.run/1"


def json_lines(report: Report) -> Iterator[str]:
    """Each with its newline.

    Of a finding: schema, run_id, time (Unix seconds at which the run began), command, simulated, check, subject, verdict, need, observed, expected, remedy, blames (kind, name, confidence), origin.
    Of the run: schema, run_id, time, command, simulated, answer, partial, duration_s, findings (number by verdict), backend, fingerprint, nodes, coverage, versions.
    """
    head = {
        "run_id": report.run_id,
        "time": report.started_at_s,
        "command": report.command,
        "simulated": report.evidence.settings.simulated,
    }
    for finding in report.findings:
        part = finding.blames
        yield _line(
            {
                "schema": FINDING_SCHEMA,
                **head,
                "check": finding.check,
                "subject": finding.subject,
                "verdict": finding.verdict.value,
                "need": finding.need,
                "observed": finding.observed,
                "expected": finding.expected or None,
                "remedy": finding.remedy or None,
                "blames": part and {"kind": part.kind, "name": part.name, "confidence": part.confidence},
                "origin": finding.origin,
            }
        )
    yield _line({"schema": RUN_SCHEMA, **head, **_run(report)})


def _run(report: Report) -> dict[str, Any]:
    plan, inventory, seen = report.evidence.plan, report.evidence.inventory, report.coverage
    counts = Counter(finding.verdict for finding in report.findings)
    nodes = plan.placement.nodes if plan else tuple(node.name for node in inventory.nodes) if inventory else None
    return {
        "answer": report.answer,
        "partial": report.partial,
        "partial_reason": report.partial_reason,
        "duration_s": report.duration_s,
        "findings": {verdict.value: counts[verdict] for verdict in Verdict},
        "backend": report.evidence.settings.backend,
        "fingerprint": (plan.fingerprint or None) if plan else None,
        "nodes": nodes,
        "coverage": {
            "pairs_planned": seen.pairs_planned,
            "pairs_measured": seen.pairs_measured,
            "groups_planned": seen.groups_planned,
            "groups_measured": seen.groups_measured,
        },
        "versions": report.environment.versions,
    }


def _line(values: dict[str, Any]) -> str:
    import json

    # the one control character of ASCII that JSON lets stand; it occurs within strings only
    return json.dumps(values, separators=(",", ":")).replace("\x7f", "\\u007f") + "\n"


def write_lines(descriptor: int, report: Report) -> None:
    """Each line by one write, so that several processes that append to one file (opened with O_APPEND, as by >>) never mix within a line. Raises OSError."""
    for line in json_lines(report):
        data = line.encode("ascii")
        while data:  # a pipe, or a disk that is nearly full, may take a part
            data = data[os.write(descriptor, data) :]
