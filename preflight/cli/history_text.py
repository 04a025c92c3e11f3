"""The history for people: a table of runs, and a node's story with its figures as small lines of bars."""

import sys
import time
from pathlib import Path

from preflight.model.base import Noun
from preflight.model.changes import drop_in
from preflight.model.history import Line, NodeStory, RunLine
from preflight.model.units import show_bytes, show_rate
from preflight.report.history_disk import file_system_of, log_is_safe
from preflight.report.history_file import uses_log
from preflight.report.text import clean

BARS, ASCII_BARS = "▁▂▃▄▅▆▇█", "_.-~=+*#"
MOST_LINES = 16  # figures of a node that the text shows
MOST_BARS = 32
SAID = 10  # verdicts and findings


class Runs(Noun, frozen=True, kw_only=True):
    """What `preflight history` shows. `kind`: how the file is written, in words; `since_s`: only what is younger than that Unix time, 0: all."""

    file: str
    kind: str
    runs: tuple[RunLine, ...]
    since_s: float = 0.0


class Trend(Noun, frozen=True, kw_only=True):
    """The figures of one pair or group, and the drop to where they are now: its depth (None: there is none, or it can't be told), its first run's time, and the median before it, in bytes per second."""

    line: Line
    depth: float | None = None
    kind: str | None = None
    since_s: float | None = None
    before_bytes_per_s: float | None = None


class NodeView(Noun, frozen=True, kw_only=True):
    """What `preflight history NODE` shows. `since_s`: only what is younger than that Unix time; 0: all."""

    file: str
    kind: str
    story: NodeStory
    figures: tuple[Trend, ...]
    since_s: float = 0.0


def kind_of(path: Path) -> str:
    """How the file is written, and why not with a write-ahead log where that is so."""
    has_log = uses_log(path)
    if has_log is None:
        return "there is none yet" if not path.exists() else "empty"
    if has_log:
        return "kept with a write-ahead log"
    if log_is_safe(path.parent):
        return "kept with a rollback journal until it is next written to"
    kind = file_system_of(path.parent)
    return f"kept with a rollback journal, since {f'{kind} is' if kind else 'its file system is not known to be'} no local disk"


def trend_of(line: Line) -> Trend:
    """The line with its drop, from five earlier runs on."""
    known = [(at_s, rate) for at_s, rate in zip(line.at_s, line.busbw_bytes_per_s, strict=True) if rate]
    drop = drop_in([rate for _, rate in known])
    if drop is None:
        return Trend(line=line)
    return Trend(line=line, depth=drop.depth, kind=drop.kind, since_s=known[drop.at][0], before_bytes_per_s=drop.before)


def runs_text(found: Runs, *, width: int) -> str:
    """A line for each run."""
    head = f"history {clean(found.file)}, {found.kind}\n"
    if not found.runs:
        return head + (f"no runs since {when(found.since_s)} UTC\n" if found.since_s else "no runs\n")
    lines = [f"{'WHEN (UTC)':16}  {'COMMAND':12}  {'ANSWER':9}  {'NODES':>5}  WORST FINDING"]
    for run in found.runs:
        command = clean(run.command).removeprefix("slurm ") + (" (sweep)" if run.sweep else "")
        marked = "SIMULATED " if run.simulated else ""
        worst = clean(run.worst) if run.worst else "-"
        lines.append(f"{when(run.started_at_s)}  {command:12.12}  {run.answer:9}  {run.num_nodes:5}  {marked}{worst}")
    return head + "".join(f"{_cut(line, width)}\n" for line in lines)


def node_text(found: NodeView, *, width: int) -> str:
    """Verdicts, findings and figures of the node, newest first; figures oldest left, those that are lower now first."""
    story = found.story
    head = [f"history {clean(found.file)}, {found.kind}"]
    if not (story.runs or story.verdicts or story.findings):
        younger = f" since {when(found.since_s)} UTC" if found.since_s else ""
        return f"{head[0]}\nnothing is known of node {clean(story.node)}{younger}\n"
    head.append(
        f"node {clean(story.node)}: {len(story.runs)} {'run' if len(story.runs) == 1 else 'runs'}, the last {when(story.runs[0].started_at_s)} UTC"
        if story.runs
        else f"node {clean(story.node)}"
    )
    commands = {run.run_id: run.command.removeprefix("slurm ") for run in story.runs}
    head.append("\nverdicts")
    for verdict in story.verdicts[:SAID]:
        text = f"{'drained; ' if verdict.drained else ''}{clean(verdict.text)}"
        command = clean(commands.get(verdict.run_id, "scan" if verdict.sweep else ""))
        head.append(f"  {when(verdict.at_s)}  {verdict.verdict.value:7}  {command:12.12}  {text}".rstrip())
    head += [] if story.verdicts else ["  none"]
    if story.findings:
        head.append("\nfindings")
        head += [
            f"  {when(f.at_s)}  {f.verdict.value:7}  {clean(f.check)} {clean(f.subject)}: {clean(f.observed)}"
            for f in story.findings[:SAID]
        ]
    head += _figures(found.figures, width)
    return "".join(f"{_cut(line, width)}\n" for each in head for line in each.split("\n"))


def _figures(trends: tuple[Trend, ...], width: int) -> list[str]:
    if not trends:
        return []
    ordered = sorted(trends, key=lambda each: (-(each.depth or 0.0), -len(each.line.at_s)))
    left_out = len(ordered) - MOST_LINES
    return [
        "\nfigures (busbw, oldest left)",
        *(line for trend in ordered[:MOST_LINES] for line in _figure(trend, width)),
        *([f"  and {left_out} more (--format json has all)"] if left_out > 0 else []),
    ]


def _figure(trend: Trend, width: int) -> list[str]:
    line = trend.line
    newest = line.busbw_bytes_per_s[-1]
    now = show_rate(newest) if newest else "failed"
    members = clean(line.members)
    what = f"{clean(line.axis)} {clean(line.collective)} {show_bytes(line.size_bytes)} {members}"
    found = [f"  {bars(line.busbw_bytes_per_s):{MOST_BARS}}  {now:>10}  {what}"]
    if trend.depth is not None and trend.since_s is not None and trend.before_bytes_per_s:
        how = "declining since" if trend.kind == "drift" else "lower since"
        found.append(
            f"  {'':{MOST_BARS}}  {how} {when(trend.since_s)}: {show_rate(trend.before_bytes_per_s)} before, {trend.depth:.0%} lower"
        )
    return [_cut(each, width) for each in found]


def bars(rates: tuple[float | None, ...]) -> str:
    """One letter a run, as high as its share of the highest; "x": it failed. The newest MOST_BARS."""
    recent = rates[-MOST_BARS:]
    highest = max((rate for rate in recent if rate), default=1.0)
    letters = BARS if _shows(BARS) else ASCII_BARS
    return "".join(
        "x" if not rate else letters[min(len(letters) - 1, int(rate / highest * len(letters)))] for rate in recent
    )


def when(at_s: float) -> str:
    """The minute in UTC; of a clock that can't be one, "?"."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.gmtime(at_s))
    except (ValueError, OverflowError, OSError):
        return "?".ljust(16)


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 3]}..."


def _shows(letters: str) -> bool:
    try:
        letters.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
