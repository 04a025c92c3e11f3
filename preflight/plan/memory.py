"""Memory of the most loaded GPU in six lines: parameters, gradients, optimizer, activations, buffers, reserve.

Where what comes from: state plan/state.py, activations plan/activations.py, loss, gathered weights and buckets plan/transient.py, defaults plan/memory_setup.py.
The error band comes from measured rows: tests/plan/rows, of which a stated part was used to fit two shares of fragmentation.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from preflight.model import Job, Memory, MemoryLine, MemoryPart
from preflight.model.pipeline import schedule_of
from preflight.model.units import show_bytes
from preflight.plan.activations import kept
from preflight.plan.memory_setup import FULLY_SHARDED, Setup, held_micro_batches, resolve
from preflight.plan.shape import (
    StageParameters,
    count_parameters,
    embedding_parameters,
    layers_of_stage,
    stage_parameters,
)
from preflight.plan.state import Shares, state_of
from preflight.plan.transient import buffer_bytes, loss_bytes, outside_bytes, working_bytes

# Holes in the allocator's memory, as a share of all that it handed out. Fitted, like NCCL_BYTES, by least squares to every third row of tests/plan/rows/memory
# (BigScience for segments of fixed size, torch's default; torchtitan for expandable segments, its default); no constant was fitted to the other rows.
# Which terms there are was decided with all rows in sight, though: that gradients of the layer at work add nothing, and that the loss of torchtitan was not compiled in 2024.
# The rows of Qwen3-32B alone were met without any such choice.
HOLES_FIXED = 0.10
HOLES_EXPANDABLE = 0.07
ERROR_SHARE = 0.12
ERROR_SOURCE = "19 in 20 of the 69 measured rows that no constant was fitted to lie within (BigScience, torchtitan, Megatron-Bridge)"

_NOT_MODELLED = (
    "workspaces of cuBLAS and of kernel tuning",
    "CUDA graphs",
    "buffers registered with NCCL",
    "evaluation, checkpoint writing, data loading",
)


class Activations(NamedTuple):
    """Bytes: kept from forward to backward; the most that comes on top; and how that came about."""

    held: float
    top: float
    formula: str


def estimate_memory(job: Job, degrees: Mapping[str, int], micro_batches: int | None) -> Memory | None:
    """The six lines of the pipeline stage that needs most; None where the shape, the micro-batch or the sequence length is not given."""
    setup = resolve(job, degrees, micro_batches)
    if setup is None or count_parameters(job.model) is None:
        return None
    stages = dict.fromkeys([0, min(1, setup.pp - 1), setup.pp - 1])
    found = [stage_memory(job, degrees, setup, stage) for stage in stages]
    return max((memory for memory in found if memory is not None), key=lambda memory: memory.total_bytes, default=None)


def estimate_state(job: Job, degrees: Mapping[str, int], micro_batches: int | None) -> tuple[int, str] | None:
    """Bytes of weights, gradients and optimizer on the most loaded GPU, and their formula; neither batch nor sequence length is needed.

    Where the shape isn't known, its weights are spread evenly. None where that would say too much: without the shape, for experts and for a framework whose
    optimizer may or may not be sharded. Worked example: torchtitan, 8e9 weights of no known shape, tp 8, dp_shard 8: (16/8) x 1e9 = 2.0e9 bytes.
    """
    model, parallel, training = job.model, job.parallel, job.training
    sharded = parallel.framework in FULLY_SHARDED
    if count_parameters(model) is None:
        evenly = sharded or (parallel.zero_stage is not None and degrees["ep"] == 1)
        if not evenly or not model.parameters:
            return None
    # neither has a part in the state: any will do where it isn't given
    batch = {"micro_batch_size": training.micro_batch_size or 1, "seq_length": training.seq_length or 1}
    some = msgspec.structs.replace(job, training=msgspec.structs.replace(training, **batch))
    setup = resolve(some, degrees, micro_batches)
    assert setup is not None
    shares = state_of(job, setup).total
    found = []
    for stage in {0, min(1, setup.pp - 1), setup.pp - 1}:
        weights = stage_weights(job, degrees, stage)
        size = shares.of(weights.dense, setup.dense_shards) + shares.of(weights.expert, setup.expert_shards)
        found.append((round(size), _formula(shares, weights, setup)))
    return max(found)


def stage_weights(job: Job, degrees: Mapping[str, int], stage: int) -> StageParameters:
    """Weights on one GPU of a stage. DualPipe keeps two stages on each, the opposite one too; ZBV brings the head back to the first stage."""
    here, schedule, pp = stage_parameters(job, degrees, stage), schedule_of(job), degrees["pp"]
    if pp > 1 and schedule == "dualpipe":
        there = stage_parameters(job, degrees, pp - 1 - stage)
        return StageParameters(here.dense + there.dense, here.expert + there.expert)
    if pp > 1 and schedule == "zbv" and stage == 0:
        return StageParameters(here.dense + (embedding_parameters(job.model) or 0) // degrees["tp"], here.expert)
    return here


def activations_of(job: Job, degrees: Mapping[str, int], setup: Setup, stage: int) -> Activations | None:
    """Activations of one stage; None where the shape doesn't say enough."""
    dense, moe = layers_of_stage(job, degrees, stage)
    one = [kept(job, setup, moe=kind) if number else None for kind, number in ((False, dense), (True, moe))]
    if (dense and one[0] is None) or (moe and one[1] is None):
        return None
    layers = sum(number * each.of(setup) for number, each in zip((dense, moe), one, strict=True) if each is not None)
    h, times = job.model.hidden_size or 0, held_micro_batches(job, setup, stage)
    others = 0.0
    if setup.framework in {"deepspeed", "torchtitan"} and setup.pp > 1:
        others += (
            2 * h * setup.tokens / setup.split
        )  # their pipelines keep the outputs of the stage too; Megatron frees them
    if stage == 0:
        others += 8 * setup.tokens / setup.split + (
            h * setup.tokens / setup.split if job.model.dropout else 0
        )  # token numbers; mask of the embedding's dropout
    held = (layers + others) * times
    working = max(
        working_bytes(job, setup, moe=kind) if number else 0 for kind, number in ((False, dense), (True, moe))
    )
    loss = loss_bytes(job, setup) if stage == setup.pp - 1 else 0.0
    what = f"loss {show_bytes(loss)}" if loss > working else f"layer at work {show_bytes(working)}"
    formula = f"{times:g} micro-batches in flight x {dense + moe} layers = {show_bytes(held)}, and {what}"
    return Activations(held, max(loss, working), formula)


def stage_memory(job: Job, degrees: Mapping[str, int], setup: Setup, stage: int) -> Memory | None:
    """The six lines of one pipeline stage, from 0; None where the shape doesn't say enough."""
    activations = activations_of(job, degrees, setup, stage)
    if activations is None:
        return None
    weights, state = stage_weights(job, degrees, stage), state_of(job, setup)

    def line(shares: Shares) -> tuple[float, str]:
        size = shares.of(weights.dense, setup.dense_shards) + shares.of(weights.expert, setup.expert_shards)
        return size, _formula(shares, weights, setup)

    buffers, how = buffer_bytes(job, degrees, setup, sum(weights))
    outside = outside_bytes(degrees)
    handed_out = sum(line(shares)[0] for shares in state) + activations.held + activations.top + buffers
    share = HOLES_EXPANDABLE if setup.framework == "torchtitan" else HOLES_FIXED
    holes = share * handed_out
    reserve = f"{share * 100:.0f} % of {show_bytes(handed_out)} for holes between blocks = {show_bytes(holes)}, CUDA context and NCCL {show_bytes(outside)}"
    sizes: dict[MemoryPart, tuple[float, str]] = {
        "parameters": line(state.parameters),
        "gradients": line(state.gradients),
        "optimizer": line(state.optimizer),
        "activations": (activations.held + activations.top, activations.formula),
        "buffers": (buffers, how),
        "reserve": (holes + outside, reserve),
    }
    return Memory(
        stage=stage,
        lines=tuple(
            MemoryLine(part=part, size_bytes=round(size), formula=formula) for part, (size, formula) in sizes.items()
        ),
        error_share=ERROR_SHARE,
        error_source=ERROR_SOURCE,
        not_modelled=_not_modelled(job),
    )


def _not_modelled(job: Job) -> tuple[str, ...]:
    """What the lines leave out, as far as it concerns this job."""
    terms = list(_NOT_MODELLED)
    if job.model.experts:
        terms.append(
            "buffers of the experts' dispatcher" + ("" if job.training.expert_skew > 1 else ", uneven load of experts")
        )
    if job.training.precision == "fp8":
        terms.append("fp8 copies of weights")
    if job.model.mtp_layers:
        terms.append("activations of multi-token prediction")
    return tuple(terms)


def _formula(shares: Shares, weights: StageParameters, setup: Setup) -> str:
    parts = [
        f"({shares}) x {weights.dense / 1e9:.3f}e9 weights" + (f", d = {setup.dense_shards}" if shares.shared else "")
    ]
    if weights.expert:
        parts.append(
            f"({shares}) x {weights.expert / 1e9:.3f}e9 of experts"
            + (f", d = {setup.expert_shards}" if shares.shared else "")
        )
    return " + ".join(parts)
