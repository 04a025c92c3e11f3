"""What is told of a worker without an answer: where it hangs, whose fault that is, and whether its task may be given to another."""

import time

import pytest

from preflight.fleet.hangs import Asked, trouble_with
from preflight.probe.breadcrumbs import Crumb
from preflight.probe.messages import Task
from tests.builders import make_probe

TASK = Task(
    number=5,
    probe=make_probe((0, 3)),
    backend="gloo",
    store_address="127.0.0.1",
    store_port=1,
    prefix="x",
    timeout_s=4,
    address="127.0.0.1",
    num_tasks=2,
    align=False,
    first_s=4,
    floor_s=4,
    stop_s=0,
)


def asked(stage, *, task: int = 5, state: str = "is stopped (T)", **facts) -> Asked:
    crumb = Crumb(rank=3, task=task, stage=stage, since_s=time.monotonic(), **{"peer": None, "operation": 0, **facts})
    return Asked(rank=3, task=TASK, crumb=crumb if stage else None, state=state, waited_s=8)


def test_a_hang_says_stage_and_partner():
    trouble = trouble_with("late", asked("first operation", operation=1))
    assert (trouble.kind, trouble.rank, trouble.probe) == ("worker_hung", 3, TASK.probe.key)
    assert "rank 3 hung in the first operation of pair 0-3 (send_recv with rank 0)" in trouble.text
    assert (trouble.failure.kind, trouble.failure.rank, trouble.failure.stage) == ("no_answer", 3, "first operation")


def test_an_end_in_the_middle_says_where():
    trouble = trouble_with("closed", asked("operation", operation=17, state="killed by SIGKILL"))
    assert (trouble.kind, trouble.failure.kind) == ("worker_died", "crashed")
    assert "killed by SIGKILL; it was in operation 17 of pair 0-3" in trouble.text


@pytest.mark.parametrize("stage", [None, "idle", "operation"])
def test_without_a_crumb_of_this_task_no_stage_is_told(stage):
    trouble = trouble_with("late", asked(stage, task=4))
    assert trouble.failure.rank == 3
    assert trouble.failure.stage == ""
    assert "hung in" not in trouble.text


@pytest.mark.parametrize(("silence", "kind"), [("closed", "worker_died"), ("stuck in teardown", "worker_hung")])
def test_trouble_in_the_teardown_of_an_earlier_task_is_no_failure_of_this_one(silence, kind):
    trouble = trouble_with(silence, asked("teardown", task=4))
    assert (trouble.kind, trouble.failure, trouble.probe) == (kind, None, None)


def test_an_end_in_the_teardown_of_this_very_task_is_its_failure():
    """The crumb is left before the results are sent, and they did not come."""
    assert trouble_with("closed", asked("teardown")).failure.kind == "crashed"


@pytest.mark.parametrize("state", ["is sleeping (S)", "is running (R)"])
def test_who_waits_for_the_rendezvous_is_not_blamed(state):
    trouble = trouble_with("late", asked("rendezvous", peer=0, state=state))
    assert (trouble.kind, trouble.rank, trouble.failure.rank) == ("store_lost", None, None)


@pytest.mark.parametrize("state", ["is stopped (T)", "is uninterruptible sleep (D)"])
def test_who_is_stopped_while_it_waits_is(state):
    assert trouble_with("late", asked("rendezvous", state=state)).failure.rank == 3
