"""Reads a plan file: TOML, every section and key known, every value of the right kind and within reason.

What is refused is refused with file, section and key, the value, what was expected, and for a misspelt name the nearest known one.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from preflight.errors import ConfigError
from preflight.formats import read_toml, readable
from preflight.model import Backend, Hardware, Job, ModelShape, Need, Parallel, Rule, Severity, Training
from preflight.plan.layout import MAX_WORLD_SIZE, ORDERS
from preflight.plan.values import Reader, WrongValueError, count, one_of, show, size, text, whole

# upper bounds are a hundred times and more what exists: they catch a misplaced zero and keep sums small
_SECTIONS: dict[str, dict[str, Reader]] = {
    "model": {
        "parameters": count(10**15),
        "layers": whole(100_000),
        "hidden_size": whole(10**7),
    },
    "parallel": {
        "framework": one_of(*ORDERS),
        "order": text,
        "tp": whole(MAX_WORLD_SIZE),
        "cp": whole(MAX_WORLD_SIZE),
        "ep": whole(MAX_WORLD_SIZE),
        "etp": whole(MAX_WORLD_SIZE),
        "dp": whole(MAX_WORLD_SIZE),
        "pp": whole(MAX_WORLD_SIZE),
        "virtual_stages": whole(100_000),
    },
    "training": {
        "micro_batches": whole(10**9),
        "global_batch_size": whole(10**12),
        "micro_batch_size": whole(10**9),
        "seq_length": count(10**12),
    },
    "hardware": {
        "nodes": whole(MAX_WORLD_SIZE),
        "gpus_per_node": whole(1024),
        "gpu": text,
        "gpu_memory": size(10**15, low=10**9),
        "backend": one_of(*get_args(Backend)),
    },
}
_RULE_KEYS = ("severity", "need", "limits")


def read_job(path: str | Path) -> Job:
    """The job that a plan file describes. Raises ConfigError."""
    source = readable(str(path))
    document = read_toml(path)
    _refuse_unknown(source, None, document, [*_SECTIONS, "rules"], "section")
    model, parallel, training, hardware = (_read_section(source, name, document) for name in _SECTIONS)
    for key in ("parameters", "layers"):
        if key not in model:
            example = {"parameters": '"70B"', "layers": "80"}[key]
            raise ConfigError(source, "is missing", key=f"model.{key}", remedy=f"write {key} = {example} under [model]")
    if "parallel" not in document:
        raise ConfigError(
            source, "is missing", key="parallel", remedy="write the degrees under [parallel], as in tp = 8"
        )
    if "order" in parallel:
        parallel["order"] = _read_order(source, parallel["order"], ORDERS[parallel.get("framework", "megatron")])
    if "global_batch_size" in training and "micro_batch_size" not in training:
        raise ConfigError(
            source,
            "is missing, and global_batch_size means nothing without it",
            key="training.micro_batch_size",
            remedy="write micro_batch_size = 1 under [training], or give micro_batches in place of global_batch_size",
        )
    if "gpu_memory" in hardware:
        hardware["gpu_memory_bytes"] = hardware.pop("gpu_memory")
    return Job(
        source=source,
        model=ModelShape(**model),
        parallel=Parallel(**parallel),
        training=Training(**training),
        hardware=Hardware(**hardware),
        rules=_read_rules(source, document.get("rules", {})),
    )


def check_rules(job: Job, known: Mapping[str, Mapping[str, float]]) -> None:
    """Raises ConfigError if `[rules]` names a check or a limit that isn't there. `known`: check -> its limits."""
    for name, rule in job.rules.items():
        _refuse_unknown(job.source, "rules", [name], known, "check")
        _refuse_unknown(job.source, f"rules.{name}.limits", rule.limits, known[name], "limit")


def _read_section(source: str, name: str, document: Mapping[str, Any]) -> dict[str, Any]:
    section = document.get(name, {})
    if not isinstance(section, dict):
        raise ConfigError(source, f"{show(section)} is not a section", key=name, remedy=f"begin it with [{name}]")
    readers = _SECTIONS[name]
    _refuse_unknown(source, name, section, readers, "key")
    return {key: _read(source, f"{name}.{key}", readers[key], value) for key, value in section.items()}


def _read(source: str, key: str, reader: Reader, value: object) -> Any:
    try:
        return reader(value)
    except WrongValueError as error:
        raise ConfigError(source, f"{show(value)} is not {error.expected}", key=key) from None


def _read_order(source: str, given: str, default: tuple[str, ...]) -> tuple[str, ...]:
    """The axes of an order such as "tp-cp-ep-dp-pp", each at most once."""
    axes = tuple(given.split("-"))
    if len(set(axes)) != len(axes) or not set(axes) <= set(default):
        raise ConfigError(
            source,
            f"{show(given)} is not a list of axes, each at most once, innermost first",
            key="parallel.order",
            remedy=f"write it as in {'-'.join(default)!r}",
        )
    return axes


def _read_rules(source: str, rules: object) -> dict[str, Rule]:
    if not isinstance(rules, dict):
        raise ConfigError(source, f"{show(rules)} is not a section", key="rules", remedy="begin it with [rules]")
    return {name: _read_rule(source, f"rules.{name}", value) for name, value in rules.items()}


def _read_rule(source: str, key: str, value: object) -> Rule:
    """A rule is one word (a severity or a need), or a table of severity, need and limits."""
    severities, needs = get_args(Severity), get_args(Need)
    if not isinstance(value, dict):
        word = _read(source, key, one_of(*severities, *needs, other="a table with severity, need or limits"), value)
        return Rule(severity=word) if word in severities else Rule(need=word)
    _refuse_unknown(source, key, value, _RULE_KEYS, "key")
    limits = value.get("limits", {})
    if not isinstance(limits, dict):
        raise ConfigError(source, f"{show(limits)} is not a table of limit = number", key=f"{key}.limits")
    return Rule(
        severity=_read(source, f"{key}.severity", one_of(*severities), value["severity"])
        if "severity" in value
        else None,
        need=_read(source, f"{key}.need", one_of(*needs), value["need"]) if "need" in value else None,
        limits={name: _read(source, f"{key}.limits.{name}", _number, limit) for name, limit in limits.items()},
    )


def _number(value: object) -> float:
    """A limit: any finite number."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise WrongValueError("a finite number")


def _refuse_unknown(source: str, parent: str | None, given: Iterable[str], known: Iterable[str], what: str) -> None:
    names = list(known)
    for name in given:
        if name not in names:
            key = f"{parent}.{show_name(name)}" if parent else show_name(name)
            listed = f"known: {', '.join(names)}" if names else f"it has no {what}s"
            raise ConfigError(source, f"unknown {what}{nearest(name, names)}", key=key, remedy=listed)


def show_name(name: str) -> str:
    """A key for a message: as it is if it is a plain name, else quoted and shortened."""
    return name if name.isidentifier() and len(name) <= 60 else show(name)


def nearest(name: str, known: Iterable[str]) -> str:
    """The nearest known name as a question to append, empty if none is near."""
    import difflib

    close = difflib.get_close_matches(name[:100], known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
