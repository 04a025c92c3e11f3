"""`preflight report RUN` in a terminal: the answer and its reasons first, then the matrices, groups and the rest."""

from preflight.model import Report
from preflight.report import console


def report_text(report: Report, *, width: int, colour: bool, previous: Report | None = None) -> str:
    """The whole run as text, at most `width` columns wide; `previous`: an earlier run to compare with, None: none.

    Texts from elsewhere are cleaned; nothing is said by colour alone.
    """
    del previous
    return console.report_text(report, width=width, color=colour)
