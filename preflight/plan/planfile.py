"""Reads a plan file: TOML, every section and key known, every value of the right kind and within reason.

What is refused is refused with file, section and key, the value, what was expected, and for a misspelt name the nearest known one.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec

from preflight.errors import ConfigError
from preflight.formats import read_toml, readable
from preflight.model import (
    Attention,
    Backend,
    Framework,
    Hardware,
    Job,
    Launch,
    Launcher,
    ModelShape,
    Need,
    Optimizer,
    Parallel,
    Precision,
    Recompute,
    Rule,
    Schedule,
    Severity,
    Training,
)
from preflight.model.hostlist import unfold
from preflight.plan.layout import MAX_WORLD_SIZE, ORDERS
from preflight.plan.shape import count_parameters
from preflight.plan.values import (
    Reader,
    WrongValueError,
    count,
    decimal,
    flag,
    from_zero,
    one_of,
    rate,
    show,
    size,
    text,
    whole,
    wholes,
)

# upper bounds are a hundred times and more what exists: they catch a misplaced zero and keep sums small
_DEGREE, _WIDTH = whole(MAX_WORLD_SIZE), whole(10**7)
_SECTIONS: dict[str, dict[str, Reader]] = {
    "model": {
        "parameters": count(10**15),
        "layers": whole(100_000),
        "hidden_size": _WIDTH,
        "ffn_size": _WIDTH,
        "attention_heads": _WIDTH,
        "kv_heads": _WIDTH,
        "head_dim": _WIDTH,
        "vocab_size": whole(10**8),
        "positions": from_zero(10**9),
        "gated_mlp": flag,
        "dropout": flag,
        "tied_embeddings": flag,
        "experts": whole(10**6),
        "experts_per_token": whole(10**6),
        "expert_ffn_size": _WIDTH,
        "shared_ffn_size": from_zero(10**7),
        "dense_layers": from_zero(100_000),
        "kv_lora_rank": _WIDTH,
        "q_lora_rank": _WIDTH,
        "qk_nope_head_dim": _WIDTH,
        "qk_rope_head_dim": _WIDTH,
        "v_head_dim": _WIDTH,
        "mtp_layers": from_zero(100),
    },
    "parallel": {
        "framework": one_of(*get_args(Framework)),
        "order": text,
        "tp": _DEGREE,
        "cp": _DEGREE,
        "ep": _DEGREE,
        "etp": _DEGREE,
        "dp": _DEGREE,
        "pp": _DEGREE,
        "dp_replicate": _DEGREE,
        "dp_shard": _DEGREE,
        "virtual_stages": whole(100_000),
        "schedule": one_of(*get_args(Schedule)),
        "zero_stage": from_zero(3),
        "sequence_parallel": flag,
        "optimizer_instances": _DEGREE,
        "hierarchical_cp": wholes(MAX_WORLD_SIZE),
        "data_before_expert": flag,
        "auto_ep": flag,
        "reshard_after_forward": flag,
        "embedding_as_layer": flag,
        "scatter_gather": flag,
        "ep_needs_domain": flag,
    },
    "training": {
        "micro_batches": whole(10**9),
        "global_batch_size": whole(10**12),
        "micro_batch_size": whole(10**9),
        "seq_length": count(10**12),
        "precision": one_of(*get_args(Precision)),
        "optimizer": one_of(*get_args(Optimizer)),
        "gradient_bytes": whole(8),
        "moment_bytes": whole(16),
        "recompute": one_of(*get_args(Recompute)),
        "attention": one_of(*get_args(Attention)),
        "fused_loss": flag,
        "capacity_factor": decimal(1, 1000),
        "expert_skew": decimal(1, 1_000_000),
        "dispatch_bytes": whole(8),
        "dispatch_once_per_node": flag,
        "compiled": flag,
        "compiled_loss": flag,
        "offload_optimizer": flag,
        "overlap_tp": flag,
        "overlap_gradients": flag,
        "overlap_parameters": flag,
    },
    "hardware": {
        "nodes": whole(MAX_WORLD_SIZE),
        "gpus_per_node": whole(1024),
        "gpu": text,
        "gpu_memory": size(10**15, low=10**9),
        "backend": one_of(*get_args(Backend)),
        "nodes_per_nvlink_domain": whole(1024),
        "nvlink_bandwidth": rate(10**15),
        "nic_bandwidth": rate(10**15),
        "checkpoint_bandwidth": rate(10**18),
        "node_mtbf_hours": decimal(0.001, 10**9),
    },
    "launch": {
        "launcher": one_of(*get_args(Launcher)),
        "hosts": text,
        "distribution": text,
        "tasks_per_node": text,
        "hostfile": text,
        "rendezvous": one_of("c10d", "static"),
        "segment": whole(MAX_WORLD_SIZE),
        "master": text,
        "visible_devices": text,
        "slurm_version": text,
        "topology": text,
    },
}
# the key of a plan file -> the field it becomes, where the names differ: a file says "80GB", a field says its unit
_FIELDS = {
    "gpu_memory": "gpu_memory_bytes",
    "nvlink_bandwidth": "nvlink_bytes_per_s",
    "nic_bandwidth": "nic_bytes_per_s",
    "checkpoint_bandwidth": "checkpoint_bytes_per_s",
}
_RULE_KEYS = ("severity", "need", "limits")


def read_job(path: str | Path, *, need_layout: bool = True) -> Job:
    """The job that a plan file describes. Raises ConfigError. `need_layout` False: it may leave the degrees to us."""
    return job_of(read_toml(path), readable(str(path)), need_layout=need_layout)


def job_of(document: Mapping[str, Any], source: str, *, need_layout: bool = True) -> Job:
    """The job that the content of a plan file describes. `source`: for messages, and where relative paths begin. Raises ConfigError."""
    _refuse_unknown(source, None, document, [*_SECTIONS, "rules"], "section")
    model, parallel, training, hardware, launch = (_read_section(source, name, document) for name in _SECTIONS)
    if "layers" not in model:
        raise ConfigError(source, "is missing", key="model.layers", remedy="write layers = 80 under [model]")
    if need_layout and "parallel" not in document:
        raise ConfigError(
            source,
            "is missing",
            key="parallel",
            remedy="write the degrees under [parallel], as in tp = 8, or let `preflight plan --advise` propose layouts",
        )
    if "order" in parallel:
        parallel["order"] = _read_order(source, parallel["order"], ORDERS[parallel.get("framework", "megatron")])
    if need_layout and "global_batch_size" in training and "micro_batch_size" not in training:
        raise ConfigError(
            source,
            "is missing, and global_batch_size means nothing without it",
            key="training.micro_batch_size",
            remedy="write micro_batch_size = 1 under [training], or give micro_batches in place of global_batch_size",
        )
    hardware = {_FIELDS.get(key, key): value for key, value in hardware.items()}
    if "node_mtbf_hours" in hardware:
        hardware["node_mtbf_s"] = hardware.pop("node_mtbf_hours") * 3600
    return Job(
        source=source,
        model=_read_model(source, model),
        parallel=Parallel(**parallel),
        training=Training(**training),
        hardware=Hardware(**hardware),
        launch=_read_launch(source, launch),
        rules=_read_rules(source, document.get("rules", {})),
    )


def _read_model(source: str, model: dict[str, Any]) -> ModelShape:
    """The model; parameters counted from the shape where the file doesn't give them."""
    for part, whole_key in (("dense_layers", "layers"), ("experts_per_token", "experts")):
        if whole_key in model and model.get(part, 0) > model[whole_key]:
            raise ConfigError(
                source, f"{model[part]} is more than {whole_key} {model[whole_key]}", key=f"model.{part}"
            )
    if "parameters" in model:
        return ModelShape(**model)
    shape = ModelShape(parameters=1, **model)
    counted = count_parameters(shape)
    if counted is None:
        raise ConfigError(
            source,
            "is missing, and the shape doesn't give it either",
            key="model.parameters",
            remedy='write parameters = "70B" under [model], or hidden_size, ffn_size, attention_heads and vocab_size',
        )
    return msgspec.structs.replace(shape, parameters=counted)


def _read_launch(source: str, launch: dict[str, Any]) -> Launch:
    if "hosts" in launch:
        try:
            launch["hosts"] = tuple(unfold(launch["hosts"]))
        except ValueError as error:
            raise ConfigError(source, str(error), key="launch.hosts", remedy='write it as in "n[01-08]"') from error
    for key in ("hostfile", "topology"):  # beside the plan file, as a person who writes it expects
        if key in launch:
            launch[key] = str(Path(source).parent / launch[key])
    return Launch(**launch)


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
    """The axes of an order such as "tp-cp-ep-dp-pp", each at most once; dp is short for dp_shard-dp_replicate."""
    axes = tuple(given.split("-"))
    known = {*default, "dp"}
    if len(set(axes)) != len(axes) or not set(axes) <= known:
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
