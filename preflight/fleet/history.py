"""The history of a site: what runs, scans, prologs and agents found, kept in one SQLite file for `preflight history`, for the judge, for sweeps and for trends.

Bounded by age and by the number of rows. An append is one transaction. A file that can't be written costs no result: the caller says so and goes on.
"""

import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from preflight.model import Evidence, Plan, Report, from_json
from preflight.model.baseline import PAIR, PastFigure, PastRun, Place, collected, members_of, now_of
from preflight.model.evidence import Baseline
from preflight.model.history import Figure, FindingLine, Line, NodeStory, NodeVerdict, RunLine
from preflight.model.history_rows import Pair
from preflight.model.node_facts import NodeFacts
from preflight.report.history_append import Entry, Limits, append, entry_of, forget
from preflight.report.history_file import reading, writing

T = TypeVar("T", bound=msgspec.Struct)
_RunRow = tuple[int, float, str | None, str, int, str | None]
_FigureRow = tuple[str, str, int, str, float, str | None]

KEEP_S = 180 * 86400.0
MAX_ROWS = 2_000_000  # 240 bytes each with their indexes (measured)
FORGET_EVERY = 1000  # appends of one transaction
MAX_BASELINE_RUNS = 200  # newest runs with a node of the plan that a baseline is made of

AHEAD_S = 86400.0  # how far a clock may be ahead: what is of the far future would be the newest for ever, whatever is found later
_VERDICTS = (
    "SELECT content, drained FROM verdicts JOIN runs ON number = run WHERE NOT simulated AND at_s < ? AND node = ?"
)
_NEWEST_FIRST = " ORDER BY at_s DESC, verdicts.rowid DESC LIMIT ?"
_LAST_VERDICTS = "SELECT content, drained, max(at_s) FROM verdicts JOIN runs ON number = run WHERE NOT simulated AND at_s < ?"  # SQLite takes the other columns from the row of the maximum
_OF_SWEEPS = " AND runs.sweep IS NOT NULL"
_WORST = "(SELECT verdict || ' ' || check_name || ' ' || subject || ': ' || observed FROM findings WHERE findings.run = number ORDER BY findings.rowid LIMIT 1)"
_RUNS = f"SELECT run_id, started_at_s, duration_s, command, answer, backend, plan, sweep, simulated, num_nodes, {_WORST} FROM runs"  # noqa: S608 - our own text
_NEWEST_RUNS = _RUNS + " WHERE started_at_s >= ? ORDER BY started_at_s DESC, number DESC LIMIT ?"
_RUNS_OF_NODE = (
    _RUNS
    + " JOIN run_nodes ON run_nodes.run = number WHERE node = ? AND started_at_s >= ? ORDER BY started_at_s DESC, number DESC LIMIT ?"
)
_FINDINGS_OF_NODE = """SELECT run_id, started_at_s, check_name, subject, verdict, observed, expected, remedy, node, part, part_kind
    FROM findings JOIN runs ON number = run WHERE node = ? AND started_at_s >= ? ORDER BY started_at_s DESC, findings.rowid LIMIT ?"""
_SERIES = """SELECT run_id, started_at_s, collective, size_bytes, busbw, expected FROM figures JOIN runs ON number = run
    WHERE members = ? AND axis = ? AND NOT simulated ORDER BY started_at_s DESC LIMIT ?"""
_LINES = """SELECT axis, collective, size_bytes, members, started_at_s, busbw FROM figures JOIN runs ON number = run
    WHERE NOT simulated AND started_at_s >= ? AND run IN (SELECT run FROM run_nodes WHERE node = ? ORDER BY rowid DESC LIMIT ?)
    AND instr(' ' || members, ?) AND coalesce(busbw, 0) BETWEEN 0 AND 1e18 ORDER BY started_at_s, figures.rowid"""
_RUNS_TO_COMPARE = """SELECT runs.number, started_at_s, backend, place, num_nodes, facts.content FROM runs LEFT JOIN facts ON facts.number = runs.facts
    WHERE NOT simulated AND EXISTS (SELECT 1 FROM figures WHERE figures.run = runs.number)
    AND runs.number IN (SELECT run FROM run_nodes WHERE node IN (SELECT value FROM json_each(?))) ORDER BY started_at_s DESC LIMIT ?"""
_FACTS_OF_NODES = "SELECT node, content FROM run_nodes JOIN facts ON number = run_nodes.facts WHERE run = ?"
_FIGURES_OF_RUN = """SELECT axis, collective, size_bytes, members, busbw, content FROM figures LEFT JOIN facts ON number = transport
    WHERE run = ? AND busbw > 0 AND busbw < 1e18"""


class History:
    """The file at `path`; nothing is opened before it is asked for. All methods raise WorldError or ConfigError for a file that can't be used.

    `within_s`: of writers whom somebody waits for: an entry that can't be made within that time is given up.
    """

    def __init__(
        self, path: Path, *, keep_s: float = KEEP_S, max_rows: int = MAX_ROWS, within_s: float | None = None
    ) -> None:
        self.path, self.keep_s, self.max_rows, self.within_s = path, keep_s, max_rows, within_s

    def add(
        self,
        report: Report,
        *,
        plan: str | None = None,
        sweep: str | None = None,
        verdicts: Iterable[NodeVerdict] = (),
        nodes_of: Mapping[int, str] | None = None,
    ) -> bool:
        """Append a run; False: it is there already, or older than what is kept. `plan`: its fingerprint. `nodes_of`: index of a finding -> the node that it is about, where somebody could tell."""
        return self.add_entries([entry_of(report, plan=plan, sweep=sweep, verdicts=verdicts, nodes_of=nodes_of)]) == 1

    def add_entries(self, entries: Iterable[Entry]) -> int:
        """Append runs that are rows already, all of them or none; how many were not there yet, and are now: some may be older than what is kept."""
        limits = Limits(self.keep_s, self.max_rows)
        with writing(self.path, within_s=self.within_s) as db:
            (before,) = db.execute("SELECT coalesce(max(number), 0) FROM runs").fetchone()
            for position, entry in enumerate(entries, 1):
                append(db, entry, limits, then_forget=position % FORGET_EVERY == 0)
            forget(db, limits, time.time())
            return int(db.execute("SELECT count(*) FROM runs WHERE number > ?", (before,)).fetchone()[0])

    def note_drained(self, run_id: str, node: str) -> None:
        """The node was drained for what this run said of it: from here on, its verdicts begin anew."""
        with writing(self.path, within_s=self.within_s) as db:
            db.execute(
                "UPDATE verdicts SET drained = 1 WHERE node = ? AND run = (SELECT number FROM runs WHERE run_id = ?)",
                (node, run_id),
            )

    def verdicts(self, node: str, limit: int = 50, *, sweeps: bool = False) -> tuple[NodeVerdict, ...]:
        """What real runs said of a node, newest first. `sweeps`: only what scans said."""
        return self._verdicts(_VERDICTS + (_OF_SWEEPS if sweeps else "") + _NEWEST_FIRST, (_latest_s(), node, limit))

    def last_verdicts(self, nodes: Iterable[str] | None = None, *, sweeps: bool = False) -> dict[str, NodeVerdict]:
        """The newest verdict of each node. `nodes` None: of all. `sweeps`: only what scans said."""
        wanted = None if nodes is None else set(nodes)
        found = self._verdicts(_LAST_VERDICTS + (_OF_SWEEPS if sweeps else "") + " GROUP BY node", (_latest_s(),))
        return {verdict.node: verdict for verdict in found if wanted is None or verdict.node in wanted}

    def _verdicts(self, query: str, values: tuple[object, ...], *, decides: bool = True) -> tuple[NodeVerdict, ...]:
        with reading(self.path, decides=decides) as db:
            rows = db.execute(query, values).fetchall() if db else []
            found = [(from_json(content, NodeVerdict), drained) for content, drained, *_ in rows]
        return tuple(msgspec.structs.replace(verdict, drained=bool(drained)) for verdict, drained in found)

    def covered(self) -> dict[Pair, float]:
        """Pairs of nodes -> when they were last measured, Unix time."""
        with reading(self.path, decides=True) as db:
            rows = db.execute("SELECT a, b, at_s FROM covered WHERE at_s < ?", (_latest_s(),)).fetchall() if db else []
            return {(a, b): at_s for a, b, at_s in msgspec.convert(rows, list[tuple[str, str, float]])}

    def runs(self, limit: int = 100, *, since_s: float = 0.0) -> tuple[RunLine, ...]:
        """The newest runs, newest first. `since_s`: Unix time."""
        with reading(self.path) as db:
            return _run_lines(db.execute(_NEWEST_RUNS, (since_s, limit)).fetchall()) if db else ()

    def node_story(self, node: str, limit: int = 50, *, since_s: float = 0.0) -> NodeStory:
        """Runs, verdicts and findings of one node, newest first, at most `limit` of each. `since_s`: Unix time."""
        listed = self._verdicts(_VERDICTS + _NEWEST_FIRST, (_latest_s(), node, limit), decides=False)
        verdicts = tuple(each for each in listed if each.at_s >= since_s)
        with reading(self.path) as db:
            runs = db.execute(_RUNS_OF_NODE, (node, since_s, limit)).fetchall() if db else []
            findings = db.execute(_FINDINGS_OF_NODE, (node, since_s, limit)).fetchall() if db else []
            lines = tuple(_checked(row, FindingLine) for row in findings)
            return NodeStory(node=node, runs=_run_lines(runs), verdicts=verdicts, findings=lines)

    def series(self, places: Iterable[Place], axis: str = PAIR, limit: int = 200) -> tuple[Figure, ...]:
        """What the group (or pair) that sits at these places reached, oldest first; simulated runs left out."""
        with reading(self.path) as db:
            rows = db.execute(_SERIES, (members_of(places), axis, limit)).fetchall() if db else []
            return tuple(_checked(row, Figure) for row in reversed(rows))

    def node_lines(self, node: str, limit: int = 50, *, since_s: float = 0.0) -> tuple[Line, ...]:
        """The figures of all pairs and groups of a node over its newest `limit` runs (of groups too large to be spelled out none); simulated runs left out."""
        with reading(self.path) as db:
            rows = db.execute(_LINES, (since_s, node, limit, f" {node}/")).fetchall() if db else []
            known = msgspec.convert(rows, list[tuple[str, str, int, str, float, float | None]])
        found: dict[tuple[str, str, int, str], list[tuple[float, float | None]]] = {}
        for axis, collective, size_bytes, members, at_s, busbw in known:
            found.setdefault((axis, collective, size_bytes, members), []).append((at_s, busbw))
        return tuple(
            Line(
                axis=axis,
                collective=collective,
                size_bytes=size,
                members=members,
                at_s=tuple(at_s for at_s, _ in points),
                busbw_bytes_per_s=tuple(busbw for _, busbw in points),
            )
            for (axis, collective, size, members), points in found.items()
        )

    def baseline(self, plan: Plan, backend: str | None, *, now: Evidence | None = None) -> Baseline:
        """What the pairs and groups of this plan reached before, as preflight.model.baseline.baseline_of makes it of reports. `now`: the run to be judged, with its own measurements."""
        nodes = msgspec.json.encode(sorted(set(plan.placement.nodes))).decode()
        with reading(self.path, decides=True) as db:
            if db is None:
                return Baseline()
            found = db.execute(_RUNS_TO_COMPARE, (nodes, MAX_BASELINE_RUNS)).fetchall()[::-1]
            listed = msgspec.convert(found, list[_RunRow])
            runs = [_past_run(db, row) for row in listed]
            figures = (
                PastFigure(position, *figure)
                for position, (number, *_) in enumerate(listed)
                for figure in msgspec.convert(db.execute(_FIGURES_OF_RUN, (number,)).fetchall(), list[_FigureRow])
            )
            return collected(now_of(now, plan, backend), runs, figures)


def _latest_s() -> float:
    return time.time() + AHEAD_S


def _past_run(db: sqlite3.Connection, row: _RunRow) -> PastRun:
    number, at_s, backend, place, num_nodes, software = row
    nodes = {str(node): from_json(content, NodeFacts) for node, content in db.execute(_FACTS_OF_NODES, (number,))}
    return PastRun(at_s, backend, place, num_nodes, from_json(software or "{}", dict[str, str]), nodes)


def _run_lines(rows: Iterable[tuple[object, ...]]) -> tuple[RunLine, ...]:
    return tuple(_checked(row, RunLine, strict=False) for row in rows)


def _checked(row: Sequence[object], kind: type[T], *, strict: bool = True) -> T:
    """The row as the noun that it is to be. Raises msgspec.ValidationError: nothing of ours wrote it."""
    return msgspec.convert(dict(zip(kind.__struct_fields__, row, strict=True)), kind, strict=strict)
