"""`preflight node`: show and judge what is in this node. On the prolog path: imports nothing heavy."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from preflight.cli.exit import ExitStyle, exit_code
from preflight.cli.node_input import CommandLine, gather, load_nodes, save_snapshot, source_options
from preflight.cli.output import Format, exit_style_option, format_option
from preflight.errors import WorldError
from preflight.model import Check, Evidence, Node, Report

NODE_FACTS = {"inventory", "health"}  # what is there without a plan and without measuring


@click.command("node")
@source_options
@click.option(
    "--since",
    metavar="FILE",
    multiple=True,
    help="An earlier snapshot of the node: counters that grew since then are judged.",
)
@click.option(
    "--import",
    "imports",
    metavar="FILE",
    multiple=True,
    help="Verdicts of another tool: our JSON form, dcgmi diag JSON, or Nagios text. Repeatable.",
)
@click.option(
    "--plugin",
    "plugins",
    metavar="COMMAND",
    multiple=True,
    type=CommandLine(),
    help="A Nagios plug-in to run (whole path, no shell); ended after --timeout. Repeatable.",
)
@click.option(
    "--profiles", metavar="DIR", multiple=True, help="Profiles of the site [default: /etc/preflight/profiles]."
)
@click.option("--rules", metavar="FILE", help="A TOML file whose [rules] change checks.")
@click.option(
    "--metrics",
    metavar="FILE",
    help="Also write Prometheus metrics to FILE (for node_exporter its name must end in .prom).",
)
@click.argument("more_files", metavar="[FILE]...", nargs=-1)
@format_option
@exit_style_option
def command(
    format_: Format,
    exit_style: ExitStyle,
    metrics: str | None,
    timeout_s: float,
    more_files: tuple[str, ...],
    **given: Any,
) -> int:
    """Show and judge what is in this node: GPUs, NVLinks, HCAs, limits, settings. Measures nothing.

    With --from: the nodes of those files, compared with each other. More FILEs may follow the last option (--from *.json).

    Exit codes: 0 go, 10 no-go, 3 undecided.
    """
    began_s, began = time.time(), time.perf_counter()
    source = {name: given.pop(name) for name in ("from_files", "product", "save", "root")}
    if more_files and not source["from_files"]:
        raise click.UsageError(f"{more_files[0]}: a file to look at instead of this node comes after --from")
    source["from_files"] += more_files
    nodes = load_nodes(**source, timeout_s=timeout_s, profiles=given["profiles"], meanwhile=_load_stages)
    unwritten = _unwritten(lambda: save_snapshot(nodes, source["save"]))
    evidence = gather(nodes, **given, timeout_s=timeout_s)
    report = judge_nodes(evidence, began_s=began_s, began=began)
    if format_ == "text":
        if exit_style == "nagios":  # whose first line is the one that is shown
            _print_status(report)
        _print_text(report)
    else:
        from preflight.cli.output import print_report

        print_report(report, format_)
    if metrics:
        unwritten += _unwritten(lambda: _write_metrics(report, metrics))
    code = exit_code(report.answer, report.findings, exit_style)
    return code if report.answer == "no-go" or not unwritten else exit_code("undecided", (), exit_style)


def _unwritten(write: Callable[[], object]) -> int:
    """How many files could not be written, 1 or 0. It is said, and costs nothing of the answer: a full disk makes no sick node a good one."""
    try:
        write()
    except WorldError as error:
        from preflight.report.text import clean

        print(f"preflight: {clean(str(error))}", file=sys.stderr)
        return 1
    return 0


def _write_metrics(report: Report, path: str) -> None:
    from preflight.report.prometheus import write_metrics_file

    write_metrics_file(report, Path(path))


def _load_stages() -> None:
    """Modules that are needed once the driver has answered: loaded while it is being asked."""
    from preflight.judge import run
    from preflight.plan import profiles
    from preflight.registry import load_checks
    from preflight.report import console

    del run, profiles, console
    load_checks(of_nodes=True)


def checks_of_nodes(evidence: Evidence) -> tuple[Check, ...]:
    """The checks that need no plan and no measurements; those that compare two times only where an earlier one is there."""
    from preflight.registry import load_checks

    known = NODE_FACTS | ({"before"} if evidence.before is not None else set())
    return tuple(check for check in load_checks(of_nodes=True) if check.uses and set(check.uses) <= known)


def judge_nodes(evidence: Evidence, *, began_s: float, began: float) -> Report:
    """The report on these nodes. `began_s` is Unix time, `began` of the performance counter."""
    from preflight.cli.judged import judged_report

    return judged_report("node", evidence, checks_of_nodes(evidence), began_s=began_s, began=began)


def _print_status(report: Report) -> None:
    from preflight.cli.output import print_text
    from preflight.report.console import answer_line
    from preflight.report.nagios import status_word

    print_text(f"PREFLIGHT {status_word(report)} - {answer_line(report)}\n\n")


def _print_text(report: Report) -> None:
    from preflight.cli.node_text import describe_all
    from preflight.cli.output import print_text, terminal_width, wants_color
    from preflight.report.console import answer_line, findings_text

    color = wants_color()
    nodes: tuple[Node, ...] = report.evidence.inventory.nodes if report.evidence.inventory else ()
    shown = describe_all(nodes)
    findings = findings_text(report.findings, width=terminal_width(), color=color)
    print_text(f"{shown}\n\nFindings\n{findings}\n{answer_line(report, color=color)}\n")
