"""What `preflight exporter` shows of a history: what the newest run of each node and of each two leaves gave (exporter_pairs.py), and the newest runs, sweeps and verdicts. Reads only."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from preflight.fleet.exporter_pairs import groups_of, pairs_of
from preflight.fleet.history import AHEAD_S
from preflight.fleet.history_file import reading
from preflight.metrics import ANSWERS, Samples
from preflight.model.baseline import PAIR
from preflight.report.gauges import MAX_LEAVES, MAX_SUBJECT
from preflight.report.pair_table import MAX_WORST, pair_families, ratios_by_route
from preflight.report.text import clean

MAX_RUNS = 5000
MAX_COMMANDS = 16
LISTED = ("FAIL", "UNKNOWN", "WARN")
COUNTED = ("FAIL", "UNKNOWN", "PASS")

_RUNS = """SELECT number, started_at_s, duration_s, command, answer, backend, sweep FROM runs
    WHERE NOT simulated AND started_at_s BETWEEN ? AND ? ORDER BY started_at_s DESC, number DESC LIMIT ?"""
_LAST_OF_COMMAND = """SELECT command, answer, backend, duration_s, max(started_at_s + duration_s) FROM runs
    WHERE NOT simulated AND started_at_s < ? GROUP BY command ORDER BY command LIMIT ?"""  # SQLite takes the other columns from the row of the maximum
_SUCCESSES = "SELECT command, max(started_at_s + duration_s) FROM runs WHERE NOT simulated AND started_at_s < ? AND answer = 'go' GROUP BY command LIMIT ?"
_LAST_SWEEP = (
    "SELECT max(started_at_s + duration_s) FROM runs WHERE NOT simulated AND started_at_s < ? AND sweep IS NOT NULL"
)
_VERDICTS = """SELECT verdict, count(*) FROM (SELECT verdict, max(at_s) AS at FROM verdicts JOIN runs ON number = run
    WHERE NOT simulated AND at_s BETWEEN ? AND ? GROUP BY node) GROUP BY verdict"""
_FINDINGS = "SELECT check_name, subject, node, verdict FROM findings WHERE run = ? LIMIT 1000"
_COUNTS = """SELECT command, sum(busbw IS NOT NULL), sum(busbw IS NULL) FROM figures JOIN runs ON number = run
    WHERE number > ? AND number <= ? AND NOT simulated AND axis = ? GROUP BY command"""


class Run(NamedTuple):
    """A run of the history."""

    number: int
    started_at_s: float
    duration_s: float
    command: str
    answer: str
    backend: str | None
    sweep: str | None


class View(NamedTuple):
    """What was read. `last_number`: of the newest run, for the counters."""

    families: list[tuple[str, Samples]]
    ratios: dict[tuple[str, ...], list[float]]
    last_number: int


def view_of(history: Path, leaves: Mapping[str, str], *, now_s: float, age_s: float) -> View | None:
    """What the history says of the last `age_s` seconds; None: there is no history yet. `leaves`: of nodes whose leaf is known. Raises WorldError, ConfigError."""
    with reading(history) as db:
        if db is None:
            return None
        window = (now_s - age_s, now_s + AHEAD_S)
        runs = [Run(*row) for row in db.execute(_RUNS, (*window, MAX_RUNS))]
        ended = [(run.number, run.started_at_s + run.duration_s) for run in runs]
        pairs = pairs_of(db, ended, leaves)
        (last,) = db.execute("SELECT coalesce(max(number), 0) FROM runs").fetchone()
        families = [
            *_of_commands(db, window[1]),
            *_of_sweeps(db, *window),
            ("worst_finding", _worst(db, runs)),
            *groups_of(db, ended),
            *((gauge.name, _cleaned(gauge.series)) for gauge in pair_families(pairs, max_leaves=MAX_LEAVES)),
        ]
        return View(families, ratios_by_route(pairs), last)


def newest_number(history: Path) -> int:
    """The number of the newest run. Raises WorldError, ConfigError."""
    with reading(history) as db:
        return int(db.execute("SELECT coalesce(max(number), 0) FROM runs").fetchone()[0]) if db else 0


def counts_between(history: Path, first: int, last: int) -> dict[str, tuple[int, int]]:
    """Command -> pairs that gave a figure, and that gave none, in runs after the first number, to the last. Raises WorldError, ConfigError."""
    with reading(history) as db:
        rows = db.execute(_COUNTS, (first, last, PAIR)).fetchall() if db else []
    return {clean(command): (measured or 0, withheld or 0) for command, measured, withheld in rows[:MAX_COMMANDS]}


def _cleaned(series: Samples) -> Samples:
    return [(tuple(map(clean, values)), figure) for values, figure in series]


def _of_commands(db: sqlite3.Connection, before_s: float) -> Iterator[tuple[str, Samples]]:
    last = [(clean(row[0]), *row[1:]) for row in db.execute(_LAST_OF_COMMAND, (before_s, MAX_COMMANDS))]
    yield "run_answer", [((row[0], answer), float(row[1] == answer)) for row in last for answer in ANSWERS]
    yield "run_completion_timestamp_seconds", [((row[0],), row[4]) for row in last]
    successes = [((clean(command),), at_s) for command, at_s in db.execute(_SUCCESSES, (before_s, MAX_COMMANDS))]
    yield "run_success_timestamp_seconds", successes
    yield "run_duration_seconds", [((row[0],), row[3]) for row in last]
    yield "run_info", [((row[0], clean(row[2] or "")), 1.0) for row in last]


def _of_sweeps(db: sqlite3.Connection, since_s: float, before_s: float) -> Iterator[tuple[str, Samples]]:
    (ended_s,) = db.execute(_LAST_SWEEP, (before_s,)).fetchone()
    if ended_s is not None:
        yield "scan_completion_timestamp_seconds", [((), ended_s)]
    counts = dict(db.execute(_VERDICTS, (since_s, before_s)))
    if counts:
        yield "scan_nodes", [((verdict,), float(counts.get(verdict, 0))) for verdict in COUNTED]


def _worst(db: sqlite3.Connection, runs: Sequence[Run]) -> Samples:
    """Of each command's newest run, of scans the newest sweep."""
    newest: dict[str, Run] = {}
    for run in runs:
        newest.setdefault(run.command, run)
    chosen = [
        run for run in runs if run is newest[run.command] or (run.sweep and run.sweep == newest[run.command].sweep)
    ]
    found = [
        (
            LISTED.index(verdict),
            (clean(run.command), clean(check), clean(subject)[:MAX_SUBJECT], clean(node or ""), verdict),
        )
        for run in chosen[:500]
        for check, subject, node, verdict in db.execute(_FINDINGS, (run.number,))
        if verdict in LISTED
    ]
    return [(values, 1.0) for _, values in sorted(found)[:MAX_WORST]]
