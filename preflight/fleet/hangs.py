"""What became of a worker that was given a task: its answer, or where it hangs or ended, by the crumbs it left."""

import asyncio
import time
from typing import Literal

import msgspec

from preflight.fleet.channel import Closed
from preflight.fleet.zygotes import Child
from preflight.model import Failure
from preflight.model.evidence import IncidentKind
from preflight.probe.breadcrumbs import Crumb, Page
from preflight.probe.messages import FromWorker, Outcome, Task
from preflight.probe.stages import describe_stage

TEARDOWN_S = 2.0  # leaving a communicator takes milliseconds, NCCL's on a full node some hundreds; a worker that takes longer is replaced
LOOK_S = 0.25
_STUCK = (
    "(T)",
    "(t)",
    "(D)",
    "(Z)",
)  # stopped, traced, in the kernel, ended: it is the process itself that doesn't go on

Silence = Literal["late", "closed", "stuck in teardown"]


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """What to tell of a worker without an answer. `rank`: whom the incident is about, None: no rank. `probe`: its key, None: none was under way. `failure` None: the task may be given
    to another worker of the rank, since this one had not begun it.
    """

    kind: IncidentKind
    text: str
    rank: int | None
    probe: str | None = None
    failure: Failure | None = None


async def answer_of(child: Child, page: Page, task: Task, deadline: float) -> Outcome | Silence:
    """Give a worker its task and wait for its answer until the deadline (time.monotonic). Answers to earlier tasks are passed over."""
    try:
        await child.channel.send(task)
    except Closed:
        return "closed"
    while True:
        receiving = asyncio.ensure_future(child.channel.receive(FromWorker, None))
        try:
            silence = await _watch(receiving, page, task, deadline)
            if silence is not None:
                return silence
            answer = receiving.result()
        except Closed:
            return "closed"
        finally:
            receiving.cancel()
        if isinstance(answer, Outcome) and answer.number == task.number:
            return answer


async def _watch(receiving: "asyncio.Future[object]", page: Page, task: Task, deadline: float) -> Silence | None:
    """None: something was received."""
    while not receiving.done():
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return "late"
        await asyncio.wait([receiving], timeout=min(LOOK_S, left_s))
        crumb = page.read()
        leaving = crumb is not None and _in_earlier_teardown(crumb, task) and not receiving.done()
        if leaving and crumb is not None and time.monotonic() - crumb.since_s > TEARDOWN_S:
            return "stuck in teardown"
    return None


def stands_still(text: str) -> bool:
    """Whether a trouble's text says that the process itself does not go on: it is stopped, ended, or sleeps in the kernel. One that waits for its partner sleeps otherwise."""
    return any(letter in text for letter in _STUCK)


def _in_earlier_teardown(crumb: Crumb, task: Task) -> bool:
    return crumb.stage == "teardown" and crumb.task < task.number


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that was given a task and didn't answer within `waited_s` seconds: the last crumb of its worker, and what the kernel says of the process."""

    rank: int
    task: Task
    crumb: Crumb | None
    state: str
    waited_s: float


def trouble_with(silence: Silence, asked: Asked) -> Trouble:
    """Why there is no answer."""
    rank, crumb, state = asked.rank, asked.crumb, asked.state
    if crumb is not None and _in_earlier_teardown(crumb, asked.task) and silence != "late":
        kind: IncidentKind = "worker_died" if silence == "closed" else "worker_hung"
        how = f"ended ({state})" if silence == "closed" else f"hung ({state})"
        text = (
            f"the worker of rank {rank} {how} while it left a communicator, after its results were in; it was replaced"
        )
        return Trouble(kind=kind, text=text, rank=rank)
    where = _where(asked)
    if silence == "closed":
        last = f"; it was in {where}" if where else ""
        text = f"the worker of rank {rank} ended during {asked.task.probe.subject}: {state}{last}"
        return _fault("worker_died", "crashed", text, asked)
    text = f"the worker of rank {rank} gave no answer in the probe {asked.task.probe.subject} within {asked.waited_s:.3g} s and {state}"
    if crumb is None or not where:
        return _fault("worker_hung", "no_answer", text, asked)
    text += f": rank {rank} hung in {where}, for {time.monotonic() - crumb.since_s:.1f} s"
    if crumb.stage in {"rendezvous", "start of the round"} and not stands_still(state):
        text += "; it waits for the rendezvous server, which does not answer"
        failure = Failure(kind="timed_out", text=text, stage=crumb.stage)
        return Trouble(kind="store_lost", text=text, rank=None, probe=asked.task.probe.key, failure=failure)
    return _fault("worker_hung", "no_answer", text, asked)


def _fault(kind: IncidentKind, failure: Literal["crashed", "no_answer"], text: str, asked: Asked) -> Trouble:
    crumb = asked.crumb
    stage = crumb.stage if crumb is not None and crumb.task == asked.task.number else ""
    told = Failure(kind=failure, text=text, rank=asked.rank, stage=stage)
    return Trouble(kind=kind, text=text, rank=asked.rank, probe=asked.task.probe.key, failure=told)


def _where(asked: Asked) -> str:
    """The stage in words; empty if no crumb tells of this task."""
    crumb = asked.crumb
    if crumb is None or crumb.task != asked.task.number:
        return ""
    return describe_stage(crumb.stage, asked.task.probe, asked.rank, peer=crumb.peer, operation=crumb.operation)
