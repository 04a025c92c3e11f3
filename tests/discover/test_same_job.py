"""Processes of one's own job are told apart from those of others: by the scheduler's cgroup, its job number, or the session."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from preflight.discover.same_job import SameJob
from tests.trees import Tree

V2 = "0::/system.slice/slurmstepd.scope/job_{}/step_0/user/task_0\n"
V1 = "9:devices:/slurm/uid_1000/job_{}/step_0/task_0\n4:cpuset:/slurm/uid_1000/job_{}/step_0\n1:name=systemd:/system.slice/slurmd.service\n"


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def process(tree, pid, *, parent=1, session=None, cgroup="0::/\n", environ=""):
    tree.write(f"proc/{pid}/stat", f"{pid} (a (b) c) S {parent} 5 {session or pid} 0\n")
    tree.write(f"proc/{pid}/cgroup", cgroup)
    tree.write(f"proc/{pid}/environ", environ)


@pytest.mark.parametrize("spelled", [V2, V1])
def test_the_schedulers_cgroup_tells_the_own_job_from_an_earlier_one(tree, spelled):
    process(tree, "self", session=7, cgroup=spelled.format(17, 17))
    process(tree, 100, cgroup=spelled.format(17, 17).replace("step_0", "step_3"))
    process(tree, 101, session=7, cgroup=spelled.format(16, 16))  # a leftover, whatever its session is
    process(tree, 102, cgroup=spelled.format(171, 171))
    job = SameJob(tree.root)
    assert [job.has(pid) for pid in (100, 101, 102)] == [True, False, False]


def test_without_its_cgroups_the_job_number_tells(tree):
    mine = "PATH=/bin\0SLURM_JOB_ID=17\0"
    process(tree, "self", session=7, cgroup="0::/system.slice/slurmd.service\n", environ=mine)
    process(tree, 100, cgroup="0::/system.slice/slurmd.service\n", environ=mine)
    process(tree, 101, session=7, cgroup="0::/system.slice/slurmd.service\n", environ="SLURM_JOB_ID=16\0")
    job = SameJob(tree.root)
    assert [job.has(pid) for pid in (100, 101)] == [True, False]


def test_a_prolog_shares_nothing_with_what_jobs_left_in_their_cgroups(tree):
    process(tree, "self", session=7, cgroup="0::/system.slice/slurmd.service\n", environ="SLURM_JOB_ID=17\0")
    process(tree, 100, parent=101, session=7, cgroup=V2.format(16), environ="SLURM_JOB_ID=16\0")
    process(tree, 101, session=7)
    assert SameJob(tree.root).has(100) is False


def test_a_cgroup_that_is_no_jobs_and_an_empty_job_number_say_nothing(tree):
    process(tree, "self", session=7, cgroup="0::/user.slice\n", environ="SLURM_JOB_ID=\0")
    process(tree, 100, cgroup="0::/user.slice\n", environ="SLURM_JOB_ID=\0")
    assert SameJob(tree.root).has(100) is False


def test_workers_with_sessions_of_their_own_belong_to_that_of_their_launcher(tree):
    process(tree, "self", session=7)
    process(tree, 50, parent=7, session=7)
    process(tree, 100, parent=50)
    process(tree, 60, parent=1)
    process(tree, 101, parent=60)
    process(tree, 102, parent=103)
    process(tree, 103, parent=102)  # a ring, as only a wrong tree has
    job = SameJob(tree.root)
    assert [job.has(pid) for pid in (50, 100, 101, 102, 999)] == [True, True, False, False, False]


def test_where_this_process_is_not_known_nothing_is_said(tree):
    process(tree, 100)
    assert SameJob(tree.root).has(100) is None


@pytest.mark.skipif(os.getsid(0) == 0, reason="the session's leader is outside of this container")
def test_a_live_child_is_ours_and_the_first_process_is_not():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as child:
        job = SameJob(Path("/"))
        assert job.has(child.pid) is True
        assert job.has(os.getpid()) is True
        child.communicate(b"\n")
