"""Since when a part is slower than it was, and what changed with it, as far as the history tells (pure)."""

from collections.abc import Iterable, Mapping

from preflight.model.base import Record
from preflight.model.changes import Drop, day, drop_in
from preflight.model.evidence import Baseline, BaselineEntry, BaselineRun, Evidence
from preflight.model.node_facts import changes_of, facts_of

MOST_SHOWN = 4
WHOLE_RUN = "the run"


class Fall(Record, frozen=True):
    """A drop to where a part is in this run. `number`: earlier runs that it is held against. `since`: "since 2026-11-02" or "in this run"; `what`: what changed at that time, in words; empty: nothing that the history knows."""

    drop: Drop
    number: int
    since: str
    what: tuple[str, ...]

    @property
    def text(self) -> str:
        """When, and what changed with it."""
        how = "declining " if self.drop.kind == "drift" else ""
        shown = ", ".join(self.what[:MOST_SHOWN])
        more = f" and {len(self.what) - MOST_SHOWN} more" if len(self.what) > MOST_SHOWN else ""
        return f"{how}{self.since}{f', and with it: {shown}{more}' if shown else ''}"


def fall_of(
    evidence: Evidence, entry: BaselineEntry, rate: float, nodes: Iterable[str], *, floor: float
) -> Fall | None:
    """The drop of this part to its rate in this run. `nodes`: those it is on. None: there is none, or the history is too short to tell."""
    earlier = entry.busbw_bytes_per_s
    drop = drop_in((*earlier, rate), floor=floor)
    if drop is None or evidence.baseline is None:
        return None
    runs = [run_at(evidence.baseline, entry, number) for number in range(len(earlier))]
    first = runs[drop.at] if drop.at < len(runs) else None
    since = (
        "in this run"
        if drop.at >= len(runs)
        else f"since {day(first.at_s)}"
        if first
        else f"for {len(runs) - drop.at + 1} runs"
    )
    last_before = runs[drop.at - 1] if drop.at > 0 else None
    return Fall(drop, len(earlier), since, _changes(evidence, last_before, first, drop.at >= len(runs), tuple(nodes)))


def run_at(baseline: Baseline, entry: BaselineEntry, number: int) -> BaselineRun | None:
    """The run of a figure; None: not known (a report of another version, or one that was written by hand)."""
    index = entry.runs[number] if number < len(entry.runs) else -1
    return baseline.runs[index] if 0 <= index < len(baseline.runs) else None


def _changes(
    evidence: Evidence, before: BaselineRun | None, after: BaselineRun | None, is_now: bool, nodes: tuple[str, ...]
) -> tuple[str, ...]:
    baseline = evidence.baseline
    if baseline is None or before is None or (after is None and not is_now):
        return ()
    facts = facts_of(evidence) if is_now else {}

    def then(run: BaselineRun, name: str) -> Mapping[str, str]:
        return _at(baseline, run.nodes.get(name))

    pairs = [
        (name, then(before, name), facts[name].software if name in facts else then(after, name) if after else {})
        for name in nodes
    ]
    whole = [(WHOLE_RUN, _at(baseline, before.facts), _at(baseline, after.facts))] if after else []
    return changes_of((*pairs, *whole))


def _at(baseline: Baseline, number: int | None) -> Mapping[str, str]:
    return baseline.facts[number] if number is not None and 0 <= number < len(baseline.facts) else {}
