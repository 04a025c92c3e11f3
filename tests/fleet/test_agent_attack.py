"""A real agent on loopback against strangers: nothing unsigned gets past the header, nothing signed breaks it."""

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preflight.errors import AgentBusy, TransportError
from preflight.fleet import api
from preflight.fleet.auth import SIGNATURE_HEADER, sign_request
from preflight.fleet.client import AgentClient, new_session
from tests.fleet.runs import until

KEY = b"k" * 40
PATHS = ["/v1/discover", "/v1/start", "/v1/store", "/v1/round", "/v1/end"]


class RunningAgent:
    def __init__(self, folder: Path) -> None:
        self.key_file = folder / "key"
        self.key_file.write_bytes(KEY)
        self.key_file.chmod(0o600)
        self.errors = folder / "stderr"
        command = [
            sys.executable,
            "-m",
            "preflight",
            "agent",
            "--name",
            "n1",
            "--port",
            "0",
            "--key-file",
            str(self.key_file),
        ]
        with self.errors.open("wb") as error_file:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=error_file)
        self.port = json.loads(self.process.stdout.readline())["port"]

    def post(self, path: str, body: bytes, header: str | None, method: str = "POST") -> tuple[int, bytes, str | None]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body, {"Authorization": header} if header else {})
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.getheader(SIGNATURE_HEADER)
        finally:
            connection.close()

    def signed(self, path: str, body: bytes, **changed) -> tuple[int, bytes, str | None]:
        header, _ = sign_request(
            changed.get("key", KEY), "POST", changed.get("signed_path", path), body, changed.get("target", "n1")
        )
        return self.post(path, body, header)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(20)
        self.process.stdout.close()
        return code


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    running = RunningAgent(tmp_path_factory.mktemp("agent"))
    yield running
    assert running.stop() == 0
    assert "Traceback" not in running.errors.read_text()
    assert KEY.decode() not in running.errors.read_text()


def test_an_honest_request_is_answered_and_the_answer_is_signed(agent):
    status, body, signature = agent.signed("/v1/discover", b'{"deadline_s":10}')
    assert status == 200
    assert signature
    assert msgspec.json.decode(body, type=api.DiscoverReply).node.name == "n1"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("header", [None, "", "Basic eDp5", "Preflight-HMAC-SHA256 time=1", "x" * 3000])
def test_an_unsigned_request_is_refused(agent, path, header):
    status, body, signature = agent.post(path, b"{}", header)
    assert (status, signature) == (401, None)
    assert b"Authorization" in body


@pytest.mark.parametrize(
    ("changed", "reason"),
    [({"key": b"x" * 40}, b"signature"), ({"signed_path": "/v1/end"}, b"signature"), ({"target": "n2"}, b"not n2")],
)
def test_a_request_signed_with_another_key_for_another_path_or_node_is_refused(agent, changed, reason):
    status, body, _ = agent.signed("/v1/discover", b'{"deadline_s":10}', **changed)
    assert status == 401
    assert reason in body


def test_a_replayed_request_is_refused(agent):
    header, _ = sign_request(KEY, "POST", "/v1/discover", b'{"deadline_s":10}', "n1")
    assert agent.post("/v1/discover", b'{"deadline_s":10}', header)[0] == 200
    status, body, _ = agent.post("/v1/discover", b'{"deadline_s":10}', header)
    assert status == 401
    assert b"made before" in body


def test_a_body_changed_on_the_way_is_refused(agent):
    header, _ = sign_request(KEY, "POST", "/v1/discover", b'{"deadline_s":10}', "n1")
    assert agent.post("/v1/discover", b'{"deadline_s":99}', header)[0] == 401


def test_a_request_of_another_time_is_refused(agent, monkeypatch):
    monkeypatch.setattr("preflight.fleet.auth.time.time", lambda: 1.7e9)
    header, _ = sign_request(KEY, "POST", "/v1/discover", b"{}", "n1")
    monkeypatch.undo()
    status, body, _ = agent.post("/v1/discover", b"{}", header)
    assert status == 401
    assert b"clocks differ" in body


def test_a_large_unsigned_body_is_not_read(agent):
    size, sent = 50 * 2**20, 0
    with socket.create_connection(("127.0.0.1", agent.port), timeout=20) as stranger:
        stranger.sendall(f"POST /v1/start HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode())
        try:
            while sent < size:
                sent += stranger.send(b"x" * 65536)
        except OSError:
            pass  # the agent closed: what it left unread resets the connection
    assert sent < size / 2


def test_a_large_signed_body_is_refused(agent):
    status, _, _ = agent.signed("/v1/start", b" " * (api.MAX_REQUEST_BYTES + 1))
    assert status == 413


@pytest.mark.parametrize(
    "nonsense", [b"\0" * 100, b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\nA" + b"a" * 9000]
)
def test_bytes_that_are_no_http_end_the_connection_without_a_traceback(agent, nonsense):
    with socket.create_connection(("127.0.0.1", agent.port), timeout=20) as stranger:
        stranger.sendall(nonsense)
        stranger.shutdown(socket.SHUT_WR)
        while stranger.recv(65536):
            pass
    assert agent.post("/healthz", b"", None, method="GET")[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/v1/start", 405), ("POST", "/nothing", 404), ("PUT", "/healthz", 405)]
)
def test_other_methods_and_paths_are_refused(agent, method, path, status):
    assert agent.post(path, b"", None, method=method)[0] == status


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
fields = st.sampled_from(
    ["run_id", "workers", "deadline_s", "rank", "probes", "store_port", "backend", "prefix", "gpu", "x"]
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(PATHS),
    body=st.binary(max_size=200)
    | st.dictionaries(fields, json_values, max_size=6).map(lambda d: json.dumps(d).encode()),
)
def test_any_signed_body_gets_a_clear_answer(agent, path, body):
    status, text, signature = agent.signed(path, body)
    assert status in {400, 409}, (
        text
    )  # no body of this kind is a whole request; 409: well-formed, for a run that isn't here
    assert signature
    assert text


def test_a_half_sent_request_is_dropped_after_the_header_deadline(agent):
    with socket.create_connection(("127.0.0.1", agent.port), timeout=40) as stranger:
        stranger.sendall(b"POST /v1/start HTTP/1.1\r\nHost: x\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""


def test_a_key_that_others_can_read_is_refused(agent, tmp_path):
    key = tmp_path / "key"
    key.write_bytes(KEY)
    key.chmod(0o644)
    done = subprocess.run(
        [sys.executable, "-m", "preflight", "agent", "--port", "0", "--key-file", str(key)],
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    assert done.returncode == 78
    assert "chmod 0600" in done.stderr
    key.chmod(0o600)
    key.write_bytes(b"short")
    done = subprocess.run(
        [sys.executable, "-m", "preflight", "agent", "--port", "0", "--key-file", str(key)],
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    assert done.returncode == 78
    assert "short" not in done.stderr.replace("at least", "")


def test_the_key_is_on_no_command_line(agent):
    assert KEY not in Path(f"/proc/{agent.process.pid}/cmdline").read_bytes()


def call(agent, path: str, request: object, kind: type, *, key: bytes = KEY, port: int | None = None):
    async def once():
        async with new_session() as session:
            client = AgentClient(session, key, target="n1", host="127.0.0.1", port=port or agent.port)
            return await client.call(path, request, kind, 5)

    return asyncio.run(once())


def test_a_client_refuses_an_answer_that_is_not_signed_with_the_key():
    """Another program on a dead agent's port can't forge a result."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        pid = os.fork()
        if pid == 0:
            peer, _ = listening.accept()
            peer.recv(65536)
            peer.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Preflight-Signature: 00\r\nConnection: close\r\n\r\n{}"
            )
            os._exit(0)
        with pytest.raises(TransportError, match="not signed with our key"):
            call(None, "/v1/end", api.EndRequest(run_id="r"), api.EndReply, port=listening.getsockname()[1])
        os.waitpid(pid, 0)


def test_a_client_gives_up_on_an_agent_that_does_not_answer():
    with socket.create_server(("127.0.0.1", 0)) as listening, pytest.raises(TransportError, match="within 5 s"):
        call(None, "/v1/end", api.EndRequest(run_id="r"), api.EndReply, port=listening.getsockname()[1])


def test_a_client_with_another_key_is_told_so(agent):
    with pytest.raises(TransportError, match="refused us: wrong signature"):
        call(agent, "/v1/end", api.EndRequest(run_id="r"), api.EndReply, key=b"y" * 40)


def test_a_second_run_can_neither_use_nor_end_the_first_ones_workers(agent):
    first = api.StartRequest(run_id="first", workers=(), deadline_s=60)
    try:
        call(agent, "/v1/start", first, api.StartReply)
    except TransportError:
        pytest.skip("torch is not installed")
    with pytest.raises(AgentBusy, match="works for run first"):
        call(agent, "/v1/start", api.StartRequest(run_id="second", workers=(), deadline_s=60), api.StartReply)
    with pytest.raises(AgentBusy, match="works for run first"):
        call(agent, "/v1/end", api.EndRequest(run_id="second"), api.EndReply)
    call(agent, "/v1/end", api.EndRequest(run_id="first"), api.EndReply)


@pytest.mark.fabric
@pytest.mark.root
def test_an_agent_that_runs_as_root_starts_its_workers_as_nobody(tmp_path):
    running = RunningAgent(tmp_path)
    try:
        spec = api.WorkerSpec(rank=0)

        async def start():
            async with new_session() as session:
                client = AgentClient(session, KEY, target="n1", host="127.0.0.1", port=running.port)
                return await client.call(
                    "/v1/start", api.StartRequest(run_id="r", workers=(spec,), deadline_s=60), api.StartReply, 70
                )

        assert asyncio.run(start()).ready == (0,)
        worker = until(
            lambda: next((p for p in Path("/proc").glob("[0-9]*") if _is_worker_of(p, running)), None), 10, "pf-rank-0"
        )
        assert "Uid:\t" + "\t".join(["65534"] * 4) in (worker / "status").read_text()
    finally:
        assert running.stop() == 0
    until(lambda: not worker.exists() or None, 10, "the worker's end")


def _is_worker_of(folder: Path, running: RunningAgent) -> bool:
    try:
        parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        grandparent = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
        return (folder / "comm").read_text() == "pf-rank-0\n" and grandparent == running.process.pid
    except OSError:
        return False
