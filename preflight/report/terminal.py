"""`preflight report RUN` in a terminal: the answer and its reasons first, then what changed, the matrix, groups and the rest, at any width."""

from preflight.model import Report, Verdict
from preflight.report.console import (
    answer_line,
    banner_lines,
    findings_text,
    head_lines,
    incident_lines,
    section,
    silent_nodes,
)
from preflight.report.fabric import fabric_lines
from preflight.report.matrix_text import matrix_lines
from preflight.report.tables import first_call_lines, gpu_lines, group_lines
from preflight.report.text import hang, paint

LEAST_WIDTH = 40
PROSE = 160  # columns, beyond which paragraphs are hard to read
_BAD = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN)


def report_text(report: Report, *, width: int, colour: bool, previous: Report | None = None) -> str:
    """The whole run as text, at most `width` columns wide (not less than LEAST_WIDTH); `previous`: an earlier run to compare with, None: none.

    Texts from elsewhere are cleaned; nothing is said by colour alone.
    """
    full = max(width, LEAST_WIDTH)  # the matrix takes what there is
    width = min(full, PROSE)
    evidence, silent = report.evidence, silent_nodes(report)
    measured = evidence.measurements or ()
    mark = " [SIMULATED]" if evidence.settings.simulated else ""
    bad = [finding for finding in report.findings if finding.verdict in _BAD]
    rest = [finding for finding in report.findings if finding.verdict not in _BAD]
    answer = _answer_lines(report, width=width, colour=colour)
    lines = [*answer, *banner_lines(report, width=width, color=colour)]
    lines += findings_text(bad, width=width, color=colour, silent=silent).splitlines()
    if previous is not None:
        lines += _changes(previous, report, width=width, colour=colour)
    lines += section(
        f"Bandwidth of pairs{mark}",
        [*_how_measured(report, width=width), *matrix_lines(evidence, width=full, colour=colour)],
    )
    lines += section(f"Bandwidth of groups (busbw){mark}", group_lines(measured, width=width))
    lines += section(f"GPUs by themselves{mark}", gpu_lines(evidence, width=width))
    lines += section(f"Fabric{mark}", fabric_lines(evidence.localisation, width=width))
    lines += section("First calls, kept out of the figures", first_call_lines(measured, width=width))
    lines += section("Incidents", incident_lines(evidence, width=width))
    lines += section("Passed and skipped", findings_text(rest, width=width, color=colour).splitlines())
    lines += ["", *head_lines(report, width=width, color=colour), "", *answer]
    return "".join(f"{line}\n" for line in lines)


def _answer_lines(report: Report, *, width: int, colour: bool) -> list[str]:
    """The answer with its reason, wrapped; only its word is coloured."""
    word, _, reason = answer_line(report).partition(": ")
    verdict = {"go": Verdict.PASS, "no-go": Verdict.FAIL}.get(report.answer, Verdict.UNKNOWN)
    if not reason:
        return [paint(word, verdict, color=colour)]
    first, *others = hang(f"{word}: ", reason, width=width)
    return [paint(word, verdict, color=colour) + first[len(word) :], *others]


def _how_measured(report: Report, *, width: int) -> list[str]:
    """What the figures are, where there are pairs at all."""
    pairs = any(measurement.probe.axis is None for measurement in report.evidence.measurements or ())
    return hang("", "busbw of send_recv, both ways at once; medians of repeats", width=width, indent=2) if pairs else []


def _changes(previous: Report, report: Report, *, width: int, colour: bool) -> list[str]:
    """What changed since the earlier run, or why that can't be said."""
    from preflight.errors import UsageError
    from preflight.report.difference import difference
    from preflight.report.difference_text import short_difference

    try:
        return short_difference(difference(previous, report), width=width, colour=colour)
    except UsageError as error:
        return ["", *hang("Not compared: ", str(error), width=width)]
