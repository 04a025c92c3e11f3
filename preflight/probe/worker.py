"""One rank: takes tasks from its agent, joins, runs, verifies, answers. Lives as long as it is healthy and its agent wants it.

A worker may be stopped or killed at any moment; nothing depends on its manners. It leaves when its channel closes, even while a collective blocks. Before each stage and each operation
it leaves a crumb that its agent can read; results are sent before the communicator is left, so that a crash there costs nothing.
"""

import os
import select
import socket
import threading
import time
from contextlib import suppress

import msgspec
import torch

from preflight.model import Failure, Samples
from preflight.probe.alone import AloneGroup, operation_alone
from preflight.probe.backends import Group, RankMissing, connect_store, join, start_together, take_gpu
from preflight.probe.breadcrumbs import Trail
from preflight.probe.collectives import OPERATIONS, Operation
from preflight.probe.messages import MAX_PACKET_BYTES, Outcome, Task, WorkerFailed, WorkerReady
from preflight.probe.nccl import NcclGroup, NcclLog
from preflight.probe.nccl_log import in_short
from preflight.probe.polling import Timeout
from preflight.probe.stages import describe_stage
from preflight.probe.timing import Patience, Timed, members_of, time_operation


class Worker:
    """What a rank keeps from task to task: its trail, and the log of its NCCL (None on a CPU)."""

    def __init__(self, rank: int, trail: Trail, log: NcclLog | None) -> None:
        self.rank = rank
        self.trail = trail
        self.log = log
        self.group: Group | AloneGroup | None = None

    def run(self, task: Task) -> Outcome:
        """Run one probe as one rank; every fault becomes an Outcome with its failure. The communicator stays until `leave`."""
        self.trail.task = task.number
        self.trail.at("rendezvous" if task.store_port else "preparing")
        if self.log is not None:
            self.log.forget()
        began, join_s = time.monotonic(), None
        members: tuple[int, ...] = task.probe.ranks
        try:
            store = connect_store(task) if task.store_port else None
            operation: Operation
            if len(task.probe.ranks) > 1:
                group = self.group = join(store, task, self.rank, self.trail)
                self.trail.at("membership")
                members = members_of(group, self.rank)
                if members != task.probe.ranks:
                    text = f"the communicator holds ranks {members}, planned were {task.probe.ranks}"
                    failure = Failure(kind="error", text=text, stage="membership")
                    return Outcome(number=task.number, members=members, failure=failure)
                join_s = time.monotonic() - began
                self.trail.at("preparing")
                make = OPERATIONS[task.probe.collective]
                operation = make(group, max(1, task.probe.size_bytes // 4), task.probe.split)
                timed = self._time(store, task, group, operation)
            else:
                self.trail.at("preparing")
                alone = self.group = AloneGroup(task.backend, task.first_s)
                timed = self._time(store, task, alone, operation_alone(alone, task.probe))
        except RankMissing as error:
            failure = Failure(kind="timed_out", text=str(error), rank=error.rank, stage="rendezvous")
            return Outcome(number=task.number, failure=failure)
        except Exception as error:  # noqa: BLE001 - torch raises RuntimeError and its children for all faults of peers
            return Outcome(number=task.number, failure=self._failure(error, task))
        return self._outcome(task, members, timed, join_s)

    def _time(self, store: object, task: Task, group: Group | AloneGroup, operation: Operation) -> Timed:
        if store is not None:
            self.trail.at("start of the round")
            start_together(store, task)
        patience = Patience(first_s=task.first_s, floor_s=task.floor_s, stop_s=task.stop_s)
        return time_operation(group, operation, task.probe.loop_s, patience, self.trail)

    def _outcome(self, task: Task, members: tuple[int, ...], timed: Timed, join_s: float | None) -> Outcome:
        samples = Samples(
            rank=self.rank,
            durations_s=tuple(timed.durations_s),
            first_call_s=timed.first_call_s,
            join_s=join_s,
            window=timed.window,
        )
        told = None
        group = self.group
        if self.log is not None and isinstance(group, NcclGroup):
            told = self.log.transport(self.rank, members, blocking=group.blocking)
        return Outcome(
            number=task.number,
            samples=samples,
            data_correct=timed.data_correct,
            members=members,
            transport=in_short(told) if told else group.transport if group else None,
            told=told,
        )

    def _failure(self, error: Exception, task: Task) -> Failure:
        """What went wrong, and where."""
        what = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        late = isinstance(error, Timeout) or "timed out" in what.lower() or "timeout" in what.lower()
        trail = self.trail
        where = describe_stage(trail.stage, task.probe, self.rank, peer=trail.peer, operation=trail.operation)
        how = f"rank {self.rank} {'waited in vain' if late else 'failed'} in {where}"
        return Failure(kind="timed_out" if late else "error", text=f"{how}: {what}", stage=trail.stage)

    def leave(self) -> None:
        """Leave the communicator, if one was joined."""
        group, self.group = self.group, None
        if group is not None:
            self.trail.at("teardown")
            with suppress(RuntimeError):
                group.close()


def work(channel: socket.socket, rank: int, gpu: str | None, crumbs: int | None = None) -> None:
    """Serve tasks until the agent closes the channel. `crumbs`: a descriptor of the page that the agent reads, None: nobody does."""
    try:
        trail = Trail(crumbs, rank)
        threading.Thread(target=_leave_with_agent, args=(channel.fileno(),), daemon=True).start()
        torch.set_num_threads(1)
        log = None if gpu is None else NcclLog()  # before CUDA and NCCL are touched
        found = take_gpu(gpu)
    except Exception as error:  # noqa: BLE001 - CUDA may raise anything; the agent tells the user
        channel.send(msgspec.json.encode(WorkerFailed(text=f"{type(error).__name__}: {error}"[:2000])))
        return
    worker = Worker(rank, trail, log)
    trail.at("idle")
    channel.send(msgspec.json.encode(WorkerReady(pid=os.getpid(), gpu=found)))
    while data := channel.recv(MAX_PACKET_BYTES):
        outcome = worker.run(msgspec.json.decode(data, type=Task))
        trail.at("teardown")
        channel.send(msgspec.json.encode(outcome))
        if outcome.failure is not None and gpu is not None:
            os._exit(0)  # a CUDA context after a fault is not worth keeping; the agent starts another worker
        worker.leave()
        trail.at("idle")


def _leave_with_agent(descriptor: int) -> None:
    """Exit when the agent's end of the channel closes, whatever the main thread is blocked in."""
    poll = select.poll()
    poll.register(descriptor, select.POLLHUP | select.POLLRDHUP)
    while True:
        for _, event in poll.poll():
            if event & (select.POLLHUP | select.POLLRDHUP | select.POLLNVAL):
                os._exit(0)
