"""How a result becomes rows of the history, and which rows go when there are too many. Light to import: a prolog does this after its verdict is out."""

import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from preflight.model.base import Record
from preflight.model.evidence import Evidence
from preflight.model.finding import Finding, Verdict
from preflight.model.history import NodeVerdict
from preflight.model.node_facts import NodeFacts, facts_of
from preflight.model.report import Report
from preflight.report.history_schema import OF_A_RUN

MAX_ROWS_OF_A_RUN = 200_000  # a report of more keeps its first ones
MAX_TEXT = 1000
MAX_FACTS = 20_000  # from so many on, those that nothing points at are looked for
AT_ONCE = 20_000  # rows that one append removes at most: who waits for the lock waits no longer than for a large append
ROOM = 0.9  # what is left of the rows once there are too many, so that not each append removes some
Row = tuple[str, str, int, str, float | None, float | None, str | None]  # as preflight.model.history_rows.FigureRow

DAY_S = 86400.0
_NEWEST_OF_COMMAND = """SELECT number, started_at_s, answer FROM run_nodes JOIN runs ON number = run
    WHERE node = ? AND command = ? ORDER BY run_nodes.rowid DESC LIMIT 1"""
_OLDEST = "SELECT number, rows + 1 FROM runs WHERE number < (SELECT max(number) FROM runs)"


class Limits(Record, frozen=True):
    """What is kept: for so many seconds, at most so many rows. `at_once`: rows that one append removes at most."""

    keep_s: float
    max_rows: int
    at_once: int = AT_ONCE


class Entry(Record, frozen=True):
    """A run as rows, ready to be written, so that nothing is worked out while others wait for the lock. `run`: column -> value. `software`: of the run; `nodes`: name -> facts, None: nothing is known."""

    run: dict[str, object]
    software: dict[str, str]
    nodes: dict[str, NodeFacts | None]
    findings: list[tuple[object, ...]]
    figures: list[Row]
    verdicts: list[NodeVerdict]
    pairs: list[tuple[str, str]]


def entry_of(
    report: Report,
    *,
    plan: str | None = None,
    sweep: str | None = None,
    verdicts: Iterable[NodeVerdict] = (),
    nodes_of: Mapping[int, str] | None = None,
) -> Entry:
    """The rows of a report. `plan`: its fingerprint. `nodes_of`: index of a finding -> the node that it is about, where somebody could tell."""
    evidence, facts = report.evidence, facts_of(report.evidence)
    names = nodes_in(evidence)
    said = [(i, f) for i, f in enumerate(report.findings) if f.verdict not in {Verdict.PASS, Verdict.SKIP}]
    findings = [_finding(f, (nodes_of or {}).get(i)) for i, f in said[:MAX_ROWS_OF_A_RUN]]
    figures, pairs, place = _measured(evidence)
    listed = list(verdicts)
    run: dict[str, object] = {
        "run_id": report.run_id,
        "started_at_s": report.started_at_s,
        "duration_s": report.duration_s,
        "command": report.command,
        "answer": report.answer,
        "backend": evidence.settings.backend,
        "plan": plan,
        "sweep": sweep,
        "simulated": int(evidence.settings.simulated),
        "rows": len(figures) + len(findings) + len(names) + len(listed),
        "num_nodes": len(names),
        "place": place,
    }
    return Entry(
        run, dict(report.environment.versions), {n: facts.get(n) for n in names}, findings, figures, listed, pairs
    )


def nodes_in(evidence: Evidence) -> tuple[str, ...]:
    """The nodes that a result is about: the plan's, without a plan those that were looked at."""
    if evidence.plan is not None:
        return evidence.plan.placement.nodes
    return tuple(node.name for node in evidence.inventory.nodes) if evidence.inventory else ()


def append(db: sqlite3.Connection, entry: Entry, limits: Limits, *, then_forget: bool = True) -> bool:
    """Write it, within the caller's transaction, and forget what is too old or too much. False: it is there already."""
    run = entry.run
    if db.execute("SELECT 1 FROM runs WHERE run_id = ?", (run["run_id"],)).fetchone():
        return False
    names = [*run, "facts"]
    number = db.execute(
        f"INSERT INTO runs ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})",  # noqa: S608 - our own names
        (*run.values(), _fact(db, entry.software)),
    ).lastrowid
    db.executemany(
        "INSERT INTO run_nodes (run, node, facts) VALUES (?, ?, ?)",
        [(number, node, _fact(db, facts)) for node, facts in entry.nodes.items()],
    )
    db.executemany("INSERT INTO findings VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", [(number, *f) for f in entry.findings])
    transports = {text: _text(db, text) for text in {row[-1] for row in entry.figures} if text}
    db.executemany(
        "INSERT INTO figures (run, axis, collective, size_bytes, members, busbw, expected, transport) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        ((number, *row[:-1], transports.get(row[-1] or "")) for row in entry.figures),
    )
    db.executemany(
        "INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?)",
        ((number, v.node, v.verdict.value, v.doubt, v.drained, v.at_s, msgspec.json.encode(v)) for v in entry.verdicts),
    )
    if not run["simulated"]:
        db.executemany(
            "INSERT INTO covered VALUES (?, ?, ?) ON CONFLICT (a, b) DO UPDATE SET at_s = max(at_s, excluded.at_s)",
            ((a, b, run["started_at_s"]) for a, b in entry.pairs),
        )
    db.execute("UPDATE totals SET rows = rows + ?", (int(str(run["rows"])) + 1,))
    if then_forget:
        forget(db, limits, time.time())  # a run's own clock may be wrong
    return True


def append_if_changed(db: sqlite3.Connection, entry: Entry, limits: Limits, every_s: float = DAY_S) -> bool:
    """Append the judgement of one node, unless the newest of the same command on it says the same and is younger than `every_s`. False: it was not needed."""
    run, node = entry.run, next(iter(entry.nodes), "")
    newest = db.execute(_NEWEST_OF_COMMAND, (node, run["command"])).fetchone()
    if newest and newest[2] == run["answer"] and 0 <= float(str(run["started_at_s"])) - newest[1] < every_s:
        before = db.execute("SELECT check_name, subject, verdict FROM findings WHERE run = ?", newest[:1]).fetchall()
        if sorted(before) == sorted((str(f[1]), str(f[2]), str(f[3])) for f in entry.findings):
            return False
    return append(db, entry, limits)


def forget(db: sqlite3.Connection, limits: Limits, now_s: float) -> None:
    """Runs that are too old, and the oldest while there are too many rows; the newest stays."""
    (total,) = db.execute("SELECT rows FROM totals").fetchone()
    old = _OLDEST + " AND started_at_s < ? ORDER BY started_at_s LIMIT ?"
    gone = dict(_up_to(db.execute(old, (now_s - limits.keep_s, limits.at_once)), limits.at_once))
    excess = total - sum(gone.values()) - int(ROOM * limits.max_rows) if total > limits.max_rows else 0
    if excess > 0:
        oldest = db.execute(_OLDEST + " ORDER BY number LIMIT ?", (limits.at_once + len(gone),))
        gone |= dict(_up_to((row for row in oldest if row[0] not in gone), min(excess, limits.at_once)))
    if not gone:
        return
    numbers = [(number,) for number in gone]
    for table in OF_A_RUN:
        db.executemany(f"DELETE FROM {table} WHERE run = ?", numbers)  # noqa: S608 - our own names
    db.executemany("DELETE FROM runs WHERE number = ?", numbers)
    db.execute("UPDATE totals SET rows = rows - ?", (sum(gone.values()),))
    db.execute("DELETE FROM covered WHERE at_s < ?", (now_s - limits.keep_s,))
    (facts,) = db.execute("SELECT count(*) FROM facts").fetchone()
    if facts > MAX_FACTS:
        db.execute(
            "DELETE FROM facts WHERE number NOT IN (SELECT facts FROM runs WHERE facts IS NOT NULL UNION"
            " SELECT facts FROM run_nodes WHERE facts IS NOT NULL UNION SELECT transport FROM figures WHERE transport IS NOT NULL)"
        )


def _up_to(runs: Iterable[tuple[int, int]], rows: int) -> list[tuple[int, int]]:
    """The first of these runs (number, rows) that have so many rows together, one at least."""
    found, so_far = [], 0
    for number, each in runs:
        if so_far >= rows:
            break
        found.append((number, each))
        so_far += each
    return found


def _measured(evidence: Evidence) -> tuple[list[Row], list[tuple[str, str]], str]:
    """Figures, pairs of nodes that were tried, and the place; of a node by itself there are none, and nothing is loaded for them."""
    if evidence.plan is None:
        return [], [], ""
    from preflight.model.baseline import place_of_run
    from preflight.model.history_rows import figures_of, node_pairs

    rows: Sequence[Row] = [msgspec.structs.astuple(row) for row in figures_of(evidence)[:MAX_ROWS_OF_A_RUN]]
    return list(rows), sorted(node_pairs(evidence)), place_of_run(evidence)


def _finding(finding: Finding, node: str | None) -> tuple[object, ...]:
    texts = (text[:MAX_TEXT] for text in (finding.observed, finding.expected, finding.remedy))
    part = (finding.blames.name, finding.blames.kind) if finding.blames else (None, None)
    return (node, finding.check, finding.subject[:MAX_TEXT], finding.verdict.value, *texts, *part)


def _fact(db: sqlite3.Connection, facts: object) -> int | None:
    """The number of these facts; None: there are none."""
    return _text(db, msgspec.json.encode(facts, order="sorted").decode()) if facts else None


def _text(db: sqlite3.Connection, text: str) -> int:
    found = db.execute("SELECT number FROM facts WHERE content = ?", (text,)).fetchone()
    if found:
        return int(found[0])
    return int(db.execute("INSERT INTO facts (content) VALUES (?)", (text,)).lastrowid or 0)
