"""run_config.yaml of Megatron-Bridge, and the configuration of NeMo: the options of Megatron-LM in snake case, spread over sections.

Class tags and _target_ entries are read as plain text; nothing is ever built from them.
"""

import re
from collections.abc import Mapping
from typing import Any

from preflight.plan.importers.facts import Fact, Facts, Options
from preflight.plan.importers.megatron import read_megatron
from preflight.plan.importers.megatron_names import ALIASES
from preflight.plan.importers.tree import Lines, leaves

# sections whose word counts first, where the same name stands in several
_SECTIONS = (
    "model",
    "train",
    "ddp",
    "optimizer",
    "dist",
    "dataset",
    "data",
    "strategy",
    "config",
    "comm_overlap",
    "mixed_precision",
)
_MARKERS = ("tensor_model_parallel_size", "pipeline_model_parallel_size")
# names that mean something else than the option of the same name in arguments.py
_PRECISIONS = {"bf16": "bf16", "bfloat16": "bf16", "16": "fp16", "fp16": "fp16", "32": "fp32", "fp32": "fp32"}
_OTHERS = {"name", "fp8_param", "fp8_param_gather", "world_size", "rank"}


def is_bridge(document: Mapping[str, Any]) -> bool:
    """Whether a YAML file is a configuration of that kind."""
    return any(path[-1] in _MARKERS for path, _ in leaves(document) if path)


def read_bridge(document: Mapping[str, Any], lines: Lines) -> Facts:
    """What the configuration says. Raises ConfigError for values that are none."""
    facts = Facts()
    said: dict[str, Fact] = {}
    ranks: dict[str, int] = {}
    for path, value in leaves(document):
        name = path[-1] if path else ""
        if value is None or name in _OTHERS or name.startswith("_"):
            continue
        option, rank = ALIASES.get(name, name), _rank(path)
        before = said.get(option)
        if before and before.value != value and rank == ranks[option]:
            facts.note(f"{before.origin} goes before {lines.origin(path, value)}")
        if before is None or rank < ranks[option]:
            said[option], ranks[option] = Fact(value, lines.origin(path, value)), rank
    _read_nemo(document, lines, said, facts)
    for name in ("nodes", "num_nodes"):
        if name in said:
            facts.take("hardware.nodes", Options(said, "").number(name))
    devices = said.get("devices")
    if devices and str(devices.value).isdigit():
        facts.take("hardware.gpus_per_node", Options(said, "").number("devices"))
    if "grad_reduce_in_fp32" not in said and "accumulate_allreduce_grads_in_fp32" not in said:
        facts.note(f"{lines.name}: bytes of a gradient are not said (ddp.grad_reduce_in_fp32)")
    read_megatron(Options(said, f"{lines.name} default of Megatron-Core's config class"), facts, lines.name)
    return facts


def _read_nemo(document: Mapping[str, Any], lines: Lines, said: dict[str, Fact], facts: Facts) -> None:
    """What NeMo says in words of its own: the precision of Lightning's trainer or its plugin ("bf16-mixed", 16), and the optimizer by name, where
    "distributed_fused_adam" is Megatron's distributed optimizer. Megatron-Bridge names a recipe: mixed_precision: bf16_mixed.
    """
    for path, value in leaves(document):
        origin = lines.origin(path, value) if path else ""
        if path and path[-1] in {"precision", "mixed_precision"} and isinstance(value, str | int):
            word = _PRECISIONS.get(re.split(r"[-_]", str(value).lower())[0])
            if word is None:
                facts.note(f"{origin}: is no precision that is known here")
            elif not {"bf16", "fp16", "params_dtype"} & set(said):
                said["bf16"], said["fp16"] = (Fact(word == name, origin) for name in ("bf16", "fp16"))
        elif path[-2:] == ("optim", "name") and isinstance(value, str):
            said.setdefault("optimizer", Fact(value, origin))
            if "distributed" in value:
                said.setdefault("use_distributed_optimizer", Fact(True, origin))


def _rank(path: tuple[str, ...]) -> int:
    """How much a place counts: smaller is more. The length of the training's sequences is the data's; the model's may be all that it can."""
    if "seq" in path[-1] and ("dataset" in path or "data" in path):
        return -1
    at = [_SECTIONS.index(part) for part in path[:-1] if part in _SECTIONS]
    return min(at, default=len(_SECTIONS)) * 20 + len(path)
