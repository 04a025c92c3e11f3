"""`preflight report`: a saved run, in the terminal or as one HTML file."""

from pathlib import Path

import click

from preflight.cli.exit import ExitStyle, exit_code
from preflight.cli.output import (
    Format,
    exit_style_option,
    format_option,
    print_report,
    print_text,
    refuse_target,
    terminal_width,
    wants_color,
)
from preflight.errors import UsageError


@click.command(name="report")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write one self-contained page there, which opens without a network, in place of printing. Needs the extra [report].",
)
@click.option(
    "--compare",
    "other",
    metavar="OTHER",
    type=click.Path(path_type=Path),
    help="An earlier run: also say what changed since.",
)
@format_option
@exit_style_option
def command(run: Path, html: Path | None, other: Path | None, format_: Format, exit_style: ExitStyle) -> int:
    """Show a saved RUN, a report.json or the folder of --out: the answer and its reasons first.

    The exit code is that of the run: 0 go, 10 no-go, 3 undecided.
    """
    from preflight.formats import readable
    from preflight.report.runs import load_run
    from preflight.report.text import clean

    if other is not None and html is None and format_ != "text":
        raise UsageError(f"--compare is shown as text or with --html, not as --format {format_}; see preflight compare")
    if html is not None:
        refuse_target("--html", html, run, *([other] if other else []))
    report = load_run(run)
    previous = load_run(other) if other is not None else None
    if html is not None:
        from preflight.report.page.write import write_page

        write_page(report, html, previous)
        print_text(f"{clean(readable(str(html)))}\n")
    elif format_ == "text":
        from preflight.report.terminal import report_text

        print_text(report_text(report, width=terminal_width(), colour=wants_color(), previous=previous))
    else:
        print_report(report, format_)
    return exit_code(report.answer, report.findings, exit_style)
