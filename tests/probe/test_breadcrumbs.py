"""Crumbs: what one process leaves another reads, whole or not at all."""

import os
import signal
import struct

import pytest

from preflight.model import Failure
from preflight.probe.breadcrumbs import _ENTRY, STAGES, Page, Trail
from preflight.probe.stages import describe_stage
from tests.builders import make_probe


def test_what_is_left_is_read():
    page = Page()
    trail = Trail(page.descriptor, 3)
    page.handed_over()
    trail.task = 7
    for number, stage in enumerate(STAGES):
        trail.at(stage, peer=number, operation=number + 1)
        crumb = page.read()
        assert (crumb.rank, crumb.task, crumb.stage, crumb.peer, crumb.operation) == (3, 7, stage, number, number + 1)
    trail.at("idle")
    assert page.read().peer is None
    page.close()


def test_a_page_without_an_entry_tells_nothing():
    page = Page()
    assert page.read() is None
    page.close()


@pytest.mark.parametrize("counter", [1, 2])
def test_a_half_written_entry_and_nonsense_tell_nothing(counter):
    """An odd counter: stopped in the middle. An even one with an unknown stage: not ours."""
    page = Page()
    os.pwrite(page.descriptor, struct.pack("<II", counter, 99), 0)
    assert page.read() is None
    page.close()


GOOD = {"rank": 3, "task": 7, "peer": 1, "operation": 2, "since_s": 1.0}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rank", -1),
        ("rank", 2**62),
        ("task", -(2**63)),
        ("peer", -2),
        ("operation", -1),
        ("since_s", float("nan")),
        ("since_s", float("inf")),
        ("since_s", -1e300),
        ("since_s", 1e300),
    ],
)
def test_numbers_that_no_worker_can_mean_tell_nothing(name, value):
    page = Page()
    for fields, told in ((GOOD, True), ({**GOOD, name: value}, False)):
        _ENTRY.pack_into(page._page, 0, 2, STAGES.index("operation"), *fields.values())
        assert (page.read() is not None) == told
    page.close()


def test_a_stopped_process_leaves_its_last_crumb():
    page = Page()
    ready_read, ready_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        trail = Trail(page.descriptor, 5)
        trail.task = 2
        trail.at("operation", operation=41)
        os.write(ready_write, b"x")
        signal.pause()
        os._exit(0)
    try:
        os.read(ready_read, 1)
        os.kill(pid, signal.SIGSTOP)
        crumb = page.read()
        assert (crumb.rank, crumb.task, crumb.stage, crumb.operation) == (5, 2, "operation", 41)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        page.close()


def test_stages_in_words():
    pair, group = make_probe((0, 3)), make_probe((0, 1, 2), subject="tp0", collective="all_reduce")
    alone = make_probe((4,), subject="gpu 4", collective="matmul")
    assert describe_stage("first operation", pair, 3) == "the first operation of pair 0-3 (send_recv with rank 0)"
    assert describe_stage("operation", group, 1, operation=12) == "operation 12 of tp0 (all_reduce over 3 ranks)"
    assert describe_stage("rendezvous", pair, 3, peer=0) == "the rendezvous of pair 0-3, waiting for rank 0"
    assert describe_stage("warm-up", alone, 4) == "the warm-up of gpu 4 (matmul)"
    assert all(describe_stage(stage, pair, 0) for stage in STAGES)
    assert Failure(kind="error", text="x").stage == ""
