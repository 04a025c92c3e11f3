"""`srun preflight run` without Slurm: the tasks are real processes with Slurm's variables, munged is real, and each node is a loopback address."""

import os
import signal

import pytest

from tests.fleet.munged import munged
from tests.fleet.srun_tasks import Tasks

pytestmark = [pytest.mark.timeout(300), pytest.mark.debian("munge", "munged")]


@pytest.fixture(scope="module")
def socket():
    with munged() as daemon:
        yield daemon.socket


@pytest.mark.fabric
def test_a_step_measures_its_nodes_and_only_its_first_task_prints(socket, tmp_path):
    with Tasks(tmp_path, "--budget", "90s", nodes=2, per_node=2, ranks_per_node=2, socket=socket) as tasks:
        assert set(tasks.wait().values()) == {0}, tasks.said()
        report = tasks.report()
        assert [node.name for node in report.evidence.inventory.nodes] == tasks.nodes
        assert report.coverage.pairs_measured == report.coverage.pairs_planned == 6
        assert tasks.printed().splitlines()[-1].startswith("go")
        assert [tasks.printed(*task) for task in tasks.tasks if task != (0, 0)] == ["", "", ""]
        assert tasks.said() == ""
        tasks.gone()


def test_a_bad_plan_file_is_told_once_and_no_task_waits_for_a_run_that_never_comes(socket, tmp_path):
    with Tasks(tmp_path, per_node=2, socket=socket, plan="[model]\n") as tasks:
        assert tasks.wait(60) == {(0, 0): 78, (0, 1): 0, (1, 0): 0, (1, 1): 0}
        assert tasks.said().count("plan.toml") == 1
        tasks.gone()


def test_wrong_usage_is_told_once(socket, tmp_path):
    with Tasks(tmp_path, "--budget", "5s", per_node=2, socket=socket) as tasks:
        assert tasks.wait(60) == {(0, 0): 64, (0, 1): 0, (1, 0): 0, (1, 1): 0}
        assert tasks.said().count("give at least 30s") == 1


@pytest.mark.soak
def test_where_no_munged_answers_it_is_said_and_nobody_waits(tmp_path):
    with Tasks(tmp_path, per_node=2, socket=str(tmp_path / "nowhere")) as tasks:
        assert tasks.wait(60) == {(0, 0): 3, (0, 1): 0, (1, 0): 0, (1, 1): 0}
        assert "munged does not run, or listens on another socket" in tasks.printed(kind="err")
        assert "127.0.0.3: munged does not run" in tasks.printed(1, kind="err")
        assert "Traceback" not in tasks.said()
        tasks.gone()


@pytest.mark.fabric
@pytest.mark.soak
def test_a_node_whose_task_never_started_is_named_unknown_and_the_others_are_measured(socket, tmp_path):
    with Tasks(tmp_path, "--budget", "120s", nodes=3, missing=[2], socket=socket) as tasks:
        assert tasks.wait() == {(0, 0): 3, (1, 0): 0}, tasks.said()
        report = tasks.report()
        assert report.answer == "undecided"
        [incident] = [i for i in report.evidence.incidents if i.node == "127.0.0.4"]
        assert incident.text.startswith(
            "no agent of step 77.0 answered on 127.0.0.4 within 40 s: did srun start its task there"
        )
        assert any(m.samples for m in report.evidence.measurements)
        assert not [f for f in report.findings if f.verdict == "FAIL"]
        tasks.gone()


@pytest.mark.fabric
@pytest.mark.soak
def test_a_step_that_is_cancelled_tells_what_it_has_and_leaves_nothing(socket, tmp_path):
    with Tasks(tmp_path, "--budget", "200s", nodes=2, per_node=2, ranks_per_node=2, socket=socket) as tasks:
        tasks.find("pf-rank-3")
        for pid in tasks.processes():  # scancel signals every process of the step
            os.kill(pid, signal.SIGTERM)
        codes = tasks.wait(60)
        assert codes[0, 0] == 3
        report = tasks.report()
        assert report.partial
        assert not [f for f in report.findings if f.verdict == "FAIL"]
        tasks.gone()


@pytest.mark.fabric
@pytest.mark.soak
def test_a_coordinator_that_is_killed_takes_its_nodes_agent_with_it_and_the_others_leave(socket, tmp_path):
    with Tasks(tmp_path, "--budget", "200s", nodes=2, ranks_per_node=2, socket=socket) as tasks:
        tasks.find("pf-rank-3")
        tasks.tasks[0, 0].kill()
        assert tasks.wait(200) == {(0, 0): -9, (1, 0): 0}
        assert "127.0.0.3: the coordinator is gone" in tasks.said()
        tasks.gone()


@pytest.mark.fabric
@pytest.mark.soak
def test_an_agent_that_is_killed_costs_its_node_and_nothing_else(socket, tmp_path):
    with Tasks(tmp_path, "--budget", "120s", nodes=3, ranks_per_node=1, socket=socket) as tasks:
        tasks.until_busy(tasks.find("pf-rank-2"))
        tasks.tasks[2, 0].kill()
        assert tasks.wait()[0, 0] in {3, 10}
        assert tasks.wait()[1, 0] == 0
        named = {
            f.subject for f in tasks.report().findings if f.verdict in {"FAIL", "UNKNOWN"} and f.check == "reachable"
        }
        assert "127.0.0.4" in named
        assert not {"127.0.0.2", "127.0.0.3"} & named
        tasks.gone()


@pytest.mark.fabric
@pytest.mark.soak
def test_two_steps_at_once_on_the_same_nodes_do_not_meet(socket, tmp_path):
    first = Tasks(tmp_path / "1", "--budget", "120s", socket=socket, job=1)
    second = Tasks(tmp_path / "2", "--budget", "120s", socket=socket, job=2)
    with first, second:
        for tasks in (first, second):
            assert set(tasks.wait().values()) == {0}, tasks.said()
            assert len(tasks.report().evidence.measurements or ()) > 1
            tasks.gone()


@pytest.mark.fabric
@pytest.mark.soak
def test_a_key_that_the_first_node_leaves_in_a_folder_does_for_munge(tmp_path):
    keys = tmp_path / "keys"
    keys.mkdir(mode=0o700)
    with Tasks(tmp_path / "step", "--budget", "90s", "--key-file", str(keys), socket="/nowhere") as tasks:
        assert set(tasks.wait().values()) == {0}, tasks.said()
        assert list(keys.iterdir()) == []
