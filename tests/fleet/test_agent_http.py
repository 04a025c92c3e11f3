"""An agent under attack: real sockets, everything a stranger, or a clumsy coordinator, can send it."""

import json
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preflight.fleet.api import MAX_REQUEST_BYTES
from preflight.fleet.auth import SIGNATURE_HEADER
from tests.fleet.agents import AgentProcess, authorization, received, status_of

BODY = b'{"deadline_s": 5}'
PATHS = ("/v1/discover", "/v1/start", "/v1/store", "/v1/round", "/v1/end")
PROBE = {
    "subject": "pair 0-1",
    "axis": None,
    "collective": "send_recv",
    "ranks": [0, 1],
    "size_bytes": 4096,
    "size_source": "t",
}
ROUND = {
    "run_id": "r", "prefix": "r/1", "backend": "gloo", "probes": [PROBE], "store_address": "127.0.0.1", "store_port": 9,
    "num_tasks": 2, "timeout_s": 1, "deadline_s": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def agent(tmp_path_factory) -> Iterator[AgentProcess]:
    """One agent that takes all of it: that it lives and says nothing on stderr is asserted at the end."""
    started = AgentProcess(tmp_path_factory.mktemp("agent"))
    yield started
    try:
        status, _ = started.signed("/v1/discover", BODY)
        assert status == 200
        assert started.stop() == 0
        assert started.errors.read_text() == "preflight agent: ended\n"
        started.gone()
    finally:
        started.kill_all()


def test_a_signed_request_is_answered_with_a_signed_reply(agent):
    status, reply = agent.signed("/v1/discover", BODY)
    assert status == 200
    assert json.loads(reply)["node"]["name"] == "n1"


def test_an_unsigned_body_of_50_mb_is_refused_at_its_header_and_not_read(agent):
    size = 50 * 10**6
    with agent.connect() as connection:
        connection.sendall(b"POST /v1/discover HTTP/1.1\r\nHost: n1\r\nContent-Length: %d\r\n\r\n" % size)
        sent = 0
        try:
            while sent < size:
                sent += connection.send(bytes(65536))
        except ConnectionError:
            pass
        assert sent < size / 2  # what the kernel's buffers took
        assert received(connection)[:12] in {b"", b"HTTP/1.1 401"}


def test_an_unsigned_chunked_body_is_not_read_either(agent):
    head = b"POST /v1/start HTTP/1.1\r\nHost: n1\r\nTransfer-Encoding: chunked\r\n\r\n"
    with agent.connect() as connection:
        connection.sendall(head)
        assert status_of(received(connection)) == 401


@pytest.mark.parametrize("path", PATHS)
def test_no_path_works_without_a_signature(agent, path):
    status, headers, text = agent.post(path, BODY, None)
    assert status == 401
    assert SIGNATURE_HEADER not in headers
    assert text == b"no valid Authorization header\n"


def test_what_a_header_must_not_claim(agent):
    key = agent.key
    used = authorization(key, BODY)
    assert agent.post("/v1/discover", BODY, used)[0] == 200
    refused = {
        "this request was made before": used,
        "wrong signature": authorization(bytes(32), BODY),
        "the clocks differ by +6": authorization(key, BODY, skew_s=-65),
        "the clocks differ by -6": authorization(key, BODY, skew_s=66),
        "this agent is not n2": authorization(key, BODY, target="n2"),
        "the body is not the one that was signed": authorization(key, BODY + b" "),
    }
    for text, header in refused.items():
        status, _, reply = agent.post("/v1/discover", BODY, header)
        assert status == 401, text
        assert text in reply.decode()
        assert key not in reply


def test_a_signature_is_for_one_method_and_one_path(agent):
    for header in (
        authorization(agent.key, BODY, path="/v1/end"),
        authorization(agent.key, BODY, method="GET"),
        authorization(agent.key, BODY, method="post"),
    ):
        assert agent.post("/v1/discover", BODY, header)[2] == b"wrong signature\n"


def test_a_refused_request_does_not_use_up_another_ones_nonce(agent):
    nonce = secrets.token_hex(16)
    agent.post("/v1/discover", BODY, authorization(bytes(32), BODY, nonce=nonce))
    assert agent.post("/v1/discover", BODY, authorization(agent.key, BODY, nonce=nonce))[0] == 200


def test_a_signed_body_that_is_too_large_is_refused_with_a_signed_reply(agent):
    body = b" " * (MAX_REQUEST_BYTES + 1)
    status, reply = agent.signed("/v1/start", body)
    assert status == 413
    assert b"larger than" in reply


@pytest.mark.parametrize(
    ("path", "message", "text"),
    [
        ("/v1/discover", b"", "Input data was truncated"),
        ("/v1/discover", b"[" * 100_000, "DiscoverRequest"),
        ("/v1/discover", b'{"deadline_s": 5, "deadline": 6}', "unknown field `deadline`"),
        ("/v1/discover", b'{"deadline_s": "5"}', "Expected `float`, got `str`"),
        ("/v1/discover", b'{"deadline_s": 0}', "$.deadline_s"),
        ("/v1/discover", b'{"deadline_s": 1e300}', "$.deadline_s"),
        ("/v1/discover", b'{"deadline_s": 5\xff}', "DiscoverRequest"),
        ("/v1/discover", b'{"deadline_s": 5}{}', "trailing characters"),
        ("/v1/start", {"run_id": "r", "deadline_s": 5}, "missing required field `workers`"),
        ("/v1/start", {"run_id": "a b", "workers": [], "deadline_s": 5}, "$.run_id"),
        ("/v1/start", {"run_id": "a\n", "workers": [], "deadline_s": 5}, "$.run_id"),
        ("/v1/start", {"run_id": "r", "workers": [{"rank": -1}], "deadline_s": 5}, "$.workers[0].rank"),
        ("/v1/start", {"run_id": "r", "workers": [{"rank": 0}] * 2, "deadline_s": 5}, "rank 0 stands there more than once"),
        ("/v1/start", {"run_id": "r", "workers": [{"rank": i} for i in range(257)], "deadline_s": 5}, "length <= 256"),
        ("/v1/start", {"run_id": "r", "workers": [{"rank": 0, "command": "id"}], "deadline_s": 5}, "unknown field `command`"),
        ("/v1/start", {"run_id": "r", "workers": [{"rank": 0, "gpu": "0,1"}], "deadline_s": 5}, "$.workers[0].gpu"),
        ("/v1/round", {**ROUND, "env": {"LD_PRELOAD": "x"}}, "unknown field `env`"),
        ("/v1/round", {**ROUND, "backend": "mpi"}, "$.backend"),
        ("/v1/round", {**ROUND, "backend": "gloo\n"}, "$.backend"),
        ("/v1/round", {**ROUND, "store_address": "example.org/x"}, "$.store_address"),
        ("/v1/round", {**ROUND, "store_port": 65_536}, "$.store_port"),
        ("/v1/round", {**ROUND, "probes": [{**PROBE, "size_bytes": 2**50}]}, "size_bytes must be"),
        ("/v1/round", {**ROUND, "probes": [{**PROBE, "size_bytes": -1}]}, "size_bytes must be"),
        ("/v1/round", {**ROUND, "probes": [{**PROBE, "loop_s": 1e9}]}, "loop_s must be"),
        ("/v1/round", {**ROUND, "probes": [{**PROBE, "ranks": [0]}]}, "2 to 16384 ranks"),
        ("/v1/round", {**ROUND, "probes": [{**PROBE, "ranks": list(range(30_000))}]}, "2 to 16384 ranks"),
        ("/v1/round", {**ROUND, "probes": [{**PROBE, "ranks": [0, 0]}]}, "rank 0 stands there more than once"),
        ("/v1/round", {**ROUND, "probes": [PROBE, PROBE]}, "rank 0 stands there more than once"),
        ("/v1/round", {**ROUND, "probes": [{**PROBE, "collective": "rm"}]}, "Invalid enum value 'rm'"),
    ],
)  # fmt: skip
def test_a_signed_request_that_makes_no_sense_is_refused_with_the_place_of_the_fault(agent, path, message, text):
    status, reply = agent.signed(path, message)
    assert status == 400
    assert reply.decode().startswith("the request is not a ")
    assert text in reply.decode()


@pytest.mark.parametrize("path", ["/v1/store", "/v1/round", "/v1/end"])
def test_a_run_that_has_no_workers_here_is_told_so(agent, path):
    message = ROUND if path == "/v1/round" else {"run_id": "r"} | ({"deadline_s": 1} if path == "/v1/store" else {})
    status, reply = agent.signed(path, message)
    assert status == 409
    assert b"run r has no workers here" in reply


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
near_misses = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("deadline_s", "run_id", "workers", "probes", "store_only", "backend"), json_values)
)


@given(
    path=st.sampled_from(PATHS),
    body=st.binary(max_size=200) | (near_misses | json_values).map(lambda v: json.dumps(v).encode()),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_signed_body_gives_a_signed_answer_and_never_500(agent, path, body):
    status, reply = agent.signed(path, body)
    assert status in {200, 400, 409}, reply  # 200: a body that does make sense
    assert reply


@given(
    st.binary(min_size=1, max_size=400)
    | st.binary(max_size=200).map(lambda tail: b"POST /v1/start HTTP/1.1\r\n" + tail + b"\r\n\r\n")
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_in_the_place_of_http_close_the_connection(agent, data):
    reply = agent.exchange(data)
    assert reply == b"" or status_of(reply) in {400, 401, 404, 405, 417}


@given(st.binary(max_size=100).map(lambda text: bytes(byte for byte in text if byte not in b"\r\n\0")))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_authorization_but_a_right_one_is_refused(agent, text):
    head = b"POST /v1/start HTTP/1.1\r\nHost: n1\r\nAuthorization: " + text + b"\r\nContent-Length: 2\r\n\r\n{}"
    reply = agent.exchange(head)
    assert reply == b"" or status_of(reply) in {400, 401}


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/start HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/start HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST /v1/start HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_malformed_http_is_refused_and_the_connection_closed(agent, head):
    reply = agent.exchange(head)
    assert reply == b"" or 400 <= status_of(reply) < 500
    assert b"Traceback" not in reply


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/discover", 405),
        ("DELETE", "/v1/start", 405),
        ("POST", "/healthz", 405),
        ("GET", "/", 404),
        ("POST", "/v1/nothing", 404),
        ("GET", "/v1/../../etc/passwd", 404),
        ("PATCH", "/healthz", 405),
        ("BREW", "/healthz", 400),
    ],
)
def test_a_path_or_method_that_is_not_there_is_said_without_a_traceback(agent, method, path, status):
    got, _, text = agent.post(path, b"", None, method=method)
    assert got == status
    assert b"Traceback" not in text


def test_health_is_open_and_says_nothing_more(agent):
    status, _, text = agent.post("/healthz", b"", None, method="GET")
    assert (status, json.loads(text)) == (200, {"status": "ok"})


def test_a_client_that_leaves_in_the_middle_disturbs_nobody(agent):
    header = authorization(agent.key, BODY)
    request = (
        f"POST /v1/discover HTTP/1.1\r\nHost: n1\r\nAuthorization: {header}\r\nContent-Length: {len(BODY)}\r\n\r\n"
    )
    for part in (request[:30], request, request + BODY[:5].decode(), request + BODY.decode()):
        with agent.connect() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # leave with a reset
            connection.sendall(part.encode())
    assert agent.signed("/v1/discover", BODY)[0] == 200


def test_the_key_stands_in_no_command_line_and_in_no_environment(agent):
    for pid in agent.processes():
        for file in ("cmdline", "environ"):
            assert agent.key not in Path(f"/proc/{pid}/{file}").read_bytes()
