"""`preflight judge`: the findings of a saved run again, without measuring. Needs no GPU and no cluster."""

import sys
from pathlib import Path

import click

from preflight.cli.exit import ExitStyle, exit_code
from preflight.cli.output import Format, exit_style_option, format_option, print_report
from preflight.formats import write_atomically
from preflight.judge.run import absent_checks, judge_again
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
@format_option
@exit_style_option
def command(report: Path, metrics: Path | None, format_: Format, exit_style: ExitStyle) -> int:
    """Judge the saved run REPORT (a report.json) again, without measuring.

    Exit codes: 0 go, 10 no-go, 3 undecided.
    """
    saved = load_report(report)
    checks = load_checks()
    judged = judge_again(saved, checks)
    absent = absent_checks(saved, checks)
    if absent:
        names = ", ".join(sorted(map(clean, absent)))
        print(f"preflight: not installed here, findings kept as saved: {names}", file=sys.stderr)
    if judged.findings != saved.findings:
        print(
            "preflight: the findings differ from those saved: other checks, or other versions of them", file=sys.stderr
        )
    print_report(judged, format_)
    if metrics is not None:
        from preflight.report.prometheus import metrics_text

        write_atomically(metrics, metrics_text(judged))
    return exit_code(judged.answer, judged.findings, exit_style)
