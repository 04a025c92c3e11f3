"""The collectives: for each, how to fill the buffers, run it once, and tell whether the data is right.

Buffers are 32-bit integers: sums are exact in any order, wrap around the same everywhere, and have the width of float32. Sizes follow nccl-tests:
for all_to_all the message is a rank's whole send buffer, for all_gather and reduce_scatter the whole of all ranks, for send_recv and send what goes one way.

All but all_reduce would hide a fault behind the next operation, which brings the same data again. So consecutive operations send three different views of one buffer
and write to several receiving buffers in turn, which are all verified after the window: what the last operations did not write, or wrote late, differs.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from preflight.probe.backends import Group

PATTERN = 251  # a prime, so that no power-of-two shift of a buffer looks right
ROOM_BITS = 24  # of 32: how far repeated sums may shift the data up; the pattern's own 8 bits stay, so that there is something to verify

VIEWS = 3  # different data of consecutive operations; no divisor of the number of receiving buffers, so that each buffer gets other data the next time
STEP = 64  # elements between two views: 256 bytes keep a buffer as well aligned as it was
MANY_BUFFERS, FEW_BUFFERS = 4, 2
MANY_BELOW = 2**22  # elements of a receiving buffer, 16 MiB
_BY_POSITION, _BY_SENDER = (
    2_654_435_761,
    2_246_822_507,
)  # odd, so that each position, and each sender at the same position, has another value modulo 2^32


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


KEPT = 4  # stamps: what a worker's probes of pairs send and expect is the same in every round
KEPT_BELOW = 2**22  # elements, 16 MiB


def stamp(first: int, num_elements: int, seed: int, device: torch.device) -> torch.Tensor:
    """Values that differ at each position, and at the same position for each sender, for positions from `first`. Not to be written to: small ones are kept for the next probe."""  # shape: (num_elements,)
    make = _kept_stamp if num_elements < KEPT_BELOW else _new_stamp
    return make(first, num_elements, seed, device)


def _new_stamp(first: int, num_elements: int, seed: int, device: torch.device) -> torch.Tensor:
    positions = torch.arange(first, first + num_elements, dtype=torch.int64, device=device)
    mixed = positions.mul_(_BY_POSITION).add_(seed * _BY_SENDER % 2**32)
    return mixed.bitwise_and_(0xFFFFFFFF).sub_(2**31).to(torch.int32)


_kept_stamp = functools.lru_cache(maxsize=KEPT)(_new_stamp)


def all_reduce(group: Group, num_elements: int, _split: Sequence[float] = ()) -> Operation:
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


@dataclass(frozen=True)
class Part:
    """A stretch of some sender's data as it lies in a receiving buffer: `length` elements from `first` of the sender's, at `at`."""

    sender: int
    first: int
    length: int
    at: int


def all_to_all(group: Group, num_elements: int, split: Sequence[float] = ()) -> Operation:
    """Each rank sends the j-th part of its buffer to rank j: equal parts, or by the shares in `split`."""
    equal = max(1, num_elements // group.size)
    lengths = [max(1, round(num_elements * share)) for share in split] or [equal] * group.size
    mine, begin = lengths[group.index], sum(lengths[: group.index])
    parts = [Part(sender, begin, mine, sender * mine) for sender in range(group.size)]
    into = [mine] * group.size if split else []
    out = lengths if split else []
    return _out_of_place(
        group,
        sum(lengths),
        parts,
        lambda received, sent: group.group.alltoall_base(received, sent, into, out),
    )


def all_gather(group: Group, num_elements: int, _split: Sequence[float] = ()) -> Operation:
    """Every rank gets the parts of all, in rank order; `num_elements` of all together."""
    part = max(1, num_elements // group.size)
    parts = [Part(sender, 0, part, sender * part) for sender in range(group.size)]
    return _out_of_place(group, part, parts, group.group._allgather_base)  # noqa: SLF001 - the backend's only name for it


def reduce_scatter(group: Group, num_elements: int, _split: Sequence[float] = ()) -> Operation:
    """Each rank gets the sum over all ranks of one part of their buffers."""
    part = max(1, num_elements // group.size)
    parts = [Part(sender, group.index * part, part, 0) for sender in range(group.size)]
    return _out_of_place(
        group,
        part * group.size,
        parts,
        lambda received, sent: group.group._reduce_scatter_base(received, sent, _SUM),  # noqa: SLF001 - the backend's only name for it
    )


_SUM = dist.ReduceScatterOptions()  # its default operation


def _out_of_place(
    group: Group, num_sent: int, parts: Sequence[Part], start: Callable[[torch.Tensor, torch.Tensor], Any]
) -> Operation:
    """Operation k sends view k mod VIEWS and writes receiving buffer k mod their number. Parts that lie at the same place are summed up there."""
    base = stamp(0, num_sent + STEP * (VIEWS - 1), group.index, group.device)
    sent = [base[STEP * view : STEP * view + num_sent] for view in range(VIEWS)]
    received = Received(max(part.at + part.length for part in parts), parts, group.device)

    def run() -> None:
        view, buffer = received.next()
        start(buffer, sent[view]).wait()

    return Operation(fill=received.fill, run=run, check=received.check)


class Received:
    """Receiving buffers that are written in turn, and what must be in them."""

    def __init__(self, num_elements: int, parts: Sequence[Part], device: torch.device) -> None:
        self.wanted: dict[int, torch.Tensor] = {}
        for part in parts:
            data = stamp(part.first, part.length + STEP * (VIEWS - 1), part.sender, device)
            self.wanted[part.at] = self.wanted[part.at] + data if part.at in self.wanted else data
        number = MANY_BUFFERS if num_elements < MANY_BELOW else FEW_BUFFERS
        self.buffers = [torch.full((num_elements,), -1, dtype=torch.int32, device=device) for _ in range(number)]
        self.runs = 0

    def fill(self) -> None:
        """Nothing received yet: what has been written to since the last time is wiped."""
        for buffer in self.buffers[: self.runs]:
            buffer.fill_(-1)
        self.runs = 0

    def next(self) -> tuple[int, torch.Tensor]:
        """The view that the next operation sends, and the buffer that it writes."""
        turn = self.runs
        self.runs += 1
        return turn % VIEWS, self.buffers[turn % len(self.buffers)]

    def check(self, runs: int) -> bool:
        """Whether the last operations, as many as there are buffers, brought what they must."""
        if runs != self.runs or not runs:
            return False
        turns = range(max(0, runs - len(self.buffers)), runs)
        return all(self._right(turn % VIEWS, self.buffers[turn % len(self.buffers)]) for turn in turns)

    def _right(self, view: int, buffer: torch.Tensor) -> bool:
        for at, data in self.wanted.items():
            length = len(data) - STEP * (VIEWS - 1)
            if not torch.equal(buffer[at : at + length], data[STEP * view : STEP * view + length]):
                return False
        return True


def send_recv(group: Group, num_elements: int, _split: Sequence[float] = ()) -> Operation:
    """Each rank exchanges a buffer with its neighbours in the group, both ways at once: a pair, or the stages of a pipeline."""
    neighbours = [other for other in (group.index - 1, group.index + 1) if 0 <= other < group.size]
    return _between(group, num_elements, sends_to=neighbours, takes_from=neighbours)


def send(group: Group, num_elements: int, _split: Sequence[float] = ()) -> Operation:
    """The first rank sends a buffer to the second, which sends nothing back. The sender has nothing to verify."""
    first = group.index == 0
    return _between(group, num_elements, sends_to=[1] if first else [], takes_from=[] if first else [0])


def _between(group: Group, num_elements: int, sends_to: Sequence[int], takes_from: Sequence[int]) -> Operation:
    length = num_elements + STEP * (VIEWS - 1)
    bases = {to: stamp(0, length, group.index * group.size + to, group.device) for to in sends_to}
    received = {
        sender: Received(num_elements, [Part(sender * group.size + group.index, 0, num_elements, 0)], group.device)
        for sender in takes_from
    }
    runs = 0

    def fill() -> None:
        nonlocal runs
        runs = 0
        for buffers in received.values():
            buffers.fill()

    def run() -> None:
        nonlocal runs
        begin = STEP * (runs % VIEWS)
        runs += 1
        # receives first: gloo, with its sends posted first, moves one direction after the other (measured: 188 in place of 352 of 400 Mbit/s each way)
        starts = [_taking(group, received[other].next()[1], other) for other in takes_from]
        starts += [_sending(group, bases[other][begin : begin + num_elements], other) for other in sends_to]
        group.together(starts)

    return Operation(
        fill=fill, run=run, check=lambda number: runs == number and all(r.check(number) for r in received.values())
    )


def _sending(group: Group, data: torch.Tensor, other: int) -> Callable[[], Any]:
    return lambda: group.group.send([data], other, 0)


def _taking(group: Group, buffer: torch.Tensor, other: int) -> Callable[[], Any]:
    return lambda: group.group.recv([buffer], other, 0)


OPERATIONS: dict[str, Callable[[Group, int, Sequence[float]], Operation]] = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "send_recv": send_recv,
    "send": send,
}


def _wait(work: Any) -> None:
    work.wait()


def _ignore(value: object) -> None:
    del value
