"""Rows of the ledger that carry gradients and weights: once per step, or with sharded weights once per micro-batch.

Which group: gradients of dense weights are summed over all ranks that saw other tokens, dp x cp ("dp_cp", or "fsdp"); those of experts over edp ("efsdp").
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from preflight.model import Job
from preflight.plan.defaults import (
    element_bytes,
    overlaps_gradients,
    overlaps_parameters,
    reduced_gradient_bytes,
    sequence_parallel,
    zero_stage,
)
from preflight.plan.ledger_row import Cover, Row, axis_of
from preflight.plan.shape import stage_parameters


class _Weights(NamedTuple):
    """Weights of one kind on one GPU; the axis that shards (or sums) them; the axis that repeats the shards, of size 1 where there is none."""

    kind: str
    number: int
    axis: str
    size: int
    outer: str
    copies: int


def gradient_rows(job: Job, degrees: Mapping[str, int], micro_batches: int | None) -> Iterator[Row]:
    """Data-parallel rows of dense and expert weights, tied embeddings, and norms under sequence parallelism.

    Worked example, 70B at tp 8, pp 4, dp 2 (2.27e9 weights on the fullest GPU): fp32 all-reduce 4 x 2.27e9 x 2/2 = 9.1 GB; in bf16 4.5 GB; reduce-scatter in fp32
    and all-gather in bf16 (4 + 2) x 2.27e9 / 2 = 6.8 GB.
    """
    for weights in _weights(job, degrees):
        whole = weights.axis == "dp" and "dp_shard" in degrees  # torchtitan and FSDP with dp_shard 1: replicas alone
        if zero_stage(job) == 3 and not whole:
            yield from _sharded_rows(job, degrees, weights, micro_batches)
        else:
            yield from _replicated_rows(job, weights, whole=whole or zero_stage(job) == 0)
    yield from _small_rows(job, degrees)


def heaviest_stage(job: Job, degrees: Mapping[str, int]) -> tuple[int, int]:
    """Dense and expert weights on one GPU of the pipeline stage that has most: the first or the last, which hold embedding and output layer, or one
    between them, which may hold more layers with experts.
    """
    last = degrees["pp"] - 1
    stages = sorted({0, min(1, last), max(0, last - 1), last})
    most = max((stage_parameters(job, degrees, stage) for stage in stages), key=lambda stage: sum(stage[:2]))
    return most.dense, most.expert


def _weights(job: Job, degrees: Mapping[str, int]) -> Iterator[_Weights]:
    dense, expert = heaviest_stage(job, degrees)
    instances = job.parallel.optimizer_instances > 1
    dense_axes = ("dp_intra",) if instances else ("fsdp", "dp_shard", "dp_cp", "dp")
    outer = "dp_inter" if instances else "dp_replicate"
    copies = degrees.get(outer, 1)
    axis, size = axis_of(degrees, *dense_axes)
    if size == copies and axis == "dp":  # all of dp replicates, nothing is sharded
        copies = 1
    yield _Weights("dense", dense, axis, size, outer, copies)
    if expert and not {"edp", "efsdp"} & set(degrees):
        # without expert parallelism the same ranks share (or sum) experts as dense weights
        yield _Weights("expert", expert, axis, size, outer, copies)
    elif expert:
        axis, size = axis_of(degrees, "edp_intra" if instances else "efsdp" if "efsdp" in degrees else "edp")
        outer = "edp_inter" if instances else "dp_replicate"
        yield _Weights("expert", expert, axis, size, outer, degrees.get(outer, 1) if axis != "edp" else 1)


def _replicated_rows(job: Job, weights: _Weights, *, whole: bool) -> Iterator[Row]:
    """`whole`: nothing is sharded, one all-reduce of all gradients (in buckets). Else stages 1 and 2 (distributed optimizer): reduce-scatter, then all-gather
    of weights.
    """
    size, count, element = reduced_gradient_bytes(job), weights.number, element_bytes(job)
    text = f"{count / 1e9:.3g}e9 {weights.kind} weights"
    reduced: Cover = "last_backward" if overlaps_gradients(job) else ""
    summed = f"{text} x {size} bytes"
    if whole:
        yield Row(
            weights.axis, weights.size, f"{weights.kind} gradients", "all_reduce", 1, size * count, summed, reduced
        )
        if weights.copies > 1:
            yield Row(
                weights.outer,
                weights.copies,
                f"{weights.kind} gradients",
                "all_reduce",
                1,
                size * count,
                summed,
                reduced,
            )
        return
    gathered: Cover = "first_forward" if overlaps_parameters(job) else ""
    axis, ranks = weights.axis, weights.size
    yield Row(axis, ranks, f"{weights.kind} gradients", "reduce_scatter", 1, size * count, summed, reduced)
    yield from _copies_row(weights, size, reduced)
    text += f" x {element} bytes"
    yield Row(axis, ranks, f"updated {weights.kind} weights", "all_gather", 1, element * count, text, gathered)


def _sharded_rows(job: Job, degrees: Mapping[str, int], weights: _Weights, micro_batches: int | None) -> Iterator[Row]:
    """Stage 3, FSDP: weights gathered layer by layer, forward and (if freed in between) backward, gradients reduce-scattered; every micro-batch.

    Under a pipeline torchtitan keeps weights gathered and reduces gradients with the last micro-batch alone. Worked example, 70.6e9 weights over 64 ranks, bf16: three
    times 141 GB x 63/64 = 417 GB, against 278 GB for an all-reduce.
    """
    piped = degrees["pp"] > 1
    reshard = job.parallel.reshard_after_forward
    if reshard is None:
        reshard = not (piped and job.parallel.framework == "torchtitan")
    keeps = piped and not reshard
    if micro_batches is None and not keeps:
        return
    layers, count = job.model.layers / degrees["pp"], weights.number
    size, element = reduced_gradient_bytes(job), element_bytes(job)
    passes = 1 if keeps else micro_batches or 1
    reduces = 1 if piped else passes
    cover: Cover = "micro_batches" if overlaps_gradients(job) else ""
    text = f"{count / 1e9:.3g}e9 {weights.kind} weights / {layers:g} layers"
    gather, reduce = element * count / layers, size * count / layers
    calls, axis, ranks = layers * passes, weights.axis, weights.size
    name = f"{weights.kind} weights"
    whole = f"{text} x {element} bytes"
    yield Row(axis, ranks, f"{name} for the forward pass", "all_gather", calls, gather, whole, cover)
    if reshard:
        yield Row(axis, ranks, f"{name} for the backward pass", "all_gather", calls, gather, whole, cover)
    yield Row(
        axis,
        ranks,
        f"{weights.kind} gradients",
        "reduce_scatter",
        layers * reduces,
        reduce,
        f"{text} x {size} bytes",
        cover,
    )
    yield from _copies_row(weights, size, "last_backward" if cover else "", reduces)


def _copies_row(weights: _Weights, size: int, cover: Cover, calls: int = 1) -> Iterator[Row]:
    """HSDP, or several optimizer instances: shards of gradients summed over the copies, as often as they are reduce-scattered (torch FSDP2 does one after the other)."""
    if weights.copies > 1:
        shard = weights.number / weights.size
        text = f"{weights.number / 1e9:.3g}e9 {weights.kind} weights / {weights.size} shards x {size} bytes"
        yield Row(
            weights.outer,
            weights.copies,
            f"shards of {weights.kind} gradients",
            "all_reduce",
            calls,
            size * shard,
            text,
            cover,
        )


def _small_rows(job: Job, degrees: Mapping[str, int]) -> Iterator[Row]:
    """Tied embeddings are summed between first and last stage; under Megatron's sequence parallelism norms' gradients are summed over tp."""
    model, size, tp = job.model, reduced_gradient_bytes(job), degrees["tp"]
    if model.hidden_size is None:
        return
    if "embedding" in degrees and model.vocab_size is not None:
        weights = model.vocab_size * model.hidden_size / tp
        text = f"{model.vocab_size} x {model.hidden_size} / tp {tp} x {size} bytes"
        yield Row("embedding", 2, "tied embedding's gradients", "all_reduce", 1, size * weights, text)
    if sequence_parallel(job, tp) and job.parallel.framework == "megatron":
        norms = 2 * (2 if model.dropout else 1) * model.hidden_size
        layers = model.layers / degrees["pp"]
        text = f"{norms} weights of norms x {layers:g} layers x {size} bytes"
        yield Row("tp", tp, "gradients of norms, not divided", "all_reduce", 1, size * norms * layers, text)
