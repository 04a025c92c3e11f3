"""Workers in the site's environment: the command that the site's file names, with a wrapper before it, and nobody's to change but root's."""

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from preflight.errors import ConfigError, ProbeError
from preflight.fleet.launch import Launch, launch_of, refuse_foreign_program
from preflight.fleet.zygotes import Zygote
from tests.fleet.agents import AgentProcess
from tests.fleet.runs import until

START = {"run_id": "r", "workers": [{"rank": 0}, {"rank": 1}], "deadline_s": 90}
FORKS = '#!/bin/sh\n"$@" &\nwait\n'  # a wrapper between agent and zygote: the parent-death signal of the agent doesn't reach the zygote


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """Importing torch takes as long as it takes."""
    monkeypatch.setattr("tests.fleet.agents.WAIT_S", 100.0)


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that everybody may enter, and only we may write to."""
    made = Path(tempfile.mkdtemp(prefix="pf-resident-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def program(folder: Path, text: str, name: str = "python") -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def agent_with(folder: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], user: str = "root") -> AgentProcess:
    """An agent whose workers carry the mark by which a test finds its processes."""
    site = folder / "preflight.toml"
    monkeypatch.setenv("PREFLIGHT_CONFIG", str(site))
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("PREFLIGHT_TEST_SECRET", "of the agent alone")
    mark = f"PREFLIGHT_TEST_MARK={os.urandom(8).hex()}"
    text = '[agent]\naddress = "127.0.0.1"\n'
    text += f"worker_command = {json.dumps(command)}\nworker_environment = {json.dumps([mark, 'GLOO_X=1'])}\n"
    site.write_text(text + (f'worker_user = "{user}"\n' if os.geteuid() == 0 else ""))
    site.chmod(0o644)
    agent = AgentProcess(folder / "agent")
    agent.mark = mark  # the agent's own is another: its workers get none of its environment
    return agent


def environment(pid: int) -> dict[str, str]:
    words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(word.split("=", 1) for word in words if word)


@pytest.mark.fabric
def test_behind_a_wrapper_that_forks_workers_run_in_the_sites_environment_and_end_with_a_killed_agent(
    folder, monkeypatch
):
    wrapper = program(folder, FORKS, "wrapper")
    agent = agent_with(folder, monkeypatch, [str(wrapper), sys.executable])
    try:
        status, reply = agent.signed("/v1/start", START)
        assert (status, json.loads(reply)["ready"]) == (200, [0, 1]), reply
        variables = environment(agent.find("pf-rank-1"))
        assert (variables["GLOO_X"], variables["NCCL_DEBUG"]) == ("1", "WARN")
        assert variables["PATH"] == "/usr/local/bin:/usr/bin:/bin"
        assert not {"PREFLIGHT_TEST_SECRET", "PREFLIGHT_CONFIG", "PYTHONPATH"} & set(variables)
        os.kill(agent.process.pid, signal.SIGKILL)
        agent.process.wait()
        agent.gone(60)
    finally:
        agent.kill_all()


@pytest.mark.fabric
@pytest.mark.soak
def test_behind_a_wrapper_a_round_runs_and_sigterm_leaves_nothing(folder, monkeypatch):
    agent = agent_with(folder, monkeypatch, [str(program(folder, FORKS, "wrapper")), sys.executable])
    try:
        assert agent.signed("/v1/start", START)[0] == 200
        store = json.loads(agent.signed("/v1/store", {"run_id": "r", "deadline_s": 30})[1])
        probe = {"subject": "pair 0-1", "axis": None, "collective": "send_recv", "ranks": [0, 1], "size_bytes": 4096}
        request = {
            "run_id": "r",
            "prefix": "r/1",
            "backend": "gloo",
            "probes": [probe | {"size_source": "t"}],
            "store_address": store["address"],
            "store_port": store["port"],
            "num_tasks": 2,
            "timeout_s": 30,
            "deadline_s": 40,
        }
        status, reply = agent.signed("/v1/round", request)
        assert status == 200
        assert all(outcome["data_correct"] for outcome in json.loads(reply)["outcomes"])
        assert agent.stop() == 0
        agent.gone()
    finally:
        agent.kill_all()


@pytest.mark.root
def test_the_sites_command_runs_as_the_workers_user_from_its_first_instruction(folder, monkeypatch):
    told = folder / "told"
    told.mkdir()
    told.chmod(0o1777)
    command = program(folder, f"#!/bin/sh\nid -u > {told}/uid\npwd >> {told}/uid\nexit 7\n")
    agent = agent_with(folder, monkeypatch, [str(command)], user="nobody")
    try:
        status, reply = agent.signed("/v1/start", START)
        assert status == 503
        assert (
            b"ended: exit code 7 (what it said stands in the agent's log; worker_command must end in a Python" in reply
        )
        uid, where = (told / "uid").read_text().split()
        assert int(uid) != 0
        assert where == "/"
    finally:
        agent.kill_all()


@pytest.mark.fabric
@pytest.mark.root
@pytest.mark.soak
def test_a_wrapper_with_process_numbers_of_its_own_is_refused_and_leaves_nothing(folder, monkeypatch):
    if shutil.which("unshare") is None:
        pytest.skip("util-linux has unshare")
    command = ["/usr/bin/unshare", "--pid", "--fork", "--kill-child", sys.executable]
    agent = agent_with(folder, monkeypatch, command)
    try:
        status, reply = agent.signed("/v1/start", START)
        assert status == 503
        assert b"process namespace of its own" in reply
        until(lambda: not agent.processes() or None, 30, "the end of what was started")
    finally:
        agent.kill_all()


@pytest.mark.parametrize("what", ["program", "folder", "link"])
def test_a_program_that_others_can_write_or_replace_is_refused(folder, what):
    (folder / "bin").mkdir(mode=0o755)
    path = program(folder / "bin", FORKS)
    if what == "program":
        path.chmod(0o757)
    elif what == "folder":
        (folder / "bin").chmod(0o777)
    else:
        (folder / "open").mkdir()
        (folder / "open").chmod(0o777)
        (folder / "open" / "python").symlink_to(path)
        path = folder / "open" / "python"
    with pytest.raises(ConfigError, match="others can write to it"):
        refuse_foreign_program(str(path), "site.toml")


@pytest.mark.root
def test_a_program_of_an_ordinary_user_is_refused(folder):
    path = program(folder, FORKS)
    os.chown(path, 1234, 1234)
    with pytest.raises(ConfigError, match="belongs to user 1234"):
        refuse_foreign_program(str(path), "site.toml")


def test_a_folder_is_no_program_and_a_file_must_be_runnable(folder):
    path = program(folder, FORKS)
    refuse_foreign_program(str(path), "site.toml")
    path.chmod(0o644)
    for wrong in (path, folder):
        with pytest.raises(ConfigError, match="is no program"):
            refuse_foreign_program(str(wrong), "site.toml")


def test_without_a_command_workers_are_of_our_own_python_in_our_environment():
    launch = launch_of(None, ("A=b",), (65534, 65534), source="site.toml")
    assert launch == Launch(user=(65534, 65534))
    assert launch.words()[:2] == [sys.executable, "-I"]
    assert launch.environment is None


def test_what_is_appended_to_the_sites_command_is_fixed_and_its_variables_count_last(folder):
    path = str(program(folder, FORKS))
    environ = {"LD_PRELOAD": "/tmp/x.so", "PYTHONPATH": "/tmp", "NCCL_DEBUG": "WARN", "LANG": "C", "HOME": "/root"}
    launch = launch_of((path, "exec", "python3"), ("NCCL_DEBUG=INFO",), None, source="site.toml", environ=environ)
    assert launch.words()[:5] == [path, "exec", "python3", "-I", "-c"]
    assert launch.environment is not None
    assert launch.environment["NCCL_DEBUG"] == "INFO"
    assert not {"LD_PRELOAD", "PYTHONPATH"} & set(launch.environment)


def test_a_program_on_a_file_system_that_hangs_costs_the_deadline_and_not_the_agent(monkeypatch):
    hangs, beats = threading.Event(), []
    monkeypatch.setattr("preflight.fleet.zygotes.refuse_foreign_program", lambda *_: hangs.wait(60))

    async def work() -> None:
        beating = asyncio.ensure_future(beat())
        with pytest.raises(ProbeError, match=r"gave no answer within 0\.3 s"):
            await Zygote.start(Launch(command=("/nfs/python",)), 0.3)
        beating.cancel()

    async def beat() -> None:
        while True:
            beats.append(1)
            await asyncio.sleep(0.01)

    asyncio.run(work())
    hangs.set()
    assert len(beats) > 3
