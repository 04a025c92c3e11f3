"""Four nodes in network namespaces on two leaves, their links limited by tbf, agents and gloo for real: each fault is named rightly, and nothing else is blamed."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from preflight.model import Verdict
from tests.cluster.box import SICK_MBIT, Box, descendants
from tests.fleet.runs import until

pytestmark = [
    pytest.mark.root,
    pytest.mark.fabric,
    pytest.mark.debian("iproute2", "ip", "tc"),
    pytest.mark.timeout(900),
]

BUDGET = "120s"  # a quiet machine needs a quarter of it
OUR_OWN = {"environment"}  # what a small machine's clock and load bring; it blames no part of the fabric


class Fault(NamedTuple):
    """`plant` brings it about; `blamed`: (check, kind, name) of the one finding; `direction`: which way it is slow, in the finding's words."""

    plant: Callable[[Box], None]
    blamed: tuple[str, str, str]
    direction: str = "both"
    leaves_told: bool = True
    verdict: Verdict = Verdict.FAIL


SLOW = {
    "a slow node": Fault(lambda box: box.limit("n2", SICK_MBIT, "both"), ("slow_part", "node", "n2")),
    "a node slow in sending": Fault(
        lambda box: box.limit("n2", SICK_MBIT, "sending"), ("slow_part", "node", "n2"), "sending"
    ),
    "a node slow in receiving": Fault(
        lambda box: box.limit("n3", SICK_MBIT, "receiving"), ("slow_part", "node", "n3"), "receiving"
    ),
    "a slow pair": Fault(lambda box: box.limit_pair("n1", "n3", 75), ("slow_part", "link", "n1 GPU 0 to n3 GPU 0")),
    # a fabric with too few uplinks looks the same, until a pair has the way to itself
    "a slow uplink": Fault(lambda box: box.limit_uplink(1, 100), ("slow_part", "path", "n[1-2] to n[3-4]")),
    "a slow uplink, leaves not told": Fault(
        lambda box: box.limit_uplink(1, 150), ("slow_part", "path", "n[1-2] to n[3-4]"), leaves_told=False
    ),
}


@pytest.fixture(scope="module")
def agents(tmp_path_factory):
    """Nodes whose agents stay for all runs of this file that don't take any of them away."""
    with Box(tmp_path_factory.mktemp("box")) as box:
        box.start_agents()
        yield box


@pytest.fixture
def box(agents):
    """All links as they should be, afterwards too."""
    yield agents
    agents.heal()


@pytest.fixture
def doomed(tmp_path):
    """Nodes for one test; nothing is left of them."""
    with Box(tmp_path) as box:
        box.start_agents()
        yield box
        ours = descendants([process.pid for process in box.processes.values()])
    # what a killed agent leaves dies with it, a moment later
    until(lambda: not any(map(_runs, ours)) or None, 15, "the end of all processes of the box")


def _runs(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def blamed(report, verdict=Verdict.FAIL):
    """(check, kind, name) of all that findings of this verdict blame; nothing else may be blamed at all."""
    parts = [(f, f.blames) for f in report.findings if f.blames and f.blames.kind not in OUR_OWN]
    assert all(f.verdict is verdict for f, _ in parts), table(report)
    return {(f.check, part.kind, part.name) for f, part in parts}


def table(report):
    """For whoever reads of a failure: what was said, and what was measured."""
    told = [
        f"{f.verdict.value} {f.check} {f.subject}: {f.observed}" for f in report.findings if f.verdict.value != "PASS"
    ]
    rates = [
        f"{m.probe.key}: {m.failure.text[:100] if m.failure else round((m.busbw_bytes_per_s or 0) * 8e-6)}"
        for m in report.evidence.measurements or ()
        if len(m.probe.ranks) > 1
    ]
    return "\n".join([*told, *rates])


def slow_is_named(box, name):
    fault = SLOW[name]
    fault.plant(box)
    report = box.run(budget=BUDGET, leaves_told=fault.leaves_told)
    assert blamed(report, fault.verdict) == {fault.blamed}, table(report)
    observed = next(f.observed for f in report.findings if f.check == "slow_part" and f.blames)
    ways = [way for way in ("sending", "receiving") if way in observed]
    assert ways == ([] if fault.direction == "both" else [fault.direction]), table(report)


@pytest.mark.parametrize("name", ["a slow node", "a node slow in sending", "a slow pair", "a slow uplink"])
def test_a_slow_part_is_named_and_no_other(box, name):
    slow_is_named(box, name)


def healthy_is_clean(box):
    report = box.run(budget=BUDGET)
    assert blamed(report) == set(), table(report)
    assert report.coverage.pairs_measured == 6


def test_healthy_nodes_are_not_blamed(box):
    healthy_is_clean(box)


@pytest.mark.soak
def test_a_link_that_is_dead_from_the_start_is_named_by_its_node(box):
    box.cut("n3")
    assert blamed(report := box.run(budget=BUDGET)) == {("reachable", "node", "n3")}, table(report)


def cut_in_the_middle(box):
    box.begin_run(budget=BUDGET)
    box.wait_for_traffic("n3", 8_000_000)
    box.cut("n3")
    report = box.end_run(BUDGET)
    assert blamed(report) == {("reachable", "node", "n3")}, table(report)
    measured = {m.probe.ranks for m in report.evidence.measurements if m.samples}
    assert {(0, 1), (0, 3), (1, 3)} <= measured, "the survivors were measured to the end"


def test_a_link_that_dies_in_the_middle_is_named_and_the_survivors_are_measured(doomed):
    cut_in_the_middle(doomed)


def stopped_again_and_again(box, rank, done):
    """SIGSTOP to each worker of the rank, its replacements too."""
    while not done.is_set():
        with contextlib.suppress(AssertionError, ProcessLookupError):
            os.kill(box.worker(rank, timeout_s=0.5), signal.SIGSTOP)
        done.wait(0.02)


def hung_worker(box):
    box.begin_run(budget=BUDGET)
    box.wait_for_traffic("n3", 8_000_000)
    done = threading.Event()
    stopper = threading.Thread(target=stopped_again_and_again, args=(box, 2, done))
    stopper.start()
    try:
        report = box.end_run(BUDGET)
    finally:
        done.set()
        stopper.join()
    assert blamed(report) == {("reachable", "rank", "rank 2 on n3")}, table(report)


def test_a_worker_that_hangs_is_named_and_its_partners_are_not(box):
    hung_worker(box)


@pytest.mark.soak
def test_agents_end_the_workers_of_a_coordinator_that_was_killed_and_stay(tmp_path):
    with Box(tmp_path, leaves=(2,)) as box:
        box.start_agents(lease_s=5.0)
        run = box.begin_run(budget=BUDGET)
        box.wait_for_traffic("n2", 8_000_000)
        workers = [box.worker(rank) for rank in range(2)]
        os.killpg(run.pid, signal.SIGKILL)
        run.wait(10)
        deadline = time.monotonic() + 60  # the round under way, then the lease
        while any(_runs(pid) for pid in workers):
            assert time.monotonic() < deadline, "workers outlive their lease"
            time.sleep(0.1)
        assert all(box.processes[f"agent-{node}"].poll() is None for node in box.nodes)


@pytest.mark.soak
@pytest.mark.parametrize("again", range(10))
@pytest.mark.parametrize("name", SLOW)
def test_a_slow_part_is_named_ten_times_out_of_ten(box, name, again):
    slow_is_named(box, name)


@pytest.mark.soak
@pytest.mark.parametrize("again", range(10))
def test_healthy_nodes_are_not_blamed_ten_times_out_of_ten(box, again):
    healthy_is_clean(box)


@pytest.mark.soak
@pytest.mark.parametrize("again", range(10))
def test_a_link_that_dies_in_the_middle_is_named_ten_times_out_of_ten(doomed, again):
    cut_in_the_middle(doomed)


@pytest.mark.soak
@pytest.mark.parametrize("again", range(10))
def test_a_worker_that_hangs_is_named_ten_times_out_of_ten(box, again):
    hung_worker(box)
