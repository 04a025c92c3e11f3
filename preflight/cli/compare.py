"""`preflight compare`: what changed between two runs."""

from pathlib import Path
from typing import Literal

import click

from preflight.cli.output import print_text, terminal_width, wants_color

EXIT_CODES = {"no worse": 0, "worse": 10, "cannot tell": 3}


@click.command(name="compare")
@click.argument("before", metavar="A", type=click.Path(path_type=Path))
@click.argument("after", metavar="B", type=click.Path(path_type=Path))
@click.option(
    "--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How to print."
)
def command(before: Path, after: Path, format_: Literal["text", "json"]) -> int:
    """What changed from run A to run B, each a report.json or the folder of --out: findings, figures beyond the noise of both, software, plan, placement.

    Exit codes: 0 no worse, 10 something got worse beyond the noise, 3 cannot tell; 64 wrong usage, 78 no such run.
    """
    from preflight.model import to_json
    from preflight.report.difference import difference
    from preflight.report.difference_text import difference_text
    from preflight.report.runs import load_run

    found = difference(load_run(before), load_run(after))
    if format_ == "json":
        print_text(to_json(found).decode())
    else:
        print_text(difference_text(found, width=terminal_width(), colour=wants_color()))
    return EXIT_CODES[found.outcome]
