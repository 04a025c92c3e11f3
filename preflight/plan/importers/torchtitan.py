"""Configuration of torchtitan: the JSON that a run writes (debug.save_config_file), or the TOML that it had until February 2026.

Source of names and defaults: torchtitan, config/job_config.py and distributed/pipeline_parallel.py.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from preflight.plan.importers.facts import Fact, Facts, Options
from preflight.plan.importers.tree import Lines, options_of

_SCHEDULES = {
    "1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleaved1f1b": "interleaved",
    "zbvzerobubble": "zbv",
    "interleavedzerobubble": None,
    "dualpipev": None,
}
_MULTI_STAGE = {"interleaved1f1b", "zbvzerobubble", "interleavedzerobubble", "dualpipev", "loopedbfs"}
# (layers, h, f, heads, kv heads, vocabulary) of the Llama 3 flavors: torchtitan, models/llama3/__init__.py
_LLAMA3 = {
    "8b": (32, 4096, 14336, 32, 8, 128256),
    "70b": (80, 8192, 28672, 64, 8, 128256),
    "405b": (126, 16384, 53248, 128, 8, 128256),
}
_RELATED = re.compile(r"^(parallelism|experimental|activation_checkpoint|float8|compile|training)\.")
_SILENT = re.compile(
    r"\.(steps|dataset|dataset_path|max_norm|warmup_steps|deterministic|seed|gc_freq|gc_debug|enable_cpu_offload|mode|per_op_sac\w*|components"
    r"|early_stop|custom_import|custom_args_module|mixed_precision_\w+|dtype|filter_fqns|recipe_name|enable_fsdp_float8_all_gather"
    r"|selective_ac_option|precompute_float8_dynamic_scale_for_fsdp|pipeline_parallel_schedule_csv|pipeline_parallel_split_points)$"
)


def is_torchtitan(document: Mapping[str, Any]) -> bool:
    """Whether a document is a configuration of torchtitan."""
    sections = set(document)
    degrees = {
        "tensor_parallel_degree",
        "data_parallel_shard_degree",
        "pipeline_parallel_degree",
        "data_parallel_replicate_degree",
    }
    inner = {key for name in ("parallelism", "training", "experimental") for key in _keys(document.get(name))}
    return bool(degrees & inner) or (
        "activation_checkpoint" in sections and bool(sections & {"job", "metrics", "lr_scheduler"})
    )


def _keys(section: object) -> set[str]:
    return set(section) if isinstance(section, Mapping) else set()


def read_torchtitan(document: Mapping[str, Any], lines: Lines) -> Facts:
    """What the configuration says. Raises ConfigError for values that are none."""
    facts, options = Facts(), options_of(document, lines, "torchtitan")
    facts.say("parallel.framework", "torchtitan", f"{lines.name} is of torchtitan")
    _read_model(options, facts, lines.name)
    _read_degrees(options, facts)
    _read_pipeline(options, facts, lines.name)
    _read_training(options, facts, lines.name)
    rest = [text for text in options.rest(_RELATED) if not _SILENT.search(text.split(" ", 1)[0])]
    if rest:
        facts.note(f"{lines.name}: seen, and no key of a plan file says it: {', '.join(rest[:30])}")
    return facts


def _any(name: str) -> tuple[str, ...]:
    """A degree stood in three sections over the years."""
    return tuple(f"{section}.{name}" for section in ("parallelism", "training", "experimental"))


def _read_degrees(options: Options, facts: Facts) -> None:
    facts.take("parallel.tp", options.number(*_any("tensor_parallel_degree"), default=1))
    facts.take("parallel.cp", options.number(*_any("context_parallel_degree"), default=1))
    facts.take("parallel.pp", options.number(*_any("pipeline_parallel_degree"), default=1))
    facts.take("parallel.ep", options.number(*_any("expert_parallel_degree"), default=1))
    etp = options.number(*_any("expert_tensor_parallel_degree"))
    if etp and etp.value >= 1 and (facts.get("parallel.ep") or 1) > 1:
        facts.take("parallel.etp", etp)
    facts.take("parallel.dp_replicate", options.number(*_any("data_parallel_replicate_degree"), default=1))
    shard = options.number(*_any("data_parallel_shard_degree"), default=-1)
    if shard and shard.value >= 1:
        facts.take("parallel.dp_shard", shard)
    # weights are sharded over dp_shard x cp (fsdp in parallel_dims.py)
    sharded = shard and (shard.value != 1 or (facts.get("parallel.cp") or 1) > 1)
    if shard:
        facts.say("parallel.zero_stage", 3 if sharded else 0, shard.origin, default=shard.default)
    reshard = options.word(*_any("fsdp_reshard_after_forward"))
    if reshard and reshard.value in {"always", "never"}:
        facts.say("parallel.reshard_after_forward", reshard.value == "always", reshard.origin)
    facts.take("parallel.sequence_parallel", options.flag(*_any("enable_sequence_parallel")))


def _read_pipeline(options: Options, facts: Facts, where: str) -> None:
    """Stages per rank: 2 for schedules of several stages unless layers_per_stage says otherwise."""
    pp, layers = facts.get("parallel.pp") or 1, facts.get("model.layers")
    schedule = options.word(*_any("pipeline_parallel_schedule"), default="1f1b")
    per_stage = options.number(*_any("pipeline_parallel_layers_per_stage"), *_any("layers_per_stage"))
    first = options.number(
        *_any("pipeline_parallel_first_stage_less_layers"), *_any("first_stage_less_layers"), default=1
    )
    last = options.number(*_any("pipeline_parallel_last_stage_less_layers"), *_any("last_stage_less_layers"), default=1)
    written = facts.values.get("parallel.pp")
    if schedule is None or (pp == 1 and written and not written.default):
        return  # where it isn't written here, a command line may still say that there is a pipeline: `resolve` sees
    if _SCHEDULES.get(schedule.value):
        facts.say("parallel.schedule", _SCHEDULES[schedule.value], schedule.origin, default=schedule.default)
    else:
        facts.note(f"{where}: the schedule {schedule.value} ({schedule.origin}) has no word in a plan file")
    if per_stage and layers and first and last and per_stage.value > 0:
        stages = math.ceil((layers + first.value + last.value) / per_stage.value)
        if stages % pp == 0:
            facts.say("parallel.virtual_stages", stages // pp, per_stage.origin)
    elif per_stage is None and schedule.value in _MULTI_STAGE:
        facts.say(
            "parallel.virtual_stages", 2, f"{options.absent}: two stages per rank with {schedule.value}", default=True
        )


def _read_training(options: Options, facts: Facts, where: str) -> None:
    length = options.number("training.seq_len", "training.max_context_length")
    facts.take("training.seq_length", length)
    _read_batch(options, facts, length)
    param = options.word("training.mixed_precision_param", default="bfloat16")
    converters = options.raw("model.converters", "model_converters.converters")
    if (converters and "float8" in str(converters.value)) or options.on("float8.enable_float8_linear"):
        facts.say("training.precision", "fp8", converters.origin if converters else f"{where} float8")
    elif param:
        word = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(param.value.rpartition(".")[2])
        facts.say("training.precision", word, param.origin, default=param.default)
    reduce = options.word("training.mixed_precision_reduce", default="float32")
    if reduce and reduce.value.rpartition(".")[2] in {"float32", "bfloat16"}:
        facts.say(
            "training.gradient_bytes", 4, f"{options.absent}: gradients are kept as the fp32 weights are", default=True
        )
    mode = options.word("activation_checkpoint.mode", default="selective")
    if mode and mode.value in {"none", "selective", "full"}:
        facts.say("training.recompute", mode.value, mode.origin, default=mode.default)
    elif mode:
        facts.note(f"{where}: activation_checkpoint.mode {mode.value} has no word in a plan file")
    compiled = options.flag("compile.enable", "training.compile")
    if compiled:
        facts.say("training.compiled", compiled.value, compiled.origin)
    optimizer = options.word("optimizer.name")
    if optimizer:
        known = next((known for known in ("muon", "adam", "sgd") if known in optimizer.value), None)
        facts.say("training.optimizer", known, optimizer.origin)
    if options.on("training.enable_cpu_offload"):
        facts.say("training.offload_optimizer", True, f"{where} training.enable_cpu_offload")


def _read_batch(options: Options, facts: Facts, length: Fact | None) -> None:
    """The local batch is of one data-parallel rank; whether a pipeline cuts it into micro-batches, `resolve` knows: another file may say pp."""
    local = options.number("training.local_batch_size", "training.batch_size")
    tokens = options.number("training.num_tokens_per_microbatch_per_dp_rank")
    pieces = options.number(*_any("num_pp_microbatches"), *_any("pipeline_parallel_microbatches"))
    size = options.number(*_any("pipeline_parallel_microbatch_size"), default=1)
    whole_batch = options.number("training.global_batch_size")
    if tokens and length and length.value > 0 and tokens.value % length.value == 0:
        facts.say("training.micro_batch_size", tokens.value // length.value, tokens.origin)
        facts.take("training.micro_batches", pieces)
    elif local:
        facts.take("said.local_batch", local)
    facts.take("said.pipeline_pieces", pieces)
    facts.take("said.pipeline_piece", size)
    if whole_batch and whole_batch.value > 0 and not pieces:
        facts.take("training.global_batch_size", whole_batch)


def _read_model(options: Options, facts: Facts, where: str) -> None:
    name, flavor = options.word("model.name"), options.word("model.flavor")
    shape = _LLAMA3.get(flavor.value) if flavor and name and name.value in {"llama3", "llama3_ft"} else None
    if shape and flavor:
        keys = ("layers", "hidden_size", "ffn_size", "attention_heads", "kv_heads", "vocab_size")
        for key, value in zip(keys, shape, strict=True):
            facts.say(f"model.{key}", value, flavor.origin)
        facts.say("model.gated_mlp", True, flavor.origin)
        facts.say("model.tied_embeddings", False, flavor.origin)
        return
    found = {path.rpartition(".")[2]: path for path in options.said if path.startswith(("model.", "model_spec."))}
    for key, names in {
        "layers": ("n_layers", "num_layers"),
        "hidden_size": ("dim", "hidden_size"),
        "attention_heads": ("n_heads", "num_attention_heads"),
        "kv_heads": ("n_kv_heads", "num_key_value_heads"),
        "vocab_size": ("vocab_size",),
        "head_dim": ("head_dim",),
    }.items():
        path = next((found[name] for name in names if name in found), None)
        facts.take(f"model.{key}", options.number(path) if path else None)
    if "model.layers" not in facts.values:
        said = f"{name.value} {flavor.value}" if name and flavor else "the model"
        facts.note(f"{where}: the shape of {said} is not in it: give the model's config.json too, or [model] by hand")
