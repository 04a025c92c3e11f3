"""This run beside an earlier one, as the page shows it: the same comparison as `preflight compare`, which calls nothing a change that is within the noise of the two runs."""

from collections.abc import Sequence
from typing import NamedTuple

from preflight.model import Report
from preflight.model.units import TERA, show_rate
from preflight.report.difference import FindingChange, RateChange, difference
from preflight.report.page.rows import MAX_NAME
from preflight.report.page.verdicts import folded, safe

MAX_ROWS = 20
MAX_REASONS = 3  # what they rest on stands below


class Row(NamedTuple):
    """One figure in both runs."""

    what: str
    before: str
    after: str
    change: str


class Comparison(NamedTuple):
    """`came`, `went`: (verdict before, verdict now, check, subjects, note), "" where it is not there. `more`: how many rows of figures are left out. `setup`: (kind, name, before, now)."""

    run_id: str
    started_at_s: float
    answer: str
    outcome: str
    reasons: list[str]
    more_reasons: int
    later: bool
    came: list[tuple[str, str, str, str, str]]
    went: list[tuple[str, str, str, str, str]]
    figures: list[Row]
    more: int
    failing: str
    setup: list[tuple[str, str, str, str]]
    incomparable: list[str]
    compared: list[str]


def comparison(report: Report, previous: Report) -> Comparison:
    """The later run beside the earlier one. Raises UsageError: one is simulated and the other measured."""
    found = difference(previous, report)
    changes = [*found.slower, *found.faster]
    return Comparison(
        run_id=safe(found.before.run_id, MAX_NAME),
        started_at_s=found.before.started_at_s,
        answer=found.before.answer,
        outcome=found.outcome,
        reasons=[safe(reason) for reason in found.reasons[:MAX_REASONS]],
        more_reasons=max(0, len(found.reasons) - MAX_REASONS),
        later=found.before.started_at_s > found.after.started_at_s,
        came=_findings(found.came),
        went=_findings(found.went),
        figures=[_row(change) for change in changes[:MAX_ROWS]],
        more=max(0, len(changes) - MAX_ROWS),
        failing=folded(found.failing),
        setup=[
            (one.kind, safe(_of_nodes(one.name, one.nodes)), _told(one.before), _told(one.after))
            for one in found.setup[:MAX_ROWS]
        ],
        incomparable=[safe(text) for text in found.incomparable[:MAX_ROWS]],
        compared=[_compared(one.what, one.number, one.least) for one in found.compared],
    )


def _told(text: str | None) -> str:
    return "not there, or not known" if text is None else safe(text, 2 * MAX_NAME)


def _of_nodes(name: str, nodes: str) -> str:
    return f"{name} of {nodes}" if nodes else name


def _findings(changes: Sequence[FindingChange]) -> list[tuple[str, str, str, str, str]]:
    """Alike ones in one row, their subjects folded."""
    alike: dict[tuple[str, str, str, str], list[str]] = {}
    for change in changes:
        kind = (change.before or "", change.after or "", safe(change.check, MAX_NAME), safe(change.note, MAX_NAME))
        alike.setdefault(kind, []).append(change.subject)
    rows = [(before, after, check, folded(some), note) for (before, after, check, note), some in alike.items()]
    return rows[:MAX_ROWS]


def _row(change: RateChange) -> Row:
    def show(value: float) -> str:
        return show_rate(value) if change.unit == "bytes" else f"{value / TERA:.3g} TFLOP/s"

    what = safe(f"{change.level} {change.subject}" if change.level not in change.subject else change.subject, MAX_NAME)
    return Row(
        f"{what}, {safe(change.what, MAX_NAME)}",
        show(change.before),
        show(change.after),
        f"{(change.ratio - 1) * 100:+.0f} %",
    )


def _compared(what: str, number: int, least: float | None) -> str:
    called = (
        "changes are not called: nothing was repeated"
        if least is None
        else f"changes of {least:.0%} and more are called"
    )
    return f"{safe(what, MAX_NAME)}: {number} in both, {called}"
