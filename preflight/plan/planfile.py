"""Reads a plan file: TOML, every section and key known, every value of the right kind and within reason.

What is refused is refused with file, section and key, the value, what was expected, and for a misspelt name the nearest known one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from preflight.errors import ConfigError
from preflight.formats import read_toml, readable
from preflight.model import Hardware, Job, Launch, ModelShape, Parallel, Training
from preflight.model.hostlist import unfold
from preflight.plan.layout import ORDERS
from preflight.plan.plankeys import FIELDS, SECTIONS
from preflight.plan.refusals import read_value, refuse_unknown
from preflight.plan.rules import read_rules
from preflight.plan.shape import count_parameters
from preflight.plan.values import show

# parameters are given rounded ("70B" for 70.55e9), and may count what a shape doesn't tell; more is another model
MAX_PARAMETERS_OFF = 0.2


def read_job(path: str | Path, *, need_layout: bool = True) -> Job:
    """The job that a plan file describes. Raises ConfigError. `need_layout` False: it may leave the degrees to us."""
    return job_of(read_toml(path), readable(str(path)), need_layout=need_layout)


def job_of(document: Mapping[str, Any], source: str, *, need_layout: bool = True) -> Job:
    """The job that the content of a plan file describes. `source`: for messages, and where relative paths begin. Raises ConfigError."""
    refuse_unknown(source, None, document, [*SECTIONS, "rules"], "section")
    model, parallel, training, hardware, launch = (_read_section(source, name, document) for name in SECTIONS)
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
    hardware = {FIELDS.get(key, key): value for key, value in hardware.items()}
    if "node_mtbf_hours" in hardware:
        hardware["node_mtbf_s"] = hardware.pop("node_mtbf_hours") * 3600
    return Job(
        source=source,
        model=_read_model(source, model),
        parallel=Parallel(**parallel),
        training=Training(**training),
        hardware=Hardware(**hardware),
        launch=_read_launch(source, launch),
        rules=read_rules(source, document.get("rules", {})),
    )


def _read_model(source: str, model: dict[str, Any]) -> ModelShape:
    """The model; parameters counted from the shape where the file doesn't give them."""
    for part, whole_key in (("dense_layers", "layers"), ("experts_per_token", "experts")):
        if whole_key in model and model.get(part, 0) > model[whole_key]:
            raise ConfigError(source, f"{model[part]} is more than {whole_key} {model[whole_key]}", key=f"model.{part}")
    given = model.get("parameters")
    shape = ModelShape(**{**model, "parameters": given or 1})
    counted = count_parameters(shape)
    if given is not None:
        if counted is not None and abs(given / counted - 1) > MAX_PARAMETERS_OFF:
            raise ConfigError(
                source,
                f"{given / 1e9:.4g}e9, but the shape amounts to {counted / 1e9:.4g}e9",
                key="model.parameters",
                remedy="correct one of them, or leave parameters out: they are counted from the shape",
            )
        return shape
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


def _read_section(source: str, name: str, document: Mapping[str, Any]) -> dict[str, Any]:
    section = document.get(name, {})
    if not isinstance(section, dict):
        raise ConfigError(source, f"{show(section)} is not a section", key=name, remedy=f"begin it with [{name}]")
    readers = SECTIONS[name]
    refuse_unknown(source, name, section, readers, "key")
    return {key: read_value(source, f"{name}.{key}", readers[key], value) for key, value in section.items()}


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
