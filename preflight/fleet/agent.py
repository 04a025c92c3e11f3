"""The agent: one per node. Discovers, starts workers, runs rounds, for a coordinator that may ask. Imports no torch, joins no collective.

It holds its workers on a lease: a coordinator that stops asking loses them. An agent that was started for one run leaves when its parent
closes its end of the pipe.
"""

import asyncio
import contextlib
import hashlib
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Literal

import msgspec
from aiohttp import web

from preflight.discover.node import discover_node
from preflight.errors import AgentBusy, PreflightError, WorldError
from preflight.fleet import api
from preflight.fleet.agent_metrics import AgentMetrics, counting
from preflight.fleet.auth import SIGNATURE_HEADER, Denied, sign_reply
from preflight.fleet.credential import Gate, refuse_open
from preflight.fleet.launch import Launch
from preflight.fleet.munge import MungeGate
from preflight.fleet.munge_users import slurm_user
from preflight.fleet.node_watch import NodeWatch
from preflight.fleet.server import MAX_CONNECTIONS, RECEIVE_S, Server, bind
from preflight.fleet.threads import in_daemon_thread
from preflight.fleet.workers import Pool
from preflight.model import Report

MAX_READINGS = 8  # at once: each has children that take some 50 MB
END_S = 3.5  # for ending workers: SIGKILL takes milliseconds, or for ever
HUNG_UP_S = 5.0  # a coordinator that hangs up in the middle of a request, and comes back, does so at once
LEASE_S = 60.0  # without any request for so long, and none under way, the coordinator is gone

KeepVerdict = Callable[[api.VerdictRequest], None]  # raises WorldError
KeepReport = Callable[[Report], object]  # raises PreflightError, OSError


Left = Literal["told", "lease"]  # why an agent of one run left: its coordinator said so, or came no more


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent serves. `address`: what peers reach its workers under, and where it listens unless `listen` names another. `user`: who the workers become. `launch`: what starts them, None: this Python.

    `gives_way`: refuse to probe where others are at work, and end when they come. `leave_with_lease`: it was started for one run, and ends with it. `receive_s`: how long a request's header may take to arrive, and then its body. `max_connections`: one more is refused.
    `check_every_s`: how often it judges its own node for /metrics, 0: never; `rules`: as `preflight node --rules`.
    """

    name: str
    address: str
    listen: str | None = None
    port: int = 0
    user: tuple[int, int] | None = None
    lease_s: float = LEASE_S
    leave_with_lease: bool = False
    launch: Launch | None = None
    gives_way: bool = False
    receive_s: float = RECEIVE_S
    max_connections: int = MAX_CONNECTIONS
    check_every_s: float = 0.0
    rules: str | None = None


class Agent:
    """One node's agent; `serve` runs it until it is told, or has reason, to leave."""

    def __init__(
        self,
        settings: Settings,
        key: bytes | None,
        munge: MungeGate | None = None,
        keep_verdict: KeepVerdict | None = None,
        keep_report: KeepReport | None = None,
    ) -> None:
        """Raises UsageError if there is neither a key nor munge to tell who may ask. `keep_verdict`: where verdicts of this node go, `keep_report`: its own judgements of it; None: nowhere."""
        refuse_open(key, munge)
        self.settings = settings
        self.key = key
        self.munge = munge
        self.keep_verdict = keep_verdict
        self.keep_report = keep_report
        self.pool = Pool(settings.name, settings.address, settings.user, settings.launch, gives_way=settings.gives_way)
        self.readings = 0  # discoveries under way
        self.leave = asyncio.Event()
        self.left: Left | None = None
        self.asked = False  # whether anybody came who may ask
        self.last_request = time.monotonic()
        self.under_way = 0
        self.given_up_s: float | None = None
        self.lock = asyncio.Lock()
        self.run_id: str | None = None  # the run that the workers belong to
        self.gave_way: dict[str, str] = {}  # the run that ended here before its time -> why
        self.gate: Gate | None = None
        self.metrics = AgentMetrics(settings.name, lambda: len(self.pool.workers))
        app = web.Application(client_max_size=api.MAX_REQUEST_BYTES, middlewares=[counting(self.metrics)])
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/metrics", self.metrics.handle)
        for path, kind, handler in (
            ("/v1/discover", api.DiscoverRequest, self._discover),
            ("/v1/start", api.StartRequest, self._start),
            ("/v1/store", api.StoreRequest, self._store),
            ("/v1/round", api.RoundRequest, self._round),
            ("/v1/end", api.EndRequest, self._end),
            ("/v1/verdict", api.VerdictRequest, self._verdict),
        ):
            app.router.add_post(path, self._signed(kind, handler))
        self.server = Server(app, receive_s=settings.receive_s, max_connections=settings.max_connections)

    async def serve(self, on_ready: Callable[[int], None], listening: socket.socket | None = None) -> None:
        """Listen, call on_ready with the port, serve until `leave` is set, then end all workers. Raises UsageError if it can't bind. `listening`: a bound socket to take."""
        address = self.settings.listen or self.settings.address
        listening = listening or bind(address, self.settings.port)
        port = listening.getsockname()[1]
        hostname = socket.gethostname()
        host = f"[{address}]" if ":" in address else address
        names = {self.settings.name, hostname, hostname.partition(".")[0], address, f"{host}:{port}"}
        self.gate = Gate(frozenset(names), self.key, self.munge)
        await self.server.start(listening)
        on_ready(port)
        tasks = [asyncio.get_running_loop().create_task(work) for work in self._beside()]
        try:
            await self.leave.wait()
        finally:
            for task in tasks:
                task.cancel()
            self.server.close()
            await asyncio.wait([asyncio.ensure_future(self.pool.stop())], timeout=END_S)
            await self.server.stop()

    def _beside(self) -> Iterator[Coroutine[None, None, None]]:
        """What goes on while requests are served."""
        yield self._watch_lease()
        every_s = self.settings.check_every_s
        if every_s > 0:
            watch = NodeWatch(
                self.metrics,
                every_s,
                busy=lambda: self.run_id is not None or self.under_way > 0,
                judged=self.keep_report,
                say=log,
                rules=self.settings.rules,
            )
            yield watch.run()

    async def _watch_lease(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self.settings.lease_s / 4))
            now = time.monotonic()
            given_up = self.given_up_s is not None and now > self.given_up_s
            if not self.under_way and (given_up or now - self.last_request > self.settings.lease_s):
                self.given_up_s = None
                if self.settings.leave_with_lease:
                    self._leave("lease")
                self.run_id = None
                await self.pool.stop()

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    def _signed(
        self, kind: type[Any], handler: Callable[[Any], Awaitable[object]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Check the header before the body is read, the body against its signed hash and its schema; sign the reply."""

        async def handle(request: web.Request) -> web.StreamResponse:
            assert self.gate is not None
            try:
                claim = await self.gate.check(request.method, request.path, request.headers.get("Authorization"))
                self._refuse_verdict_of(claim.uid, kind)
            except Denied as denied:
                return _denied(str(denied))
            self.asked = True
            self.under_way += 1
            self.given_up_s = None
            try:
                body = await asyncio.wait_for(request.read(), self.settings.receive_s)
                if hashlib.sha256(body).hexdigest() != claim.body_sha256:
                    return _denied("the body is not the one that was signed")
                status, reply = await _answer(body, kind, handler)
            except asyncio.CancelledError:
                # the coordinator hung up in the middle: it has ended, or it comes back at once
                self.given_up_s = time.monotonic() + HUNG_UP_S
                raise
            except asyncio.TimeoutError:
                status, reply = 408, f"the body did not arrive within {self.settings.receive_s:g} s".encode()
            except web.HTTPRequestEntityTooLarge:
                status, reply = 413, f"the request is larger than {api.MAX_REQUEST_BYTES} bytes".encode()
            finally:
                self.under_way -= 1
                self.last_request = time.monotonic()
            signature = sign_reply(claim.key, claim.nonce, status, reply)
            response = web.Response(status=status, body=reply, headers={SIGNATURE_HEADER: signature})
            if status in {408, 413}:
                response.force_close()
            return response

        return handle

    def _leave(self, why: Left) -> None:
        self.left = self.left or why
        self.leave.set()

    def status(self) -> str:
        """What it does now, in a few words."""
        return f"{len(self.pool.workers)} workers for run {self.run_id}" if self.run_id else "idle"

    async def _discover(self, request: api.DiscoverRequest) -> api.DiscoverReply:
        if self.readings >= MAX_READINGS:
            raise AgentBusy(f"reads its node {self.readings} times already")
        self.readings += 1
        try:
            node = await in_daemon_thread(lambda: discover_node(self.settings.name, deadline_s=request.deadline_s))
        finally:
            self.readings -= 1
        return api.DiscoverReply(node=node, address=self.settings.address)

    async def _start(self, request: api.StartRequest) -> api.StartReply:
        async with self.lock:
            if self.run_id not in {None, request.run_id}:
                raise AgentBusy(f"works for run {self.run_id}")
            self.run_id = request.run_id
            with self._giving_way():
                return await self.pool.start(request)

    async def _store(self, request: api.StoreRequest) -> api.StoreReply:
        self._only_for(request.run_id)
        return await self.pool.host_store(request.deadline_s)

    async def _round(self, request: api.RoundRequest) -> api.RoundReply:
        async with self.lock:
            self._only_for(request.run_id)
            with self._giving_way():
                return await self.pool.run_round(request)

    async def _end(self, request: api.EndRequest) -> api.EndReply:
        if request.leave and self.settings.leave_with_lease and self.run_id in {None, request.run_id}:
            self._leave("told")  # what runs is ended, and this is answered, before the process ends
            return api.EndReply()
        self._only_for(request.run_id)
        if request.store_only:
            await self.pool.end_store()
            return api.EndReply()
        async with self.lock:
            incidents = await self.pool.stop()
            self.run_id = None
            return api.EndReply(incidents=incidents)

    async def _verdict(self, request: api.VerdictRequest) -> api.VerdictReply:
        keep = self.keep_verdict
        if keep is None:
            raise WorldError("this agent keeps no verdicts")
        await in_daemon_thread(lambda: keep(request))
        return api.VerdictReply()

    def _refuse_verdict_of(self, uid: int | None, kind: type[Any]) -> None:
        """Who may measure here may not for that have a node drained: verdicts are root's and Slurm's to tell. Raises Denied."""
        if kind is api.VerdictRequest and uid is not None and uid not in {0, os.geteuid(), slurm_user()}:
            raise Denied(f"user {uid} may ask for work, but not tell verdicts")

    @contextlib.contextmanager
    def _giving_way(self) -> Iterator[None]:
        """A run that must give way is none of ours any more, and is told why when it asks again."""
        try:
            yield
        except AgentBusy as error:
            self.gave_way = {str(self.run_id): str(error)}
            self.run_id = None
            raise

    def _only_for(self, run_id: str) -> None:
        """One run at a time: two would share the node's way out and its memory, and each would find a healthy node slow. A second coordinator must neither use nor end the first one's workers. Raises AgentBusy."""
        if self.run_id != run_id:
            none = self.gave_way.get(run_id, f"run {run_id} has no workers here: its lease ended")
            raise AgentBusy(f"works for run {self.run_id}" if self.run_id else none)


def _denied(text: str) -> web.Response:
    """Unsigned, and the connection closes: whatever else the stranger sends is not read."""
    response = web.Response(status=401, text=f"{text}\n")
    response.force_close()
    return response


async def _answer(body: bytes, kind: type[Any], handler: Callable[[Any], Awaitable[object]]) -> tuple[int, bytes]:
    """Status and body of the reply to a signed request."""
    try:
        request = msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return 400, f"the request is not a {kind.__name__}: {error}".encode()
    try:
        return 200, msgspec.json.encode(await handler(request))
    except AgentBusy as error:
        return 409, str(error).encode()
    except PreflightError as error:
        return 503, str(error).encode()
    except Exception as error:  # noqa: BLE001 - our own mistake: the coordinator learns of it in a signed reply
        text = f"the agent failed: {type(error).__name__}: {error}"
        log(text)
        return 500, text.encode("utf-8", "replace")


async def leave_with_parent(agent: Agent, descriptor: int) -> None:
    """Set `agent.leave` when the other end of a pipe closes: the coordinator has ended, however that came about."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0))
    with contextlib.suppress(OSError):
        await reader.read()
    agent.leave.set()


def log(text: str) -> None:
    """One line to stderr. A full disk behind it costs the line, and nothing else."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"preflight agent: {text}\n")
        sys.stderr.flush()
