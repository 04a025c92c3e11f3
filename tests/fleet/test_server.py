"""The server's promises: nobody holds it up, nobody keeps others out, and it ends when told."""

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from preflight.errors import UsageError
from preflight.fleet.server import bind
from preflight.fleet.threads import in_daemon_thread
from preflight.model import to_json
from tests.fleet.agents import WAIT_S, AgentProcess, authorization, received, status_of
from tests.fleet.runs import until

BODY = b'{"deadline_s": 5}'
START = {"run_id": "r", "workers": [{"rank": 0}, {"rank": 1}], "deadline_s": 60}
LIMIT = 8


@pytest.fixture(scope="module")
def hasty(tmp_path_factory) -> Iterator[AgentProcess]:
    """An agent with short deadlines and room for few connections."""
    started = AgentProcess(tmp_path_factory.mktemp("agent"), receive_s=0.4, max_connections=LIMIT)
    yield started
    try:
        assert started.stop() == 0
        assert started.errors.read_text() == "preflight agent: ended\n"
    finally:
        started.kill_all()


@pytest.fixture
def start(tmp_path) -> Iterator[Any]:
    """Starts agents and leaves none behind."""
    started: list[AgentProcess] = []

    def one(**settings: Any) -> AgentProcess:
        started.append(AgentProcess(tmp_path / f"agent{len(started)}", **settings))
        return started[-1]

    yield one
    for agent in started:
        agent.kill_all()


@pytest.mark.parametrize(
    "part",
    [b"", b"POST /v1/st", b"POST /v1/start HTTP/1.1\r\nHost: n1\r\nX: ", b"GET /healthz HTTP/1.1\r\nHost: n1\r\n\r\n"],
)
def test_a_connection_without_a_complete_request_is_closed_at_the_deadline(hasty, part):
    with hasty.connect() as connection:
        connection.sendall(part)
        reply = received(connection)  # fails if it stays open
    assert reply == b"" or status_of(reply) in {200, 408}


def test_a_header_that_drips_does_not_put_the_deadline_off(hasty):
    def drip() -> bool | None:
        try:
            connection.sendall(b"X: y\r\n")
        except ConnectionError:
            return True
        return None

    with hasty.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: n1\r\n")
        until(drip, WAIT_S, "the end of the connection")


def test_a_signed_body_that_does_not_arrive_is_given_up_at_the_deadline(hasty):
    head = f"POST /v1/discover HTTP/1.1\r\nHost: n1\r\nAuthorization: {authorization(hasty.key, BODY)}\r\nContent-Length: {len(BODY)}\r\n\r\n"
    with hasty.connect() as connection:
        connection.sendall(head.encode() + BODY[:3])
        reply = received(connection)
    assert status_of(reply) == 408
    assert b"the body did not arrive within 0.4 s" in reply


def test_strangers_who_hold_all_connections_keep_nobody_out(start):
    agent = start(max_connections=LIMIT)
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(agent.connect()) for _ in range(3 * LIMIT)]
        assert agent.signed("/v1/discover", BODY)[0] == 200
        open_ = [c for c in held if is_open(c)]
        assert len(open_) <= LIMIT
    assert agent.stop() == 0


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_agent_ends_at_a_signal_and_says_so(start, number):
    agent = start()
    with agent.connect():  # somebody who only holds a connection
        assert agent.stop(number) == 0
    assert agent.errors.read_text() == "preflight agent: ended\n"
    agent.gone()


@pytest.mark.fabric
def test_an_agent_with_workers_ends_at_sigterm_and_leaves_none(start):
    agent = start()
    status, reply = agent.signed("/v1/start", START)
    assert status == 200, reply
    assert {"pf-rank-0", "pf-rank-1", "pf-zygote"} <= set(agent.processes().values())
    assert agent.stop() == 0
    agent.gone()
    assert agent.errors.read_text() == "preflight agent: ended\n"


@pytest.mark.fabric
def test_an_agent_that_is_told_to_end_while_it_starts_workers_ends(start):
    agent = start()
    with request_under_way(agent, "/v1/start", START):
        agent.find("pf-zygote")
        assert agent.stop() == 0
    agent.gone()


@pytest.mark.fabric
def test_a_coordinator_that_leaves_while_workers_start_leaves_no_process_and_no_dead_agent(start):
    agent = start()
    with request_under_way(agent, "/v1/start", START):
        agent.find("pf-zygote")
    until(lambda: set(agent.processes()) == {agent.process.pid} or None, WAIT_S, "the end of what was being started")
    assert agent.signed("/v1/discover", BODY)[0] == 200
    assert agent.stop() == 0


@contextlib.contextmanager
def request_under_way(agent: AgentProcess, path: str, message: Any) -> Iterator[None]:
    """Sends a signed request and waits for no reply; leaves at the end."""
    body = to_json(message)
    header = authorization(agent.key, body, path=path)
    head = f"POST {path} HTTP/1.1\r\nHost: n1\r\nAuthorization: {header}\r\nContent-Length: {len(body)}\r\n\r\n"
    with agent.connect() as connection:
        connection.sendall(head.encode() + body)
        yield


@pytest.mark.fabric
def test_a_coordinator_that_vanishes_loses_its_workers_when_its_lease_ends(start):
    agent = start(lease_s=0.5)
    assert agent.signed("/v1/start", START)[0] == 200
    until(lambda: set(agent.processes()) == {agent.process.pid} or None, WAIT_S, "the end of the workers")
    status, reply = agent.signed("/v1/end", {"run_id": "r"})
    assert (status, reply) == (409, b"run r has no workers here: its lease ended")


@pytest.mark.fabric
def test_an_agent_works_for_one_run_at_a_time(start):
    agent = start()
    assert agent.signed("/v1/start", START)[0] == 200
    for path, message in (("/v1/start", {**START, "run_id": "s"}), ("/v1/end", {"run_id": "s"})):
        assert agent.signed(path, message) == (409, b"works for run r")
    assert set(agent.processes().values()) >= {"pf-rank-0", "pf-rank-1"}
    assert agent.signed("/v1/end", {"run_id": "r"})[0] == 200
    assert set(agent.processes()) == {agent.process.pid}


@pytest.mark.root
@pytest.mark.fabric
def test_workers_of_an_agent_that_runs_as_root_are_nobody(start):
    import pwd

    nobody = pwd.getpwnam("nobody")
    agent = start(options=("--worker-user", "nobody"))
    assert agent.signed("/v1/start", START)[0] == 200
    for name in ("pf-rank-0", "pf-rank-1"):
        status = Path(f"/proc/{agent.find(name)}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines())
        assert set(fields["Uid"].split()) == {str(nobody.pw_uid)}
        assert set(fields["Gid"].split()) == {str(nobody.pw_gid)}
        assert fields["Groups"].split() == []
        assert int(fields["CapEff"], 16) == 0


def test_an_ending_agent_does_not_wait_for_a_reading_that_hangs():
    never = threading.Event()

    async def ends_early() -> None:
        reading = asyncio.ensure_future(in_daemon_thread(never.wait))
        await asyncio.wait([reading], timeout=0.01)
        reading.cancel()

    asyncio.run(ends_early())  # returns though the thread has not ended
    assert not never.is_set()
    never.set()


def test_a_reading_gives_its_result_or_its_error():
    assert asyncio.run(in_daemon_thread(lambda: 5)) == 5
    with pytest.raises(ZeroDivisionError):
        asyncio.run(in_daemon_thread(lambda: 1 // 0))


@pytest.mark.parametrize(
    ("address", "port", "text"),
    [
        ("192.0.2.1", 0, "can't listen on 192.0.2.1 port 0: "),  # TEST-NET-1, nobody's address
        ("node7", 0, "give an IP address of this node with --address"),
        ("0.0.0.0", 0, "give one IP address of this node"),
        ("::", 0, "give one IP address of this node"),
        ("127.0.0.1", 70000, "can't listen on 127.0.0.1 port 70000"),
    ],
)
def test_an_address_that_can_not_be_listened_on_is_wrong_usage(address, port, text):
    with pytest.raises(UsageError, match="can't listen") as error:
        bind(address, port)
    assert text in str(error.value)


def test_a_port_that_is_taken_is_wrong_usage():
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(UsageError, match="Address already in use"):
            bind("127.0.0.1", taken.getsockname()[1])
