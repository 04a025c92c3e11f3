"""Options of Megatron-LM, by their names in arguments.py, as keys of a plan file. Config classes of Megatron-Bridge and NeMo have mostly the same.

Source of names, defaults and what follows from what: Megatron-LM, megatron/training/arguments.py (validate_args) and
transformer_config.py, state of August 2026; older names (BigScience's Megatron-DeepSpeed) where they still are in use.
"""

import re

from preflight.plan.importers.facts import Fact, Facts, Options
from preflight.plan.importers.megatron_model import read_model
from preflight.plan.importers.megatron_names import RELATED, SILENT

_SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_BYTES = {
    "fp32": 4,
    "float32": 4,
    "float": 4,
    "bf16": 2,
    "bfloat16": 2,
    "fp16": 2,
    "float16": 2,
    "half": 2,
    "fp8": 1,
    "uint8": 1,
}

_OVERLAP = {"overlap_grad_reduce": "overlap_gradients", "overlap_param_gather": "overlap_parameters"}


def read_megatron(options: Options, facts: Facts, where: str) -> None:
    """Says everything that a plan file has a key for. `where`: the file, for notes. Raises ConfigError for values that are none."""
    deepspeed = options.on("deepspeed")
    facts.say(
        "parallel.framework", "deepspeed" if deepspeed else "megatron", _origin(options, "deepspeed") or options.absent
    )
    _read_degrees(options, facts, deepspeed=deepspeed)
    _read_sharding(options, facts, deepspeed=deepspeed)
    for name, key in _OVERLAP.items():
        facts.take(f"training.{key}", options.flag(name))
    _read_batch(options, facts, where)
    _read_precision(options, facts, deepspeed=deepspeed)
    _read_recompute(options, facts, where)
    read_model(options, facts, where, local=deepspeed)
    _read_experts(options, facts, where)
    options.used |= SILENT
    if not facts.get("model.experts"):
        options.used |= {name for name in options.said if name.startswith("moe_")}
    if not options.on("optimizer_cpu_offload") and not options.on("cpu_offloading"):
        options.used |= {name for name in options.said if "offload" in name}
    rest = list(options.rest(RELATED))
    if rest:
        facts.note(f"{where}: seen, and no key of a plan file says it: {', '.join(rest[:30])}")


def _origin(options: Options, name: str) -> str | None:
    fact = options.said.get(name)
    return fact.origin if fact else None


def _read_degrees(options: Options, facts: Facts, *, deepspeed: bool) -> None:
    tp = options.number("tensor_model_parallel_size", default=1)
    facts.take("parallel.tp", tp)
    facts.take("parallel.pp", options.number("pipeline_model_parallel_size", default=1))
    facts.take("parallel.cp", options.number("context_parallel_size", default=1))
    facts.take("parallel.ep", options.number("expert_model_parallel_size", "moe_expert_parallel_size", default=1))
    etp = options.number("expert_tensor_parallel_size")
    if etp:
        facts.take("parallel.etp", etp)
    elif tp and not deepspeed and options.raw("num_experts") and "expert_tensor_parallel_size" not in options.unknown:
        facts.say(
            "parallel.etp",
            tp.value,
            f"{options.absent}: expert-tensor-parallel-size is tensor-model-parallel-size",
            default=True,
        )
    if options.on("use_tp_pp_dp_mapping"):
        facts.say("parallel.order", "tp-cp-ep-pp-dp", str(_origin(options, "use_tp_pp_dp_mapping")))
    facts.take("said.world_size", options.number("world_size"))
    facts.take("parallel.dp", options.number("data_parallel_size"))
    facts.take(
        "said.virtual_stages",
        options.number("num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size"),
    )
    facts.take("said.layers_per_virtual_stage", options.number("num_layers_per_virtual_pipeline_stage"))
    for name in ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"):
        facts.take("said.uneven_stages", options.number(name))
    facts.take("said.layout", options.raw("pipeline_model_parallel_layout"))
    instances = options.number("num_distributed_optimizer_instances", default=1)
    facts.take("parallel.optimizer_instances", instances)
    sizes = options.raw("hierarchical_context_parallel_sizes")
    if sizes:
        numbers = [int(text) for text in re.findall(r"\d{1,9}", str(sizes.value))[:16]]
        facts.say("parallel.hierarchical_cp", numbers, sizes.origin)
    sequence = options.flag("sequence_parallel", default=None if deepspeed else False)
    if sequence and sequence.value and tp and tp.value == 1:
        sequence = Fact(False, f"{sequence.origin}, which Megatron-LM turns off at tp 1", default=True)
    facts.take("parallel.sequence_parallel", sequence)


def _read_sharding(options: Options, facts: Facts, *, deepspeed: bool) -> None:
    """Which of weights, gradients and optimizer are sharded over the data-parallel ranks."""
    strategy = options.word("data_parallel_sharding_strategy")
    distributed = options.flag("use_distributed_optimizer")
    if deepspeed:
        facts.take("said.zero_stage", options.number("zero_stage"))
        return
    if options.on("use_torch_fsdp2"):
        facts.say("parallel.zero_stage", 3, str(_origin(options, "use_torch_fsdp2")))
    elif strategy and (options.on("use_megatron_fsdp") or options.on("use_custom_fsdp")):
        if strategy.value in _SHARDING:
            facts.say("parallel.zero_stage", _SHARDING[strategy.value], strategy.origin)
    elif distributed:
        facts.say("parallel.zero_stage", int(distributed.value), distributed.origin)
    else:
        facts.take(
            "parallel.zero_stage",
            options.default(0, "use_distributed_optimizer", "use_megatron_fsdp", "use_torch_fsdp2"),
        )


def _read_batch(options: Options, facts: Facts, where: str) -> None:
    micro = options.number("micro_batch_size")
    facts.take("training.micro_batch_size", micro)
    whole_batch = options.number("global_batch_size")
    facts.take("training.global_batch_size", whole_batch)
    if micro and not whole_batch and "global_batch_size" not in options.unknown:
        origin = f"{options.absent}: global-batch-size is micro-batch-size x data-parallel-size"
        facts.say("training.micro_batches", 1, origin, default=True)
    facts.take("training.seq_length", options.number("seq_length", "decoder_seq_length"))
    ramp = options.raw("rampup_batch_size")
    if ramp:
        facts.note(
            f"{where}: the batch size is ramped up (rampup-batch-size {ramp.value}): the plan is of the final one"
        )


def _read_precision(options: Options, facts: Facts, *, deepspeed: bool) -> None:
    fp8 = options.word("fp8_format", "fp8", "fp8_hybrid", "fp8_e4m3")
    bf16, fp16 = options.flag("bf16"), options.flag("fp16")
    params = options.word("params_dtype")
    if fp8 and fp8.value not in {"false", "no", "off"}:
        facts.say("training.precision", "fp8", fp8.origin)
    elif bf16 and bf16.value:
        facts.say("training.precision", "bf16", bf16.origin)
    elif fp16 and fp16.value:
        facts.say("training.precision", "fp16", fp16.origin)
    elif params and "bfloat16" in params.value:
        facts.say("training.precision", "bf16", params.origin)
    else:
        facts.take("training.precision", options.default("fp32", "bf16", "fp16", "fp8_format", "fp8"))
    if not deepspeed:
        _read_gradients(options, facts, half=bool(bf16 and bf16.value), fp16=bool(fp16 and fp16.value))
    name = options.word("optimizer", "name") if "optimizer" in options.said else None
    if name:
        known = next((known for known in ("muon", "adam", "sgd") if known in name.value), None)
        facts.say("training.optimizer", known, name.origin)
    if options.on("optimizer_cpu_offload"):
        facts.say("training.offload_optimizer", True, str(_origin(options, "optimizer_cpu_offload")))
    moments = [options.word(name) for name in ("exp_avg_dtype", "exp_avg_sq_dtype")]
    if options.on("use_precision_aware_optimizer") and all(moments):
        sizes = [_size(fact.value) for fact in moments if fact]
        if None not in sizes and moments[0]:
            facts.say("training.moment_bytes", sum(size or 0 for size in sizes), moments[0].origin)


def _read_gradients(options: Options, facts: Facts, *, half: bool, fp16: bool) -> None:
    """Bytes of a gradient: bf16 training keeps and reduces it in fp32 unless told otherwise, fp16 training in fp16."""
    main = options.word("main_grads_dtype")
    reduce_fp32 = options.flag("accumulate_allreduce_grads_in_fp32", "grad_reduce_in_fp32")
    aware = options.on("use_precision_aware_optimizer")
    if options.on("grad_reduce_in_bf16"):
        facts.say("training.gradient_bytes", 2, str(_origin(options, "grad_reduce_in_bf16")))
    elif aware and main and _size(main.value):
        facts.say("training.gradient_bytes", _size(main.value), main.origin)
    elif reduce_fp32:
        value = 4 if reduce_fp32.value or not (half or fp16) else 2
        facts.say("training.gradient_bytes", value, reduce_fp32.origin)
    elif half or fp16:
        names = ("grad_reduce_in_bf16", "accumulate_allreduce_grads_in_fp32", "bf16", "fp16")
        facts.take("training.gradient_bytes", options.default(4 if half else 2, *names))


def _size(dtype: str) -> int | None:
    return _BYTES.get(dtype.rpartition(".")[2])


def _read_recompute(options: Options, facts: Facts, where: str) -> None:
    mode = options.word("recompute_granularity")
    method, number = options.word("recompute_method"), options.number("recompute_num_layers")
    modules = options.raw("recompute_modules")
    old = ("checkpoint_activations", "recompute_activations", "deepspeed_activation_checkpointing")
    if mode:
        facts.say("training.recompute", mode.value if mode.value in {"full", "selective"} else "none", mode.origin)
    elif options.on("checkpoint_activations"):
        facts.say("training.recompute", "full", str(_origin(options, "checkpoint_activations")))
    elif options.on("recompute_activations"):
        facts.say("training.recompute", "selective", str(_origin(options, "recompute_activations")))
    else:
        facts.take("training.recompute", options.default("none", "recompute_granularity", *old))
    options.flag("deepspeed_activation_checkpointing")
    if mode and mode.value == "full" and number and method and (method.value == "block" or number.value > 1):
        facts.note(
            f"{where}: recompute-method {method.value} with recompute-num-layers {number.value}: the plan recomputes every layer alone"
        )
    if (
        mode
        and mode.value == "selective"
        and modules
        and re.findall(r"\w+", str(modules.value)) not in [["core_attn"], []]
    ):
        facts.note(
            f"{where}: recompute-modules {modules.value}: the plan knows selective recomputation of the attention core only"
        )


def _read_experts(options: Options, facts: Facts, where: str) -> None:
    """What decides the traffic of the experts; their sizes are in `read_model`."""
    factor = options.decimal("moe_expert_capacity_factor")
    if factor and options.on("moe_pad_expert_input_to_capacity"):
        facts.take("training.capacity_factor", factor)
    elif factor and factor.value > 0:
        facts.note(f"{where}: tokens above capacity factor {factor.value:g} are dropped: the plan counts them all")
    backend = options.word("moe_flex_dispatcher_backend")
    dispatcher = options.word("moe_token_dispatcher_type")
    if backend and backend.value == "hybridep" and (dispatcher is None or dispatcher.value == "flex"):
        facts.say("parallel.ep_needs_domain", True, backend.origin)
    options.flag("moe_enable_deepep")
    fused = options.word("cross_entropy_fusion_impl")
    if options.on("cross_entropy_loss_fusion") and fused and fused.value == "linear":
        facts.say("training.fused_loss", True, fused.origin)
