"""`preflight judge`: the findings of a saved run again, or of the logs of nccl-tests, without measuring. Needs no GPU and no cluster."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from preflight.cli.exit import ExitStyle, exit_code
from preflight.cli.output import Format, exit_style_option, format_option, print_report
from preflight.errors import UsageError
from preflight.judge.run import absent_checks, judge_again
from preflight.model import Check, Report, Rule
from preflight.registry import load_checks
from preflight.report.document import load_report, save_report
from preflight.report.text import clean


@click.command(name="judge")
@click.argument("report", type=click.Path(path_type=Path), required=False)
@click.option(
    "--nccl-tests",
    "logs",
    metavar="PATH",
    type=click.Path(),
    multiple=True,
    help="Judge the output of nccl-tests instead: a file, or a folder of runs over pairs of nodes, single nodes or more. May be given several times.",
)
@click.option(
    "--topology",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="With --nccl-tests: which leaf switch each node is on (as for preflight plan).",
)
@click.option(
    "--save", metavar="FILE", type=click.Path(path_type=Path), help="Also save the report, for preflight judge."
)
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
def command(
    report: Path | None,
    logs: tuple[str, ...],
    topology: Path | None,
    save: Path | None,
    metrics: Path | None,
    rules: str | None,
    format_: Format,
    exit_style: ExitStyle,
) -> int:
    """Judge the saved run REPORT (a report.json) again, or logs of nccl-tests, without measuring.

    Exit codes: 0 go, 10 no-go, 3 undecided.
    """
    checks = load_checks()
    if logs and report is not None:
        raise UsageError(f"REPORT ({report}) and --nccl-tests exclude each other: a saved run, or logs")
    if topology is not None and not logs:
        raise UsageError("--topology is for --nccl-tests: a saved run has its own")
    if "" in logs:
        raise UsageError("--nccl-tests is empty: is a variable not set?")
    judged = _of_logs(logs, topology, rules, checks) if logs else _again(report, rules, checks)
    print_report(judged, format_)
    if save is not None:
        save_report(judged, save)
    if metrics is not None:
        from preflight.report.prometheus import write_metrics_file

        write_metrics_file(judged, metrics)
    return exit_code(judged.answer, judged.findings, exit_style)


def _of_logs(logs: Sequence[str], topology: Path | None, rules: str | None, checks: Sequence[Check]) -> Report:
    """The report of logs of nccl-tests. Raises ConfigError."""
    from preflight.cli.judge_logs import report_of_logs

    return report_of_logs([Path(path) for path in logs], topology, _rules(rules, checks) if rules else {}, checks)


def _again(path: Path | None, rules: str | None, checks: Sequence[Check]) -> Report:
    """The saved run under these checks; on stderr what is not as it was. Raises ConfigError."""
    if path is None:
        raise UsageError("give a saved run (report.json), or logs with --nccl-tests PATH")
    saved = load_report(path)
    judged = judge_again(_with_rules(saved, rules, checks) if rules else saved, checks)
    absent = absent_checks(saved, checks)
    if absent:
        names = ", ".join(sorted(map(clean, absent)))
        print(f"preflight: not installed here, findings kept as saved: {names}", file=sys.stderr)
    if judged.findings != saved.findings and not rules:
        print(
            "preflight: the findings differ from those saved: other checks, or other versions of them", file=sys.stderr
        )
    return judged


def _rules(path: str, checks: Sequence[Check]) -> dict[str, Rule]:
    """The rules of a file. Raises ConfigError."""
    from preflight.plan.rules import check_rules, read_rules_file

    rules = read_rules_file(path)
    check_rules(path, rules, {check.name: check.limits for check in checks})
    return rules


def _with_rules(saved: Report, path: str, checks: Sequence[Check]) -> Report:
    """The run under these rules. Raises ConfigError."""
    evidence = msgspec.structs.replace(saved.evidence, rules={**saved.evidence.rules, **_rules(path, checks)})
    return msgspec.structs.replace(saved, evidence=evidence)
