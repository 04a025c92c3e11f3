"""The coordinator's end: whatever answers on an agent's port, a call ends in time and believes only signed replies."""

import asyncio
import contextlib
import hashlib
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterator

import aiohttp
import msgspec
import pytest

from preflight.errors import AgentBusy, TransportError
from preflight.fleet import api, client
from preflight.fleet.auth import SIGNATURE_HEADER, Gatekeeper, sign_reply
from preflight.fleet.client import AgentClient, new_session

KEY = secrets.token_bytes(32)
Answer = Callable[[bytes, socket.socket], None]  # gets the whole request, writes what it likes


@contextlib.contextmanager
def answering(answer: Answer) -> Iterator[int]:
    """A program on a port of this machine that takes one request at a time."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(10)
                answer(request_from(connection), connection)

    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(20)
        assert not thread.is_alive()


def request_from(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def raw(data: bytes) -> Answer:
    """Answers every request with the same bytes."""
    return lambda _, connection: connection.sendall(data)


def reply(body: bytes, *, status: int = 200, key: bytes = KEY, extra: bytes = b"", said: int | None = None) -> Answer:
    """Answers with a body, signed for the request. `said`: the status that the signature is for."""

    def answer(request: bytes, connection: socket.socket) -> None:
        nonce = re.search(rb"nonce=([0-9a-f]{32})", request)[1].decode()
        signature = sign_reply(key, nonce, said or status, body)
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{SIGNATURE_HEADER}: {signature}\r\n"
        connection.sendall(head.encode() + extra + b"\r\n" + body)

    return answer


def call(port: int, deadline_s: float = 10) -> api.EndReply:
    async def one() -> api.EndReply:
        async with new_session() as session:
            agent = AgentClient(session, KEY, target="n1", host="127.0.0.1", port=port)
            return await agent.call("/v1/end", api.EndRequest(run_id="r"), api.EndReply, deadline_s)

    return asyncio.run(one())


def fault(answer: Answer, deadline_s: float = 10) -> str:
    """What the call says went wrong; the agent is always named."""
    with answering(answer) as port, pytest.raises(TransportError) as error:
        call(port, deadline_s)
    text = str(error.value)
    assert text.startswith(f"agent n1 at 127.0.0.1:{port}")
    assert text.isprintable()
    assert KEY.hex() not in text
    return text


def test_a_signed_reply_is_believed_and_the_request_is_signed_as_agents_want_it():
    seen = []

    def answer(request: bytes, connection: socket.socket) -> None:
        seen.append(request)
        reply(msgspec.json.encode(api.EndReply()))(request, connection)

    with answering(answer) as port:
        assert call(port) == api.EndReply()
    head, _, body = seen[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/end HTTP/1.1\r\n")
    header = re.search(rb"Authorization: (.*)\r\n", head)[1].decode()
    claim = Gatekeeper(KEY, frozenset({"n1"})).check("POST", "/v1/end", header)
    assert claim.body_sha256 == hashlib.sha256(body).hexdigest()
    assert KEY not in seen[0]


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        raw(OK + b"\r\n{}"),
        raw(OK + b"X-Preflight-Signature: " + b"0" * 64 + b"\r\n\r\n{}"),
        raw(OK + "X-Preflight-Signature: ü\r\n\r\n{}".encode()),
        raw(OK + b"X-Preflight-Signature: \xff\xfe\r\n\r\n{}"),
        raw(b"HTTP/1.1 409 Busy\r\nContent-Length: 0\r\n\r\n"),
        raw(b"HTTP/1.1 503 Sorry\r\nContent-Length: 0\r\n\r\n"),
        reply(b"{}", key=bytes(32)),
        reply(b"{}", status=200, said=503),
    ],
)
def test_a_reply_forged_by_another_program_on_the_port_is_refused(answer):
    assert "the reply is not signed with our key: another program answers" in fault(answer)


def test_a_reply_that_was_signed_for_an_earlier_request_is_refused():
    kept = []

    def answer(request: bytes, connection: socket.socket) -> None:
        kept.append(request)
        reply(b"{}")(kept[0], connection)

    with answering(answer) as port:
        call(port)
        with pytest.raises(TransportError, match="not signed with our key"):
            call(port)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(status):
    followed = []
    with answering(lambda request, _: followed.append(request)) as elsewhere:
        where = f"Location: http://127.0.0.1:{elsewhere}/v1/end\r\n"
        assert "not signed with our key" in fault(
            raw(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n{where}\r\n".encode())
        )
    assert not followed


def test_a_busy_agent_is_told_apart_from_a_broken_one():
    with answering(reply(b"works for run x", status=409)) as port, pytest.raises(AgentBusy, match="works for run x"):
        call(port)
    assert fault(reply(b"torch is missing", status=503)).endswith(": torch is missing")


def test_a_refusal_is_shown_without_its_control_characters():
    text = b"\x1b[2J\x1b]0;owned\x07no \r\n entry\xff"
    shown = fault(raw(b"HTTP/1.1 401 X\r\nContent-Length: %d\r\n\r\n" % len(text) + text))
    assert "refused us: " in shown
    assert "no entry" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"incidents": 5}', b'{"unknown": 1}', b'{"incidents": "\xff"}', b"[" * 100_000]
)
def test_a_signed_reply_that_makes_no_sense_is_a_fault_of_that_agent(body):
    assert "answered /v1/end with nonsense" in fault(reply(body))


def test_a_reply_that_is_too_large_is_given_up(monkeypatch):
    monkeypatch.setattr(client, "MAX_REPLY_BYTES", 1000)
    assert "the reply is larger than 1000 bytes" in fault(reply(b" " * 1001))
    endless = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"3e8\r\n" + b" " * 1000 + b"\r\n2\r\n  \r\n"
    assert "the reply is larger than 1000 bytes" in fault(raw(endless))


def test_a_compressed_reply_is_not_unpacked():
    assert "nonsense" in fault(reply(b"\x1f\x8b\x08\x00", extra=b"Content-Encoding: gzip\r\n"))


def until_left(_: bytes, connection: socket.socket) -> None:
    """Says nothing, and notices when the other end has had enough."""
    connection.recv(1)


def drip(_: bytes, connection: socket.socket) -> None:
    """One more header line whenever there is room for it, for ever."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    connection.settimeout(0.05)
    while True:
        connection.sendall(b" ")
        with contextlib.suppress(TimeoutError):
            if not connection.recv(1):
                return


@pytest.mark.parametrize("answer", [until_left, drip])
def test_an_agent_that_is_silent_or_slow_is_given_up_at_the_deadline(answer):
    assert "gave no answer to /v1/end within 0.5 s" in fault(answer, deadline_s=0.5)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x16\x03\x01\x02\x00",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nless",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
    ],
)
def test_garbage_is_a_fault_of_that_agent(data):
    fault(raw(data))


def test_nobody_on_the_port_is_said():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(TransportError, match=rf"^agent n1 at 127.0.0.1:{port}: can't connect: Connection refused$"):
        call(port)


def test_a_host_that_has_no_address_is_said():
    async def one() -> None:
        async with new_session() as session:
            agent = AgentClient(session, KEY, target="n1", host="n1.invalid", port=1)
            await agent.call("/v1/end", api.EndRequest(run_id="r"), api.EndReply, 30)

    with pytest.raises(TransportError, match=r"agent n1 at n1.invalid:1: the name is not known here"):
        asyncio.run(one())


def test_proxies_cookies_and_the_limit_of_connections_play_no_part(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with answering(reply(b"{}", extra=b"Set-Cookie: a=b\r\n")) as port:
        assert call(port) == api.EndReply()

    async def settings() -> tuple[int, int]:
        async with new_session() as session:
            assert isinstance(session.connector, aiohttp.TCPConnector)
            session.cookie_jar.update_cookies({"a": "b"})
            return session.connector.limit, len(session.cookie_jar)

    assert asyncio.run(settings()) == (0, 0)
