"""DeepSpeed's JSON. Source of names and defaults: DeepSpeed, runtime/config.py and runtime/engine.py.

What follows from other files (the optimizer of bf16 training, the third of the three batch sizes) is left to `resolve`.
"""

import re
from collections.abc import Mapping
from typing import Any

from preflight.plan.importers.facts import Fact, Facts, Options
from preflight.plan.importers.tree import Lines, options_of

_KEYS = {
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "zero_optimization",
    "steps_per_print",
}
_RELATED = re.compile(
    r"^(zero_optimization\.(zero_hpz|zero_quantized|mics|offload_param|stage3_max|stage3_prefetch|reduce_bucket|allgather_bucket|overlap_comm)"
    r"|sequence_parallel|activation_checkpointing|communication_data_type|pipeline|compression|curriculum|flops_profiler\.enabled|hybrid_engine)"
)


def is_deepspeed(document: Mapping[str, Any]) -> bool:
    """Whether a JSON file is a configuration of DeepSpeed."""
    return bool(_KEYS & set(document)) or (bool({"bf16", "fp16"} & set(document)) and "optimizer" in document)


def read_deepspeed(document: Mapping[str, Any], lines: Lines) -> Facts:
    """What the configuration says. Raises ConfigError for values that are none."""
    facts, options = Facts(), options_of(document, lines, "DeepSpeed")
    facts.say("parallel.framework", "deepspeed", f"{lines.name} is of DeepSpeed")
    _read_batch(options, facts, lines.name)
    _read_zero(options, facts)
    if str(options.said.get("zero_optimization.overlap_comm", Fact("auto", "")).value).lower() != "auto":
        facts.take("training.overlap_gradients", options.flag("zero_optimization.overlap_comm"))
    _read_precision(options, facts)
    facts.take("parallel.tp", _number(options, facts, "tensor_parallel.autotp_size"))
    facts.take("parallel.ep", _number(options, facts, "expert_parallel.autoep_size"))
    facts.take("parallel.etp", _number(options, facts, "expert_parallel.expert_tensor_parallel_size"))
    for name in ("use_data_before_expert_parallelism", "expert_parallel.use_data_before_expert_parallelism"):
        if options.on(name):
            facts.say("parallel.data_before_expert", True, options.said[name].origin)
    optimizer = options.word("optimizer.type")
    if optimizer:
        known = next((known for known in ("muon", "adam", "sgd") if known in optimizer.value), None)
        facts.say("training.optimizer", known, optimizer.origin)
    rest = list(options.rest(_RELATED))
    if rest:
        facts.note(f"{lines.name}: seen, and no key of a plan file says it: {', '.join(rest[:30])}")
    return facts


def _number(options: Options, facts: Facts, name: str) -> Fact | None:
    """A number that may be "auto": then the program that reads the file fills it in, and nothing is said."""
    fact = options.raw(name)
    if fact and str(fact.value).strip().lower() == "auto":
        facts.note(f"{fact.origin}: the program that reads the file fills it in")
        return None
    return options.number(name)


def _read_batch(options: Options, facts: Facts, where: str) -> None:
    whole_batch = _number(options, facts, "train_batch_size")
    micro = _number(options, facts, "train_micro_batch_size_per_gpu")
    steps = _number(options, facts, "gradient_accumulation_steps")
    facts.take("training.global_batch_size", whole_batch)
    facts.take("training.micro_batch_size", micro)
    facts.take("said.accumulation", steps)
    unsaid = not any(options.raw(name) for name in ("gradient_accumulation_steps",))
    if (micro is None) != (
        whole_batch is None
    ) and unsaid:  # the third follows only if one more is fixed: DeepSpeed takes 1
        facts.say("said.accumulation", 1, f"{where} default of DeepSpeed: gradient_accumulation_steps", default=True)


def _read_zero(options: Options, facts: Facts) -> None:
    facts.take("said.zero_stage", options.number("zero_optimization.stage", default=0))
    device = options.word("zero_optimization.offload_optimizer.device")
    if device and device.value in {"cpu", "nvme"}:
        facts.say("training.offload_optimizer", True, device.origin)
        if device.value == "nvme":
            facts.note(f"{device.origin}: the plan knows offloading to host memory only")
    elif options.on("zero_optimization.cpu_offload"):
        facts.say("training.offload_optimizer", True, options.said["zero_optimization.cpu_offload"].origin)


def _read_precision(options: Options, facts: Facts) -> None:
    for name, word in (("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16")):
        enabled = options.raw(f"{name}.enabled")
        if enabled and str(enabled.value).lower() == "auto":
            facts.note(f"{enabled.origin}: the program that reads the file fills it in")
            options.unknown |= {"precision"}
        elif enabled and options.on(f"{name}.enabled"):
            facts.say("training.precision", word, enabled.origin)
    if "training.precision" not in facts.values:
        facts.take("training.precision", options.default("fp32", "precision"))
    kept = options.word("data_types.grad_accum_dtype")
    size = (
        {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}.get(kept.value) if kept else None
    )
    if kept and size:
        facts.say("training.gradient_bytes", size, kept.origin)
