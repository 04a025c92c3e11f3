"""The history of a site: what runs and scans found, kept in one SQLite file for `preflight scan`, `preflight history` and trends.

Bounded by age and by the number of figures. An append is one transaction. A file that can't be written costs no result: the caller says so and goes on.
"""

import sqlite3
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from preflight.fleet.history_file import OF_A_RUN, reading, writing
from preflight.model import Evidence, Plan, Report, Verdict, from_json
from preflight.model.baseline import PAIR, Place
from preflight.model.evidence import Baseline, BaselineEntry
from preflight.model.history import Figure, FindingLine, NodeStory, NodeVerdict, RunLine
from preflight.model.history_rows import Pair, figures_of, members_of, node_pairs, pair_name

KEEP_S = 180 * 86400.0
MAX_ROWS = 2_000_000  # figures and findings together; 240 bytes each with their indexes (measured)
MAX_ROWS_OF_A_RUN = 200_000  # a report of more keeps its first ones
MAX_BASELINE = 50  # newest runs that count, of each group (as preflight.model.baseline has it)
MAX_TEXT = 1000

_VERDICTS_OF_NODE = """SELECT content, drained FROM verdicts JOIN runs ON number = run
    WHERE NOT simulated AND node = ? ORDER BY at_s DESC, verdicts.rowid DESC LIMIT ?"""
_LAST_VERDICTS = """SELECT content, drained FROM (
    SELECT content, drained, max(at_s) FROM verdicts JOIN runs ON number = run WHERE NOT simulated GROUP BY node)"""  # SQLite takes the other columns from the row of the maximum
_RUNS = "SELECT run_id, started_at_s, duration_s, command, answer, backend, plan, sweep, simulated FROM runs"
_NEWEST_RUNS = _RUNS + " ORDER BY started_at_s DESC, number DESC LIMIT ?"
_RUNS_OF_NODE = _RUNS + " JOIN run_nodes ON run = number WHERE node = ? ORDER BY started_at_s DESC, number DESC LIMIT ?"
_FINDINGS_OF_NODE = """SELECT run_id, started_at_s, check_name, subject, verdict, observed, expected, remedy, node, part, part_kind
    FROM findings JOIN runs ON number = run WHERE node = ? ORDER BY started_at_s DESC LIMIT ?"""
_SERIES = """SELECT run_id, started_at_s, collective, size_bytes, busbw, expected FROM figures JOIN runs ON number = run
    WHERE members = ? AND axis = ? AND NOT simulated ORDER BY started_at_s DESC LIMIT ?"""
_FIGURES_OF_NODES = """SELECT axis, collective, size_bytes, members, busbw FROM figures JOIN runs ON number = run
    WHERE busbw IS NOT NULL AND NOT simulated AND backend IS ?
    AND run IN (SELECT run FROM run_nodes WHERE node IN (SELECT value FROM json_each(?))) ORDER BY started_at_s"""
_TOO_OLD_OR_MANY = """SELECT number FROM (
    SELECT number, started_at_s, sum(rows + 1) OVER (ORDER BY number DESC) AS so_far FROM runs)
    WHERE (started_at_s < ? OR so_far > ?) AND number < (SELECT max(number) FROM runs)"""


class History:
    """The file at `path`; nothing is opened before it is asked for. All methods raise WorldError or ConfigError for a file that can't be used."""

    def __init__(self, path: Path, *, keep_s: float = KEEP_S, max_rows: int = MAX_ROWS) -> None:
        self.path, self.keep_s, self.max_rows = path, keep_s, max_rows

    def add(
        self,
        report: Report,
        *,
        plan: str | None = None,
        sweep: str | None = None,
        verdicts: Iterable[NodeVerdict] = (),
        nodes_of: Mapping[int, str] | None = None,
    ) -> bool:
        """Append a run; False: it is there already. `plan`: its fingerprint. `nodes_of`: index of a finding -> the node that it is about, where somebody could tell."""
        evidence = report.evidence
        nodes = evidence.plan.placement.nodes if evidence.plan else ()
        figures = figures_of(evidence)[:MAX_ROWS_OF_A_RUN]
        findings = [(i, f) for i, f in enumerate(report.findings) if f.verdict not in {Verdict.PASS, Verdict.SKIP}]
        findings = findings[:MAX_ROWS_OF_A_RUN]
        settings = evidence.settings
        line = (report.run_id, report.started_at_s, report.duration_s, report.command, report.answer, settings.backend)
        with writing(self.path) as db:
            if db.execute("SELECT 1 FROM runs WHERE run_id = ?", (report.run_id,)).fetchone():
                return False
            number = db.execute(
                "INSERT INTO runs (run_id, started_at_s, duration_s, command, answer, backend, plan, sweep, simulated, rows)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*line, plan, sweep, settings.simulated, len(figures) + len(findings)),
            ).lastrowid
            db.executemany("INSERT INTO run_nodes VALUES (?, ?)", ((number, node) for node in nodes))
            db.executemany(
                "INSERT INTO findings VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    (number, (nodes_of or {}).get(i), f.check, f.subject, f.verdict.value)
                    + tuple(text[:MAX_TEXT] for text in (f.observed, f.expected, f.remedy))
                    + ((f.blames.name, f.blames.kind) if f.blames else (None, None))
                    for i, f in findings
                ),
            )
            db.executemany("INSERT INTO figures VALUES (?, ?, ?, ?, ?, ?, ?)", ((number, *f) for f in figures))
            _add_verdicts(db, number, verdicts)
            if not settings.simulated:
                _cover(db, evidence, report.started_at_s)
            self._forget(db, time.time())  # a run's own clock may be wrong
        return True

    def _forget(self, db: sqlite3.Connection, now_s: float) -> None:
        """Runs that are too old, and the oldest while there are too many rows; the newest stays."""
        dropped = db.execute(_TOO_OLD_OR_MANY, (now_s - self.keep_s, self.max_rows)).fetchall()
        for table in OF_A_RUN:
            db.executemany(f"DELETE FROM {table} WHERE run = ?", dropped)  # noqa: S608 - our own names
        db.executemany("DELETE FROM runs WHERE number = ?", dropped)
        db.execute("DELETE FROM covered WHERE at_s < ?", (now_s - self.keep_s,))

    def note_drained(self, run_id: str, node: str) -> None:
        """The node was drained for what this run said of it: from here on, its verdicts begin anew."""
        with writing(self.path) as db:
            db.execute(
                "UPDATE verdicts SET drained = 1 WHERE node = ? AND run = (SELECT number FROM runs WHERE run_id = ?)",
                (node, run_id),
            )

    def verdicts(self, node: str, limit: int = 50) -> tuple[NodeVerdict, ...]:
        """What real runs said of a node, newest first."""
        return self._verdicts(_VERDICTS_OF_NODE, (node, limit))

    def last_verdicts(self, nodes: Iterable[str] | None = None) -> dict[str, NodeVerdict]:
        """The newest verdict of each node. `nodes` None: of all."""
        wanted = None if nodes is None else set(nodes)
        found = self._verdicts(_LAST_VERDICTS, ())
        return {verdict.node: verdict for verdict in found if wanted is None or verdict.node in wanted}

    def _verdicts(self, query: str, values: tuple[object, ...]) -> tuple[NodeVerdict, ...]:
        with reading(self.path) as db:
            rows = db.execute(query, values).fetchall() if db else []
        found = [(from_json(content, NodeVerdict), drained) for content, drained in rows]
        return tuple(msgspec.structs.replace(verdict, drained=bool(drained)) for verdict, drained in found)

    def covered(self) -> dict[Pair, float]:
        """Pairs of nodes -> when they were last measured, Unix time."""
        with reading(self.path) as db:
            rows = db.execute("SELECT a, b, at_s FROM covered").fetchall() if db else []
        return {(a, b): at_s for a, b, at_s in rows}

    def runs(self, limit: int = 100) -> tuple[RunLine, ...]:
        """The newest runs, newest first."""
        with reading(self.path) as db:
            return _run_lines(db.execute(_NEWEST_RUNS, (limit,)).fetchall()) if db else ()

    def node_story(self, node: str, limit: int = 50) -> NodeStory:
        """Runs, verdicts and findings of one node, newest first, at most `limit` of each."""
        verdicts = self.verdicts(node, limit)
        with reading(self.path) as db:
            runs = db.execute(_RUNS_OF_NODE, (node, limit)).fetchall() if db else []
            findings = db.execute(_FINDINGS_OF_NODE, (node, limit)).fetchall() if db else []
        names = FindingLine.__struct_fields__
        lines = tuple(msgspec.convert(dict(zip(names, row, strict=True)), FindingLine) for row in findings)
        return NodeStory(node=node, runs=_run_lines(runs), verdicts=verdicts, findings=lines)

    def series(self, places: Iterable[Place], axis: str = PAIR, limit: int = 200) -> tuple[Figure, ...]:
        """What the group (or pair) that sits at these places reached, oldest first; simulated runs left out."""
        with reading(self.path) as db:
            rows = db.execute(_SERIES, (members_of(places), axis, limit)).fetchall() if db else []
        return tuple(Figure(**dict(zip(Figure.__struct_fields__, row, strict=True))) for row in reversed(rows))

    def baseline(self, plan: Plan, backend: str | None) -> Baseline:
        """What the pairs and groups of this plan reached before, as preflight.model.baseline.baseline_of makes it of reports: groups are known again by where their ranks sit."""
        placement = plan.placement
        seats = zip(placement.node_ranks, placement.local_ranks, strict=True)
        places = [(placement.nodes[node], local) for node, local in seats]
        rank_of = {place: rank for rank, place in enumerate(places)}
        names = {
            (axis, members_of(places[rank] for rank in group.ranks)): group.name
            for axis in plan.groups
            for group in plan.on_axis(axis)
        }
        nodes = msgspec.json.encode(sorted(set(placement.nodes))).decode()
        found: dict[tuple[str, str, int], list[float]] = {}
        with reading(self.path) as db:
            for axis, collective, size, members, busbw in db.execute(_FIGURES_OF_NODES, (backend, nodes)) if db else ():
                name = pair_name(members, rank_of) if axis == PAIR else names.get((axis, members))
                if name:
                    found.setdefault((name, collective, size), []).append(busbw)
        entries = (
            BaselineEntry(
                subject=name, collective=collective, size_bytes=size, busbw_bytes_per_s=tuple(rates[-MAX_BASELINE:])
            )
            for (name, collective, size), rates in found.items()
        )
        return Baseline(entries=tuple(entries))


def _add_verdicts(db: sqlite3.Connection, number: int | None, verdicts: Iterable[NodeVerdict]) -> None:
    db.executemany(
        "INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?)",
        ((number, v.node, v.verdict.value, v.doubt, v.drained, v.at_s, msgspec.json.encode(v)) for v in verdicts),
    )


def _run_lines(rows: Iterable[tuple[object, ...]]) -> tuple[RunLine, ...]:
    names = RunLine.__struct_fields__
    return tuple(msgspec.convert(dict(zip(names, row, strict=True)), RunLine, strict=False) for row in rows)


def _cover(db: sqlite3.Connection, evidence: Evidence, at_s: float) -> None:
    db.executemany(
        "INSERT INTO covered VALUES (?, ?, ?) ON CONFLICT (a, b) DO UPDATE SET at_s = max(at_s, excluded.at_s)",
        ((a, b, at_s) for a, b in node_pairs(evidence)),
    )
