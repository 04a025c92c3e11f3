"""`preflight history`: what runs, scans, prologs and agents found before."""

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from preflight.cli.output import print_bytes, print_text, refuse_target, terminal_width
from preflight.cli.run_history import file_to_read, file_to_write
from preflight.errors import ConfigError, UsageError, WorldError

if TYPE_CHECKING:
    from preflight.fleet.history import History

_FILE = click.Path(path_type=Path)
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
MAX_IMPORT = 512 * 2**20


@click.command(name="history")
@click.argument("node", required=False)
@click.option("--file", "file", type=_FILE, metavar="FILE", help="The history. Default: this machine's, else your own.")
@click.option("--since", metavar="AGE", help="Only what is younger: 90m, 12h, 7d, 4w.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=30, show_default=True, help="At most so many runs.")
@click.option(
    "--export",
    "export_to",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE|-",
    help="Write all runs as JSON lines, in place of showing them.",
)
@click.option(
    "--import",
    "import_from",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE|-",
    help="Add the runs of JSON lines: all, or none if a line is wrong.",
)
@click.option(
    "--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How to print."
)
def command(
    node: str | None,
    file: Path | None,
    since: str | None,
    limit: int,
    export_to: Path | None,
    import_from: Path | None,
    format_: Literal["text", "json"],
) -> int:
    """Show earlier runs: when, which command, its answer, its worst finding. With NODE: what was said of that node, its figures over time, and since when one is lower.

    One file of one machine (or user): a view of all nodes is Prometheus' (preflight exporter).

    Exit codes: 0 shown, 3 nothing is known of NODE or the file can't be read, 64 wrong usage, 78 somebody else's file or lines that are no history.
    """
    from preflight.fleet.history import History

    if sum(each is not None for each in (node, export_to, import_from)) > 1:
        raise UsageError("NODE, --export and --import exclude each other")
    since_s = 0.0 if since is None else time.time() - read_age(since)
    if import_from is not None:
        path = file or file_to_write(None)
        if path is None:
            raise UsageError("there is no place for a history: give --file")
        return _import(History(path), import_from)
    history = History(file_to_read(file))
    if export_to is not None:
        return _export(history, export_to, since_s)
    if node is not None:
        return _show_node(history, node, limit, since_s, format_)
    return _show_runs(history, limit, since_s, format_)


def read_age(text: str) -> float:
    """Seconds. Raises UsageError."""
    match = re.fullmatch(r"([0-9]{1,6})([mhdw])", text)
    if match is None:
        raise UsageError(f"--since {text!r}: expected a number and m, h, d or w, for example 7d")
    return int(match[1]) * _UNITS[match[2]]


def _show_runs(history: "History", limit: int, since_s: float, format_: str) -> int:
    from preflight.cli.history_text import Runs, kind_of, runs_text
    from preflight.model import to_json

    found = Runs(
        file=str(history.path), kind=kind_of(history.path), runs=history.runs(limit, since_s=since_s), since_s=since_s
    )
    print_text(to_json(found).decode() if format_ == "json" else runs_text(found, width=terminal_width()))
    return 0


def _show_node(history: "History", node: str, limit: int, since_s: float, format_: str) -> int:
    from preflight.cli.history_text import NodeView, kind_of, node_text, trend_of
    from preflight.model import to_json

    story = history.node_story(node, limit, since_s=since_s)
    trends = tuple(trend_of(line) for line in history.node_lines(node, limit, since_s=since_s))
    found = NodeView(file=str(history.path), kind=kind_of(history.path), story=story, figures=trends, since_s=since_s)
    print_text(to_json(found).decode() if format_ == "json" else node_text(found, width=terminal_width()))
    return 0 if story.runs or story.verdicts or story.findings else 3


def _export(history: "History", target: Path, since_s: float) -> int:
    from preflight.fleet.history_lines import export

    if not history.path.exists():  # an older copy is not replaced by nothing
        raise WorldError(f"there is no history {history.path}")
    if str(target) == "-":
        for line in export(history, since_s=since_s):
            if not print_bytes(line, exact=True):
                return 3  # half a copy is none
        return 0
    from preflight.formats import write_atomically
    from preflight.report.history_file import COMPANIONS

    path = history.path
    refuse_target("--export", target, path, *(path.with_name(f"{path.name}{ending}") for ending in COMPANIONS))
    write_atomically(target, b"".join(export(history, since_s=since_s)), mode=0o600)
    return 0


def _import(history: "History", source: Path) -> int:
    from preflight.fleet.history_lines import bring_in
    from preflight.formats import read_bytes

    if str(source) == "-":
        data, name = sys.stdin.buffer.read(MAX_IMPORT + 1), "standard input"
        if len(data) > MAX_IMPORT:
            raise ConfigError(name, f"is larger than {MAX_IMPORT // 2**20} MiB")
    else:
        data, name = read_bytes(source, MAX_IMPORT), str(source)
    try:
        number, new = bring_in(history, data, name)
    except MemoryError as error:
        raise WorldError(f"{name}: there is not enough memory to read it") from error
    others = "; the others were there already, or are older than what is kept" if new < number else ""
    print_text(f"{number} runs read, {new} of them added{others}\n")
    return 0
