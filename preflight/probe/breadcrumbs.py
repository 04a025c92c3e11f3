"""What a worker is doing, on a page of memory that its agent can read though the worker hangs: rank, task, stage, peer, operation, since when.

The page is an anonymous file in memory (memfd), mapped by both: no file system is touched, so a full disk doesn't matter, and no call can block. A counter before and after the rest
tells a reader that it met a half-written entry. Times are CLOCK_MONOTONIC, which all processes of one machine share.
"""

import contextlib
import mmap
import os
import struct
import time
from typing import Literal, get_args

import msgspec

Stage = Literal[
    "starting",
    "idle",  # waits for a task
    "rendezvous",  # waits until all members have checked in; peer: the one that is waited for
    "joining",
    "membership",
    "preparing",  # fills buffers
    "start of the round",  # waits for the other probes of the round
    "first operation",
    "warm-up",
    "operation",
    "agreement",  # between two windows, on whether to go on
    "verification",
    "teardown",  # the results are sent
]
STAGES: tuple[Stage, ...] = get_args(Stage)

PAGE_BYTES = 4096
_ENTRY = struct.Struct("<IIqqqqd")  # counter, stage, rank, task, peer, operation, since
_COUNTER = struct.Struct("<I")
_NOBODY = -1
_TRIES = 50
_MOST = 2**40  # far above any rank or count


class Crumb(msgspec.Struct, frozen=True, kw_only=True):
    """One entry. `task`: its number, 0 before the first. `peer`: whom it waits for, None: nobody in particular. `operation`: counted from 1 within the stage, 0: none.

    `since_s`: CLOCK_MONOTONIC when it was left.
    """

    rank: int
    task: int
    stage: Stage
    peer: int | None
    operation: int
    since_s: float


class Trail:
    """The worker's side. Leaving a crumb takes about a microsecond. `descriptor` None: nobody reads."""

    def __init__(self, descriptor: int | None, rank: int) -> None:
        self.rank = rank
        self.task = 0
        self.stage: Stage = "starting"
        self.operation = 0
        self.peer: int | None = None
        self._counter = 0
        self._page = mmap.mmap(-1, PAGE_BYTES) if descriptor is None else mmap.mmap(descriptor, PAGE_BYTES)
        self.at("starting")

    def at(self, stage: Stage, *, peer: int | None = None, operation: int = 0) -> None:
        """Say what comes next."""
        self.stage, self.peer, self.operation = stage, peer, operation
        self._counter = (self._counter + 2) % 2**32
        whom = _NOBODY if peer is None else peer
        _COUNTER.pack_into(self._page, 0, self._counter - 1)
        entry = (STAGES.index(stage), self.rank, self.task, whom, operation, time.monotonic())
        _ENTRY.pack_into(self._page, 0, self._counter - 1, *entry)
        _COUNTER.pack_into(self._page, 0, self._counter)


class Page:
    """The agent's side: makes the page, hands over its descriptor, reads it at any time."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("preflight-crumbs", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, PAGE_BYTES)
        self._page = mmap.mmap(self.descriptor, PAGE_BYTES)

    def handed_over(self) -> None:
        """The worker has it: our descriptor is needed no more, the mapping stays."""
        with contextlib.suppress(OSError):
            os.close(self.descriptor)
        self.descriptor = -1

    def read(self) -> Crumb | None:
        """The latest entry. None: there is none yet, or the worker was stopped in the middle of writing one, or wrote nonsense."""
        for _ in range(_TRIES):
            counter, stage, rank, task, peer, operation, since_s = _ENTRY.unpack_from(self._page)
            if counter % 2 == 0 and _COUNTER.unpack_from(self._page)[0] == counter:
                break
        else:
            return None
        if counter == 0 or not 0 <= stage < len(STAGES):
            return None
        whom = None if peer == _NOBODY else peer
        counted = min(rank, task, operation, whom or 0) >= 0 and max(rank, task, operation, whom or 0) < _MOST
        if not counted or not 0 <= since_s <= time.monotonic() + 1:  # nan is refused too
            return None
        return Crumb(rank=rank, task=task, stage=STAGES[stage], peer=whom, operation=operation, since_s=since_s)

    def close(self) -> None:
        """Let the page go."""
        if self.descriptor >= 0:
            self.handed_over()
        self._page.close()
