"""Configuration of nanotron (YAML). Source of names: nanotron, config/parallelism_config.py and config/config.py."""

from collections.abc import Mapping
from typing import Any

from preflight.plan.importers.facts import Facts
from preflight.plan.importers.huggingface import read_shape
from preflight.plan.importers.tree import Lines, options_of

_ENGINES = {"1f1b": "1f1b", "onefoneb": "1f1b", "afab": "gpipe", "allforwardallbackward": "gpipe"}


def is_nanotron(document: Mapping[str, Any]) -> bool:
    """Whether a YAML file is a configuration of nanotron."""
    parallelism = document.get("parallelism")
    return isinstance(parallelism, Mapping) and {"dp", "tp", "pp"} <= set(parallelism)


def read_nanotron(document: Mapping[str, Any], lines: Lines) -> Facts:
    """What the configuration says. Raises ConfigError for values that are none. Axes are tp, cp, dp, pp from the inside, as Megatron's."""
    facts, options = Facts(), options_of(document, lines, "nanotron")
    facts.say(
        "parallel.framework",
        "megatron",
        f"{lines.name} is of nanotron, whose order tp-cp-dp-pp is Megatron-LM's",
        default=True,
    )
    for axis in ("tp", "pp", "dp"):
        facts.take(f"parallel.{axis}", options.number(f"parallelism.{axis}"))
    facts.take("parallel.cp", options.number("parallelism.context_parallel_size", default=1))
    experts = options.number("parallelism.expert_parallel_size", default=1)
    if experts and experts.value > 1:
        facts.take("parallel.ep", experts)
        facts.note(f"{experts.origin}: nanotron's own size check leaves it out and then fails to lay out the ranks")
    engine = options.word("parallelism.pp_engine")
    if engine:
        facts.say("parallel.schedule", _ENGINES.get(engine.value.replace("_", "")), engine.origin)
    mode = options.word("parallelism.tp_mode")
    if mode and (facts.get("parallel.tp") or 1) > 1:
        facts.say("parallel.sequence_parallel", "reduce_scatter" in mode.value, mode.origin)
    facts.take("training.micro_batch_size", options.number("tokens.micro_batch_size"))
    facts.take("training.micro_batches", options.number("tokens.batch_accumulation_per_replica", default=1))
    facts.take("training.seq_length", options.number("tokens.sequence_length"))
    facts.take("parallel.zero_stage", options.number("optimizer.zero_stage"))
    kept = options.flag("optimizer.accumulate_grad_in_fp32")
    if kept:
        facts.say("training.gradient_bytes", 4 if kept.value else 2, kept.origin)
    dtype = options.word("model.dtype")
    if dtype:
        word = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(dtype.value.rpartition(".")[2])
        facts.say("training.precision", word, dtype.origin)
    recompute = options.flag("parallelism.recompute_layer")
    if recompute:
        facts.say("training.recompute", "full" if recompute.value else "none", recompute.origin)
    model = document.get("model")
    inner = model.get("model_config") if isinstance(model, Mapping) else None
    if isinstance(inner, Mapping):
        facts.add(read_shape(inner, lines, ("model", "model_config")))
    return facts
