"""The coordinator's end of the wire: one signed call with a deadline, and a reply that is checked before it is believed."""

import asyncio
import contextlib
import os
import time
from typing import Any, NamedTuple, TypeVar

import aiohttp
import msgspec

from preflight.errors import AgentBusy, AgentRefused, AnswerLate, MungeError, NoAnswer, TransportError
from preflight.fleet.api import MAX_REPLY_BYTES
from preflight.fleet.auth import SIGNATURE_HEADER, check_reply
from preflight.fleet.credential import Signed, signer_of
from preflight.fleet.munge import Munge

T = TypeVar("T")

CONNECT_S = 5.0
BEAT_S, MISSED_BEATS = (
    2.5,
    2,
)  # between signs of life, and how many in a row may be missed: a stopped agent is noticed after 10 s


class _Answer(NamedTuple):
    """What came back. `signature` None: there is none."""

    status: int
    body: bytes
    signature: str | None


def new_session() -> aiohttp.ClientSession:
    """A session without aiohttp's limit of 100 connections, with which hung agents would starve healthy ones; proxies are ignored."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    return aiohttp.ClientSession(
        connector=connector, trust_env=False, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
    )


class AgentClient:
    """One agent, as the coordinator sees it. `target` is the name that requests are signed for; `host` an IP address or name."""

    def __init__(
        self, session: aiohttp.ClientSession, key: bytes | Munge, *, target: str, host: str, port: int
    ) -> None:
        self.session = session
        self.target = target
        self.where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.signer = signer_of(key, target, self.where)

    async def call(self, path: str, request: object, reply_type: type[T], deadline_s: float) -> T:
        """POST a request. Raises TransportError: no answer in time, refused, or an answer that isn't one."""
        body, until = msgspec.json.encode(request), time.monotonic() + deadline_s
        if self.signer.is_dear():
            await self._send("GET", "/healthz", b"", {}, until)  # an agent that isn't there costs no credential
        signed, (status, data, signature) = await self._ask(path, body, until)
        if status == 401 and self.signer.may_retry(signed, _text(data)):
            signed, (status, data, signature) = await self._ask(path, body, until)
        if status == 401:
            raise AgentRefused(f"agent {self.target} at {self.where} refused us: {_text(data)}")
        try:
            check_reply(signed.key, signed.nonce, status, data, signature)
        except TransportError as error:
            raise TransportError(f"agent {self.target} at {self.where}: {error}") from error
        self.signer.answered(signed)
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

    async def _ask(self, path: str, body: bytes, until: float) -> tuple[Signed, _Answer]:
        """How the request was signed, and what came back. Raises TransportError."""
        try:
            signed = await self.signer.sign("POST", path, body, max(0.1, until - time.monotonic()))
        except MungeError as error:  # no fault of the agent, and none of its node
            raise AgentRefused(f"agent {self.target} at {self.where} was not asked: {error}") from error
        headers = {"Authorization": signed.header, "Content-Type": "application/json"}
        return signed, await self._send("POST", path, body, headers, until)

    async def _send(self, method: str, path: str, body: bytes, headers: dict[str, str], until: float) -> _Answer:
        """Raises TransportError."""
        left_s = max(0.1, until - time.monotonic())
        try:
            async with self.session.request(
                method,
                f"http://{self.where}{path}",
                data=body or None,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=left_s, sock_connect=CONNECT_S),
                allow_redirects=False,
            ) as response:
                return _Answer(response.status, await _bounded(response), response.headers.get(SIGNATURE_HEADER))
        except aiohttp.ConnectionTimeoutError as error:
            raise NoAnswer(f"agent {self.target} at {self.where}: no connection within {CONNECT_S:g} s") from error
        except asyncio.TimeoutError as error:
            raise NoAnswer(
                f"agent {self.target} at {self.where} gave no answer to {path} within {round(left_s, 1):g} s"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise NoAnswer(f"agent {self.target} at {self.where}: {_reason(error)}") from error
        except ValueError as error:
            raise TransportError(f"agent {self.target} at {self.where}: {_reason(error)}") from error

    async def call_watched(self, path: str, request: object, reply_type: type[T], deadline_s: float) -> T:
        """As `call`, but given up when the agent shows no sign of life meanwhile. Raises TransportError; AnswerLate if the agent is there."""
        call = asyncio.ensure_future(self.call(path, request, reply_type, deadline_s))
        missed = 0
        try:
            while missed < MISSED_BEATS:
                done, _ = await asyncio.wait([call], timeout=BEAT_S)
                if done:
                    return await self._told_apart(call)
                missed = 0 if await self.is_there() else missed + 1
        finally:
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError, TransportError):
                await call
        raise NoAnswer(f"agent {self.target} at {self.where} shows no sign of life")

    async def _told_apart(self, call: "asyncio.Future[T]") -> T:
        try:
            return call.result()
        except NoAnswer as error:
            if await self.is_there():
                raise AnswerLate(f"{error}; yet it is there") from error
            raise

    async def is_there(self) -> bool:
        """Whether the agent answers at all."""
        timeout = aiohttp.ClientTimeout(total=BEAT_S)
        try:
            async with self.session.get(
                f"http://{self.where}/healthz", timeout=timeout, allow_redirects=False
            ) as response:
                return response.status == 200
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
            return False


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
