"""Timing one operation on one rank: first call, warm-up, then windows of back-to-back operations for a given wall time.

All ranks of a group must run the same number of operations. So the group's first rank decides (how many operations make a window, whether to go on)
and broadcasts it between windows, outside the timed part; that broadcast also brings the ranks back together. A fixed wall time instead of a fixed count
keeps groups that are measured together overlapping to the end.
"""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from preflight.probe.backends import Group
from preflight.probe.collectives import Operation

WARM_UP = 3  # untimed operations after the first call; connections, buffers and clocks settle
WINDOW_S = 0.01  # a window is long enough that the ranks' skew at its start (0.1 to 0.3 ms on loopback) is small
MAX_WINDOW = 64
_FROM_FIRST = dist.BroadcastOptions()
_FROM_FIRST.rootRank = 0
_FROM_FIRST.rootTensor = 0
MIN_WINDOWS, MAX_WINDOWS = 3, 400


@dataclass
class Timed:
    """Raw figures of one rank, in seconds; `durations_s` is per operation, one entry per window of `window` operations."""

    first_call_s: float
    durations_s: list[float]
    window: int
    data_correct: bool


def time_operation(group: Group, operation: Operation, loop_s: float) -> Timed:
    """Run the operation for about loop_s seconds. Raises what the backend raises at its timeout."""
    operation.fill()
    first_call_s = group.seconds(operation.run, 1)
    correct = operation.check(1)
    operation.fill()
    warm_s = group.seconds(operation.run, WARM_UP) / WARM_UP
    correct = operation.check(WARM_UP) and correct
    most = min(MAX_WINDOW, operation.max_runs or MAX_WINDOW)
    window = _agree(group, max(1, min(most, round(WINDOW_S / max(warm_s, 1e-6)))))
    durations: list[float] = []
    begin = time.monotonic()
    while True:
        over = len(durations) >= MAX_WINDOWS or (len(durations) >= MIN_WINDOWS and time.monotonic() - begin >= loop_s)
        operation.fill()
        if _agree(group, int(over)):
            break
        durations.append(group.seconds(operation.run, window) / window)
        correct = operation.check(window) and correct
    return Timed(first_call_s=first_call_s, durations_s=durations, window=window, data_correct=correct)


def _agree(group: Group, value: int) -> int:
    """The value of the group's first rank."""
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
