"""Runs as the command line names them: a report.json, or the folder of --out that holds one."""

from pathlib import Path

from preflight.model import Report
from preflight.report.document import load_report

NAME = "report.json"


def load_run(path: Path) -> Report:
    """The report. Raises ConfigError: not readable, no report."""
    return load_report(path / NAME if path.is_dir() else path)
