"""The layouts worth a look for a model on a cluster: every degree that divides what it must divide."""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from preflight.model import Job, ModelShape, Parallel, Training
from preflight.plan.advise.score import Cluster
from preflight.plan.bubble import micro_batches_for, schedule_of

IDLE_TARGET = 0.10  # where the check pipeline_bubble begins to warn
LONG_SEQUENCE = 4096  # published layouts split sequences from 8192 on
MICRO_BATCH_SIZES = (1, 2, 4)  # tried where the plan file doesn't say
MAX_CP, MAX_CHUNKS = 64, 8
MAX_PP, FEW_DIVISORS = 64, 3


class Option(NamedTuple):
    """A layout to look at: two sections of a plan file, and the micro-batches per replica and step that they mean."""

    parallel: Parallel
    training: Training
    micro_batches: int


def wants_layouts(job: Job) -> bool:
    """Whether the plan file leaves all degrees open."""
    parallel = job.parallel
    given = (parallel.dp, parallel.dp_shard, parallel.dp_replicate, parallel.etp)
    return (parallel.tp, parallel.cp, parallel.ep, parallel.pp) == (1, 1, 1, 1) and not any(given)


def layout_options(job: Job, cluster: Cluster) -> Iterator[Option]:
    """Every layout that fits the arithmetic of model and cluster, in no order of merit."""
    model, training = job.model, job.training
    sizes = MICRO_BATCH_SIZES if training.micro_batch_size is None else (training.micro_batch_size,)
    for tp in tensor_degrees(model, cluster.per_domain):
        for cp in context_degrees(job, tp):
            for pp in pipeline_degrees(job, cluster.world_size):
                inner = tp * cp * pp
                if cluster.world_size % inner:
                    continue
                dp = cluster.world_size // inner
                for ep in expert_degrees(model, tp * cp * dp):
                    for parallel in _variants(job, tp=tp, cp=cp, pp=pp, ep=ep, dp=dp):
                        for size in sizes:
                            number = _micro_batches(job, parallel, dp, size)
                            if number is not None:
                                yield from _trainings(training, parallel, number, size, dp)


def tensor_degrees(model: ModelShape, per_domain: int) -> list[int]:
    """Divisors of a domain that divide the attention heads, and either divide the key-value heads or are a multiple of them."""
    heads = model.attention_heads
    kv_heads = model.kv_heads or heads
    return [
        tp
        for tp in divisors(per_domain)
        if (heads is None or heads % tp == 0) and (kv_heads is None or kv_heads % tp == 0 or tp % kv_heads == 0)
    ]


def context_degrees(job: Job, tp: int) -> list[int]:
    """1, and for long sequences powers of two: the sequence must divide by 2 cp (Megatron), by tp x 2 cp (torchtitan)."""
    tokens = job.training.seq_length
    if tokens is None or tokens <= LONG_SEQUENCE or job.parallel.framework == "deepspeed":
        return [1]
    factor = 2 * tp if job.parallel.framework == "torchtitan" else 2
    return [1] + [cp for cp in powers_of_two(MAX_CP) if cp > 1 and tokens % (factor * cp) == 0 and tokens // cp >= 1024]


def pipeline_degrees(job: Job, world_size: int) -> list[int]:
    """Divisors of the layers that divide the world; 1 alone where the framework has no pipeline.

    Powers of two besides where few are left (61 layers, or 126 on 2^n GPUs): every framework takes uneven stages, Megatron when told the layout of its pipeline.
    """
    if job.parallel.framework == "fsdp":
        return [1]
    even = [pp for pp in divisors(job.model.layers) if world_size % pp == 0]
    if sum(1 < pp <= MAX_PP for pp in even) >= FEW_DIVISORS:
        return even
    return sorted({*even, *powers_of_two(min(MAX_PP, job.model.layers // 2))})


def expert_degrees(model: ModelShape, stage_ranks: int) -> list[int]:
    """Divisors of the experts that divide the ranks of a pipeline stage; 1 alone for a model without experts."""
    if model.experts is None:
        return [1]
    return [ep for ep in divisors(model.experts) if stage_ranks % ep == 0]


def divisors(number: int) -> list[int]:
    """In ascending order. Example: 12 -> 1, 2, 3, 4, 6, 12."""
    return [d for d in range(1, number + 1) if number % d == 0]


def powers_of_two(high: int) -> list[int]:
    """1, 2, 4, ... up to `high`."""
    return [1 << i for i in range(high.bit_length()) if 1 << i <= high]


def _variants(job: Job, *, tp: int, cp: int, pp: int, ep: int, dp: int) -> Iterator[Parallel]:
    """The layout with what the framework offers beside degrees: virtual stages, ZeRO stages, sequence parallelism."""
    given = job.parallel
    changes: dict[str, object] = {"tp": tp, "cp": cp, "pp": pp, "ep": ep, "dp": dp}
    if given.framework == "megatron":
        # experts of one rank each, not cut further: cutting them costs two collectives more and keeps ep groups apart
        changes["etp"] = 1 if ep > 1 else None
        if tp > 1 and given.sequence_parallel is None:
            changes["sequence_parallel"] = True  # less memory at the same bytes; with tp and ep Megatron demands it
    elif given.framework in {"torchtitan", "fsdp"}:
        changes |= {"dp": None, "dp_shard": dp, "dp_replicate": 1}
    for zero in _zero_stages(given, pp):
        for chunks in _chunks(job, pp):
            yield msgspec.structs.replace(given, **changes, zero_stage=zero, virtual_stages=chunks)


def _zero_stages(given: Parallel, pp: int) -> list[int | None]:
    """As given; else what each framework offers: Megatron's distributed optimizer, DeepSpeed's stages (2 and 3 don't go with a pipeline)."""
    if given.zero_stage is not None or given.framework in {"torchtitan", "fsdp"}:
        return [given.zero_stage]
    if given.framework == "megatron":
        return [1]
    return [1] if pp > 1 else [1, 2, 3]


def _chunks(job: Job, pp: int) -> list[int]:
    """Chunks per stage: as given, else 1, and for a Megatron pipeline those that divide the layers of a stage."""
    given = job.parallel
    if given.virtual_stages > 1 or given.schedule is not None:
        return [given.virtual_stages]
    if pp < 3 or given.framework != "megatron" or job.model.layers % pp:  # pp 2 needs overlapped transfers: not assumed
        return [1]
    return [chunks for chunks in divisors(job.model.layers // pp) if chunks <= MAX_CHUNKS]


def _micro_batches(job: Job, parallel: Parallel, dp: int, size: int) -> int | None:
    """Micro-batches per replica and step: as many as the global batch allows, else as given, else as many as the bubble target needs.

    None: the layout needs a larger batch than allowed.
    """
    limit, given = job.training.global_batch_size, job.training.micro_batches
    schedule = schedule_of(msgspec.structs.replace(job, parallel=parallel))
    step = parallel.pp if schedule == "interleaved" else 1
    if limit is None and given is None:
        return micro_batches_for(schedule, p=parallel.pp, v=parallel.virtual_stages, idle_share=idle_target(job))
    most = given if limit is None else limit // (size * dp)
    assert most is not None
    most -= most % step
    return most if most >= 1 else None


def idle_target(job: Job) -> float:
    """The idle share to stay below: the limit of the check, as far as the plan file sets it."""
    rule = job.rules.get("pipeline_bubble")
    share = (rule.limits if rule else {}).get("warn_idle_share", IDLE_TARGET)
    return share if 0 < share < 1 else IDLE_TARGET


def _trainings(training: Training, parallel: Parallel, number: int, size: int, dp: int) -> Iterator[Option]:
    """The batch sizes filled in; with activations kept, and computed again."""
    batch: dict[str, object] = {"micro_batches": number, "micro_batch_size": size}
    if training.global_batch_size is not None:
        batch = {"micro_batches": None, "micro_batch_size": size, "global_batch_size": number * size * dp}
    for recompute in ("none", "full") if training.recompute == "none" else (training.recompute,):
        yield Option(parallel, msgspec.structs.replace(training, **batch, recompute=recompute), number)
