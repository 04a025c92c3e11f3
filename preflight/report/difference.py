"""What changed from one run to another, as nouns: findings that came and went, figures beyond the noise of both runs, software, settings, plan and placement (pure).

Runs are laid beside each other by place, that is node and local rank: rank 8 of another allocation is other hardware. Nothing within the noise is called a change, and what could not be compared is listed.
"""

from typing import Literal, get_args

from preflight.errors import UsageError
from preflight.model import Answer, Noun, Report
from preflight.model.units import show_rate

SCHEMA = "preflight.compare/1"
Outcome = Literal["worse", "no worse", "cannot tell"]
Level = Literal["everything", "node", "leaf pair", "GPU", "node pair", "GPU alone", "group", "pair"]
Unit = Literal["bytes", "flops"]
LEVELS: tuple[Level, ...] = get_args(Level)  # in this order a reader is told


class RunName(Noun, frozen=True, kw_only=True):
    """Which run. `started_at_s`: Unix time."""

    run_id: str
    command: str
    started_at_s: float
    answer: Answer
    partial: bool = False


class FindingChange(Noun, frozen=True, kw_only=True):
    """A finding that is there in one run only, or with another verdict. `before`, `after`: the verdicts; None: not there. `counts`: it makes the later run worse (or undecidable, for UNKNOWN). `note`: why it doesn't count."""

    check: str
    subject: str
    before: str | None = None
    after: str | None = None
    observed: str = ""
    counts: bool = False
    note: str = ""


class RateChange(Noun, frozen=True, kw_only=True):
    """A figure beyond the noise. `what`: of which operation and message; `before`, `after`: medians, in `unit` per second ("bytes" or "flops"); `ratio`: after / before, `number`: measured places it rests on."""

    level: Level
    subject: str
    what: str
    before: float
    after: float
    ratio: float
    number: int
    unit: Unit = "bytes"


class Compared(Noun, frozen=True, kw_only=True):
    """One kind of figure: how many places both runs have, the noise of each (relative; None: not repeated), the smallest relative change that is called."""

    what: str
    number: int
    noise_before: float | None
    noise_after: float | None
    least: float | None
    doubtful: int = 0  # beyond that, but measured once, so that it may be chance


class SetupChange(Noun, frozen=True, kw_only=True):
    """Something that the runs differ in. None: not there, or not known. `nodes`: folded names where it is a matter of nodes."""

    kind: Literal["version", "variable", "software", "GPU", "plan", "placement", "rules", "NCCL", "settings"]
    name: str
    before: str | None = None
    after: str | None = None
    nodes: str = ""


class Difference(Noun, frozen=True, kw_only=True, tag_field="schema", tag=SCHEMA):
    """From `before` to `after`. `reasons`: what the outcome rests on. `incomparable`: what could not be compared, and why. `failing`: places that gave a figure before and failed now."""

    before: RunName
    after: RunName
    outcome: Outcome
    reasons: tuple[str, ...]
    simulated: bool = False
    came: tuple[FindingChange, ...] = ()
    went: tuple[FindingChange, ...] = ()
    slower: tuple[RateChange, ...] = ()
    faster: tuple[RateChange, ...] = ()
    failing: tuple[str, ...] = ()
    setup: tuple[SetupChange, ...] = ()
    compared: tuple[Compared, ...] = ()
    incomparable: tuple[str, ...] = ()


def difference(before: Report, after: Report) -> Difference:
    """The second run beside the first. Raises UsageError: one is simulated and the other measured, which tells nothing of either."""
    from preflight.report.difference_figures import Figures, compare_figures
    from preflight.report.difference_findings import compare_findings
    from preflight.report.difference_setup import compare_setup, nodes_apart

    simulated = [report.evidence.settings.simulated for report in (before, after)]
    if simulated[0] != simulated[1]:
        which = "first" if simulated[0] else "second"
        raise UsageError(
            f"the {which} run is simulated and the other was measured: comparing them tells nothing of either"
        )
    figures: Figures = compare_figures(before, after)
    came, went = compare_findings(before, after)
    incomparable = [*nodes_apart(before, after), *figures.incomparable]
    incomparable += [
        f"the {name} run is partial: {report.partial_reason or 'it ended before its plan was done'}"
        for name, report in (("first", before), ("second", after))
        if report.partial
    ]
    worse = [
        f"{change.check} {change.subject}: {change.after}"
        for change in came
        if change.counts and change.after == "FAIL"
    ]
    worse += [
        f"{change.subject}, {change.what}: {_rate(change.after, change)}, before {_rate(change.before, change)}"
        for change in figures.slower
    ]
    open_ = [
        f"{change.check} {change.subject}: {change.after}, before {change.before}"
        for change in came
        if change.counts and change.after == "UNKNOWN"
    ]
    open_ += figures.open
    open_ += ["the second run is partial"] if after.partial else []
    open_ += _nothing_in_common(before, after)
    return Difference(
        before=_name(before),
        after=_name(after),
        outcome="worse" if worse else "cannot tell" if open_ else "no worse",
        reasons=tuple(worse or open_),
        simulated=simulated[0],
        came=came,
        went=went,
        slower=figures.slower,
        faster=figures.faster,
        failing=figures.failing,
        setup=compare_setup(before, after),
        compared=figures.compared,
        incomparable=tuple(incomparable),
    )


def _name(report: Report) -> RunName:
    return RunName(
        run_id=report.run_id,
        command=report.command,
        started_at_s=report.started_at_s,
        answer=report.answer,
        partial=report.partial,
    )


def _nothing_in_common(before: Report, after: Report) -> list[str]:
    """Why nothing could be compared at all; empty: something was."""
    if {check.check for check in before.checks} & {check.check for check in after.checks}:
        return []
    if {finding.check for finding in before.findings} & {finding.check for finding in after.findings}:
        return []
    return ["the runs have no check in common"]


def _rate(value: float, change: RateChange) -> str:
    """As in "47.9 GB/s", "792 TFLOP/s"."""
    return show_rate(value) if change.unit == "bytes" else f"{value / 1e12:.3g} TFLOP/s"
