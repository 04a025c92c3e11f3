"""An HTTP server that keeps its promises: bounded bodies, bounded waits, a cap on connections, no traceback for a stranger's nonsense.

aiohttp's defaults don't (measured): an unsigned 50 MB body is read to its end after the refusal (lingering), half-sent headers never time out, handlers run on after
the client has left, and a malformed header logs a traceback.
"""

import asyncio
import errno
import ipaddress
import logging
import socket
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from preflight.errors import UsageError

RECEIVE_S = 10.0  # from connecting to a complete request line and headers
MAX_CONNECTIONS = 256  # one coordinator needs one or two
SHUTDOWN_S = 1.0  # requests under way get so long before they are cancelled

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _quiet_logger() -> logging.Logger:
    """Bad requests are the sender's fault: one line at most, never a traceback."""
    logger = logging.getLogger("preflight.agent.http")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return logger


class Server:
    """One listening socket and its connections: at most max_connections, closed after receive_s seconds without a complete request."""

    def __init__(
        self, app: web.Application, *, receive_s: float = RECEIVE_S, max_connections: int = MAX_CONNECTIONS
    ) -> None:
        self.receive_s = receive_s
        self.max_connections = max_connections
        self.runner = web.AppRunner(
            app,
            handler_cancellation=True,
            lingering_time=0,
            keepalive_timeout=5,
            shutdown_timeout=SHUTDOWN_S,
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

    def close(self) -> None:
        """Take no more connections."""
        if self.server:
            self.server.close()

    async def stop(self) -> None:
        """Stop serving; requests under way are cancelled."""
        self.close()
        if self.sweeper:
            self.sweeper.cancel()
        await self.runner.cleanup()

    def _accept(self) -> asyncio.BaseProtocol:
        assert self.runner.server is not None
        self._forget_closed()
        if len(self.busy) >= self.max_connections:
            return _Refuse()
        protocol: asyncio.BaseProtocol = self.runner.server()
        self.accepted[protocol] = time.monotonic()
        if len(self.accepted) > self.max_connections:
            asyncio.get_running_loop().call_soon(
                self._make_room
            )  # those accepted just before have their transports then
        return protocol

    def _make_room(self) -> None:
        """Close the connections that have been idle longest, so that strangers who hold connections don't keep the coordinator out."""
        alive = [p for p in self.accepted if getattr(p, "transport", None) is not None]  # others have ended
        idle = [p for p in alive if p not in self.busy]
        for protocol in sorted(idle, key=self.accepted.__getitem__)[: max(0, len(alive) - self.max_connections)]:
            protocol.transport.abort()  # type: ignore[attr-defined]
            del self.accepted[protocol]

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
            await asyncio.sleep(self.receive_s / 5)
            self._forget_closed()
            now = time.monotonic()
            for protocol, since in list(self.accepted.items()):
                transport = getattr(protocol, "transport", None)
                if transport is not None and protocol not in self.busy and now - since > self.receive_s:
                    transport.abort()


class _Refuse(asyncio.Protocol):
    """One connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


def bind(address: str, port: int) -> socket.socket:
    """A listening socket on an address of this node. Raises UsageError."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError as error:
        raise UsageError(f"can't listen on {address!r}: give an IP address of this node with --address") from error
    if ip.is_unspecified:
        raise UsageError(
            f"can't listen on {address}: give one IP address of this node, under which peers reach its workers"
        )
    listening = socket.socket(socket.AF_INET6 if ip.version == 6 else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
    except (OSError, OverflowError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or str(error)
        hint = "give an IP address of this node with --address"
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            hint = "does an agent run there already? Choose another one with --port"
        raise UsageError(f"can't listen on {address} port {port}: {reason}; {hint}") from error
    listening.setblocking(False)
    return listening
