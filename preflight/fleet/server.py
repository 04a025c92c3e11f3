"""An HTTP server that keeps its promises: bounded bodies, bounded waits, a cap on connections, no traceback for a stranger's nonsense.

aiohttp's defaults don't (measured): an unsigned 50 MB body is read to its end after the refusal (lingering), half-sent headers never time out, handlers run on after
the client has left, and a malformed header logs a traceback.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

HEADER_S = 10.0  # from connecting to a complete request line and headers
MAX_CONNECTIONS = 256  # one coordinator needs one or two

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _quiet_logger() -> logging.Logger:
    """Bad requests are the sender's fault: one line at most, never a traceback."""
    logger = logging.getLogger("preflight.agent.http")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return logger


class Server:
    """One listening socket and its connections."""

    def __init__(self, app: web.Application) -> None:
        self.runner = web.AppRunner(
            app,
            handler_cancellation=True,
            lingering_time=0,
            keepalive_timeout=5,
            access_log=None,
            logger=_quiet_logger(),
            max_line_size=4096,
            max_field_size=4096,
        )
        self.accepted: dict[asyncio.BaseProtocol, float] = {}
        self.busy: set[asyncio.BaseProtocol] = set()
        self.sweeper: asyncio.Task[None] | None = None
        self.server: asyncio.Server | None = None
        app.middlewares.insert(0, self._track)

    async def start(self, listening: socket.socket) -> None:
        """Serve on a bound socket."""
        await self.runner.setup()
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(self._accept, sock=listening, backlog=256)
        self.sweeper = loop.create_task(self._sweep())

    async def stop(self) -> None:
        """Stop serving; requests under way are cancelled."""
        if self.sweeper:
            self.sweeper.cancel()
        if self.server:
            self.server.close()
        await self.runner.cleanup()

    def _accept(self) -> asyncio.BaseProtocol:
        assert self.runner.server is not None
        self._forget_closed()
        if len(self.accepted) >= MAX_CONNECTIONS:
            return _Refuse()
        protocol: asyncio.BaseProtocol = self.runner.server()
        self.accepted[protocol] = time.monotonic()
        return protocol

    @web.middleware
    async def _track(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.busy.add(request.protocol)
        try:
            return await handler(request)
        finally:
            self.busy.discard(request.protocol)
            self.accepted[request.protocol] = time.monotonic()

    def _forget_closed(self) -> None:
        for protocol in [p for p in self.accepted if getattr(p, "transport", None) is None and p not in self.busy]:
            if time.monotonic() - self.accepted[protocol] > 1:
                del self.accepted[protocol]

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(HEADER_S / 5)
            self._forget_closed()
            now = time.monotonic()
            for protocol, since in list(self.accepted.items()):
                transport = getattr(protocol, "transport", None)
                if transport is not None and protocol not in self.busy and now - since > HEADER_S:
                    transport.abort()


class _Refuse(asyncio.Protocol):
    """One connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
