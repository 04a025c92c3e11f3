"""A real agent in a process of its own, and what a stranger, or someone with the key, can say to it over real sockets."""

import hashlib
import hmac
import http.client
import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import msgspec

from preflight.fleet.auth import SCHEME, SIGNATURE_HEADER, check_reply
from tests.fleet.runs import Run, kill_all

WAIT_S = 20.0  # for whatever should happen within milliseconds, on a busy machine

_SERVE = """
import json, sys
from preflight.fleet.agent import Settings
from preflight.fleet.auth import read_key
from preflight.fleet.serve import serve
serve(Settings(**json.loads(sys.argv[1])), key=read_key(sys.argv[2]), parent=None)
"""


def write_key(folder: Path, key: bytes | None = None) -> Path:
    """A key file as it should be."""
    path = folder / "key"
    path.write_bytes(key or secrets.token_hex(32).encode())
    path.chmod(0o600)
    return path


def authorization(
    key: bytes,
    body: bytes = b"",
    *,
    method: str = "POST",
    path: str = "/v1/discover",
    target: str = "n1",
    skew_s: int = 0,
    nonce: str | None = None,
) -> str:
    """The header as the documentation of auth.py describes it, made without it."""
    at, nonce = str(int(time.time()) + skew_s), nonce or secrets.token_hex(16)
    digest = hashlib.sha256(body).hexdigest()
    text = f"request\n{method}\n{path}\n{digest}\n{target}\n{at}\n{nonce}"
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    return f"{SCHEME} time={at},nonce={nonce},body={digest},target={target},signature={signature}"


class AgentProcess:
    """One agent under way. `settings` beyond the name: started without the command line, which doesn't offer them."""

    def __init__(
        self,
        folder: Path,
        name: str = "n1",
        *,
        key: bytes | None = None,
        options: tuple[str, ...] = (),
        **settings: Any,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.name = name
        self.key_file = write_key(folder, key)
        self.key = self.key_file.read_bytes()
        self.mark = f"PREFLIGHT_TEST_MARK={uuid.uuid4().hex}"
        command = [
            "-m",
            "preflight",
            "agent",
            "--name",
            name,
            "--port",
            "0",
            "--key-file",
            str(self.key_file),
            *options,
        ]
        if settings:
            told = json.dumps({"name": name, "address": "127.0.0.1", **settings})
            command = ["-c", _SERVE, told, str(self.key_file)]
        self.errors = folder / "stderr"
        mark_name, value = self.mark.split("=")
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                env={"PREFLIGHT_AGENT_CHECK_EVERY": "0", **os.environ, mark_name: value},
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self.port = self._port()

    def _port(self) -> int:
        assert self.process.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(WAIT_S), "the agent says nothing"
        line = self.process.stdout.readline()
        assert line, self.errors.read_text()
        return json.loads(line)["port"]

    processes = Run.processes
    gone = Run.gone
    find = Run.find

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), WAIT_S)

    def exchange(self, data: bytes) -> bytes:
        """Send bytes, say that no more will come, and give all that comes back until the agent closes."""
        with self.connect() as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return received(connection)

    def post(
        self, path: str, body: bytes, header: str | None, *, method: str = "POST"
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            connection.request(method, path, body, {} if header is None else {"Authorization": header})
            reply = connection.getresponse()
            return reply.status, reply.headers, reply.read()
        finally:
            connection.close()

    def signed(self, path: str, message: Any) -> tuple[int, bytes]:
        """A signed request, given as bytes or as what becomes JSON. The reply must be signed."""
        body = message if isinstance(message, bytes) else msgspec.json.encode(message)
        nonce = secrets.token_hex(16)
        header = authorization(self.key, body, path=path, target=self.name, nonce=nonce)
        status, headers, reply = self.post(path, body, header)
        check_reply(self.key, nonce, status, reply, headers.get(SIGNATURE_HEADER))
        return status, reply

    def stop(self, number: int = signal.SIGTERM) -> int:
        """The exit code after a signal."""
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)

    def kill_all(self) -> None:
        kill_all(self.process, self.processes())


def received(connection: socket.socket) -> bytes:
    """All bytes until the other end closes; a reset counts as closing. Fails if it stays open."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def status_of(reply: bytes) -> int:
    """The status of a raw reply."""
    return int(reply.split(b" ", 2)[1])
