"""What every framework asks of a layout: the degrees give the world size, the order names what is used, no key of another framework is set."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from preflight.errors import ConfigError
from preflight.model import Job, Parallel


class World(NamedTuple):
    """How many ranks there are, and on what. `gpus_per_node` counts the ranks of the fullest node."""

    nodes: int
    gpus_per_node: int
    size: int

    def __str__(self) -> str:
        """The arithmetic, for messages."""
        if self.nodes * self.gpus_per_node == self.size:
            return f"{self.nodes} nodes x {self.gpus_per_node} GPUs = {self.size}"
        return f"{self.size} ranks on {self.nodes} nodes"


def product(factors: Mapping[str, int]) -> str:
    """As in "tp 8 x pp 4 = 32"."""
    shown = " x ".join(f"{axis} {degree}" for axis, degree in factors.items())
    return f"{shown} = {math.prod(factors.values())}"


def fill_world(job: Job, world: World, factors: Mapping[str, int | None], framework: str) -> dict[str, int]:
    """The factors of the world size, with the one that is None filled in. Raises ConfigError, every factor shown, where they don't give it.

    Worked example: tp 8, cp 1, dp None, pp 4 on 64 ranks: dp 2.
    """
    known = {axis: degree for axis, degree in factors.items() if degree is not None}
    inner = math.prod(known.values())
    free = [axis for axis in factors if axis not in known]
    if free and world.size % inner:
        raise ConfigError(
            job.source,
            f"{product(known)} ranks, which does not divide {world}, so no {free[0]} fits ({framework}: the world size must"
            f" divide by {' x '.join(known)})",
            key="parallel",
            remedy=f"change {_listed(known)} so that their product divides {world.size}, or change the number of nodes",
        )
    filled = {axis: world.size // inner if degree is None else degree for axis, degree in factors.items()}
    if math.prod(filled.values()) != world.size:
        raise ConfigError(
            job.source,
            f"{product(filled)} ranks, but {world} ({framework}: the world size is {' x '.join(filled)})",
            key="parallel",
            remedy=_world_remedy(filled, world),
        )
    return filled


def _listed(axes: Iterable[str]) -> str:
    *first, last = axes
    return f"{', '.join(first)} or {last}" if first else last


def _world_remedy(filled: Mapping[str, int], world: World) -> str:
    """What would make the product right: another dp, or another number of nodes."""
    total = math.prod(filled.values())
    free = next(axis for axis in ("dp", "dp_shard") if axis in filled)
    inner = total // filled[free]
    choices = []
    if world.size % inner == 0:
        choices.append(f"set {free} = {world.size // inner} or leave {free} out")
        if (
            filled.get("dp_replicate") == 1 and world.size % total == 0
        ):  # more ranks than degrees: hybrid sharding, perhaps
            choices.append(f"dp_replicate = {world.size // total}")
    else:
        others = _listed(axis for axis in filled if axis != free)
        choices.append(f"change {others}: {inner} does not divide {world.size}")
    if total % world.gpus_per_node == 0:
        nodes = total // world.gpus_per_node
        choices.append(f"use {nodes} node{'s' if nodes != 1 else ''}")
    return ", or ".join(choices)


def complete_order(
    job: Job, degrees: Mapping[str, int], default: Sequence[str], given: tuple[str, ...] | None
) -> tuple[str, ...]:
    """The axes, innermost first: the plan's own order, completed by the axes of degree 1 that it leaves out, or the framework's.

    Raises ConfigError where the order names an axis that the framework lacks, names one twice, or leaves out an axis above degree 1.
    """
    if given is None:
        return tuple(default)
    shown, wanted = "-".join(given), "-".join(default)
    if len(set(given)) != len(given) or not set(given) <= set(default):
        raise ConfigError(
            job.source,
            f"{shown!r} is not a list of axes, each at most once, innermost first",
            key="parallel.order",
            remedy=f"write it as in {wanted!r}",
        )
    missing = tuple(axis for axis in default if axis not in given)
    for axis in missing:
        if degrees[axis] > 1:
            raise ConfigError(
                job.source,
                f"{shown!r} leaves out {axis}, whose degree is {degrees[axis]}",
                key="parallel.order",
                remedy=f"name every axis, innermost first, as in {wanted!r}",
            )
    return given + missing


# key -> the frameworks that have it; elsewhere it would be ignored in silence
_OWNERS: dict[str, tuple[str, ...]] = {
    "dp_replicate": ("torchtitan", "fsdp"),
    "dp_shard": ("torchtitan", "fsdp"),
    "optimizer_instances": ("megatron",),
    "hierarchical_cp": ("megatron",),
    "data_before_expert": ("deepspeed",),
    "auto_ep": ("deepspeed",),
}


def refuse_foreign_keys(job: Job) -> None:
    """Raises ConfigError where a key is set that the framework doesn't have."""
    unset = Parallel()
    for key, owners in _OWNERS.items():
        value = getattr(job.parallel, key)
        if job.parallel.framework not in owners and value != getattr(unset, key):
            raise ConfigError(
                job.source,
                f"{value!r} means nothing to {job.parallel.framework}: only {' and '.join(owners)} has it",
                key=f"parallel.{key}",
                remedy="leave it out, or name the framework that it belongs to",
            )


def refuse_axes(job: Job, framework: str, why: Mapping[str, str]) -> None:
    """Raises ConfigError where an axis is above 1 that the framework doesn't have. `why`: axis -> what the framework has instead."""
    for axis, reason in why.items():
        degree = getattr(job.parallel, axis)
        if degree is not None and degree > 1:
            raise ConfigError(
                job.source,
                f"{degree}, but {framework} {reason}",
                key=f"parallel.{axis}",
                remedy=f"leave {axis} out, or name the framework that has it",
            )
