"""Writes the page: one file, whose only script and style are its own (a hash of each stands in its policy), and which asks nobody for anything."""

import base64
import functools
import hashlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from preflight.errors import ConfigError, UsageError
from preflight.formats import write_atomically
from preflight.model import Report, Verdict
from preflight.model.units import show_rate, show_seconds
from preflight.report.console import answer_line, coverage_text
from preflight.report.fabric import fabric_lines
from preflight.report.page.change import comparison
from preflight.report.page.data import document_of, findings_of_nodes, script_json
from preflight.report.page.pairs import Pairs, pairs_of
from preflight.report.page.rows import (
    MAX_GROUPS,
    MAX_NAME,
    MAX_NODES,
    group_tables,
    node_pair_rows,
    node_rows,
    pair_rows,
)
from preflight.report.page.verdicts import counts_of, entries_of, quiet_of, safe
from preflight.report.tables import first_call_lines, gpu_lines
from preflight.report.text import clean

if TYPE_CHECKING:
    import jinja2

HERE = Path(__file__).parent
SCRIPTS = ("units.js", "data.js", "cells.js", "matrix.js", "detail.js", "placement.js", "page.js")
MAX_INCIDENTS = 100
MAX_VARIABLES = 200
WIDTH = 110  # of what is shown as in a terminal


def write_page(report: Report, path: Path, previous: Report | None = None) -> None:
    """The page of a run in this file, beside an earlier run if one is given; an older file stays until the new one is complete.

    Raises UsageError: that is a folder; ConfigError: jinja2 is not installed; WorldError: it can't be written.
    """
    if path.is_dir():
        raise UsageError(f"--html {path}: is a folder; give a file, for example {path / 'report.html'}")
    write_atomically(path, page_html(report, previous))


def page_html(report: Report, previous: Report | None = None) -> str:
    """The page as text. Raises ConfigError: jinja2 is not installed."""
    template = page_template()
    style = (HERE / "page.css").read_text(encoding="utf-8")
    script = "".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    script = f'"use strict";(() => {{\n{script}}})();\n'
    pairs = pairs_of(report.evidence)
    found = findings_of_nodes(report, pairs.ends)
    return template.render(
        style=style,
        script=script,
        policy=f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; base-uri 'none'; form-action 'none'",
        data=script_json(document_of(report, pairs, found)),
        compared=comparison(report, previous) if previous else None,
        when=_when,
        **_head(report),
        **_findings(report),
        **_figures(report, pairs),
        nodes=node_rows(report, pairs, found),
        max_nodes=MAX_NODES,
        max_groups=MAX_GROUPS,
        **_rest(report),
    )


@functools.cache
def page_template() -> "jinja2.Template":
    """The template, made once. Raises ConfigError: jinja2 is not installed."""
    try:
        import jinja2
    except ImportError as error:
        remedy = "install it: pip install 'cluster-preflight[report]'"
        raise ConfigError("--html", "needs jinja2, which is not installed", remedy=remedy) from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["rate"] = lambda rate: "unknown" if rate is None else show_rate(rate)
    return environment.get_template("page.html.j2")


def _hash(text: str) -> str:
    """As a content security policy names the text of an element."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _when(at_s: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_s))
    except (OverflowError, OSError, ValueError):
        return "on a date that no calendar has"


def _head(report: Report) -> dict[str, Any]:
    plan, settings = report.evidence.plan, report.evidence.settings
    facts = [("run", safe(report.run_id, MAX_NAME)), ("started", _when(report.started_at_s))]
    facts += [("took", show_seconds(report.duration_s)), ("command", f"preflight {safe(report.command, MAX_NAME)}")]
    if plan is not None:
        nodes = len(plan.placement.nodes)
        degrees = " x ".join(f"{axis} {degree}" for axis, degree in plan.degrees.items() if degree > 1)
        facts.append(
            (
                "job",
                f"{plan.world_size} ranks on {nodes} node{'s' if nodes != 1 else ''}, {safe(degrees) or 'no parallel axes'}",
            )
        )
        facts.append(
            ("plan", f"{safe(plan.job.source, MAX_NAME)}, fingerprint {safe(plan.fingerprint or 'unknown', MAX_NAME)}")
        )
    moved = f"by {settings.backend}" if settings.backend else "nothing was moved"
    facts.append(
        ("data moved", f"{moved} ({safe(settings.backend_reason, MAX_NAME)})" if settings.backend_reason else moved)
    )
    partial = safe(report.partial_reason or "the run ended before its plan was done") if report.partial else ""
    line = answer_line(report).removesuffix(" [SIMULATED]")
    return {
        "answer": report.answer,
        "reason": line.partition(": ")[2],
        "simulated": settings.simulated,
        "partial": partial,
        "facts": facts,
        "run_id": safe(report.run_id, MAX_NAME),
    }


def _findings(report: Report) -> dict[str, Any]:
    entries, more = entries_of(report.findings)
    return {
        "entries": entries,
        "more_entries": more,
        "counts": counts_of(report.findings),
        "passed": quiet_of(report.findings, Verdict.PASS),
        "skipped": quiet_of(report.findings, Verdict.SKIP),
    }


def _figures(report: Report, pairs: Pairs) -> dict[str, Any]:
    evidence, ends = report.evidence, pairs.ends
    several = ends is not None and len(ends.nodes) > 1
    return {
        "pairs": pair_rows(pairs),
        "node_pairs": node_pair_rows(pairs) if several else [],
        "several": several,
        "num_pairs": len(pairs.pairs),
        "num_nodes": len(ends.nodes) if ends else 0,
        "world": len(ends.node) if ends else 0,
        "routes": pairs.routes,
        "slow_ways": any(route.on_slow_way for route in pairs.routes),
        "groups": group_tables(evidence),
        "unjudged": safe(evidence.localisation.unjudged) if evidence.localisation else "",
        "sends": len(pairs.sends),
        "leaves_known": bool(ends and ends.leaves),
        "axes": list(evidence.plan.groups) if evidence.plan else [],
        "coverage": coverage_text(report.coverage),
        "uncovered": _uncovered(report),
    }


def _uncovered(report: Report) -> list[tuple[str, int, int]]:
    """(what, measured, planned) of everything that was planned."""
    seen = report.coverage
    rows = [
        ("pairs of GPUs", seen.pairs_measured, seen.pairs_planned),
        ("groups", seen.groups_measured, seen.groups_planned),
        ("GPUs' ways out of their nodes", seen.links_measured, seen.links_planned),
        ("leaves' ways up", seen.uplinks_measured, seen.uplinks_planned),
        ("pairs of leaves", seen.leaf_pairs_measured, seen.leaf_pairs_planned),
    ]
    return [row for row in rows if row[2]]


def _rest(report: Report) -> dict[str, Any]:
    """What is folded: the fabric in words, incidents, environment."""
    evidence = report.evidence
    variables = [(safe(k, MAX_NAME), safe(v)) for k, v in report.environment.variables.items()]
    incidents = [
        (
            f"{i.at_s:.1f} s",
            i.kind,
            safe(i.phase, MAX_NAME),
            safe(i.node or "", MAX_NAME),
            "" if i.rank is None else str(i.rank),
            safe(i.text),
        )
        for i in evidence.incidents
    ]
    return {
        "fabric": "\n".join(map(clean, fabric_lines(evidence.localisation, width=WIDTH))),
        "alone": "\n".join(map(clean, gpu_lines(evidence, width=WIDTH))),
        "first_calls": "\n".join(map(clean, first_call_lines(evidence.measurements or (), width=WIDTH))),
        "incidents": incidents[:MAX_INCIDENTS],
        "more_incidents": max(0, len(incidents) - MAX_INCIDENTS),
        "versions": [(safe(k, MAX_NAME), safe(v, MAX_NAME)) for k, v in report.environment.versions.items()],
        "variables": variables[:MAX_VARIABLES],
        "more_variables": max(0, len(variables) - MAX_VARIABLES),
        "phases": [(safe(k, MAX_NAME), show_seconds(v)) for k, v in report.phases_s.items()],
        "checks": [(safe(c.check, MAX_NAME), show_seconds(c.duration_s), c.num_findings) for c in report.checks],
    }
