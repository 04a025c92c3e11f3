"""Waiting for a GPU without blocking in a call that a hung kernel never ends: events are polled."""

import time
from collections.abc import Callable
from typing import Any

import torch

POLL_S = 0.0002


class Timeout(Exception):  # noqa: N818
    """An operation did not end in time."""


def wait_for(event: Any, timeout_s: float) -> None:
    """Poll an event. Raises Timeout."""
    deadline = time.monotonic() + timeout_s
    while not event.query():
        if time.monotonic() > deadline:
            raise Timeout(f"no end within {timeout_s:g} s")
        time.sleep(POLL_S)


def seconds_on_stream(operation: Callable[[], None], repetitions: int, timeout_s: float) -> float:
    """Seconds between two CUDA events around `repetitions` operations, as the GPU saw them. Raises Timeout."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repetitions):
        operation()
    end.record()
    wait_for(end, timeout_s)
    return float(begin.elapsed_time(end)) / 1e3
