"""What commands that end in a report share: the budget option, and the folder that the report goes into."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.errors import UsageError, WorldError
from preflight.formats import write_atomically
from preflight.model.units import parse_seconds

if TYPE_CHECKING:
    from preflight.model import Report

SHORTEST_BUDGET_S = 30.0  # importing torch takes 2 to 8 s on a busy machine, ending 8 s; the rest measures something


def read_budget(text: str) -> float:
    """Seconds. Raises UsageError: no duration, or too short to start and end workers in."""
    try:
        budget_s = parse_seconds(text)
    except ValueError as error:
        raise UsageError(f"--budget {error}; give for example 60s or 5m") from error
    if budget_s < SHORTEST_BUDGET_S:
        raise UsageError(
            f"--budget {text}: starting and ending workers alone takes 10 to 20 s; give at least {SHORTEST_BUDGET_S:.0f}s"
        )
    return budget_s


def make_folder(out: Path) -> None:
    """Before measuring, so that a folder that can't be written to costs no measurement. Raises UsageError, WorldError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}") from error
    write_atomically(out / ".writable", b"")
    (out / ".writable").unlink(missing_ok=True)


def write_report(report: "Report", out: Path) -> None:
    """A file that can't be written is said, and changes no verdict: the report is printed all the same."""
    from preflight.report.prometheus import write_metrics_file
    from preflight.report.runs import save_run

    writers: tuple[Callable[[], None], ...] = (
        lambda: save_run(report, out),
        lambda: write_metrics_file(report, out / "preflight.prom"),
    )
    for write in writers:
        try:
            write()
        except WorldError as error:
            with contextlib.suppress(OSError):  # standard error may be on the same full disk
                print(f"preflight: {error}", file=sys.stderr, flush=True)
