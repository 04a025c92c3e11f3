"""Preflight beside other work on the same node: a prolog, the job's own training, a login in a job's cgroup. Nobody is blamed for what is meant to be so."""

import os
from dataclasses import replace

from preflight.model import Verdict
from tests.fakes import FakeProcess
from tests.incidents.boxes import BOXES
from tests.incidents.live import discovered, judged, plant
from tests.trees import Tree

H100 = "HGX H100"
STEP = "0::/system.slice/slurmstepd.scope/job_{}/step_0/user/task_0\n"
DAEMON = "0::/system.slice/slurmd.service\n"


def busy(box, *places, pid=4000):
    """A process holds most of the memory of the GPUs at these places."""
    held = (FakeProcess(pid, 60 * 2**30),)
    return replace(box, gpus=[replace(gpu, processes=held) if i in places else gpu for i, gpu in enumerate(box.gpus)])


def found(box, tmp_path, monkeypatch, *, job=16, own=DAEMON):
    """What is found where process 4000 is of that job, and preflight in the cgroup `own`."""
    tree = Tree(tmp_path / "root")
    plant(tree, box)
    tree.write("proc/4000/comm", "python3\n")
    tree.write("proc/4000/stat", f"4000 (python3) S 1 4000 4000 0{' 0' * 20}\n")
    tree.write("proc/4000/cgroup", STEP.format(job))
    tree.write("proc/self/stat", f"77 (preflight) S 70 77 70 0{' 0' * 20}\n")
    tree.write("proc/self/cgroup", own)
    return judged(discovered(box, tmp_path, monkeypatch, tree=tree))


def prolog(gpus):
    return {"SLURM_JOB_ID": "17", "SLURM_JOB_GPUS": gpus, "CUDA_VISIBLE_DEVICES": gpus}


def test_a_prolog_lets_another_job_keep_its_gpus(tmp_path, monkeypatch):
    box = replace(busy(BOXES[H100](), 0, 1, 2, 3), environ=prolog("4,5,6,7"))
    verdict = found(box, tmp_path, monkeypatch)
    assert (verdict.answer, verdict.suspected) == ("go", set())


def test_a_prolog_finds_what_an_earlier_job_left_on_its_gpus(tmp_path, monkeypatch):
    box = replace(busy(BOXES[H100](), 3), environ=prolog("2,3"))
    verdict = found(box, tmp_path, monkeypatch)
    assert verdict.answer == "no-go"
    assert verdict.blamed == {("environment", "process 4000 on node1")}


def test_the_jobs_own_training_beside_it_is_no_leftover(tmp_path, monkeypatch):
    box = replace(busy(BOXES[H100](), *range(8)), environ=prolog("0,1,2,3,4,5,6,7"))
    own = STEP.format(17).replace("step_0", "step_1")
    verdict = found(box, tmp_path, monkeypatch, job=17, own=own)
    assert (verdict.answer, verdict.suspected) == ("go", set())
    assert "this job's own: 4000" in verdict.said("leftover_processes")


def test_in_a_container_a_training_that_cannot_be_seen_is_a_warning(tmp_path, monkeypatch):
    environ = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", "NVIDIA_VISIBLE_DEVICES": "all"}
    box = replace(busy(BOXES[H100](), *range(8)), container=True, environ=environ)
    verdict = found(box, tmp_path, monkeypatch)
    assert verdict.answer == "go"
    assert [one.verdict for one in verdict.of("leftover_processes")] == [Verdict.WARN]


def test_a_login_in_a_jobs_cgroup_sees_four_gpus_and_has_lost_none(tmp_path, monkeypatch):
    """pam_slurm_adopt puts a login into the job's cgroup, and gives it none of the job's variables."""
    may = os.access
    kept = tuple(f"nvidia{place}" for place in range(4, 8))
    monkeypatch.setattr("os.access", lambda path, mode: not str(path).endswith(kept) and may(path, mode))
    verdict = found(replace(BOXES[H100](), user=True, shown=(0, 1, 2, 3)), tmp_path, monkeypatch)
    assert (verdict.answer, verdict.suspected) == ("go", set())
    assert "may not be opened by this process" in verdict.said("gpu_census")
