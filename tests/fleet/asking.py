"""Asking an agent with munge, rightly and wrongly: credentials, real agents in this process, and strangers on their port."""

import asyncio
import contextlib
import hashlib
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from preflight.errors import AgentBusy
from preflight.fleet import api
from preflight.fleet.agent import Agent, Settings
from preflight.fleet.auth import SIGNATURE_HEADER
from preflight.fleet.client import AgentClient, new_session
from preflight.fleet.credential import MUNGE_SCHEME, MungeSigner, Signed
from preflight.fleet.munge import Munge, MungeGate
from tests.fleet.munged import WAIT_S, Munged

UID = os.geteuid()
PATH, BODY = "/v1/end", b'{"run_id":"r"}'
KEY = bytes(range(32))


def signer(daemon: Munged, target: str = "n1") -> MungeSigner:
    return MungeSigner(Munge(UID, daemon.socket), target, "here")


def sign(signer: MungeSigner, body: bytes = BODY) -> Signed:
    return asyncio.run(signer.sign("POST", PATH, body, WAIT_S))


def payload(**changed: str) -> bytes:
    """The claims as the documentation of credential.py describes them, made without it."""
    claims = {
        "version": "preflight 1",
        "method": "POST",
        "path": PATH,
        "body": hashlib.sha256(BODY).hexdigest(),
        "target": "n1",
        "nonce": secrets.token_hex(16),
        "key": secrets.token_hex(32),
    }
    assert set(changed) <= set(claims)
    return "\n".join((claims | changed).values()).encode()


def made(daemon: Munged, *, user: int | None = None, only: int = UID, **changed: str) -> str:
    """A header by munge itself."""
    return f"{MUNGE_SCHEME} {daemon.encode(payload(**changed), f'--restrict-uid={only}', user=user)}"


@contextlib.asynccontextmanager
async def agent(gate: MungeGate | None, key: bytes | None = None, port: int = 0) -> AsyncIterator[int]:
    """A real agent in this process; its port."""
    one = Agent(Settings(name="n1", address="127.0.0.1", port=port), key, gate)
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.ensure_future(one.serve(ready.set_result))
    try:
        await asyncio.wait([ready, serving], return_when=asyncio.FIRST_COMPLETED)
        yield ready.result()
    finally:
        one.leave.set()
        await serving


@contextlib.asynccontextmanager
async def client(key: bytes | Munge, port: int, target: str = "n1") -> AsyncIterator[AgentClient]:
    async with new_session() as session:
        yield AgentClient(session, key, target=target, host="127.0.0.1", port=port)


async def ask(client: AgentClient, deadline_s: float = WAIT_S) -> None:
    """A call that is let in: the agent says, in a signed reply, that it has no such run. Raises TransportError if it is not."""
    with pytest.raises(AgentBusy, match="run r has no workers here"):
        await client.call(PATH, api.EndRequest(run_id="r"), api.EndReply, deadline_s)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


Stranger = Callable[[str], Awaitable[tuple[int, bytes, str]]]  # Authorization -> status, body, signature


@contextlib.asynccontextmanager
async def stranger(answer: Stranger) -> AsyncIterator[int]:
    """Another program on an agent's port."""

    async def handle(request: web.Request) -> web.Response:
        if request.path == "/healthz":
            return web.Response()
        status, body, signature = await answer(request.headers["Authorization"])
        return web.Response(status=status, body=body, headers={SIGNATURE_HEADER: signature})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def post(port: int, header: str, body: bytes) -> tuple[int, str, str | None]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}{PATH}", data=body, headers={"Authorization": header}) as reply,
    ):
        return reply.status, await reply.text(), reply.headers.get(SIGNATURE_HEADER)
