"""The history as JSON lines, one run a line: a copy of all of it, and back. What comes in was written by others: strict, bounded, all or nothing, and a run that is there already is left alone."""

import re
import time
from collections.abc import Iterator
from typing import Annotated

import msgspec

from preflight.errors import ConfigError
from preflight.fleet.history import AHEAD_S, History
from preflight.model.base import Strict
from preflight.model.baseline import PAIR
from preflight.model.finding import Answer, PartKind, Verdict
from preflight.model.history import NodeVerdict
from preflight.model.node_facts import NodeFacts
from preflight.report.history_append import MAX_ROWS_OF_A_RUN, Entry
from preflight.report.history_file import reading

SCHEMA = "preflight.history/1"
MAX_LINE = 64 * 2**20  # bytes; a run of 512 nodes of 8 GPUs has some 15 MB
MAX_RUNS = 1_000_000

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
Text = Annotated[str, msgspec.Meta(max_length=4000)]
Time = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
Rate = Annotated[float, msgspec.Meta(gt=0, le=1e18)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Software = Annotated[dict[Name, Text], msgspec.Meta(max_length=200)]


class FindingRecord(Strict, frozen=True, kw_only=True):
    """A finding that is no PASS."""

    check: Name
    subject: Text
    verdict: Verdict
    observed: Text = ""
    expected: Text = ""
    remedy: Text = ""
    node: Name | None = None
    part: Name | None = None
    part_kind: PartKind | None = None


class FigureRecord(Strict, frozen=True, kw_only=True):
    """What a pair or group reached, in bytes per second of busbw; None: it failed. `expected` None: nobody can say."""

    axis: Name
    collective: Name
    size_bytes: Count
    members: Name
    busbw_bytes_per_s: Rate | None = None
    expected_bytes_per_s: Rate | None = None
    transport: Text | None = None


class FactsRecord(Strict, frozen=True, kw_only=True):
    """A node's software and GPUs, as preflight.model.node_facts.NodeFacts."""

    software: Software = {}
    gpus: Software = {}


class VerdictRecord(Strict, frozen=True, kw_only=True):
    """What the run says of a node, as preflight.model.history.NodeVerdict."""

    node: Name
    verdict: Verdict
    at_s: Time
    text: Text = ""
    checks: tuple[Name, ...] = ()
    partners: tuple[Name, ...] = ()
    doubt: bool = False
    drained: bool = False


class RunRecord(Strict, frozen=True, kw_only=True, tag_field="schema", tag=SCHEMA):
    """A run with all that is known of it. `nodes`: None of one: nothing is known of it besides that it took part."""

    run_id: Name
    started_at_s: Time
    duration_s: Time
    command: Name
    answer: Answer
    backend: Name | None = None
    plan: Name | None = None
    sweep: Name | None = None
    simulated: bool = False
    place: Text = ""
    software: Software = {}
    nodes: Annotated[dict[Name, FactsRecord | None], msgspec.Meta(max_length=MAX_ROWS_OF_A_RUN)] = {}
    findings: Annotated[tuple[FindingRecord, ...], msgspec.Meta(max_length=MAX_ROWS_OF_A_RUN)] = ()
    figures: Annotated[tuple[FigureRecord, ...], msgspec.Meta(max_length=MAX_ROWS_OF_A_RUN)] = ()
    verdicts: Annotated[tuple[VerdictRecord, ...], msgspec.Meta(max_length=MAX_ROWS_OF_A_RUN)] = ()


_RUNS = """SELECT runs.number, run_id, started_at_s, duration_s, command, answer, backend, plan, sweep, simulated, place, content
    FROM runs LEFT JOIN facts ON facts.number = runs.facts WHERE started_at_s >= ? ORDER BY runs.number"""
_NODES = "SELECT node, content FROM run_nodes LEFT JOIN facts ON number = run_nodes.facts WHERE run = ? ORDER BY run_nodes.rowid"
_FINDINGS = "SELECT check_name, subject, verdict, observed, expected, remedy, node, part, part_kind FROM findings WHERE run = ? ORDER BY rowid"
_FIGURES = """SELECT axis, collective, size_bytes, members, busbw, expected, content FROM figures LEFT JOIN facts ON number = transport
    WHERE run = ? ORDER BY figures.rowid"""
_VERDICTS = "SELECT content, drained FROM verdicts WHERE run = ? ORDER BY rowid"


def export(history: History, *, since_s: float = 0.0) -> Iterator[bytes]:
    """All runs as lines, oldest first, all of one moment. Raises WorldError, ConfigError."""
    with reading(history.path) as db:
        if db is None:
            return
        for number, *run, software in db.execute(_RUNS, (since_s,)):
            record = dict(zip(RunRecord.__struct_fields__, run, strict=False))
            record |= {
                "schema": SCHEMA,
                "simulated": bool(record["simulated"]),
                "software": msgspec.json.decode(software or "{}"),
                "nodes": {
                    name: msgspec.json.decode(facts) if facts else None for name, facts in db.execute(_NODES, (number,))
                },
                "findings": _dicts(FindingRecord, db.execute(_FINDINGS, (number,))),
                "figures": _dicts(FigureRecord, db.execute(_FIGURES, (number,))),
                "verdicts": [_verdict(content, drained) for content, drained in db.execute(_VERDICTS, (number,))],
            }
            yield msgspec.json.encode(msgspec.convert(record, RunRecord)) + b"\n"


def bring_in(history: History, data: bytes, source: str) -> tuple[int, int]:
    """Add the runs of these lines, all or none: how many there are, and how many were added: not those that are there already, or are older than what is kept. Raises ConfigError with the line that is wrong, WorldError."""
    lines = [line for line in enumerate(data.split(b"\n"), 1) if line[1].strip()]
    if len(lines) > MAX_RUNS:
        raise ConfigError(source, f"has {len(lines)} lines; {MAX_RUNS} are allowed")
    for number, line in lines:  # all of it is looked at before anybody has to wait for the lock
        _record(number, line, source)
    return len(lines), history.add_entries(_entry(_record(number, line, source)) for number, line in lines)


def _record(number: int, line: bytes, source: str) -> RunRecord:
    where = f"line {number}"
    if len(line) > MAX_LINE:
        raise ConfigError(source, f"is longer than {MAX_LINE // 2**20} MiB", key=where)
    try:
        record = msgspec.json.decode(line, type=RunRecord)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(source, f"is no run of a history: {str(error)[:300]}", key=where) from error
    times_s = (record.started_at_s, record.started_at_s + record.duration_s, *(each.at_s for each in record.verdicts))
    if max(times_s) > time.time() + AHEAD_S:
        raise ConfigError(source, "was begun, ended or told its verdict in the future", key=where)
    return record


def _entry(record: RunRecord) -> Entry:
    names = [
        name
        for name in RunRecord.__struct_fields__
        if name not in {"software", "nodes", "findings", "figures", "verdicts"}
    ]
    run: dict[str, object] = {name: getattr(record, name) for name in names}
    run |= {
        "simulated": int(record.simulated),
        "num_nodes": len(record.nodes),
        "rows": sum(map(len, (record.nodes, record.findings, record.figures, record.verdicts))),
    }
    verdicts = [
        NodeVerdict(run_id=record.run_id, sweep=record.sweep, **msgspec.structs.asdict(each))
        for each in record.verdicts
    ]
    return Entry(
        run,
        record.software,
        {name: NodeFacts(**msgspec.structs.asdict(facts)) if facts else None for name, facts in record.nodes.items()},
        [
            (f.node, f.check, f.subject, f.verdict.value, f.observed, f.expected, f.remedy, f.part, f.part_kind)
            for f in record.findings
        ],
        [msgspec.structs.astuple(figure) for figure in record.figures],
        verdicts,
        sorted({pair for figure in record.figures if (pair := _nodes_of(figure))}),
    )


def _nodes_of(figure: FigureRecord) -> tuple[str, str] | None:
    """The two nodes of a pair; None: it is none, or on one node."""
    nodes = sorted({re.sub(r"/[0-9]+$", "", member) for member in figure.members.split(" ")})
    return (nodes[0], nodes[1]) if figure.axis == PAIR and len(nodes) == 2 else None


def _dicts(kind: type[Strict], rows: Iterator[tuple[object, ...]]) -> list[dict[str, object]]:
    return [dict(zip(kind.__struct_fields__, row, strict=True)) for row in rows]


def _verdict(content: bytes, drained: int) -> dict[str, object]:
    told: dict[str, object] = msgspec.json.decode(content)
    known = {name: value for name, value in told.items() if name in VerdictRecord.__struct_fields__}
    return known | {"drained": bool(drained)}
