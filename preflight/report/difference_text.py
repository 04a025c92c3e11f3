"""What changed between two runs, for a person: the outcome and what it rests on first."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence

from preflight.model import Verdict
from preflight.model.hostlist import fold
from preflight.model.units import TERA, show_rate, show_seconds
from preflight.report.difference import Difference, FindingChange, RateChange, RunName
from preflight.report.text import clean, hang, paint, table

MAX_SHOWN = 12
FEW = 3  # findings of one check are told one by one, with what was seen
_WORDS = {"worse": Verdict.FAIL, "no worse": Verdict.PASS, "cannot tell": Verdict.UNKNOWN}


def difference_text(found: Difference, *, width: int, colour: bool) -> str:
    """The comparison, at most `width` columns wide. The first line is the outcome."""
    lines = []
    if found.simulated:
        lines += [
            paint(line, Verdict.WARN, color=colour)
            for line in hang("SIMULATED: ", "both runs are of modelled clusters", width=width)
        ]
    lines += outcome_lines(found, width=width, colour=colour)
    for name, run in (("from", found.before), ("to", found.after)):
        lines += hang(f"  {name:<6}", _run(run), width=width)
    if found.after.started_at_s < found.before.started_at_s:
        lines += hang("  note  ", "the second run is the older one", width=width)
    lines += change_lines(found, width=width, colour=colour)
    return "".join(f"{line}\n" for line in lines)


def outcome_lines(found: Difference, *, width: int, colour: bool) -> list[str]:
    """As in "worse: slow_part gpu17: FAIL (and 3 more)"."""
    more = f" (and {len(found.reasons) - 1} more)" if len(found.reasons) > 1 else ""
    text = f"{found.reasons[0]}{more}" if found.reasons else _nothing(found)
    first, *rest = hang(f"{found.outcome}: ", text, width=width)
    word = paint(found.outcome, _WORDS[found.outcome], color=colour)
    return [word + first[len(found.outcome) :], *rest]


def _nothing(found: Difference) -> str:
    least = [each.least for each in found.compared if each.least is not None]
    if not least:
        return "no finding got worse; no figures were compared"
    return (
        f"no finding got worse, and no figure by more than the noise (changes of {max(least):.0%} and more are called)"
    )


def change_lines(found: Difference, *, width: int, colour: bool) -> list[str]:
    """Everything behind the outcome, section by section; what is empty is left out."""
    lines: list[str] = []
    if found.before.answer != found.after.answer:
        lines += hang("answer: ", f"{found.before.answer} -> {found.after.answer}", width=width)
    lines += _section("Findings that came", _findings(found.came, width=width, colour=colour))
    lines += _section("Findings that went", _findings(found.went, width=width, colour=False))
    lines += _section("Slower", _rates(found.slower, width=width))
    lines += _section("Faster", _rates(found.faster, width=width))
    failing = [f"{clean(place)}: a figure before, failed now" for place in found.failing]
    lines += _section("Failing", _bounded((hang("", text, width=width, indent=2) for text in failing), len(failing)))
    lines += _section("Other plan, software, settings", _setup(found, width=width))
    lines += _section(
        "Not comparable", [line for text in found.incomparable for line in hang("- ", text, width=width, indent=2)]
    )
    return lines + _section("Compared", _compared(found, width=width))


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return ["", title, *lines] if lines else []


def _run(run: RunName) -> str:
    try:
        when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(run.started_at_s))
    except (OverflowError, OSError, ValueError):
        when = "on a date that no calendar has"
    return f"{run.command} {run.run_id}, {when}: {run.answer}{', partial' if run.partial else ''}"


def _bounded(paragraphs: Iterable[list[str]], number: int) -> list[str]:
    """The first few paragraphs, and how many more there are."""
    lines = [line for _, paragraph in zip(range(MAX_SHOWN), paragraphs, strict=False) for line in paragraph]
    return [*lines, f"  ... and {number - MAX_SHOWN} more"] if number > MAX_SHOWN else lines


def _findings(changes: Sequence[FindingChange], *, width: int, colour: bool) -> list[str]:
    alike: dict[tuple[str, ...], list[FindingChange]] = {}
    many = Counter((change.check, change.before, change.after) for change in changes)
    for change in changes:
        single = change.subject if many[change.check, change.before, change.after] <= FEW else ""
        alike.setdefault((change.check, str(change.before), str(change.after), change.note, single), []).append(change)

    def one(some: Sequence[FindingChange]) -> list[str]:
        first = some[0]
        word = f"{first.before or '-'} -> {first.after or '-'}"
        names = fold(change.subject for change in some)
        text = f"{first.check}: {names if len(names) < 200 else f'{len(some)} subjects'}"
        text += f": {first.observed}" if len(some) == 1 and first.observed else ""
        text += f" ({first.note})" if first.note else ""
        head, *rest = hang(f"{word:<16}", text, width=width, indent=2)
        if first.after is None:
            return [head, *rest]
        return [head.replace(word, paint(word, Verdict(first.after), color=colour), 1), *rest]

    return _bounded((one(some) for some in alike.values()), len(alike))


def _rates(changes: Sequence[RateChange], *, width: int) -> list[str]:
    rows = [["where", "what", "before", "after", "change", "places"]]
    for change in changes[:MAX_SHOWN]:
        figures = [_figure(value, change) for value in (change.before, change.after)]
        subject = clean(change.subject)
        rows.append([subject, clean(change.what), *figures, f"{change.ratio - 1:+.0%}", str(change.number)])
    lines = table(rows, width=width, left=2) if len(rows) > 1 else []
    return [*lines, f"  ... and {len(changes) - MAX_SHOWN} more"] if len(changes) > MAX_SHOWN else lines


def _figure(value: float, change: RateChange) -> str:
    return show_rate(value) if change.unit == "bytes" else f"{value / TERA:.3g} TFLOP/s"


def _setup(found: Difference, *, width: int) -> list[str]:
    def one(kind: str, name: str, before: str | None, after: str | None, nodes: str) -> list[str]:
        where = f" ({nodes})" if nodes and kind != "GPU" else ""
        return hang(f"{kind:<10}", f"{name}: {before or '-'} -> {after or '-'}{where}", width=width, indent=2)

    return _bounded((one(c.kind, c.name, c.before, c.after, c.nodes) for c in found.setup), len(found.setup))


def _compared(found: Difference, *, width: int) -> list[str]:
    rows = [["what", "places", "noise before", "after", "called from", "doubtful"]]
    for each in found.compared:
        noises = ["-" if noise is None else f"{noise:.1%}" for noise in (each.noise_before, each.noise_after)]
        least = "nothing" if each.least is None else f"{each.least:.0%}"
        rows.append([clean(each.what), str(each.number), *noises, least, str(each.doubtful)])
    return table(rows, width=width) if len(rows) > 1 else []


def short_difference(found: Difference, *, width: int, colour: bool) -> list[str]:
    """For a report: which run it is compared with, the outcome, what came, went and changed."""
    apart_s = found.after.started_at_s - found.before.started_at_s
    when = f", {show_seconds(apart_s)} before" if 0 < apart_s < 1e10 else ""
    head = hang("", f"Compared with {found.before.command} {found.before.run_id}{when}", width=width)
    return [
        "",
        *head,
        *outcome_lines(found, width=width, colour=colour),
        *change_lines(found, width=width, colour=colour),
    ]
