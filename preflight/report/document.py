"""One run as one JSON document, `"schema": "preflight.report/1"`: saved by rename, loaded strictly."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from preflight.errors import ConfigError
from preflight.formats import read_bytes, write_atomically
from preflight.model import SCHEMA, Measurement, Noun, Report, from_json, to_json
from preflight.model.possible import impossible_nodes

T = TypeVar("T")


class _Header(Noun, frozen=True, kw_only=True):
    schema: Any = None


def save_report(report: Report, path: str | Path) -> None:
    """Write the report; an older file stays until the new one is complete. Raises WorldError (disk full, no permission)."""
    write_atomically(path, to_json(report))


def load_report(path: str | Path) -> Report:
    """A saved report. Raises ConfigError: not readable, truncated, not JSON, another schema, figures that can't be."""
    source = str(path)
    data = read_bytes(path)
    header = _decode(source, data, _Header)
    if header.schema != SCHEMA:
        found = "is no saved run: it has no schema" if header.schema is None else f"has schema {header.schema!r}"
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
    for number, measurement in enumerate(report.evidence.measurements or ()):
        problem = _impossible(measurement)
        if problem:
            raise ConfigError(source, problem, key=f"evidence.measurements[{number}]")
    return report


def _decode(source: str, data: bytes, kind: type[T]) -> T:
    try:
        return from_json(data, kind)
    except msgspec.DecodeError as error:
        raise ConfigError(
            source,
            f"is not a saved run: {error}",
            remedy="give the report.json of `preflight run`, whole and unchanged",
        ) from error
    except RecursionError as error:
        raise ConfigError(source, "is nested too deeply") from error


def _impossible(measurement: Measurement) -> str | None:
    """Why a measurement can't be one; None if it can. Types alone don't exclude these, and the formulas rely on them."""
    probe = measurement.probe
    if len(set(probe.ranks)) < 2 or len(set(probe.ranks)) < len(probe.ranks) or min(probe.ranks) < 0:
        return f"ranks {list(probe.ranks)}: expected two or more different ranks"
    if probe.size_bytes <= 0:
        return f"size_bytes {probe.size_bytes}: expected a positive number"
    times_s = [time for samples in measurement.samples for time in samples.durations_s]
    if any(time <= 0 for time in times_s):
        return "durations_s: expected positive seconds"
    return None
