"""How ranks join a communicator and wait for it: gloo on CPUs, NCCL on GPUs, behind one small interface.

The backend object is built directly on a store with a fresh prefix: no global registration, nothing shared between attempts. Before
joining, members check in at the store, so that a missing one is named instead of waited for.
"""

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from preflight.probe.breadcrumbs import Trail
from preflight.probe.messages import Task
from preflight.probe.nccl import NcclGroup


class RankMissing(Exception):  # noqa: N818 - a fact about a rank, not an error of ours
    """A member did not come to the rendezvous in time."""

    def __init__(self, rank: int, timeout_s: float) -> None:
        self.rank = rank
        super().__init__(f"rank {rank} did not come to the rendezvous within {timeout_s:g} s")


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


def check_in(store: Any, task: Task, rank: int, trail: Trail) -> None:
    """Say that we are here, and wait until all members are. Raises RankMissing, naming the first that isn't.

    A store that is lost meanwhile says nothing of any rank: what torch raises then (RuntimeError) passes.
    """
    store.set(f"here/{task.probe.subject}/{rank}", "1")
    deadline = time.monotonic() + task.timeout_s
    for member in task.probe.ranks:
        left_s = max(0.05, deadline - time.monotonic())
        trail.at("rendezvous", peer=member)
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
        """Seconds that `repetitions` operations take back to back: wall clock, since gloo's operations are synchronous.

        A tiny all_reduce goes first: no rank leaves it before all have come, so a rank that verified its data for longer is not waited for in the timed part.
        """
        self.group.allreduce([torch.zeros(1)]).wait()
        begin = time.perf_counter()
        for _ in range(repetitions):
            operation()
        return time.perf_counter() - begin

    def settle(self) -> None:
        """Nothing to wait for: gloo's operations are over when their wait() returns."""

    def limit(self, timeout_s: float) -> None:
        """How long one operation may take from now on."""
        limit = getattr(self.group, "set_timeout", None) or self.group._set_default_timeout  # noqa: SLF001 - its older name
        limit(timedelta(seconds=timeout_s))

    def close(self) -> None:
        """Leave the communicator."""
        self.group.shutdown()


Group = GlooGroup | NcclGroup


def join(store: Any, task: Task, rank: int, trail: Trail) -> Group:
    """Join the probe's communicator. Raises RankMissing, RuntimeError."""
    check_in(store, task, rank, trail)
    trail.at("joining")
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
