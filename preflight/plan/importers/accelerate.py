"""Configuration of Hugging Face accelerate: its YAML, and PARALLELISM_CONFIG_* variables. Source: accelerate, commands/config and utils/dataclasses.py."""

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from preflight.plan.importers.facts import Fact, Facts, Options
from preflight.plan.importers.tree import Lines, options_of

_KEYS = {
    "compute_environment",
    "distributed_type",
    "fsdp_config",
    "deepspeed_config",
    "parallelism_config",
    "num_machines",
}
_SIZES = {
    "dp_replicate": "parallel.dp_replicate",
    "dp_shard": "parallel.dp_shard",
    "tp": "parallel.tp",
    "cp": "parallel.cp",
}
_SHARDING = {
    "full_shard": 3,
    "1": 3,
    "shard_grad_op": 2,
    "2": 2,
    "no_shard": 0,
    "3": 0,
    "hybrid_shard": 3,
    "4": 3,
    "hybrid_shard_zero2": 2,
    "5": 2,
}
_FRAMEWORKS = {"fsdp": "fsdp", "deepspeed": "deepspeed", "megatron_lm": "megatron", "multi_gpu": "fsdp"}


def is_accelerate(document: Mapping[str, Any]) -> bool:
    """Whether a YAML file is a configuration of accelerate."""
    return len(_KEYS & set(document)) >= 2 or "parallelism_config" in document


def read_accelerate(document: Mapping[str, Any], lines: Lines) -> Facts:
    """What the configuration says. Raises ConfigError for values that are none."""
    facts, options = Facts(), options_of(document, lines, "accelerate")
    kind = options.word("distributed_type")
    if kind and kind.value in _FRAMEWORKS:
        facts.say("parallel.framework", _FRAMEWORKS[kind.value], kind.origin)
    elif kind:
        facts.note(f"{kind.origin}: has no word in a plan file")
    _read_machines(options, facts, lines.name)
    precision = options.word("mixed_precision")
    if precision:
        word = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "no": "fp32"}.get(precision.value)
        facts.say("training.precision", word, precision.origin)
    facts.take("said.accumulation", options.number("gradient_accumulation_steps"))
    word = kind.value if kind else ""
    if word == "fsdp":
        _read_fsdp(options, facts)
    elif kind and word == "multi_gpu":
        facts.say("parallel.zero_stage", 0, kind.origin)
    elif word == "deepspeed":
        _read_deepspeed(options, facts)
    elif word == "megatron_lm":
        facts.take("parallel.tp", options.number("megatron_lm_config.megatron_lm_tp_degree"))
        facts.take("parallel.pp", options.number("megatron_lm_config.megatron_lm_pp_degree"))
    prefix = "parallelism_config."
    sizes = {name.removeprefix(prefix): fact for name, fact in options.said.items() if name.startswith(prefix)}
    read_sizes(sizes, facts)
    return facts


def _read_machines(options: Options, facts: Facts, where: str) -> None:
    machines, processes = options.number("num_machines", default=1), options.number("num_processes")
    facts.take("hardware.nodes", machines)
    facts.take("said.world_size", processes)
    if machines and processes and machines.value > 0 and processes.value % machines.value == 0:
        facts.say("hardware.gpus_per_node", processes.value // machines.value, processes.origin)
    facts.say("launch.launcher", "torchrun", f"{where}: accelerate starts workers as torchrun does", default=True)
    rendezvous = options.word("rdzv_backend", default="static")
    if rendezvous and rendezvous.value in {"static", "c10d"}:
        facts.take("launch.rendezvous", rendezvous)


def _read_fsdp(options: Options, facts: Facts) -> None:
    """Version 1 names a strategy, version 2 says whether weights are given back after the forward pass."""
    strategy = options.word("fsdp_config.fsdp_sharding_strategy")
    reshard = options.word("fsdp_config.fsdp_reshard_after_forward")
    stage = _SHARDING.get(strategy.value) if strategy else None
    if strategy and stage is not None:
        facts.say("parallel.zero_stage", stage, strategy.origin)
        if strategy.value.startswith("hybrid") or strategy.value in {"4", "5"}:
            facts.say("said.hybrid_shard", True, strategy.origin)
    elif reshard and reshard.value in {"true", "false"}:
        facts.say("parallel.zero_stage", 3, reshard.origin)
        facts.say("parallel.reshard_after_forward", reshard.value == "true", reshard.origin)
    elif reshard and reshard.value in _SHARDING:
        facts.say("parallel.zero_stage", _SHARDING[reshard.value], reshard.origin)
    else:
        facts.take("parallel.zero_stage", options.default(3))
    if options.on("fsdp_config.fsdp_activation_checkpointing"):
        facts.say("training.recompute", "full", options.said["fsdp_config.fsdp_activation_checkpointing"].origin)
    if options.on("fsdp_config.fsdp_offload_params"):
        facts.say("training.offload_optimizer", True, options.said["fsdp_config.fsdp_offload_params"].origin)


def _read_deepspeed(options: Options, facts: Facts) -> None:
    file = options.raw("deepspeed_config.deepspeed_config_file")
    if file:
        facts.say("wants." + PurePath(str(file.value)).name, True, file.origin)
    else:
        facts.take("said.zero_stage", options.number("deepspeed_config.zero_stage"))
        facts.take("said.accumulation", options.number("deepspeed_config.gradient_accumulation_steps"))
    device = options.word("deepspeed_config.offload_optimizer_device")
    if device and device.value in {"cpu", "nvme"}:
        facts.say("training.offload_optimizer", True, device.origin)
    hostfile = options.raw("deepspeed_config.deepspeed_hostfile")
    if hostfile:
        facts.say("wants." + PurePath(str(hostfile.value)).name, True, hostfile.origin)


def read_sizes(sizes: Mapping[str, Fact], facts: Facts) -> None:
    """PARALLELISM_CONFIG_DP_SHARD_SIZE and the like: names in either case, with or without the prefix."""
    named = {
        re.sub(r"^parallelism_config_", "", name.lower()).removesuffix("_size"): fact for name, fact in sizes.items()
    }
    options = Options(named, "")
    for name, key in _SIZES.items():
        facts.take(key, options.number(name))
    sp = options.number("sp")
    if sp and sp.value > 1:
        facts.note(f"{sp.origin}: sequence parallelism by all-to-all has no word in a plan file")
    if any(name in named for name in _SIZES):
        facts.say("parallel.framework", "fsdp", next(iter(named.values())).origin, default=True)
