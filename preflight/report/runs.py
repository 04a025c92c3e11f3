"""Runs as the command line names them: a report.json, or the folder of --out that holds one; that of a large run is packed, report.json.gz."""

import contextlib
from pathlib import Path

from preflight.model import Report
from preflight.report.document import load_report, save_report
from preflight.report.packed import is_large

NAME, PACKED = "report.json", "report.json.gz"


def load_run(path: Path) -> Report:
    """The report. Raises ConfigError: not readable, no report."""
    return load_report(file_of(path))


def file_of(path: Path) -> Path:
    """The report's file: the path itself, or in a folder the one that is there; report.json if neither is."""
    if not path.is_dir():
        return path
    return path / (PACKED if not (path / NAME).exists() and (path / PACKED).exists() else NAME)


def save_run(report: Report, folder: Path) -> None:
    """Write the report into a folder in place of an earlier one, packed if it is large. Raises WorldError."""
    name, other = (PACKED, NAME) if is_large(report) else (NAME, PACKED)
    save_report(report, folder / name)
    with contextlib.suppress(OSError):
        (folder / other).unlink()
