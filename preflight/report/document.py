"""One run as one JSON document, `"schema": "preflight.report/1"`: saved by rename, packed with gzip if its name ends in .gz, loaded strictly."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from preflight.errors import ConfigError
from preflight.formats import MAX_FILE_BYTES, read_bytes, write_atomically
from preflight.model import SCHEMA, Localisation, Measurement, Noun, Probe, Report, from_json, to_json
from preflight.model.bandwidth import ALONE
from preflight.model.possible import impossible_nodes
from preflight.model.possible_plan import impossible_plan
from preflight.report.packed import MAGIC, pack, unpack

T = TypeVar("T")

MAX_BYTES, MAX_FLOPS = 2**53, 2**62  # of one operation
SHORTEST_S, LONGEST_S = 1e-12, 1e9
SLOWEST, FASTEST = 1e-6, 1e18  # bytes per second that a reference may have


class _Header(Noun, frozen=True, kw_only=True):
    schema: Any = None


def save_report(report: Report, path: str | Path) -> None:
    """Write the report, packed if the name ends in .gz; an older file stays until the new one is complete. Raises WorldError (disk full, no permission)."""
    write_atomically(path, pack(report) if str(path).endswith(".gz") else to_json(report))


def load_report(path: str | Path) -> Report:
    """A saved report, packed or not, whatever its name. Raises ConfigError: not readable, truncated, not JSON, another schema, figures that can't be."""
    source = str(path)
    data = _read(path)
    header = _decode(source, data, _Header)
    if header.schema != SCHEMA:
        found = (
            "is no saved run: it has no schema" if header.schema is None else f"has schema {str(header.schema)[:100]!r}"
        )
        raise ConfigError(
            source,
            f"{found}; expected {SCHEMA!r}",
            key="schema",
            remedy="give the report.json of `preflight run`; one of another version needs that version of preflight",
        )
    report = _decode(source, data, Report)
    for place, inventory in (("inventory", report.evidence.inventory), ("before", report.evidence.before)):
        problem = impossible_nodes(inventory.nodes) if inventory else None
        if problem:
            raise ConfigError(source, problem, key=f"evidence.{place}")
    problem = impossible_plan(report.evidence.plan) if report.evidence.plan else None
    if problem:
        raise ConfigError(source, problem, key="evidence.plan")
    for number, measurement in enumerate(report.evidence.measurements or ()):
        problem = _impossible(measurement)
        if problem:
            raise ConfigError(source, problem, key=f"evidence.measurements[{number}]")
    problem = _impossible_localisation(report.evidence.localisation)
    if problem:
        raise ConfigError(source, problem, key="evidence.localisation")
    baseline = report.evidence.baseline
    if baseline and any(rate <= 0 for entry in baseline.entries for rate in entry.busbw_bytes_per_s):
        raise ConfigError(source, "busbw_bytes_per_s: expected positive numbers", key="evidence.baseline")
    return report


def _read(path: str | Path) -> bytes:
    """The JSON of a file. Raises ConfigError."""
    data = read_bytes(path)
    if not data.startswith(MAGIC):
        return data
    try:
        return unpack(data, MAX_FILE_BYTES)
    except ValueError as error:
        raise ConfigError(
            str(path), f"is not a saved run: it {error}", remedy="give the report.json.gz of a run, whole and unchanged"
        ) from error


@contextmanager
def _nothing_thrown_away() -> Iterator[None]:
    """What is decoded stays: looking for garbage among it takes as long as decoding, then and later."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was:
            gc.enable()


def _decode(source: str, data: bytes, kind: type[T]) -> T:
    try:
        with _nothing_thrown_away():
            return from_json(data, kind)
    except msgspec.DecodeError as error:
        raise ConfigError(
            source,
            f"is not a saved run: {str(error)[:300]}",
            remedy="give the report.json of `preflight run`, whole and unchanged",
        ) from error
    except RecursionError as error:
        raise ConfigError(source, "is nested too deeply") from error


def _impossible(measurement: Measurement) -> str | None:
    """Why a measurement can't be one; None if it can. Types alone don't exclude these, and the formulas rely on them."""
    probe = measurement.probe
    problem = _impossible_ranks(probe)
    if problem:
        return problem
    if not 0 < probe.size_bytes <= MAX_BYTES:
        return f"size_bytes: expected a positive number, at most {MAX_BYTES}"
    if not 0 <= probe.flops <= MAX_FLOPS:
        return f"flops: expected no negative number, at most {MAX_FLOPS}"
    times_s = [time for samples in measurement.samples for time in samples.durations_s]
    if any(not SHORTEST_S <= time <= LONGEST_S for time in times_s):
        return f"durations_s: expected positive seconds, from {SHORTEST_S:g} to {LONGEST_S:g}"
    return None


def _impossible_ranks(probe: Probe) -> str | None:
    alone = probe.collective in ALONE
    different = len(set(probe.ranks)) == len(probe.ranks) and min(probe.ranks, default=-1) >= 0
    if not different or (len(probe.ranks) != 1 if alone else len(probe.ranks) < 2):
        return f"ranks {list(probe.ranks)[:8]}: expected {'one rank' if alone else 'two or more different ranks'}"
    if probe.split and (len(probe.split) != len(probe.ranks) or min(probe.split) < 0 or sum(probe.split) <= 0):
        return f"split {list(probe.split)[:8]}: expected a share for each of {len(probe.ranks)} ranks"
    return None


def _impossible_localisation(found: Localisation | None) -> str | None:
    """Why a localisation can't be one: its ends, nodes and leaves point at each other by number."""
    if found is None:
        return None
    rates = (rate for each in found.references for rate in (each.bytes_per_s, each.expected_bytes_per_s))
    if not all(rate is None or rate == 0 or SLOWEST <= rate <= FASTEST for rate in rates):
        return f"references: expected rates from {SLOWEST:g} to {FASTEST:g} bytes per second, or 0"
    ends = found.ends
    number, nodes = len(ends.node), len(ends.nodes)
    if len(ends.slot) != number or not all(0 <= node < nodes for node in ends.node):
        return f"ends: expected a node of {nodes} and a slot for each of {number}"
    columns = [*ends.classes.values(), *([ends.leaves] if ends.leaves is not None else [])]
    if any(len(column) != nodes for column in columns):
        return f"ends: expected a leaf and a value of each class for each of {nodes} nodes"
    named = [end for culprit in found.culprits for one in (culprit, *culprit.candidates) for end in one.ends]
    named += [end for ask in found.asks for end in (ask.a, ask.b)]
    wrong = next((end for end in named if not 0 <= end < number), None)
    return None if wrong is None else f"end {wrong}: there are {number}"
