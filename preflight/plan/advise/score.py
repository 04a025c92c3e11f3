"""One layout in figures: memory, bubble, step time, tokens per second, without building its groups."""

from typing import NamedTuple

import msgspec

from preflight.model import Job, Memory, Parallel, StepTime, Training
from preflight.plan.advise.degrees import quick_degrees, quick_orders
from preflight.plan.advise.spans import block_footprints
from preflight.plan.bubble import bubble_overhead, idle_share, schedule_of
from preflight.plan.estimate import STATE_BYTES_PER_PARAMETER
from preflight.plan.ledger import make_ledger
from preflight.plan.memory import estimate_memory, estimate_state
from preflight.plan.rates import Rates
from preflight.plan.shape import count_parameters
from preflight.plan.steptime import estimate_step_time


class Cluster(NamedTuple):
    """What a layout is put on. `memory_bytes` of one GPU, None if not known. `per_domain`: GPUs that NVLink joins."""

    nodes: int
    per_node: int
    per_domain: int
    memory_bytes: int | None
    rates: Rates

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.nodes * self.per_node


class Score(NamedTuple):
    """A layout and its figures. `memory_bytes`: of the training state alone where `memory` is None, for want of shape, batch or sequence length. `tokens_per_s` of the whole job; None where rates or shape are not known."""

    job: Job
    degrees: dict[str, int]
    micro_batches: int
    global_batch_size: int
    idle_share: float
    memory: Memory | None
    memory_bytes: int
    capacity: int | None
    step: StepTime | None
    tokens_per_s: float | None

    @property
    def fits(self) -> bool | None:
        """Whether the most loaded GPU has room; None if its memory is not known."""
        return None if self.capacity is None else self.memory_bytes <= self.capacity

    @property
    def tight(self) -> bool:
        """Whether it fits, but by less than the error of the estimate."""
        error = self.memory.error_share if self.memory is not None else 0.0
        return bool(self.fits) and self.capacity is not None and self.memory_bytes * (1 + error) > self.capacity


def score_layout(
    job: Job, parallel: Parallel, training: Training, micro_batches: int, cluster: Cluster
) -> Score | None:
    """The figures of a layout; None where the framework would refuse it, or the batch doesn't divide."""
    job = msgspec.structs.replace(job, parallel=parallel, training=training)
    size = training.micro_batch_size or 1
    degrees = quick_degrees(job, cluster.world_size)
    if degrees is None:
        return None
    dense, expert = quick_orders(job)
    overhead = bubble_overhead(schedule_of(job), p=degrees["pp"], m=micro_batches, v=job.parallel.virtual_stages)
    memory = estimate_memory(job, degrees, micro_batches)
    footprints = block_footprints(degrees, dense, expert, per_node=cluster.per_node, per_domain=cluster.per_domain)
    step = estimate_step_time(
        job,
        degrees,
        micro_batches=micro_batches,
        ledger=make_ledger(job, degrees, micro_batches, cluster.rates),
        footprints=footprints,
        rates=cluster.rates,
        world_size=cluster.world_size,
    )
    total = micro_batches * size * degrees["dp"]
    least = -(-STATE_BYTES_PER_PARAMETER * job.model.parameters // (degrees["tp"] * degrees["pp"]))
    if memory is None and count_parameters(job.model) is not None:
        known = estimate_state(job, degrees, micro_batches)
        least = least if known is None else known[0]
    tokens = None if training.seq_length is None else total * training.seq_length
    return Score(
        job=job,
        degrees=degrees,
        micro_batches=micro_batches,
        global_batch_size=total,
        idle_share=idle_share(overhead),
        memory=memory,
        memory_bytes=least if memory is None else memory.total_bytes,
        capacity=cluster.memory_bytes,
        step=step,
        tokens_per_s=None if step is None or tokens is None else tokens / step.total_s,
    )
