"""One rank: takes tasks from its agent, joins, runs, verifies, answers. Lives as long as it is healthy and its agent wants it.

A worker may be stopped or killed at any moment; nothing depends on its manners. It leaves when its channel closes, even while a collective blocks.
"""

import os
import select
import socket
import threading
import time

import msgspec
import torch

from preflight.model import Failure, Samples
from preflight.probe.backends import RankMissing, Timeout, connect_store, join, start_together, take_gpu
from preflight.probe.collectives import OPERATIONS
from preflight.probe.messages import MAX_PACKET_BYTES, Outcome, Task, WorkerFailed, WorkerReady
from preflight.probe.timing import members_of, time_operation


def work(channel: socket.socket, rank: int, gpu: str | None) -> None:
    """Serve tasks until the agent closes the channel."""
    try:
        threading.Thread(target=_leave_with_agent, args=(channel.fileno(),), daemon=True).start()
        torch.set_num_threads(1)
        found = take_gpu(gpu)
    except Exception as error:  # noqa: BLE001 - CUDA may raise anything; the agent tells the user
        channel.send(msgspec.json.encode(WorkerFailed(text=f"{type(error).__name__}: {error}"[:2000])))
        return
    channel.send(msgspec.json.encode(WorkerReady(pid=os.getpid(), gpu=found)))
    while data := channel.recv(MAX_PACKET_BYTES):
        outcome = run_task(msgspec.json.decode(data, type=Task), rank)
        channel.send(msgspec.json.encode(outcome))
        if outcome.failure is not None and gpu is not None:
            os._exit(0)  # a CUDA context after a fault is not worth keeping; the agent starts another worker


def run_task(task: Task, rank: int) -> Outcome:
    """Run one probe as one rank; every fault becomes an Outcome with its failure."""
    began = time.monotonic()
    try:
        store = connect_store(task)
        group = join(store, task, rank)
        members = members_of(group, rank)
        join_s = time.monotonic() - began
        if members != task.probe.ranks:
            text = f"the communicator holds ranks {members}, planned were {task.probe.ranks}"
            return Outcome(number=task.number, members=members, failure=Failure(kind="error", text=text))
        operation = OPERATIONS[task.probe.collective](group, max(1, task.probe.size_bytes // 4))
        start_together(store, task)
        timed = time_operation(group, operation, task.probe.loop_s)
        group.close()
    except RankMissing as error:
        return Outcome(number=task.number, failure=Failure(kind="timed_out", text=str(error), rank=error.rank))
    except Exception as error:  # noqa: BLE001 - torch raises RuntimeError and its children for all faults of peers
        return Outcome(number=task.number, failure=_failure(error))
    samples = Samples(
        rank=rank,
        durations_s=tuple(timed.durations_s),
        first_call_s=timed.first_call_s,
        join_s=join_s,
        window=timed.window,
    )
    return Outcome(
        number=task.number,
        samples=samples,
        data_correct=timed.data_correct,
        members=members,
        transport=group.transport,
    )


def _failure(error: Exception) -> Failure:
    text = " ".join(f"{type(error).__name__}: {error}".split())[:500]
    late = isinstance(error, Timeout) or "timed out" in text.lower() or "timeout" in text.lower()
    return Failure(kind="timed_out" if late else "error", text=text)


def _leave_with_agent(descriptor: int) -> None:
    """Exit when the agent's end of the channel closes, whatever the main thread is blocked in."""
    poll = select.poll()
    poll.register(descriptor, select.POLLHUP | select.POLLRDHUP)
    while True:
        for _, event in poll.poll():
            if event & (select.POLLHUP | select.POLLRDHUP | select.POLLNVAL):
                os._exit(0)
