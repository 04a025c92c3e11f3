"""What one rank does by itself: a matrix product, and copies between host and GPU. No communicator, no rendezvous.

On a machine without GPUs the product is a small one in float32, and the copies are copies inside host memory; the measurement's transport says so.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from preflight.model import Probe
from preflight.probe.collectives import STEP, VIEWS, Operation, Part, Received, stamp
from preflight.probe.polling import seconds_on_stream, wait_for

ENTRIES = 3  # the factors hold -1, 0 and 1: sums of their products are whole numbers, exact in float32 below 2^24


class AloneGroup:
    """A group of one: the same clock as the backends', and nobody to talk to."""

    index, size = 0, 1
    group: Any = None

    def __init__(self, backend: str, timeout_s: float) -> None:
        self.on_gpu = backend == "nccl"
        self.device = torch.device("cuda", 0) if self.on_gpu else torch.device("cpu")
        self.timeout_s = timeout_s
        self.transport = "one GPU alone" if self.on_gpu else "host memory of this machine, no GPU"

    def together(self, starts: list[Callable[[], Any]]) -> None:
        """There is nobody to exchange anything with, so nothing is ever started."""
        assert not starts

    def seconds(self, operation: Callable[[], None], repetitions: int) -> float:
        """Seconds that `repetitions` operations take back to back."""
        if self.on_gpu:
            return seconds_on_stream(operation, repetitions, self.timeout_s)
        begin = time.perf_counter()
        for _ in range(repetitions):
            operation()
        return time.perf_counter() - begin

    def settle(self) -> None:
        """Wait until what is on the stream has ended. Raises Timeout."""
        if self.on_gpu:
            event = torch.cuda.Event()
            event.record()
            wait_for(event, self.timeout_s)

    def limit(self, timeout_s: float) -> None:
        """How long one operation may take from now on."""
        self.timeout_s = timeout_s

    def close(self) -> None:
        """Give the buffers' memory back, so that the next probe finds it."""
        if self.on_gpu:
            with suppress(RuntimeError):
                torch.cuda.empty_cache()


def operation_alone(group: AloneGroup, probe: Probe) -> Operation:
    """The operation of a probe with one rank."""
    if probe.collective == "matmul":
        return matmul(group, probe.flops)
    return copies(group, max(1, probe.size_bytes // 4), to_device=probe.collective == "host_to_device")


def side_of(flops: int) -> int:
    """The side n of square matrices whose product takes about so many operations, 2 n^3 (a multiply and an add for each of n^3 terms), a multiple of 64.

    >>> side_of(2 * 8192**3)
    8192
    """
    side = float((max(1, flops) / 2) ** (1 / 3))
    return max(64, round(side / 64) * 64)


def matmul(group: AloneGroup, flops: int) -> Operation:
    """A square product, bf16 on GPUs and float32 on CPUs. The wanted product is computed in float32, where it is exact, and rounded the same way."""
    side = side_of(flops)
    dtype = torch.bfloat16 if group.on_gpu else torch.float32
    a, b = (_entries(side, seed, group.device) for seed in (1, 2))
    wanted = (a @ b).to(dtype)
    a, b = a.to(dtype), b.to(dtype)
    product = torch.empty_like(wanted)

    def run() -> None:
        torch.mm(a, b, out=product)

    def fill() -> None:
        product.fill_(-1)

    return Operation(fill=fill, run=run, check=lambda _: bool(torch.equal(product, wanted)))


def _entries(side: int, seed: int, device: torch.device) -> torch.Tensor:
    """Whole numbers from -1 to 1 without a pattern that would make the product small or regular."""  # shape: (side, side)
    marks = stamp(0, side * side, seed, device).to(torch.int64)
    mixed = marks ^ (marks >> 13)
    return ((mixed * 48271 >> 7) % ENTRIES - 1).to(torch.float32).view(side, side)


def copies(group: AloneGroup, num_elements: int, *, to_device: bool) -> Operation:
    """One buffer from pinned host memory to the GPU, or back; without a GPU both lie in host memory."""
    source_at = torch.device("cpu") if to_device else group.device
    target_at = group.device if to_device else torch.device("cpu")
    base = stamp(0, num_elements + STEP * (VIEWS - 1), 1, source_at)
    received = Received(num_elements, [Part(1, 0, num_elements, 0)], target_at)
    if group.on_gpu:
        base = base.pin_memory() if to_device else base
        received.buffers = received.buffers if to_device else [each.pin_memory() for each in received.buffers]

    def run() -> None:
        view, buffer = received.next()
        buffer.copy_(base[STEP * view : STEP * view + num_elements], non_blocking=True)

    def check(runs: int) -> bool:
        group.settle()
        return received.check(runs)

    return Operation(fill=received.fill, run=run, check=check)
