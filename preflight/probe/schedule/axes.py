"""What the groups of an axis send in training: the collectives and message sizes that the plan implies (pure)."""

from collections.abc import Iterator
from typing import get_args

from preflight.model import Collective, Plan, Traffic
from preflight.model.base import Record
from preflight.probe.schedule.probes import SIZES

# The collective that each axis uses in training; cp exchanges keys and values around a ring, which for timing is neighbours exchanging.
# What is not here reduces gradients (dp_cp, fsdp, embedding, ...).
AXIS_COLLECTIVE: dict[str, Collective] = {
    "tp": "all_reduce",
    "dp": "all_reduce",
    "edp": "all_reduce",
    "etp": "all_reduce",
    "ep": "all_to_all",
    "pp": "send_recv",
    "cp": "send_recv",
}
_TENSOR, _UNSHARDED = frozenset({"tp", "etp"}), frozenset({"dp_replicate", "embedding", "dp_inter", "edp_inter"})
_HALVES: tuple[Collective, ...] = ("reduce_scatter", "all_gather")
SMALL_SHARE = 0.1  # of an axis's bytes: a collective that carries less (a loss, gradients of norms) is not timed
FAR = 2  # the plan's message is timed besides a large one where that is so many times as large


class Message(Record, frozen=True):
    """One thing that the groups of an axis do. `size_name` as in Probe."""

    collective: Collective
    size_bytes: int
    size_source: str
    size_name: str = ""


def messages_of(plan: Plan, axis: str, backend: str) -> list[Message]:
    """Each collective of the axis at a large size, then at the plan's own where that is far from it. The collective that carries most comes first."""
    found = [_planned(plan, axis, name, backend) for name in collectives_of(plan, axis)]
    largest = SIZES[backend][2]
    far = [message for message in found if message.size_bytes * FAR <= largest]
    large = [
        message.replace(size_bytes=largest, size_source=f"fixed for groups on {backend}") if message in far else message
        for message in found
    ]
    return [*large, *(message.replace(size_name="planned") for message in far)]


def collectives_of(plan: Plan, axis: str) -> list[Collective]:
    """By the ledger of the plan, those that carry a tenth of the axis's bytes; where it says nothing of the axis, by what the plan file says and the framework does."""
    rows = _rows(plan, axis)
    carried: dict[str, int] = {}
    for row in rows:
        carried[row.collective] = carried.get(row.collective, 0) + row.wire_bytes
    least = SMALL_SHARE * sum(carried.values())
    telling = sorted((name for name in carried if carried[name] >= least), key=lambda name: -carried[name])
    named = [name for word in telling for name in get_args(Collective) if name == word] or list(
        _by_framework(plan, axis)
    )
    exchanges = (
        plan.groups.get("ep") == plan.groups[axis]
    )  # experts over the very groups of another axis, which is timed for both
    return [*named, *(["all_to_all"] if exchanges and "all_to_all" not in named else [])]


def weight_of(plan: Plan, axis: str) -> int:
    """Bytes that a rank sends along these groups in a step, by the ledger; 0: it says nothing of them."""
    return sum(row.wire_bytes for row in _rows(plan, axis))


def planned_message(plan: Plan, axis: str, backend: str) -> Message:
    """The message that dominates the axis, within the backend's range: what is timed where one size is all there is time for."""
    return _planned(plan, axis, AXIS_COLLECTIVE.get(axis, "all_reduce"), backend, any_collective=True)


def _planned(plan: Plan, axis: str, collective: Collective, backend: str, *, any_collective: bool = False) -> Message:
    _, smallest, largest = SIZES[backend]
    rows = [row for row in _rows(plan, axis) if row.collective == collective]
    most = max(rows, key=lambda row: row.wire_bytes, default=None)
    sized = _sized_axis(plan, axis)
    planned = plan.estimate.message_bytes.get(sized)
    source = plan.estimate.message_sources.get(sized, "the plan")
    if most is not None and not any_collective:
        planned, source = most.message_bytes, f"plan: {most.purpose}: {most.formula}"
    if planned is None:
        return Message(collective, largest, "default: the plan implies no message size")
    size = min(max(planned, smallest), largest)
    if size != planned:
        source = f"the plan's {planned} bytes, kept within {smallest} to {largest} on {backend}"
    return Message(collective, size, source)


def _rows(plan: Plan, axis: str) -> list[Traffic]:
    """The ledger's rows of these groups, under whichever of the names that share them."""
    return [row for row in plan.estimate.ledger if plan.groups.get(row.axis) == plan.groups[axis]]


def _by_framework(plan: Plan, axis: str) -> Iterator[Collective]:
    """torchtitan shards sequences with tensor parallelism, and with FSDP weights, unless told otherwise; Megatron and DeepSpeed do neither."""
    parallel = plan.job.parallel
    sharded = parallel.framework in {"torchtitan", "fsdp"}
    sequence = parallel.framework == "torchtitan" if parallel.sequence_parallel is None else parallel.sequence_parallel
    stage = (3 if sharded else 0) if parallel.zero_stage is None else parallel.zero_stage
    known = AXIS_COLLECTIVE.get(axis, "all_reduce")
    if known != "all_reduce" or axis in _UNSHARDED:
        yield known
    elif sequence if axis in _TENSOR else stage >= 1:
        yield from _HALVES
    else:
        yield known


def _sized_axis(plan: Plan, axis: str) -> str:
    """The axis whose message these groups carry: their own, or of those with the same groups the one that sends most."""
    sizes = plan.estimate.message_bytes
    same = [other for other in sizes if plan.groups.get(other) == plan.groups[axis]]
    return max(same, key=lambda other: sizes[other], default=axis)
