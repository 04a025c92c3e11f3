"""The estimate of a job: memory, pipeline bubble, communication, step time, checkpoints. The formulas stand in the modules it puts together.

p: pipeline stages, m: micro-batches per replica and step, v: virtual stages (chunks per rank).
"""

from collections.abc import Mapping

from preflight.errors import ConfigError
from preflight.model import Estimate, Footprint, Job, Profile
from preflight.plan.bubble import bubble_overhead, idle_share, schedule_of
from preflight.plan.checkpoint import estimate_checkpoint
from preflight.plan.ledger import make_ledger, message_sizes
from preflight.plan.memory import estimate_memory, estimate_state
from preflight.plan.rates import rates_of
from preflight.plan.steptime import estimate_step_time

# bf16 weight 2 + bf16 gradient 2 + fp32 master weight 4 + two fp32 Adam moments 8 (mixed-precision rule of the ZeRO paper)
STATE_BYTES_PER_PARAMETER = 16


def make_estimate(
    job: Job,
    degrees: Mapping[str, int],
    *,
    gpu_memory_bytes: int | None,
    world_size: int,
    num_nodes: int,
    profile: Profile | None = None,
    footprints: Mapping[str, Footprint] | None = None,
) -> Estimate:
    """The estimate of one job with resolved degrees; None where the plan file doesn't say enough.

    `footprints`: what the groups of each axis touch, which decides whether its traffic goes at NVLink or at network speed; None: all inside.
    Worked example, 70B in 80 layers, tp 8, pp 4, 32 micro-batches, 80e9-byte GPUs, nothing else known: state 16 x 70e9 / 32 = 35.0e9 bytes,
    free 45.0e9, overhead 3/32 = 0.0938, idle share 3/35 = 0.0857, 2 x 80 / 4 = 40 collectives.
    Raises ConfigError where the batch sizes contradict each other or the layout.
    """
    micro_batches = count_micro_batches(job, degrees["dp"])
    overhead = _overhead(job, degrees, micro_batches)
    memory = estimate_memory(job, degrees, micro_batches)
    rates = rates_of(job.hardware, profile)
    ledger = make_ledger(job, degrees, micro_batches, rates)
    sizes, sources = message_sizes(ledger)
    # rounded up: a size that is needed is never shown too small
    rule = -(-STATE_BYTES_PER_PARAMETER * job.model.parameters // (degrees["tp"] * degrees["pp"]))
    state_bytes, formula = rule, None
    if memory is not None:
        state_bytes, formula = memory.state_bytes, "parameters, gradients, optimizer"
    elif (known := estimate_state(job, degrees, micro_batches)) is not None:
        state_bytes, formula = known
    return Estimate(
        state_bytes_per_gpu=state_bytes,
        state_formula=formula,
        gpu_memory_bytes=gpu_memory_bytes,
        free_bytes_per_gpu=None if gpu_memory_bytes is None else gpu_memory_bytes - state_bytes,
        micro_batches=micro_batches,
        bubble_overhead=overhead,
        bubble_idle_share=None if overhead is None else idle_share(overhead),
        # one all-reduce after attention and one after the MLP of each layer (Megatron-LM paper, section 3)
        tp_collectives_per_stage_forward=2 * job.model.layers / degrees["pp"] if degrees["tp"] > 1 else 0.0,
        message_bytes=sizes,
        message_sources=sources,
        memory=memory,
        ledger=ledger,
        step_time=estimate_step_time(
            job,
            degrees,
            micro_batches=micro_batches,
            ledger=ledger,
            footprints=footprints or {},
            rates=rates,
            world_size=world_size,
        ),
        checkpoint=estimate_checkpoint(job, degrees, world_size=world_size, nodes=num_nodes),
    )


def _overhead(job: Job, degrees: Mapping[str, int], micro_batches: int | None) -> float | None:
    """Bubble over ideal time; without a pipeline 0, however many micro-batches; None: their number is not known."""
    if degrees["pp"] == 1:
        return 0.0
    if micro_batches is None:
        return None
    return bubble_overhead(schedule_of(job), p=degrees["pp"], m=micro_batches, v=job.parallel.virtual_stages)


def count_micro_batches(job: Job, dp: int) -> int | None:
    """Micro-batches of one data-parallel replica and step: given, or global_batch_size / (micro_batch_size x dp). None: not said.

    Raises ConfigError if that is no whole number, or if both are given and differ.
    """
    training = job.training
    total, size = training.global_batch_size, training.micro_batch_size
    if total is None or size is None:
        return training.micro_batches
    if total % (size * dp):
        raise ConfigError(
            job.source,
            f"{total} does not divide by micro_batch_size {size} x dp {dp} = {size * dp}",
            key="training.global_batch_size",
            remedy=f"use a multiple of {size * dp}, such as {-(-total // (size * dp)) * size * dp}",
        )
    derived = total // (size * dp)
    if training.micro_batches not in (None, derived):
        raise ConfigError(
            job.source,
            f"{training.micro_batches}, but global_batch_size {total} / (micro_batch_size {size} x dp {dp}) = {derived}",
            key="training.micro_batches",
            remedy="leave one of micro_batches and global_batch_size out",
        )
    return derived
