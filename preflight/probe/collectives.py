"""The collectives: for each, how to fill the buffers, run it once, and tell whether the data is right.

Buffers are 32-bit integers: sums are exact in any order, wrap around the same everywhere, and have the width of float32. Sizes follow nccl-tests:
for all_to_all the message is a rank's whole send buffer, for send_recv what goes one way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from preflight.probe.backends import Group

PATTERN = 251  # a prime, so that no power-of-two shift of a buffer looks right
ROOM_BITS = 24  # of 32: how far repeated sums may shift the data up; the pattern's own 8 bits stay, so that there is something to verify


@dataclass(frozen=True)
class Operation:
    """One collective on one rank. `fill` prepares buffers, `run` is what is timed, `check(k)` tells whether k runs gave the right data.

    `max_runs`: after more runs than this without a `fill`, the data says too little; None: any number.
    """

    fill: Callable[[], None]
    run: Callable[[], None]
    check: Callable[[int], bool]
    max_runs: int | None = None


def pattern(num_elements: int, seed: int, device: torch.device) -> torch.Tensor:
    """Values that depend on position and sender: ((i + 17 seed) mod 251) + seed."""  # shape: (num_elements,)
    return (torch.arange(num_elements, dtype=torch.int32, device=device) + 17 * seed) % PATTERN + seed


def all_reduce(group: Group, num_elements: int) -> Operation:
    """Sum in place. After k runs each element is size^(k-1) times the sum of what the ranks put in, modulo 2^32.

    Each factor of two in the size shifts the data up by a bit with each run, until nothing but zeros is left: over 8 ranks after 11 runs. So the
    runs are limited to ROOM_BITS / log2 of that factor, 8 over 8 ranks.
    """
    mine = pattern(num_elements, group.index, group.device)
    buffer = torch.empty_like(mine)
    total = sum((pattern(num_elements, rank, group.device) for rank in range(group.size)), torch.zeros_like(mine))

    def check(runs: int) -> bool:
        factor = pow(group.size, runs - 1, 2**32)
        return bool(torch.equal(buffer, total * (factor - 2**32 if factor >= 2**31 else factor)))

    shift = (group.size & -group.size).bit_length() - 1  # how often two divides the size
    return Operation(
        fill=lambda: _ignore(buffer.copy_(mine)),
        run=lambda: _wait(group.group.allreduce([buffer])),
        check=check,
        max_runs=max(1, ROOM_BITS // shift) if shift else None,
    )


def all_to_all(group: Group, num_elements: int) -> Operation:
    """Each rank sends the j-th part of its buffer to rank j."""
    part = max(1, num_elements // group.size)
    sent = torch.cat([pattern(part, group.index * group.size + to, group.device) for to in range(group.size)])
    wanted = torch.cat([pattern(part, sender * group.size + group.index, group.device) for sender in range(group.size)])
    received = torch.empty_like(sent)
    return Operation(
        fill=lambda: _ignore(received.fill_(-1)),
        run=lambda: _wait(group.group.alltoall_base(received, sent, [], [])),
        check=lambda _: torch.equal(received, wanted),
    )


def send_recv(group: Group, num_elements: int) -> Operation:
    """Each rank exchanges a buffer with its neighbours in the group, both ways at once: a pair, or the stages of a pipeline."""
    neighbours = [other for other in (group.index - 1, group.index + 1) if 0 <= other < group.size]
    sent = {to: pattern(num_elements, group.index * group.size + to, group.device) for to in neighbours}
    received = {sender: torch.empty_like(sent[sender]) for sender in neighbours}
    wanted = {sender: pattern(num_elements, sender * group.size + group.index, group.device) for sender in neighbours}

    def send(other: int) -> Callable[[], Any]:
        return lambda: group.group.send([sent[other]], other, 0)

    def receive(other: int) -> Callable[[], Any]:
        return lambda: group.group.recv([received[other]], other, 0)

    # receive first: gloo, with its sends posted first, moves one direction after the other (measured: 188 in place of 352 of 400 Mbit/s each way)
    starts = [start for turn in (receive, send) for start in map(turn, neighbours)]
    return Operation(
        fill=lambda: _ignore([buffer.fill_(-1) for buffer in received.values()]),
        run=lambda: group.together(starts),
        check=lambda _: all(torch.equal(received[sender], wanted[sender]) for sender in neighbours),
    )


OPERATIONS: dict[str, Callable[[Group, int], Operation]] = {
    "all_reduce": all_reduce,
    "all_to_all": all_to_all,
    "send_recv": send_recv,
}


def _wait(work: Any) -> None:
    work.wait()


def _ignore(value: object) -> None:
    del value
