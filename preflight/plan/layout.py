"""From degrees and axis order to the groups of each axis, by the rules of the job's framework."""

from collections.abc import Callable

from preflight.errors import ConfigError
from preflight.model import Framework, Job
from preflight.plan.frameworks import deepspeed, megatron, sharded
from preflight.plan.frameworks.grid import Layout
from preflight.plan.frameworks.rules import World, refuse_foreign_keys

__all__ = ["MAX_WORLD_SIZE", "ORDERS", "Layout", "lay_out"]

MAX_WORLD_SIZE = 2**20  # far above any cluster built; keeps a slip of the pen from filling the memory

# framework -> axes, innermost first
ORDERS: dict[Framework, tuple[str, ...]] = {
    "megatron": megatron.ORDER,
    "torchtitan": sharded.TORCHTITAN_ORDER,
    "deepspeed": deepspeed.ORDER,
    "fsdp": sharded.FSDP_ORDER,
}

_LAY_OUT: dict[Framework, Callable[[Job, World], Layout]] = {
    "megatron": megatron.lay_out,
    "torchtitan": sharded.lay_out_torchtitan,
    "deepspeed": deepspeed.lay_out,
    "fsdp": sharded.lay_out_fsdp,
}


def lay_out(job: Job, *, nodes: int, gpus_per_node: int, world_size: int) -> Layout:
    """The layout of a job on a world of that size. Raises ConfigError, with the resolved values, where its framework would refuse it.

    `gpus_per_node`: ranks of the fullest node; `world_size` is less than nodes x gpus_per_node where nodes differ. Groups list their ranks
    in ascending order and come by their first rank; axes of degree 1 have none. Axes beyond tp, cp, ep, dp and pp are in `degrees` where they
    exist: see the frameworks.
    """
    world = World(nodes, gpus_per_node, world_size)
    if world_size > MAX_WORLD_SIZE:
        raise ConfigError(
            job.source, f"{world} ranks is more than {MAX_WORLD_SIZE}, the most we lay out", key="hardware"
        )
    refuse_foreign_keys(job)
    return _LAY_OUT[job.parallel.framework](job, world)
