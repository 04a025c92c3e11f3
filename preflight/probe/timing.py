"""Timing one operation on one rank: first call, warm-up, then windows of back-to-back operations for a given wall time.

All ranks of a group must run the same number of operations. So the group's first rank decides (how many operations warm up and make a window, whether to go on)
and broadcasts it between windows, outside the timed part; a tiny all_reduce before each window brings the ranks back together. A fixed wall time instead of a fixed count
keeps groups that are measured together overlapping to the end.

Each stage has its own deadline: the first operation, then three times what an operation is expected to take, but no less than a floor. On a link so slow that the usual number
of operations would not fit, fewer are run: one to warm up, one window of one.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from preflight.probe.alone import AloneGroup
from preflight.probe.backends import Group
from preflight.probe.breadcrumbs import Trail
from preflight.probe.collectives import Operation

WARM_UP = 3  # untimed operations after the first call; connections, buffers and clocks settle
WINDOW_S = 0.01  # a window is long enough that the ranks' skew at its start (0.1 to 0.3 ms on loopback) is small
MAX_WINDOW = 64
_FROM_FIRST = dist.BroadcastOptions()
_FROM_FIRST.rootRank = 0
_FROM_FIRST.rootTensor = 0
MIN_WINDOWS, MAX_WINDOWS = 3, 400
PATIENCE = 3  # a window may take so many times what its operations took while warming up
SLOW_S = 2.0  # a first call that takes longer: three more would take too long if it is the link that is slow


@dataclass(frozen=True)
class Patience:
    """Seconds. `first_s`: for the first operation; `floor_s`: for a window at least; `stop_s`: no further window is begun if it would end after that (time.monotonic)."""

    first_s: float
    floor_s: float
    stop_s: float


@dataclass
class Timed:
    """Raw figures of one rank, in seconds; `durations_s` is per operation, one entry per window of `window` operations."""

    first_call_s: float
    durations_s: list[float]
    window: int
    data_correct: bool


def time_operation(
    group: Group | AloneGroup, operation: Operation, loop_s: float, patience: Patience, trail: Trail
) -> Timed:
    """Run the operation for about loop_s seconds. Raises what the backend raises at its timeout."""
    run = _counted(operation.run, trail)
    operation.fill()
    trail.at("first operation", operation=1)
    group.limit(patience.first_s)
    first_call_s = group.seconds(operation.run, 1)
    correct = _verify(operation, 1, trail)
    warm_up = _agree(group, 1 if first_call_s > SLOW_S else WARM_UP, trail)
    operation.fill()
    trail.at("warm-up", operation=1)
    warm_s = group.seconds(operation.run, warm_up) / warm_up
    correct = _verify(operation, warm_up, trail) and correct
    most = min(MAX_WINDOW, operation.max_runs or MAX_WINDOW)
    window = _agree(group, max(1, min(most, round(WINDOW_S / max(warm_s, 1e-6)))), trail)
    group.limit(max(patience.floor_s, PATIENCE * warm_s * window))
    durations: list[float] = []
    begin = time.monotonic()
    while True:
        now = time.monotonic()
        late = bool(durations) and now + warm_s * window > patience.stop_s
        enough = len(durations) >= MIN_WINDOWS and now - begin >= loop_s
        operation.fill()
        if _agree(group, int(late or enough or len(durations) >= MAX_WINDOWS), trail):
            break
        trail.at("operation", operation=len(durations) * window)
        durations.append(group.seconds(run, window) / window)
        correct = _verify(operation, window, trail) and correct
    return Timed(first_call_s=first_call_s, durations_s=durations, window=window, data_correct=correct)


def _counted(run: Callable[[], None], trail: Trail) -> Callable[[], None]:
    """The operation, with a crumb before it."""

    def counted() -> None:
        trail.at("operation", operation=trail.operation + 1)
        run()

    return counted


def _verify(operation: Operation, runs: int, trail: Trail) -> bool:
    trail.at("verification", operation=runs)
    return operation.check(runs)


def _agree(group: Group | AloneGroup, value: int, trail: Trail) -> int:
    """The value of the group's first rank."""
    if group.size == 1:
        return value
    trail.at("agreement", operation=trail.operation)
    shared = torch.tensor([value], dtype=torch.int64, device=group.device)
    group.group.broadcast([shared], _FROM_FIRST).wait()
    group.settle()
    return int(shared.item())


def members_of(group: Group, rank: int) -> tuple[int, ...]:
    """The ranks that are really in the communicator, in its order: each tells its own number."""
    mine = torch.tensor([rank], dtype=torch.int64, device=group.device)
    numbers = [torch.full_like(mine, -1) for _ in range(group.size)]
    group.group.allgather([numbers], [mine]).wait()
    group.settle()
    return tuple(int(number.item()) for number in numbers)
