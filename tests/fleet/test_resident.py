"""The agent as a service: what it takes from the site's file, and that nothing that happens to a node for months ends it, or makes it grow."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from preflight.errors import UsageError
from preflight.fleet.api import VerdictRequest
from preflight.fleet.interfaces import address_of, only_address
from preflight.model import Finding, Verdict
from preflight.slurm.verdicts import read_verdict
from tests import nvml_library
from tests.fleet.agents import WAIT_S, AgentProcess, write_key
from tests.fleet.runs import until

START = {"run_id": "r", "workers": [{"rank": 0}, {"rank": 1}], "deadline_s": 60}
SCARCE = 60  # MB, what an agent has that has just started (40 here), and then some


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """Importing torch takes as long as it takes."""
    monkeypatch.setattr("tests.fleet.agents.WAIT_S", 90.0)


def site_file(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = folder / "preflight.toml"
    path.write_text(text)
    path.chmod(0o644)
    monkeypatch.setenv("PREFLIGHT_CONFIG", str(path))
    return path


def command(*options: str) -> subprocess.CompletedProcess[str]:
    """An agent that is expected not to start."""
    words = [sys.executable, "-m", "preflight", "agent", *options]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)


def memory_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - only how many


def test_what_no_flag_says_stands_in_the_sites_file(tmp_path, monkeypatch):
    key = write_key(tmp_path)
    site_file(tmp_path, f'[agent]\ninterface = "lo"\nkey_file = "{key}"\n', monkeypatch)
    words = [sys.executable, "-m", "preflight", "agent", "--name", "n1", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            told = json.loads(process.stdout.readline())
            assert (told["name"], told["address"]) == ("n1", "127.0.0.1")
        finally:
            process.terminate()
        assert process.wait(WAIT_S) == 0


def test_a_flag_counts_before_a_variable_and_that_before_the_file(tmp_path, monkeypatch):
    site_file(tmp_path, '[agent]\naddress = "of-the-file"\n', monkeypatch)
    key = str(write_key(tmp_path))
    assert "of-the-file" in command("--key-file", key).stderr
    monkeypatch.setenv("PREFLIGHT_AGENT_ADDRESS", "of-the-variable")
    assert "of-the-variable" in command("--key-file", key).stderr
    assert "of-the-flag" in command("--key-file", key, "--address", "of-the-flag").stderr


@pytest.mark.parametrize(
    "case",
    [
        ("", (), 64, "needs --munge, or --key-file"),
        ('[agent]\nport = "many"\n', (), 78, "agent.port"),
        (
            '[agent]\naddress = "127.0.0.1"\nworker_command = ["/no/such/python"]\n',
            ("KEY",),
            78,
            "agent.worker_command",
        ),
        ('[agent]\naddress = "127.0.0.1"\nusers = ["nobody-is-called-so"]\n', ("--munge",), 78, "there is no user"),
        ('[agent]\naddress = "127.0.0.1"\ninterface = "lo"\n', ("KEY",), 78, "give one of them"),
        ("", ("KEY", "--interface", "lo", "--address", "127.0.0.1"), 64, "give one of them"),
        ("", ("KEY", "--interface", "nosuch0"), 64, "no interface 'nosuch0'"),
        ("", ("KEY", "--address", "0.0.0.0"), 64, "give one IP address of this node"),
    ],
)
def test_what_makes_no_sense_is_said_and_nothing_listens(tmp_path, monkeypatch, case):
    text, options, code, words = case
    site_file(tmp_path, text, monkeypatch)
    key = ("--key-file", str(write_key(tmp_path)))
    done = command(*(word for option in options for word in (key if option == "KEY" else (option,))))
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert done.stdout == ""


def test_an_interface_gives_its_only_address_and_several_are_refused_by_name():
    assert address_of("lo") == "127.0.0.1"
    assert only_address(("10.0.0.1", "fe80::1%eth0", "2001:db8::1"), "eth0") == "10.0.0.1"
    assert only_address(("fe80::1%eth0", "2001:db8::1"), "eth0") == "2001:db8::1"
    with pytest.raises(UsageError, match=r"several addresses, 10\.0\.0\.1, 10\.0\.0\.2: give the one that is meant"):
        only_address(("10.0.0.1", "10.0.0.2"), "eth0")
    with pytest.raises(UsageError, match="no address that other nodes reach"):
        only_address(("fe80::1%eth0",), "eth0")


def test_a_verdict_is_kept_where_the_nodes_prolog_looks_for_it(tmp_path, monkeypatch):
    state = tmp_path / "state"
    site_file(tmp_path, f'[agent]\naddress = "127.0.0.1"\n[slurm]\nstate_dir = "{state}"\n', monkeypatch)
    agent = AgentProcess(tmp_path / "agent")
    found = Finding(check="slow_part", subject="n1", verdict=Verdict.FAIL, observed="slow", expected="fast")
    request = VerdictRequest(run_id="scan-1", verdict=Verdict.FAIL, findings=(found,), age_s=3600)
    try:
        status, _ = agent.signed("/v1/verdict", request)
        assert status == 200
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        verdict, why = read_verdict(str(state), "n1", boot_id=boot_id, now_s=time.time())
        assert why == ""
        assert verdict is not None
        assert (verdict.run_id, verdict.verdict, verdict.findings) == ("scan-1", Verdict.FAIL, (found,))
        assert agent.post("/v1/verdict", b"{}", None)[0] == 401
        assert agent.signed("/v1/verdict", {"run_id": "r", "verdict": "FAIL", "age_s": 60, "path": "/etc"})[0] == 400
    finally:
        agent.kill_all()


def test_hundreds_of_requests_leave_neither_descriptors_nor_memory_behind(tmp_path):
    agent = AgentProcess(tmp_path / "agent")
    pid = agent.process.pid

    def work(times: int) -> None:
        for _ in range(times):
            assert agent.signed("/v1/end", {"run_id": "r"})[0] == 409
            assert agent.signed("/v1/start", {"run_id": "r"})[0] == 400
            assert agent.post("/healthz", b"", None, method="GET")[0] == 200
            assert agent.post("/v1/round", b"x" * 5000, None)[0] == 401
        assert agent.signed("/v1/discover", {"deadline_s": 10})[0] == 200

    try:
        work(25)
        began, had_mb = descriptors(pid), memory_mb(pid)
        work(125)
        until(lambda: descriptors(pid) <= began or None, WAIT_S, f"{began} descriptors or fewer")
        assert memory_mb(pid) < had_mb + 8
        assert memory_mb(pid) < 2 * SCARCE
    finally:
        agent.kill_all()


@pytest.mark.cc
def test_a_driver_that_hangs_costs_its_reading_and_the_agent_answers_everybody_else(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", os.fspath(nvml_library.build(tmp_path / "nvml", "HANG_INIT")))
    agent = AgentProcess(tmp_path / "agent")
    words = ["import sys; from tests.fleet.test_resident import ask; ask(sys.argv[1], int(sys.argv[2]))"]
    try:
        asking = subprocess.Popen(
            [sys.executable, "-c", *words, str(agent.key_file), str(agent.port)], stdout=subprocess.PIPE, text=True
        )
        until(lambda: next((p for p in agent.processes() if p != agent.process.pid), None), WAIT_S, "the reading")
        for _ in range(5):
            assert agent.post("/healthz", b"", None, method="GET")[0] == 200
            assert agent.signed("/v1/end", {"run_id": "r"})[0] == 409
        told, _ = asking.communicate(timeout=60)
        assert "did not answer within 3 s" in told
        until(lambda: list(agent.processes()) == [agent.process.pid] or None, WAIT_S, "the end of the reading")
        assert agent.stop() == 0
    finally:
        agent.kill_all()


def ask(key_file: str, port: int) -> None:
    """Run by the test above in a process of its own."""
    from tests.fleet.agents import authorization

    agent = object.__new__(AgentProcess)
    agent.name, agent.key, agent.port = "n1", Path(key_file).read_bytes(), port
    body = b'{"deadline_s": 3}'
    sys.stdout.write(agent.post("/v1/discover", body, authorization(agent.key, body))[2].decode())


@pytest.mark.fabric
def test_sigterm_ends_the_agent_and_its_workers_though_one_of_them_is_stopped(tmp_path):
    agent = AgentProcess(tmp_path / "agent")
    try:
        assert agent.signed("/v1/start", START)[0] == 200
        os.kill(agent.find("pf-rank-1"), signal.SIGSTOP)
        assert agent.stop() == 0
        agent.gone(1)
    finally:
        agent.kill_all()


@pytest.mark.fabric
@pytest.mark.soak
def test_sigterm_while_workers_start_ends_them_too(tmp_path):
    agent = AgentProcess(tmp_path / "agent")
    code = "import sys; from tests.fleet.test_resident import start; start(sys.argv[1], int(sys.argv[2]))"
    try:
        starting = subprocess.Popen([sys.executable, "-c", code, str(agent.key_file), str(agent.port)])
        agent.find("pf-zygote")
        assert agent.stop() == 0
        starting.wait(WAIT_S)
        agent.gone()
    finally:
        agent.kill_all()


def start(key_file: str, port: int) -> None:
    """Run by the test above in a process of its own; the agent ends while it waits."""
    from tests.fleet.agents import authorization

    agent = object.__new__(AgentProcess)
    agent.name, agent.key, agent.port = "n1", Path(key_file).read_bytes(), port
    body = json.dumps(START).encode()
    try:
        agent.post("/v1/start", body, authorization(agent.key, body, path="/v1/start"))
    except OSError as error:
        assert error.errno in {errno.ECONNRESET, errno.EPIPE, None}  # noqa: PT017 - the agent has gone


def test_a_full_disk_behind_standard_output_and_error_costs_the_lines_alone(tmp_path):
    from tests.plan.launchers.slurm_box import free_port_range

    port = free_port_range(1)
    agent = object.__new__(AgentProcess)
    agent.name, agent.key_file, agent.port = "n1", write_key(tmp_path), port
    agent.key = agent.key_file.read_bytes()
    words = ["-m", "preflight", "agent", "--name", "n1", "--port", str(port), "--key-file", str(agent.key_file)]
    with Path("/dev/full").open("wb") as full:
        process = agent.process = subprocess.Popen([sys.executable, *words], stdout=full, stderr=full)
    try:

        def answers() -> bool | None:
            try:
                return agent.post("/healthz", b"", None, method="GET")[0] == 200
            except ConnectionError:
                return None

        until(answers, WAIT_S, "the agent")
        assert agent.signed("/v1/discover", {"deadline_s": 10})[0] == 200
        assert agent.stop() == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_an_agent_of_one_run_leaves_when_it_is_told_to_and_a_resident_one_stays(tmp_path):
    leave = {"run_id": "over", "leave": True}
    resident = AgentProcess(tmp_path / "resident")
    of_one_run = AgentProcess(tmp_path / "one", leave_with_lease=True)
    try:
        assert resident.signed("/v1/end", leave)[0] == 409
        assert of_one_run.signed("/v1/end", leave)[0] == 200
        assert of_one_run.process.wait(WAIT_S) == 0
        assert resident.signed("/v1/discover", {"deadline_s": 10})[0] == 200
    finally:
        resident.kill_all()
        of_one_run.kill_all()
