"""NCCL on one GPU: a communicator of its own for each probe, made without blocking, timed with CUDA events on the stream.

In blocking mode NCCL waits for ever for a member that doesn't come, whatever torch's timeout says (pytorch issue 124950). Non-blocking calls return, and torch polls them for
TORCH_NCCL_NONBLOCKING_TIMEOUT seconds, a number that it reads once per process. The communicator is made lazily, by the first operation: making it eagerly without blocking hung with NCCL 2.26
(pytorch issue 153960). Point-to-point operations go as one NCCL group over that same communicator; unbatched ones would make another for each pair.
"""

import math
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from preflight.model import Transport
from preflight.probe import nccl_log
from preflight.probe.messages import Task
from preflight.probe.polling import seconds_on_stream, wait_for

NONBLOCKING_LIMIT = "TORCH_NCCL_NONBLOCKING_TIMEOUT"  # seconds, whole


class NcclLog:
    """The log of this process's NCCL; None of it where there was no memory for a file."""

    def __init__(self) -> None:
        self.said = nccl_log.Said()
        self.file: nccl_log.LogFile | None = None
        with suppress(OSError):
            self.file = nccl_log.prepare(os.environ)

    def forget(self) -> None:
        """What was written so far belongs to an earlier probe."""
        if self.file is not None:
            self.said.take(self.file.new_text())

    def transport(self, rank: int, members: tuple[int, ...], blocking: bool) -> Transport:
        """What NCCL said during this probe, and the choices that were made for it."""
        if self.file is not None:
            self.said.take(self.file.new_text())
        said = self.said.transport(rank, members, os.environ)
        eager = said.settings.get("NCCL_RUNTIME_CONNECT") == "0"
        return msgspec.structs.replace(
            said,
            version=said.version or nccl_version(),
            communicator="per probe",
            connect="eager" if eager else "lazy",
            blocking=blocking,
        )


def nccl_version() -> str | None:
    """The version of torch's NCCL, as "2.27.3"."""
    with suppress(Exception):
        return ".".join(str(part) for part in torch.cuda.nccl.version())
    return None


class NcclGroup:
    """The members of one probe, one GPU each. Never blocks in a CUDA call that it can't leave."""

    def __init__(self, store: Any, task: Task, rank: int) -> None:
        self.device = torch.device("cuda", 0)
        self.timeout_s = task.timeout_s
        os.environ.setdefault(NONBLOCKING_LIMIT, str(math.ceil(max(task.timeout_s, task.first_s))))
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=task.timeout_s)  # noqa: SLF001
        self.blocking = True
        with suppress(AttributeError, TypeError):  # a torch whose NCCL has no such mode
            options.config.blocking = 0
            self.blocking = False
        index = task.probe.ranks.index(rank)
        self.index, self.size = index, len(task.probe.ranks)
        prefixed = dist.PrefixStore(f"group/{task.probe.subject}", store)
        self.group = dist.ProcessGroupNCCL(prefixed, index, self.size, options)
        self.transport = "NCCL"

    def together(self, starts: list[Callable[[], Any]]) -> None:
        """Start several point-to-point operations as one NCCL group."""
        self.group._start_coalescing()  # noqa: SLF001 - what torch's batch_isend_irecv does; a backend's own takes no device, unlike that of a process group
        for start in starts:
            start()
        self.group._end_coalescing().wait()  # noqa: SLF001

    def seconds(self, operation: Callable[[], None], repetitions: int) -> float:
        """Seconds between two CUDA events around `repetitions` operations.

        A tiny all_reduce on the same stream goes first, without a synchronisation after it, so that ranks start aligned. Waiting for its work only orders the streams.
        """
        self.group.allreduce([torch.zeros(1, device=self.device)]).wait()
        return seconds_on_stream(operation, repetitions, self.timeout_s)

    def settle(self) -> None:
        """Wait until what is on the stream has ended, before its result is read. Raises Timeout."""
        event = torch.cuda.Event()
        event.record()
        wait_for(event, self.timeout_s)

    def limit(self, timeout_s: float) -> None:
        """How long one operation may take from now on."""
        self.timeout_s = timeout_s

    def close(self) -> None:
        """Leave the communicator."""
        with suppress(RuntimeError):
            self.group.shutdown()
