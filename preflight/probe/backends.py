"""How ranks join a communicator and wait for it: gloo on CPUs, NCCL on GPUs, behind one small interface.

The backend object is built directly on a store with a fresh prefix: no global registration, nothing shared between attempts. Before
joining, members check in at the store, so that a missing one is named instead of waited for.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from preflight.probe.messages import Task


class RankMissing(Exception):  # noqa: N818 - a fact about a rank, not an error of ours
    """A member did not come to the rendezvous in time."""

    def __init__(self, rank: int, timeout_s: float) -> None:
        self.rank = rank
        super().__init__(f"rank {rank} did not come to the rendezvous within {timeout_s:g} s")


class Timeout(Exception):  # noqa: N818
    """An operation did not end in time."""


def connect_store(task: Task) -> Any:
    """A client of the round's store, under this attempt's prefix.

    Blocks without limit if the store's process hangs: the agent's deadline is the only bound.
    """
    client = dist.TCPStore(
        task.store_address,
        task.store_port,
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=task.timeout_s),
    )
    return dist.PrefixStore(task.prefix, client)


def check_in(store: Any, task: Task, rank: int) -> None:
    """Say that we are here, and wait until all members are. Raises RankMissing, naming the first that isn't.

    A store that is lost meanwhile says nothing of any rank: what torch raises then (RuntimeError) passes.
    """
    store.set(f"here/{task.probe.subject}/{rank}", "1")
    deadline = time.monotonic() + task.timeout_s
    for member in task.probe.ranks:
        left_s = max(0.05, deadline - time.monotonic())
        try:
            store.wait([f"here/{task.probe.subject}/{member}"], timedelta(seconds=left_s))
        except dist.DistStoreError as error:
            raise RankMissing(member, task.timeout_s) from error


def start_together(store: Any, task: Task) -> bool:
    """Wait until every rank of the round is ready to time, so that groups measured together overlap.

    A rank that never gets ready costs the others at most the timeout; gives False then.
    """
    if not task.align:
        return True
    if store.add("ready", 1) >= task.num_tasks:
        store.set("go", "1")
        return True
    try:
        store.wait(["go"], timedelta(seconds=task.timeout_s))
    except RuntimeError:
        return False
    return True


class GlooGroup:
    """The members of one probe, on CPUs. Operations raise RuntimeError at the timeout."""

    device = torch.device("cpu")

    def __init__(self, store: Any, task: Task, rank: int) -> None:
        options = dist.ProcessGroupGloo._Options()  # noqa: SLF001 - the only way to name the address
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=task.address)]  # noqa: SLF001
        options._timeout = timedelta(seconds=task.timeout_s)  # noqa: SLF001
        index = task.probe.ranks.index(rank)
        self.index, self.size = index, len(task.probe.ranks)
        prefixed = dist.PrefixStore(f"group/{task.probe.subject}", store)
        self.group = dist.ProcessGroupGloo(prefixed, index, self.size, options)
        self.transport = f"gloo over {task.address}"

    def together(self, starts: list[Callable[[], Any]]) -> None:
        """Start several point-to-point operations at once and wait for all."""
        for work in [start() for start in starts]:
            work.wait()

    def seconds(self, operation: Callable[[], None], repetitions: int) -> float:
        """Seconds that `repetitions` operations take back to back: wall clock, since gloo's operations are synchronous."""
        begin = time.perf_counter()
        for _ in range(repetitions):
            operation()
        return time.perf_counter() - begin

    def settle(self) -> None:
        """Nothing to wait for: gloo's operations are over when their wait() returns."""

    def close(self) -> None:
        """Leave the communicator."""
        self.group.shutdown()


class NcclGroup:
    """The members of one probe, one GPU each. Times with CUDA events on the stream; never blocks in a CUDA call that it can't leave."""

    def __init__(self, store: Any, task: Task, rank: int) -> None:
        self.device = torch.device("cuda", 0)
        self.timeout_s = task.timeout_s
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=task.timeout_s)  # noqa: SLF001
        index = task.probe.ranks.index(rank)
        self.index, self.size = index, len(task.probe.ranks)
        prefixed = dist.PrefixStore(f"group/{task.probe.subject}", store)
        self.group = dist.ProcessGroupNCCL(prefixed, index, self.size, options)
        self.transport = "NCCL"

    def together(self, starts: list[Callable[[], Any]]) -> None:
        """Start several point-to-point operations as one NCCL group."""
        self.group._start_coalescing(self.device)  # noqa: SLF001 - what torch's batch_isend_irecv does
        for start in starts:
            start()
        self.group._end_coalescing(self.device).wait()  # noqa: SLF001

    def seconds(self, operation: Callable[[], None], repetitions: int) -> float:
        """Seconds between two CUDA events around `repetitions` operations.

        A tiny all_reduce on the same stream goes first, without a synchronisation after it, so that ranks start aligned.
        """
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.group.allreduce([torch.zeros(1, device=self.device)]).wait()
        begin.record()
        for _ in range(repetitions):
            operation()
        end.record()
        self.wait_for(end)
        return float(begin.elapsed_time(end)) / 1e3

    def wait_for(self, event: Any) -> None:
        """Poll an event. Raises Timeout: a hung kernel never ends a blocking wait."""
        deadline = time.monotonic() + self.timeout_s
        while not event.query():
            if time.monotonic() > deadline:
                raise Timeout(f"no end within {self.timeout_s:g} s")
            time.sleep(0.0002)

    def settle(self) -> None:
        """Wait until what is on the stream has ended, before its result is read. Raises Timeout."""
        event = torch.cuda.Event()
        event.record()
        self.wait_for(event)

    def close(self) -> None:
        """Leave the communicator."""
        with suppress(RuntimeError):
            self.group.shutdown()


Group = GlooGroup | NcclGroup


def join(store: Any, task: Task, rank: int) -> Group:
    """Join the probe's communicator. Raises RankMissing, RuntimeError."""
    check_in(store, task, rank)
    return NcclGroup(store, task, rank) if task.backend == "nccl" else GlooGroup(store, task, rank)


def take_gpu(uuid: str | None) -> str | None:
    """Bind this process to one GPU, before CUDA is touched. Gives the UUID that CUDA reports, None without a GPU.

    Raises RuntimeError if CUDA shows another device than the one asked for.
    """
    if uuid is None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return None
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    # workers are expendable: a watchdog that tears the process down would only hide what happened
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    os.environ["TORCH_NCCL_ENABLE_MONITORING"] = "0"
    torch.cuda.set_device(0)
    found = str(getattr(torch.cuda.get_device_properties(0), "uuid", ""))
    if found and found.removeprefix("GPU-") != uuid.removeprefix("GPU-"):
        raise RuntimeError(f"asked for GPU {uuid}, CUDA shows {found}")
    return uuid
