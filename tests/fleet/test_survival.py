"""Whatever happens to a process of a run, the run ends within its budget, names the part, keeps the rest, and leaves no process behind."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from preflight.model import Verdict
from tests.fleet.runs import Run, until

pytestmark = [pytest.mark.fabric, pytest.mark.timeout(180)]


@pytest.fixture
def run(tmp_path) -> Iterator[Run]:
    started = Run(tmp_path, "--local", "2x2", "--budget", "60s")
    yield started
    started.kill_all()


def findings_about(run: Run, subject: str) -> list:
    return [f for f in run.report().findings if f.subject == subject and f.check == "reachable"]


@pytest.mark.soak
def test_a_healthy_run_goes_and_leaves_nothing_behind(run):
    assert run.wait() == 0, run.errors.read_text()
    report = run.report()
    assert report.answer == "go"
    assert report.coverage.pairs_measured == report.coverage.pairs_planned == 6
    assert report.coverage.groups_measured == report.coverage.groups_planned == 4
    assert all(m.data_correct for m in report.evidence.measurements)
    assert (run.out / "preflight.prom").stat().st_size > 0
    run.gone()


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_worker_stopped_or_killed_in_the_middle_is_named_and_costs_only_its_own(run, number):
    worker = run.find("pf-rank-3")
    run.until_busy(worker)
    os.kill(worker, number)
    code = run.wait()
    report = run.report()
    named = findings_about(run, "rank 3")
    if all("while it left a communicator, after its results were in" in f.observed for f in named):
        assert (code, [f.verdict for f in named]) == (0, [Verdict.WARN]), run.errors.read_text()
    else:
        assert code in {3, 10}, run.errors.read_text()
        assert [f.verdict for f in named] in ([Verdict.FAIL], [Verdict.UNKNOWN])
    assert not [f for f in report.findings if f.check == "reachable" and f.verdict == Verdict.FAIL and f not in named]
    seen = {incident.kind for incident in report.evidence.incidents if incident.rank == 3}
    assert seen == {"worker_hung" if number == signal.SIGSTOP else "worker_died"}
    others = [m for m in report.evidence.measurements if 3 not in m.probe.ranks]
    assert others
    assert all(m.samples for m in others)
    assert report.duration_s < 60
    run.gone()


@pytest.mark.soak
def test_a_worker_stopped_before_its_first_task_is_named(run):
    os.kill(run.find("pf-rank-1"), signal.SIGSTOP)
    assert run.wait() in {3, 10}
    assert findings_about(run, "rank 1")
    assert run.report().duration_s < 60
    run.gone()


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_an_agent_stopped_or_killed_costs_its_node_and_is_named(run, number):
    run.until_busy(run.find("pf-rank-3"))
    os.kill(run.agents()[1], number)
    assert run.wait() == 10
    (named,) = findings_about(run, "node1")
    assert named.verdict == Verdict.FAIL
    assert named.blames.kind == "node"
    report = run.report()
    inside = [m for m in report.evidence.measurements if set(m.probe.ranks) <= {0, 1}]
    assert all(m.samples for m in inside if not m.failure or m.failure.kind != "not_run")
    assert report.duration_s < 60
    run.gone()


@pytest.mark.soak
def test_a_zygote_that_is_stopped_does_not_hang_the_run(run):
    run.until_busy(run.find("pf-rank-3"))
    os.kill(run.find("pf-zygote"), signal.SIGSTOP)
    assert run.wait() in {0, 3, 10}
    assert run.report().duration_s < 60
    run.gone()


@pytest.mark.soak
def test_a_zygote_that_is_killed_is_told_of_with_each_worker_that_died_with_it(run):
    run.until_busy(run.find("pf-rank-3"))
    os.kill(run.find("pf-zygote"), signal.SIGKILL)
    assert run.wait() in {3, 10}
    report = run.report()
    dead = {i.rank for i in report.evidence.incidents if i.kind == "worker_died"}
    assert dead in ({0, 1}, {2, 3})
    assert all(findings_about(run, f"rank {rank}") for rank in dead)
    assert report.duration_s < 60
    run.gone()


@pytest.mark.soak
def test_an_agent_that_is_stopped_while_it_starts_keeps_the_budget_and_the_other_node(tmp_path):
    run = Run(tmp_path, "--local", "2x2", "--budget", "40s")
    try:
        second = until(lambda: run.agents()[1] if len(run.agents()) == 2 else None, 30, "both agents")
        os.kill(second, signal.SIGSTOP)
        assert run.wait() == 10
        report = run.report()
        assert report.duration_s < 40
        assert [f.verdict for f in findings_about(run, "node1")] == [Verdict.FAIL]
        assert [m for m in report.evidence.measurements if m.samples and set(m.probe.ranks) == {0, 1}]
        run.gone()
    finally:
        run.kill_all()


@pytest.mark.soak
def test_a_rendezvous_server_that_is_killed_blames_no_rank(run):
    run.until_busy(run.find("pf-rank-3"))
    os.kill(run.find("pf-store"), signal.SIGKILL)
    assert run.wait() in {0, 3}
    assert not [f for f in run.report().findings if f.verdict == Verdict.FAIL]
    run.gone()


def test_a_coordinator_that_is_killed_leaves_no_process_behind(run):
    run.until_busy(run.find("pf-rank-3"))
    run.process.kill()
    run.process.wait()
    run.gone()


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.soak), signal.SIGTERM])
def test_an_interrupted_run_reports_what_it_has_and_says_that_it_is_partial(run, number):
    run.until_busy(run.find("pf-rank-3"))
    os.kill(run.process.pid, number)
    assert run.wait(30) == 3
    report = run.report()
    assert report.partial
    assert report.answer == "undecided"
    assert report.evidence.measurements
    assert "PARTIAL" in run.stdout
    run.gone()


@pytest.mark.soak
def test_ctrl_c_again_and_again_still_gives_the_partial_report(run):
    run.until_busy(run.find("pf-rank-3"))
    os.kill(run.process.pid, signal.SIGINT)

    def again() -> bool | None:
        if run.process.poll() is None:
            os.kill(run.process.pid, signal.SIGINT)
            return None
        return True

    until(again, 30, "the end")
    assert run.wait(5) == 3
    assert run.report().partial
    assert not [p for p in run.out.iterdir() if p.name.startswith(".")]
    run.gone()


@pytest.mark.soak
def test_a_coordinator_that_was_stopped_for_a_while_blames_nobody(tmp_path):
    run = Run(tmp_path, "--local", "2x2", "--budget", "120s")
    try:
        run.until_busy(run.find("pf-rank-3"))
        os.kill(run.process.pid, signal.SIGSTOP)
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 32 or None, 40, "more than any call may take")
        os.kill(run.process.pid, signal.SIGCONT)
        assert run.wait() in {0, 3}
        assert not [f for f in run.report().findings if f.verdict == Verdict.FAIL]
        run.gone()
    finally:
        run.kill_all()


@pytest.mark.soak
def test_a_variable_that_is_no_utf8_costs_no_report(tmp_path, monkeypatch):
    monkeypatch.setitem(os.environb, b"NCCL_TEST", b"\xff")
    run = Run(tmp_path, "--local", "1x2", nodes=1, per_node=2)
    try:
        run.wait()
        assert run.report().environment.variables["NCCL_TEST"] == "\\xff"
    finally:
        run.kill_all()


@pytest.mark.soak
def test_a_small_budget_is_kept_and_states_its_coverage(tmp_path):
    run = Run(tmp_path, "--local", "2x2", "--budget", "30s")
    try:
        assert run.wait(60) in {0, 3}
        report = run.report()
        assert report.duration_s < 30
        assert not report.partial
    finally:
        run.kill_all()
