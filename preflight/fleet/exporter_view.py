"""What `preflight exporter` shows of a history: the newest figures of each pair, held against healthy pairs of the same run, and the newest runs, sweeps and verdicts. Reads only.

A history has no localiser's references, so a reference is taken from each run by itself: what the better quarter of its GPUs reached at best over the same class of routes. There is none where fewer than three nodes (two inside
nodes) took part, or where the middle GPU is so far below that the better quarter says nothing of what is healthy.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from preflight.fleet.history_file import reading
from preflight.metrics import ANSWERS, Samples
from preflight.model.baseline import PAIR
from preflight.report.gauges import MAX_LEAVES, MAX_SUBJECT
from preflight.report.pair_facts import MAX_WORST, OP, PairFact, pair_families, ratios_by_route
from preflight.report.text import clean
from preflight.statistics import spread_of

MAX_FIGURES = 400_000  # the newest ones that are read
MAX_RUNS = 5000
MIN_NODES = {"inside": 2, "between": 3}
CLEAR = 0.9  # the middle GPU's best / that of the better quarter: below, the run has no reference
MAX_COMMANDS = 16
LISTED = ("FAIL", "UNKNOWN", "WARN")
COUNTED = ("FAIL", "UNKNOWN", "PASS")

_RUNS = """SELECT number, started_at_s, duration_s, command, answer, backend, sweep FROM runs
    WHERE NOT simulated AND started_at_s BETWEEN ? AND ? ORDER BY started_at_s DESC, number DESC LIMIT ?"""
_LAST_OF_COMMAND = """SELECT command, answer, backend, duration_s, max(started_at_s + duration_s) FROM runs
    WHERE NOT simulated GROUP BY command ORDER BY command LIMIT ?"""  # SQLite takes the other columns from the row of the maximum
_SUCCESSES = "SELECT command, max(started_at_s + duration_s) FROM runs WHERE NOT simulated AND answer = 'go' GROUP BY command LIMIT ?"
_LAST_SWEEP = "SELECT max(started_at_s + duration_s) FROM runs WHERE NOT simulated AND sweep IS NOT NULL"
_FIGURES = """SELECT run, axis, collective, size_bytes, members, busbw FROM figures JOIN runs ON number = run
    WHERE NOT simulated AND started_at_s BETWEEN ? AND ? ORDER BY started_at_s DESC, number DESC LIMIT ?"""
_VERDICTS = """SELECT verdict, count(*) FROM (SELECT verdict, max(at_s) AS at FROM verdicts JOIN runs ON number = run
    WHERE NOT simulated AND at_s >= ? GROUP BY node) GROUP BY verdict"""
_FINDINGS = "SELECT check_name, subject, node, verdict FROM findings WHERE run = ? LIMIT 1000"
_COUNTS = """SELECT command, sum(busbw IS NOT NULL), sum(busbw IS NULL) FROM figures JOIN runs ON number = run
    WHERE number > ? AND number <= ? AND NOT simulated AND axis = ? GROUP BY command"""

Place = tuple[str, int]


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
        window = (now_s - age_s, now_s + age_s)  # clocks of other nodes may be ahead
        runs = [Run(*row) for row in db.execute(_RUNS, (*window, MAX_RUNS))]
        facts, groups = _figures(db, window, leaves)
        (last,) = db.execute("SELECT coalesce(max(number), 0) FROM runs").fetchone()
        families = [
            *_of_commands(db),
            *_of_sweeps(db, now_s - age_s),
            ("worst_finding", _worst(db, runs)),
            *groups,
            *((gauge.name, _cleaned(gauge.series)) for gauge in pair_families(facts, max_leaves=MAX_LEAVES)),
        ]
        return View(families, ratios_by_route(facts), last)


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


def _of_commands(db: sqlite3.Connection) -> Iterator[tuple[str, Samples]]:
    last = [(clean(row[0]), *row[1:]) for row in db.execute(_LAST_OF_COMMAND, (MAX_COMMANDS,))]
    yield "run_answer", [((row[0], answer), float(row[1] == answer)) for row in last for answer in ANSWERS]
    yield "run_completion_timestamp_seconds", [((row[0],), row[4]) for row in last]
    successes = [((clean(command),), at_s) for command, at_s in db.execute(_SUCCESSES, (MAX_COMMANDS,))]
    yield "run_success_timestamp_seconds", successes
    yield "run_duration_seconds", [((row[0],), row[3]) for row in last]
    yield "run_info", [((row[0], clean(row[2] or "")), 1.0) for row in last]


def _of_sweeps(db: sqlite3.Connection, since_s: float) -> Iterator[tuple[str, Samples]]:
    (ended_s,) = db.execute(_LAST_SWEEP).fetchone()
    if ended_s is not None:
        yield "scan_completion_timestamp_seconds", [((), ended_s)]
    counts = dict(db.execute(_VERDICTS, (since_s,)))
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


def _figures(
    db: sqlite3.Connection, window: tuple[float, float], leaves: Mapping[str, str]
) -> tuple[list[PairFact], list[tuple[str, Samples]]]:
    """The newest fact of each pair, and what the newest run of each axis says of its groups."""
    facts: dict[tuple[Place, ...], PairFact] = {}
    pairs: list[tuple[tuple[Place, ...], int, float]] = []
    groups: dict[tuple[str, str, str], tuple[int, list[float]]] = {}
    current: int | None = None
    for run, axis, collective, size, members, busbw in db.execute(_FIGURES, (*window, MAX_FIGURES)):
        if run != current:
            _keep_newest(facts, pairs, leaves)
            current, pairs = run, []
        if busbw is None:
            continue
        if axis != PAIR:
            of_run, rates = groups.setdefault((clean(axis), clean(collective), str(size)), (run, []))
            if of_run == run:
                rates.append(busbw)
        elif collective == OP and (places := _places(members)) is not None:
            pairs.append((places, size, busbw))
    _keep_newest(facts, pairs, leaves)
    spreads = [((*key, "alone"), spread) for key, (_, rates) in sorted(groups.items()) if (spread := spread_of(rates))]
    name = "group_bus_bandwidth"
    lows = (f"{name}_minimum_bytes_per_second", [(key, spread.minimum) for key, spread in spreads])
    return list(facts.values()), [lows, (f"{name}_median_bytes_per_second", [(k, s.median) for k, s in spreads])]


def _places(members: str) -> tuple[Place, Place] | None:
    """The two places of a pair's spelling, "n1/0 n2/3"; None: it is none."""
    found = [member.rpartition("/") for member in members.split(" ")]
    places = sorted((node, int(slot)) for node, _, slot in found if node and slot.isascii() and slot.isdigit())
    return (places[0], places[1]) if len(found) == len(places) == 2 else None


def _keep_newest(
    facts: dict[tuple[Place, ...], PairFact],
    pairs: Sequence[tuple[tuple[Place, ...], int, float]],
    leaves: Mapping[str, str],
) -> None:
    """The pairs of one run, those left out of which a newer run told."""
    bests: dict[tuple[str, int], dict[Place, float]] = defaultdict(dict)
    for places, size, rate in pairs:
        best = bests[_class(places, leaves), size]
        for place in places:
            best[place] = max(rate, best.get(place, 0.0))
    references = {key: _reference(key[0], best) for key, best in bests.items()}
    for places, size, rate in pairs:
        if places not in facts:
            (node, slot), (other, other_slot) = places
            reference = references[_class(places, leaves), size]
            ratio = rate / reference if reference else None
            facts[places] = PairFact(node, slot, other, other_slot, rate, ratio, leaves.get(node), leaves.get(other))


def _class(places: tuple[Place, ...], leaves: Mapping[str, str]) -> str:
    (node, slot), (other, other_slot) = places
    if node == other:
        return "inside"
    if slot != other_slot:
        return "unlike slots"
    known = (leaves.get(node), leaves.get(other))
    return "leaves not known" if None in known else "same leaf" if known[0] == known[1] else "other leaf"


def _reference(route: str, bests: Mapping[Place, float]) -> float | None:
    """What the better quarter of these GPUs reached, bytes per second."""
    nodes = Counter(node for node, _ in bests)
    if len(nodes) < MIN_NODES["inside" if route == "inside" else "between"]:
        return None
    ordered = sorted(bests.values())
    quarter = ordered[(3 * len(ordered)) // 4 if len(ordered) >= 4 else -1]
    middle = ordered[(len(ordered) - 1) // 2]
    return quarter if quarter > 0 and middle / quarter >= CLEAR else None
