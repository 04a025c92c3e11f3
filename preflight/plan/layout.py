"""From degrees and axis order to the groups of each axis: pure index arithmetic.

With the sizes s1, s2, ... of the axes listed innermost first, the stride of axis i is s1 x ... x s(i-1): ranks that differ in
that axis alone form one of its groups. Worked example, order tp-dp-pp with sizes 2, 2, 2: dp has stride 2, so its groups are
[0, 2] [1, 3] [4, 6] [5, 7].

Expert layers of a mixture of experts use the same ranks in a second arrangement: etp x ep x edp takes the place of
tp x cp x dp within each pipeline stage. World size is therefore tp x cp x dp x pp, whatever ep is.

Source of orders and rules: Megatron-Core, parallel_state.py (RankGenerator, initialize_model_parallel).
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from preflight.errors import ConfigError
from preflight.model import Job

# framework -> axes, innermost first. A key that the table lacks is refused when the plan file is read.
ORDERS: dict[str, tuple[str, ...]] = {"megatron": ("tp", "cp", "ep", "dp", "pp")}

MAX_WORLD_SIZE = 2**20  # far above any cluster built; keeps a slip of the pen from filling the memory

_EXPERT_NAMES = {"tp": "etp", "dp": "edp"}


class Layout(NamedTuple):
    """Axis -> degree; the axes innermost first; axis -> groups; name -> groups along several axes at once (Plan.composites)."""

    degrees: dict[str, int]
    order: tuple[str, ...]
    groups: dict[str, tuple[tuple[int, ...], ...]]
    composites: dict[str, tuple[tuple[int, ...], ...]]


def lay_out(job: Job, *, nodes: int, gpus_per_node: int, world_size: int) -> Layout:
    """The layout of a job on a world of that size. Raises ConfigError where the framework would refuse it."""
    degrees = resolve_degrees(job, nodes=nodes, gpus_per_node=gpus_per_node)
    order = axis_order(job, degrees)
    return Layout(degrees, order, all_groups(degrees, order), {})


def resolve_degrees(job: Job, *, nodes: int, gpus_per_node: int) -> dict[str, int]:
    """Every axis with its degree: dp filled in, etp defaulted to tp; etp and edp only where the experts have a layout of their own.

    Raises ConfigError, with every factor shown, where the degrees don't give the world size or the experts don't fit.
    """
    parallel = job.parallel
    world_size = nodes * gpus_per_node
    hardware = f"{nodes} nodes x {gpus_per_node} GPUs = {world_size}"
    if world_size > MAX_WORLD_SIZE:
        raise ConfigError(
            job.source, f"{hardware} ranks is more than {MAX_WORLD_SIZE}, the most we lay out", key="hardware"
        )
    inner = parallel.tp * parallel.cp * parallel.pp
    shown = f"tp {parallel.tp} x cp {parallel.cp} x pp {parallel.pp} = {inner} ranks"
    if parallel.dp is None and world_size % inner:
        raise ConfigError(
            job.source,
            f"{shown}, which does not divide {hardware}, so no dp fits",
            key="parallel",
            remedy=f"change tp, cp or pp so that their product divides {world_size}, or change the number of nodes",
        )
    dp = world_size // inner if parallel.dp is None else parallel.dp
    if inner * dp != world_size:
        product = (
            f"tp {parallel.tp} x cp {parallel.cp} x dp {dp} x pp {parallel.pp} = {inner * dp} ranks, but {hardware}"
        )
        raise ConfigError(job.source, product, key="parallel", remedy=_world_remedy(inner, dp, nodes, gpus_per_node))
    degrees = {"tp": parallel.tp, "cp": parallel.cp, "ep": parallel.ep, "dp": dp, "pp": parallel.pp}
    etp = parallel.tp if parallel.etp is None else parallel.etp
    if parallel.ep > 1 or etp != parallel.tp:
        degrees |= {"etp": etp, "edp": _expert_dp(job, dp, etp)}
    return degrees


def axis_order(job: Job, degrees: Mapping[str, int]) -> tuple[str, ...]:
    """The axes, innermost first: the plan's own order, completed by the axes of degree 1 it leaves out, or the framework's.

    Raises ConfigError where an axis above degree 1 is left out, or where dense and expert layers would disagree about
    which ranks form a pipeline.
    """
    default = ORDERS[job.parallel.framework]
    given = default if job.parallel.order is None else job.parallel.order
    missing = tuple(axis for axis in default if axis not in given)
    shown = "-".join(given)
    for axis in missing:
        if degrees[axis] > 1:
            raise ConfigError(
                job.source,
                f"{shown!r} leaves out {axis}, whose degree is {degrees[axis]}",
                key="parallel.order",
                remedy=f"name every axis, innermost first, as in {'-'.join(default)!r}",
            )
    order = given + missing
    if "etp" in degrees and degrees["pp"] > 1:
        dense, expert = (_stride(names, "pp", degrees) for names in (_dense(order), _expert(order)))
        if dense != expert:
            raise ConfigError(
                job.source,
                f"with {shown!r} neighbours in a pipeline are {dense} ranks apart in dense layers and {expert} in expert layers",
                key="parallel.order",
                remedy=f"let pp be the outermost axis, as in {'-'.join(default)!r}, or choose degrees with etp x ep = tp x cp",
            )
    return order


def all_groups(degrees: Mapping[str, int], order: Sequence[str]) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Axis -> its groups, each in ascending order of rank, the groups by their first rank. Axes of degree 1 are left out."""
    dense, expert = _dense(order), _expert(order)
    groups = {axis: _groups_along(axis, dense, degrees) for axis in dense if degrees[axis] > 1}
    if "etp" in degrees:
        groups |= {axis: _groups_along(axis, expert, degrees) for axis in expert if axis != "pp" and degrees[axis] > 1}
    return groups


def _groups_along(axis: str, order: Sequence[str], degrees: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
    """The groups of one axis of one arrangement.

    >>> _groups_along("dp", ("tp", "dp"), {"tp": 2, "dp": 2})
    ((0, 2), (1, 3))
    """
    import numpy as np

    shape = [degrees[name] for name in reversed(order)]  # numpy counts the last axis as the innermost
    ranks = np.arange(math.prod(shape)).reshape(shape)
    along = np.moveaxis(ranks, len(order) - 1 - order.index(axis), -1)  # (other axes..., degree)
    return tuple(map(tuple, along.reshape(-1, degrees[axis]).tolist()))


def _dense(order: Sequence[str]) -> tuple[str, ...]:
    return tuple(axis for axis in order if axis != "ep")


def _expert(order: Sequence[str]) -> tuple[str, ...]:
    return tuple(_EXPERT_NAMES.get(axis, axis) for axis in order if axis != "cp")


def _stride(order: Sequence[str], axis: str, degrees: Mapping[str, int]) -> int:
    """Product of the degrees inside an axis."""
    return math.prod(degrees[name] for name in order[: order.index(axis)])


def _expert_dp(job: Job, dp: int, etp: int) -> int:
    """edp = tp x cp x dp / (etp x ep). Raises ConfigError if that is no whole number."""
    parallel = job.parallel
    stage = parallel.tp * parallel.cp * dp
    if stage % (etp * parallel.ep) == 0:
        return stage // (etp * parallel.ep)
    default = " (etp is not given and defaults to tp)" if parallel.etp is None else ""
    fits = " etp = 1 would fit." if etp > 1 and stage % parallel.ep == 0 else ""
    raise ConfigError(
        job.source,
        f"etp {etp} x ep {parallel.ep} = {etp * parallel.ep} does not divide"
        f" tp {parallel.tp} x cp {parallel.cp} x dp {dp} = {stage}, the ranks of one pipeline stage{default}",
        key="parallel.ep",
        remedy=f"change ep or etp so that their product divides {stage}.{fits}",
    )


def _world_remedy(inner: int, dp: int, nodes: int, gpus_per_node: int) -> str:
    world_size = nodes * gpus_per_node
    choices = []
    if world_size % inner == 0:
        choices.append(f"set dp = {world_size // inner} or leave dp out")
    else:
        choices.append(f"change tp, cp or pp: {inner} does not divide {world_size}")
    if inner * dp % gpus_per_node == 0:
        choices.append(f"use {inner * dp // gpus_per_node} nodes")
    return ", or ".join(choices)
