"""Agents of a step and the coordinator that looks for them: real agents on loopback addresses, in the company of others that hold their ports."""

import asyncio
import contextlib
import json
import os
import secrets
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from preflight.errors import UsageError, WorldError
from preflight.fleet.srun import Step, read_step
from preflight.fleet.srun_address import addresses_of, own_address
from preflight.fleet.srun_agent import take_port
from preflight.fleet.srun_find import Finder
from preflight.fleet.srun_wait import gathering, wait_for_agent
from tests.fleet.srun_tasks import step_variables

NODES = ("127.0.0.2", "127.0.0.3")
WAIT_S = 30.0
KEY = secrets.token_hex(32).encode()
_AGENT = """
import json, os, sys
from preflight.config import AgentSite
from preflight.fleet.srun import read_step
from preflight.fleet.srun_agent import AgentOptions, serve_step
first, last, lease_s, key = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
options = AgentOptions(site=AgentSite(first_port=first, last_port=last), interface=None, look_up=lambda names: {}, lease_s=lease_s)
ready = lambda address, port: print(json.dumps([address, port]), flush=True)
serve_step(read_step(os.environ), key.encode(), options, ready)
"""


def nobody(names):
    del names
    return {}


def step_of(job: int, node_rank: int = 0, nodes: tuple[str, ...] = NODES) -> Step:
    step = read_step(step_variables(nodes, node_rank, 0, per_node=1, job=job))
    assert step is not None
    return step


@pytest.fixture
def ports() -> tuple[int, int]:
    """A range of four that nobody uses on our loopback addresses now."""
    for _ in range(200):
        first = 20_000 + secrets.randbelow(8000)
        with contextlib.ExitStack() as stack:
            try:
                for node in NODES:
                    for port in range(first, first + 4):
                        stack.enter_context(socket.socket()).bind((node, port))
            except OSError:
                continue
            return first, first + 3
    raise AssertionError("no free ports")


class Agents:
    """Agents under way; ended at the end."""

    def __init__(self, ports: tuple[int, int]) -> None:
        self.ports = ports
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, job: int, node_rank: int, *, key: bytes = KEY, lease_s: float = 60) -> int:
        """The port on which the agent of this node listens."""
        process = subprocess.Popen(
            [sys.executable, "-c", _AGENT, *map(str, self.ports), str(lease_s), key.decode()],
            env={**os.environ, **step_variables(NODES, node_rank, 0, per_node=1, job=job)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        assert process.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            assert selector.select(WAIT_S), "the agent says nothing"
        address, port = json.loads(process.stdout.readline())
        assert address == NODES[node_rank]
        return int(port)


@pytest.fixture
def agents(ports) -> Iterator[Agents]:
    started = Agents(ports)
    yield started
    for process in started.processes:
        process.kill()
        process.communicate()


def finder(job: int, ports: tuple[int, int], *, key: bytes = KEY) -> Finder:
    step = step_of(job)
    return Finder(step, key, {node: [node] for node in NODES}, step.ports(*ports))


def find(looking: Finder, *nodes: str, deadline_s: float = WAIT_S):
    return asyncio.run(looking.find(nodes or NODES, deadline_s))


def test_each_step_finds_its_own_agents_among_others_on_the_same_nodes_and_lets_them_go(agents, ports):
    where = {(job, rank): agents.start(job, rank) for job in (1, 2) for rank in (0, 1)}
    for job in (1, 2):
        found = find(finder(job, ports))
        assert [(a.name, a.host, a.port, a.problem) for a in found] == [
            (node, node, where[job, rank], None) for rank, node in enumerate(NODES)
        ]
    asyncio.run(finder(2, ports).release(find(finder(2, ports)), 10))
    assert [process.wait(WAIT_S) for process in agents.processes[2:]] == [0, 0]
    assert [process.poll() for process in agents.processes[:2]] == [None, None]


class Stranger(BaseHTTPRequestHandler):
    """Says yes to everything."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    do_POST = do_GET  # noqa: N815 - the standard library's name

    def log_message(self, *_) -> None:
        """Nothing."""


def test_ports_that_others_hold_are_passed_over(agents, ports):
    """One says yes to everything, one accepts and never answers, one is only bound."""
    first, second, third, fourth = step_of(3).ports(*ports)
    with contextlib.ExitStack() as stack:
        server = HTTPServer((NODES[1], first), Stranger)
        stack.callback(server.server_close)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.shutdown)
        silent = stack.enter_context(socket.create_server((NODES[1], second)))
        assert silent
        bound = stack.enter_context(socket.socket())
        bound.bind((NODES[1], third))
        bound.listen()
        assert agents.start(3, 1) == fourth
        [found] = find(finder(3, ports), NODES[1])
        assert (found.problem, found.port) == (None, fourth)


def test_a_node_without_an_agent_is_a_problem_that_says_nothing_of_the_node(agents, ports):
    agents.start(4, 0)
    here, missing = find(finder(4, ports), deadline_s=5)
    assert here.problem is None
    assert missing.blameless
    assert "no agent of step 4.0 answered on 127.0.0.3 within 5 s" in (missing.problem or "")


def test_an_agent_with_another_key_is_there_so_that_the_run_learns_why_it_refuses(agents, ports):
    port = agents.start(5, 1, key=secrets.token_hex(32).encode())
    [found] = find(finder(5, ports), NODES[1], deadline_s=5)
    assert (found.problem, found.port) == (None, port)


def test_a_node_whose_name_stands_for_nothing_is_a_problem_that_says_nothing_of_the_node(ports):
    step = step_of(6)
    looking = Finder(step, KEY, {}, step.ports(*ports))
    [found] = find(looking, NODES[1])
    assert found.blameless
    assert "stands for no address" in (found.problem or "")


def test_an_agent_whose_coordinator_never_comes_leaves_and_says_so(agents):
    agents.start(7, 1, lease_s=0.5)
    process = agents.processes[0]
    assert process.wait(WAIT_S) == 0
    assert process.stderr
    assert process.stderr.read() == "preflight: 127.0.0.3: no coordinator came within 0.5 s\n"


def test_a_node_without_a_free_port_says_where_ports_are_set(ports):
    with contextlib.ExitStack() as stack:
        for port in range(ports[0], ports[1] + 1):
            stack.enter_context(socket.create_server((NODES[0], port)))
        with pytest.raises(UsageError, match="give first_port and last_port under"):
            take_port(NODES[0], step_of(8).ports(*ports))


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_tasks_of_a_node_wait_until_its_agent_has_ended():
    step = step_of(secrets.randbelow(10**9))
    waited: list[bool] = []
    with gathering(step):
        waiter = threading.Thread(target=lambda: waited.append(wait_for_agent(step, WAIT_S)))
        waiter.start()
        waiter.join(0.5)
        assert waiter.is_alive()
    waiter.join(WAIT_S)
    assert waited == [True]


def test_a_task_whose_agent_does_not_come_or_does_not_end_goes():
    step = step_of(secrets.randbelow(10**9))
    assert wait_for_agent(step, 0.3) is False
    with gathering(step):
        assert wait_for_agent(step, 0.3) is False


@pytest.mark.root
def test_a_task_does_not_wait_for_another_user(monkeypatch):
    step = step_of(secrets.randbelow(10**9))
    with gathering(step):
        monkeypatch.setattr("socket.socket.getsockopt", lambda *_: (1).to_bytes(4, "little") * 3)
        assert wait_for_agent(step, WAIT_S) is False


# --- addresses --------------------------------------------------------------------------------------------------------


def own(step: Step, look_up=nobody) -> str:
    return asyncio.run(own_address(step, look_up))


def test_where_one_machine_plays_all_nodes_they_listen_on_loopback():
    assert own(step_of(1, 1)) == "127.0.0.3"
    unknown = step_of(1, 1, ("node-a.invalid", "node-b.invalid"))
    assert own(unknown, lambda names: dict.fromkeys(names, "127.0.0.1")) == "127.0.0.1"


def test_a_node_alone_needs_no_address_that_others_reach():
    assert own(step_of(1, 0, ("alone.invalid",))) == "127.0.0.1"


def test_a_name_that_stands_for_loopback_here_is_not_where_others_would_look():
    """As with 127.0.1.1 in Debian's /etc/hosts."""
    step = step_of(1, 0, ("127.0.1.1", "192.0.2.7"))
    try:
        said = own(step)
    except WorldError as error:  # a machine without a way out
        said = str(error)
    assert not said.startswith("127.")


def test_slurm_is_asked_for_names_that_the_resolver_does_not_know_and_for_no_others():
    asked: list[str] = []

    def look_up(names):
        asked.extend(names)
        return dict.fromkeys(names, "192.0.2.9")

    names = ["192.0.2.1", "nowhere.invalid"]
    found = asyncio.run(addresses_of(names, look_up))
    assert found == {"192.0.2.1": ("192.0.2.1",), "nowhere.invalid": ("192.0.2.9",)}
    assert asked == ["nowhere.invalid"]


def test_slurm_that_does_not_answer_leaves_the_address_unknown():
    def broken(names):
        raise WorldError(f"scontrol: {names}")

    assert asyncio.run(addresses_of(["nowhere.invalid"], broken)) == {"nowhere.invalid": ()}


def test_key_files_of_a_step(tmp_path: Path):
    from preflight.config import AgentSite
    from preflight.fleet.srun_key import step_key

    with step_key(step_of(9), tmp_path, AgentSite()) as written:
        assert written is not None
        [path] = tmp_path.iterdir()
        assert path.stat().st_mode & 0o777 == 0o600
        with step_key(step_of(9, 1), tmp_path, AgentSite()) as read:
            assert read == written
    assert list(tmp_path.iterdir()) == []
