"""A resident agent gives way: to processes on GPUs, as a real library in the place of NVML lists them, and to jobs of Slurm."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from preflight.errors import AgentBusy
from preflight.fleet.api import StartRequest
from preflight.fleet.clocks import ClockReader
from preflight.fleet.task import Outcome
from preflight.fleet.tenants import Tenants
from preflight.judge.run import judge, localised
from preflight.model import Gpu, GpuProcess, Verdict
from preflight.registry import load_checks
from tests import nvml_library
from tests.builders import make_job
from tests.fleet.agents import AgentProcess
from tests.fleet.worlds import FakeWorld, coordinate, cpu_nodes, request_of
from tests.trees import Tree

GPU = "GPU-c-1"
JOB = "77"  # that the run is for: what other jobs do on this machine, where other tests run, doesn't matter then


def start(gpu: str | None = GPU, job: str | None = JOB) -> dict:
    return {"run_id": "r", "workers": [{"rank": 0, "gpu": gpu}], "deadline_s": 60, "job": job}


ALONE = {"subject": "gpu 0", "axis": None, "collective": "matmul", "ranks": [0], "size_bytes": 4096, "flops": 1000}
ROUND = {
    "run_id": "r",
    "prefix": "r/1",
    "backend": "nccl",
    "probes": [{**ALONE, "size_source": "t"}],
    "store_address": "",
    "store_port": 0,
    "num_tasks": 1,
    "timeout_s": 5,
    "deadline_s": 10,
}


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """Importing torch takes as long as it takes."""
    monkeypatch.setattr("tests.fleet.agents.WAIT_S", 100.0)


@pytest.fixture
def listed(tmp_path) -> Path:
    """The file of processes on GPUs."""
    path = tmp_path / "processes"
    path.write_text("")
    return path


@pytest.fixture
def agent(tmp_path, listed, monkeypatch) -> Iterator[AgentProcess]:
    """One that gives way, on a node with two stand-in GPUs."""
    library = nvml_library.build(tmp_path / "nvml", "GPUS=2", f'PROCESSES="{listed}"')
    monkeypatch.setenv("LD_LIBRARY_PATH", os.fspath(library))
    started = AgentProcess(tmp_path / "agent", options=("--give-way",))
    yield started
    started.kill_all()


@contextlib.contextmanager
def somebody(name: str = "python3", title: str | None = None, folder: Path | None = None) -> Iterator[int]:
    """A process that is none of the agent's; with a folder, by another name."""
    words, program = ["sleep", "600"], shutil.which("sleep")
    if folder is not None:
        program = shutil.copy(os.path.realpath("/bin/sh"), folder / name)
        words = [title or name, "-c", "sleep 600 & echo $!; wait"]
    assert program
    with subprocess.Popen(
        words, executable=program, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            assert process.stdout
            yield int(process.stdout.readline()) if folder is not None else process.pid
        finally:
            os.killpg(process.pid, 9)


@pytest.mark.cc
@pytest.mark.fabric
def test_a_gpu_that_somebody_holds_is_refused_until_he_has_gone_and_other_gpus_are_not(agent, listed):
    with somebody() as pid:
        listed.write_text(f"1 {pid}\n")
        status, reply = agent.signed("/v1/start", start())
        assert status == 409
        assert reply.decode().startswith(f"n1 gives way to others: {GPU} is held by process {pid} (sleep, user ")
        assert agent.signed("/v1/round", ROUND)[0] == 409
        assert agent.signed("/v1/start", start("GPU-c-0"))[0] == 200
        assert agent.signed("/v1/end", {"run_id": "r"})[0] == 200
    listed.write_text(f"1 {pid}\n")  # the driver tells of one that has ended
    assert agent.signed("/v1/start", start())[0] == 200


@pytest.mark.cc
@pytest.mark.fabric
def test_somebody_who_comes_during_a_round_ends_the_run_and_what_it_measured_beside_him_counts_for_nothing(
    agent, listed
):
    assert agent.signed("/v1/start", start())[0] == 200
    with somebody() as pid:
        listed.write_text(f"1 {pid}\n")
        for _ in range(2):  # the round in which he is seen, and whoever asks again
            status, reply = agent.signed("/v1/round", {**ROUND, "prefix": "r/2"})
            assert status == 409
            assert (
                f"n1 gave way to others, and its workers were ended: {GPU} is held by process {pid}" in reply.decode()
            )
    assert [name for name in agent.processes().values() if name.startswith("pf-")] == []
    assert agent.signed("/v1/end", {"run_id": "r"})[0] == 409


@pytest.mark.cc
@pytest.mark.fabric
@pytest.mark.root
def test_the_job_that_the_run_is_for_is_not_in_its_own_way(agent, listed, tmp_path):
    with somebody("slurmstepd", f"slurmstepd: [{JOB}.0]", tmp_path) as pid:
        listed.write_text(f"1 {pid}\n")
        assert agent.signed("/v1/start", start())[0] == 200
        status, reply = agent.signed("/v1/start", start(job="78"))
        assert status == 409
        assert f"process {pid} (sleep, user root, job {JOB})" in reply.decode()


@pytest.mark.cc
def test_a_driver_that_hangs_is_no_leave_to_start(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", os.fspath(nvml_library.build(tmp_path / "nvml", "HANG_INIT")))
    agent = AgentProcess(tmp_path / "agent", options=("--give-way",))
    try:
        status, reply = agent.signed("/v1/start", {**start(), "deadline_s": 3})
        assert (status, reply) == (
            409,
            b"n1 gives way to others: who is on its GPUs can't be found out: NVML gave no answer",
        )
    finally:
        agent.kill_all()


@pytest.mark.parametrize("job", ["", "12;x", "12_3", "../1", "-1", "1" * 11, "12\n"])
def test_a_job_is_a_number(job):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(start(job=job), StartRequest)


def told(gpus: list[Gpu], wanted: set[str], job: str | None, root: Path) -> str | None:
    """What keeps a run away, of GPUs as a reader tells them."""
    text = json.dumps({"gpus": [{"index": g.index, "uuid": g.uuid, "processes": _plain(g)} for g in gpus]})
    reader = ClockReader([sys.executable, "-c", f"print({text!r})"])
    return asyncio.run(Tenants(wanted, job, root).before(reader, 60.0))


def _plain(gpu: Gpu) -> list[dict] | None:
    return None if gpu.processes is None else [{"pid": p.pid, "memory_bytes": p.memory_bytes} for p in gpu.processes]


def a_gpu(*processes: GpuProcess) -> Gpu:
    return Gpu(index=0, uuid="GPU-a", processes=processes)


def step(tree: Tree, pid: int, job: str) -> None:
    for name, text in (("comm", "slurmstepd\n"), ("cmdline", f"slurmstepd: [{job}.0]"), ("cgroup", "0::/\n")):
        tree.write(f"proc/{pid}/{name}", text)


@pytest.fixture
def tree(tmp_path) -> Tree:
    made = Tree(tmp_path / "root")
    made.write("proc/2/comm", "kthreadd\n")
    return made


@pytest.mark.root
def test_a_run_for_no_job_wants_a_node_without_jobs_and_one_for_a_job_minds_its_gpus_only(tree):
    assert told([a_gpu()], {"GPU-a"}, None, tree.root) is None
    step(tree, 500, "12")
    assert told([a_gpu()], {"GPU-a"}, None, tree.root) == "job 12 of Slurm runs on this node (slurmstepd 500)"
    assert told([a_gpu()], {"GPU-a"}, "99", tree.root) is None


@pytest.mark.root
def test_on_processors_the_steps_of_all_other_jobs_are_in_the_way(tree):
    step(tree, 500, "12")
    assert told([], set(), "12", tree.root) is None
    assert told([], set(), "13", tree.root) == "job 12 of Slurm runs on this node (slurmstepd 500)"


def test_what_can_not_be_found_out_is_no_leave_to_start(tree, tmp_path):
    silent = Gpu(index=0, uuid="GPU-a")
    assert told([silent], {"GPU-a"}, "1", tree.root) == "who is on GPU-a can't be found out: the driver doesn't tell"
    assert told([a_gpu()], {"GPU-b"}, "1", tree.root) == "who is on GPU-b can't be found out: the driver doesn't tell"
    blind = Tree(tmp_path / "blind")
    for wanted in ({"GPU-a"}, set()):
        assert "its processes can't be seen from here" in str(told([a_gpu()], wanted, None, blind.root))


def test_those_who_hold_next_to_nothing_are_in_nobodys_way(tree):
    tree.write("proc/600/comm", "nvtop\n")
    small = GpuProcess(pid=600, memory_bytes=10 * 2**20)
    assert told([a_gpu(small)], {"GPU-a"}, "1", tree.root) is None
    unknown = GpuProcess(pid=600)
    assert "held by process 600" in str(told([a_gpu(unknown)], {"GPU-a"}, "1", tree.root))


@pytest.mark.parametrize("after", [0, 3])
def test_a_node_that_gives_way_before_or_during_a_run_is_unknown_and_nobody_fails(after):
    """`after`: rounds that it takes part in; 0: it refuses at the start."""
    world = FakeWorld(*cpu_nodes(4))

    def refuse(node: str, path: str) -> Exception | None:
        rounds = len({request.prefix for request in world.requests})
        if node != "node1" or path != ("/v1/start" if after == 0 else "/v1/round") or rounds < after:
            return None
        world.hung |= {2, 3}  # the others wait for them in vain
        return AgentBusy("node1 gave way to others: GPU-a is held by process 4711 (python3, user alice, job 12)")

    world.refuse = refuse
    job = make_job(tp=2, dp=4, nodes=4, gpus_per_node=2, gpu=None, backend="gloo")
    outcome: Outcome = asyncio.run(coordinate(world, request_of(job, world)))
    findings, _, answer = judge(localised(outcome.evidence), load_checks(), partial=False)
    assert [f for f in findings if f.verdict is Verdict.FAIL] == []
    about = [f for f in findings if f.check == "reachable" and f.subject == "node1"]
    assert [f.verdict for f in about] == [Verdict.UNKNOWN]
    assert "process 4711 (python3, user alice, job 12)" in about[0].observed
    assert answer == "undecided"
