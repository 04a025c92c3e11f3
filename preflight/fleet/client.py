"""The coordinator's end of the wire: one signed call with a deadline, and a reply that is checked before it is believed."""

import asyncio
import os
from typing import Any, TypeVar

import aiohttp
import msgspec

from preflight.errors import AgentBusy, AgentRefused, TransportError
from preflight.fleet.api import MAX_REPLY_BYTES
from preflight.fleet.auth import SIGNATURE_HEADER, check_reply, sign_request

T = TypeVar("T")

CONNECT_S = 5.0


def new_session() -> aiohttp.ClientSession:
    """A session without aiohttp's limit of 100 connections, with which hung agents would starve healthy ones; proxies are ignored."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    return aiohttp.ClientSession(
        connector=connector, trust_env=False, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
    )


class AgentClient:
    """One agent, as the coordinator sees it. `target` is the name that requests are signed for; `host` an IP address or name."""

    def __init__(self, session: aiohttp.ClientSession, key: bytes, *, target: str, host: str, port: int) -> None:
        self.session = session
        self.key = key
        self.target = target
        self.where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def call(self, path: str, request: object, reply_type: type[T], deadline_s: float) -> T:
        """POST a request. Raises TransportError: no answer in time, refused, or an answer that isn't one."""
        body = msgspec.json.encode(request)
        header, nonce = sign_request(self.key, "POST", path, body, self.target)
        timeout = aiohttp.ClientTimeout(total=deadline_s, sock_connect=CONNECT_S)
        try:
            async with self.session.post(
                f"http://{self.where}{path}",
                data=body,
                headers={"Authorization": header, "Content-Type": "application/json"},
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                data = await _bounded(response)
                status, signature = response.status, response.headers.get(SIGNATURE_HEADER)
        except aiohttp.ConnectionTimeoutError as error:
            raise TransportError(
                f"agent {self.target} at {self.where}: no connection within {CONNECT_S:g} s"
            ) from error
        except asyncio.TimeoutError as error:
            raise TransportError(
                f"agent {self.target} at {self.where} gave no answer to {path} within {deadline_s:g} s"
            ) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise TransportError(f"agent {self.target} at {self.where}: {_reason(error)}") from error
        if status == 401:
            raise AgentRefused(f"agent {self.target} at {self.where} refused us: {_text(data)}")
        try:
            check_reply(self.key, nonce, status, data, signature)
        except TransportError as error:
            raise TransportError(f"agent {self.target} at {self.where}: {error}") from error
        if status == 409:
            raise AgentBusy(f"agent {self.target} at {self.where}: {_text(data)}")
        if status != 200:
            raise TransportError(f"agent {self.target} at {self.where}: {_text(data)}")
        try:
            return msgspec.json.decode(data, type=reply_type)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise TransportError(
                f"agent {self.target} at {self.where} answered {path} with nonsense: {error}"
            ) from error


async def _bounded(response: Any) -> bytes:
    parts, size = [], 0
    async for part in response.content.iter_chunked(65536):
        size += len(part)
        if size > MAX_REPLY_BYTES:
            raise ValueError(f"the reply is larger than {MAX_REPLY_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


def _text(data: bytes) -> str:
    return _printable(data[:500].decode("utf-8", "replace"))


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno:
        if isinstance(error, aiohttp.ClientConnectorDNSError):
            return "the name is not known here"
        return f"can't connect: {os.strerror(error.os_error.errno)}"
    return _printable(str(error)[:500]) or type(error).__name__


def _printable(text: str) -> str:
    """On one line, without the control characters by which a stranger's reply could write over a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
