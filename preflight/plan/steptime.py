"""Seconds of one training step, and where they go: compute, recomputation, communication of each axis, pipeline bubble, optimizer.

The step is that of the slowest pipeline stage, m times, plus the bubble: (bubble / ideal time) x m x the mean stage. Communication that compute can't hide
is part of both. Rates come from data sheets and published measurements (rates.py, kernels.py, exposed.py); none is fitted to the runs of
tests/plan/rows, which show how far that carries.
"""

from collections.abc import Mapping
from typing import NamedTuple

from preflight.model import Footprint, Job, StepTime, Traffic
from preflight.plan.bubble import bubble_overhead, schedule_of
from preflight.plan.defaults import reduced_gradient_bytes, zero_stage
from preflight.plan.exposed import PER_MICRO_BATCH, Cover, exposed_seconds
from preflight.plan.flops import MODEL, hardware_flops, model_flops
from preflight.plan.kernels import Clock, Seconds, clock_of, optimizer_s, recomputed_s, seconds_of
from preflight.plan.ledger_gradients import heaviest_stage
from preflight.plan.matmuls import expert_layers, knows_shape, layer_work, output_work
from preflight.plan.rates import Rates
from preflight.plan.shape import layers_of_stage

# Measured over predicted time of 94 published steps (tests/plan/rows/step_*.toml, `make bench` prints them): 88 lie within; the other six are torchtitan's
# runs of long sequences with context parallelism, up to 2.4 times as long. The estimate knows no software overhead, so it is rather too short.
RANGE = (0.88, 1.42)
RANGE_SOURCE = "88 of 94 published steps lie within it (A100 and H100; the others are long sequences with context parallelism, up to 2.4 times as long)"


class _Stage(NamedTuple):
    """One pipeline stage and one micro-batch. `compute_s`: forward and backward; the rest are parts of the step that may hide communication."""

    compute_s: float
    recompute_s: float
    forward_s: float
    backward_s: float
    input_gradients_s: float
    weight_gradients_s: float
    attention_s: float

    @property
    def busy_s(self) -> float:
        """All that is computed."""
        return self.compute_s + self.recompute_s


def estimate_step_time(
    job: Job,
    degrees: Mapping[str, int],
    *,
    micro_batches: int | None,
    ledger: tuple[Traffic, ...],
    footprints: Mapping[str, Footprint],
    rates: Rates,
    world_size: int,
) -> StepTime | None:
    """None where the plan file doesn't give the model's shape, batch or GPU, or where a rate is unknown that the step depends on.

    `footprints`: which axes leave their NVLink domain. Worked example, 175B of Korthikanti et al. (64 A100, tp 8, pp 8, 3 chunks, full recomputation):
    18.2 s predicted, 18.13 s measured.
    """
    training = job.training
    clock = clock_of(job, rates)
    if clock is None or micro_batches is None or not knows_shape(job.model) or training.offload_optimizer:
        return None
    if training.micro_batch_size is None or training.seq_length is None:
        return None
    stages = _stages(job, degrees, clock)
    slowest, mean = max(stages, key=lambda stage: stage.busy_s), _mean(job, degrees, clock)
    times = exposed_seconds(ledger, footprints, degrees, rates, _cover(slowest, micro_batches))
    if times is None:
        return None
    terms = {"compute": micro_batches * slowest.compute_s, "recompute": micro_batches * slowest.recompute_s}
    each = sum(seconds for axis, seconds in times.items() if axis in PER_MICRO_BATCH) / micro_batches
    overhead = bubble_overhead(schedule_of(job), p=degrees["pp"], m=micro_batches, v=job.parallel.virtual_stages)
    terms["bubble"] = overhead * micro_batches * (mean.busy_s + each)
    terms["optimizer"] = optimizer_s(job, _own_weights(job, degrees), reduced_gradient_bytes(job), clock)
    terms |= times
    return _step_time(
        job,
        {name: value for name, value in terms.items() if value > 0},
        sequences=micro_batches * degrees["dp"] * training.micro_batch_size,
        rates=rates,
        world_size=world_size,
    )


def _step_time(job: Job, terms: dict[str, float], *, sequences: int, rates: Rates, world_size: int) -> StepTime:
    """The terms as a noun, with what they mean for MFU."""
    total = sum(terms.values())
    peak = rates.peak_flops[job.training.precision]
    model, hardware = model_flops(job, sequences), hardware_flops(job, sequences)
    possible = total * world_size * peak
    assumptions = _assumptions(job, rates)
    if max(model, hardware) > possible:
        assumptions += ("shares above 100 % count the half of causal attention that is never computed",)
    return StepTime(
        total_s=total,
        low_s=total * RANGE[0],
        high_s=total * RANGE[1],
        range_source=RANGE_SOURCE,
        terms=terms,
        model_flops=model,
        hardware_flops=hardware,
        peak_flops_per_gpu=peak,
        mfu=model / possible,
        hfu=hardware / possible,
        convention=MODEL,
        assumptions=assumptions,
    )


def _assumptions(job: Job, rates: Rates) -> tuple[str, ...]:
    training = job.training
    said = [
        f"large matrix products reach {(rates.matmul(training.precision) or 0) / 1e12:.0f} TFLOP/s, memory 80 % of its rate",
        "no stragglers, no waiting for data, logging or checkpoints",
    ]
    if rates.nvlink_bytes_per_s is not None:
        said.append(f"{rates.nvlink_bytes_per_s / 1e9:.0f} GB/s per GPU inside an NVLink domain")
    if rates.nic_bytes_per_s is not None:
        said.append(f"{rates.nic_bytes_per_s / 1e9:.0f} GB/s per GPU outside it")
    if job.model.experts is not None and training.expert_skew == 1:
        said.append("tokens spread evenly over the experts")
    if job.model.mtp_layers:
        said.append("multi-token-prediction layers are left out")
    return tuple(said)


def _layer_seconds(job: Job, degrees: Mapping[str, int], clock: Clock) -> tuple[Seconds | None, Seconds | None]:
    """One dense layer and one with experts, each None where the model has none."""
    sparse = expert_layers(job.model)
    dense = seconds_of(layer_work(job, degrees), clock) if sparse < job.model.layers else None
    return dense, seconds_of(layer_work(job, degrees, with_experts=True), clock) if sparse else None


def _add(job: Job, parts: list[tuple[float, Seconds]], output: Seconds | None) -> _Stage:
    """A stage of so many layers of each kind, and perhaps the output layer."""
    every = parts + ([(1.0, output)] if output is not None else [])
    return _Stage(
        compute_s=sum(count * (layer.forward + layer.backward) for count, layer in every),
        recompute_s=sum(count * recomputed_s(job, layer) for count, layer in parts),
        forward_s=sum(count * layer.forward for count, layer in every),
        backward_s=sum(count * layer.backward for count, layer in every),
        input_gradients_s=sum(count * layer.input_gradients for count, layer in every),
        weight_gradients_s=sum(count * layer.weight_gradients for count, layer in every),
        attention_s=sum(count * layer.attention for count, layer in parts),
    )


def _stages(job: Job, degrees: Mapping[str, int], clock: Clock) -> list[_Stage]:
    """First and last stage: one of them is the slowest."""
    last, kinds = degrees["pp"] - 1, _layer_seconds(job, degrees, clock)
    output = seconds_of(output_work(job, degrees), clock)
    stages = []
    for stage in sorted({0, last}):
        counts = layers_of_stage(job, degrees, stage)
        parts = [(float(count), kind) for count, kind in zip(counts, kinds, strict=True) if kind is not None]
        stages.append(_add(job, parts, output if stage == last else None))
    return stages


def _mean(job: Job, degrees: Mapping[str, int], clock: Clock) -> _Stage:
    """All layers and the output layer, spread evenly: what the bubble waits for."""
    pp, kinds = degrees["pp"], _layer_seconds(job, degrees, clock)
    sparse = expert_layers(job.model)
    counts = (job.model.layers - sparse, sparse)
    parts = [(count / pp, kind) for count, kind in zip(counts, kinds, strict=True) if kind is not None]
    whole = _add(job, parts, None)
    output = seconds_of(output_work(job, degrees), clock)
    return whole._replace(compute_s=whole.compute_s + (output.forward + output.backward) / pp)


def _cover(stage: _Stage, micro_batches: int) -> Cover:
    """Seconds of one step that can hide communication of each kind."""
    return {
        "weight_gradients": micro_batches * stage.weight_gradients_s,
        "input_gradients": micro_batches * stage.input_gradients_s,
        "attention": micro_batches * stage.attention_s,
        "micro_batches": micro_batches * stage.busy_s,
        "first_forward": stage.forward_s,
        "last_backward": stage.backward_s + stage.recompute_s,
    }


def _own_weights(job: Job, degrees: Mapping[str, int]) -> float:
    """Weights that one GPU updates: its own, divided by those that share the optimizer's state."""
    dense, expert = heaviest_stage(job, degrees)
    if zero_stage(job) == 0:
        return dense + expert
    shards = degrees.get("dp_intra") or degrees.get("fsdp") or degrees.get("dp_cp") or degrees["dp"] * degrees["cp"]
    expert_shards = degrees.get("edp_intra") or degrees.get("efsdp") or degrees.get("edp") or shards
    return dense / shards + expert / expert_shards
