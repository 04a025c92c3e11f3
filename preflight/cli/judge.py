"""`preflight judge`: the findings of a saved run again, without measuring. Needs no GPU and no cluster."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from preflight.cli.exit import ExitStyle, exit_code
from preflight.cli.output import Format, exit_style_option, format_option, print_report
from preflight.formats import write_atomically
from preflight.judge.run import absent_checks, judge_again
from preflight.model import Check, Report
from preflight.registry import load_checks
from preflight.report.document import load_report
from preflight.report.text import clean


@click.command(name="judge")
@click.argument("report", type=click.Path(path_type=Path))
@click.option(
    "--metrics",
    type=click.Path(path_type=Path),
    help="Also write Prometheus metrics to this file (for node_exporter its name must end in .prom).",
)
@click.option(
    "--rules", metavar="FILE", help="A TOML file whose [rules] change checks; the run's own stay where it is silent."
)
@format_option
@exit_style_option
def command(report: Path, metrics: Path | None, rules: str | None, format_: Format, exit_style: ExitStyle) -> int:
    """Judge the saved run REPORT (a report.json) again, without measuring.

    Exit codes: 0 go, 10 no-go, 3 undecided.
    """
    saved = load_report(report)
    checks = load_checks()
    judged = judge_again(_with_rules(saved, rules, checks) if rules else saved, checks)
    absent = absent_checks(saved, checks)
    if absent:
        names = ", ".join(sorted(map(clean, absent)))
        print(f"preflight: not installed here, findings kept as saved: {names}", file=sys.stderr)
    if judged.findings != saved.findings and not rules:
        print(
            "preflight: the findings differ from those saved: other checks, or other versions of them", file=sys.stderr
        )
    print_report(judged, format_)
    if metrics is not None:
        from preflight.report.prometheus import metrics_text

        write_atomically(metrics, metrics_text(judged))
    return exit_code(judged.answer, judged.findings, exit_style)


def _with_rules(saved: Report, path: str, checks: Sequence[Check]) -> Report:
    """The run under these rules. Raises ConfigError."""
    from preflight.plan.rules import check_rules, read_rules_file

    rules = read_rules_file(path)
    check_rules(path, rules, {check.name: check.limits for check in checks})
    evidence = msgspec.structs.replace(saved.evidence, rules={**saved.evidence.rules, **rules})
    return msgspec.structs.replace(saved, evidence=evidence)
