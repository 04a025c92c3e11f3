"""The world of the controller prolog's run: resident agents that may be at work for another job's run, on nodes that may have GPUs which are none of this job's.

All nodes are had, or none is held: whoever finds a node busy lets go of the others, waits for the busy one alone, and tries again. So two jobs that share nodes never wait for one another
for ever. When the time is up the run goes on without the busy nodes, and nothing is known of them.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from preflight.discover.mask import read_mask
from preflight.errors import AgentBusy, TransportError
from preflight.model import Node

if TYPE_CHECKING:
    from preflight.fleet import api
    from preflight.fleet.local import Address
    from preflight.fleet.world import Client, ClientFactory, World

T = TypeVar("T")

LOOK_S = 2.0  # and up to as much again, so that two who wait don't ask at the same time
END_S = 3.0


def patient_world(
    inner: "World", node_gpus: Mapping[str, tuple[int, ...]] | None, *, wait_s: float, look_s: float = LOOK_S
) -> "World":
    """A world like `inner` in which starting workers waits up to wait_s for agents that are busy, and nodes tell which GPUs the job has there.

    `node_gpus`: Slurm's numbers by node, None: not known. `look_s`: between two looks at a busy agent.
    """

    @asynccontextmanager
    async def dial(key: Any) -> AsyncIterator["ClientFactory"]:
        async with inner.dial(key) as factory:
            party = _Party(wait_s, look_s)
            yield lambda address: _PatientClient(factory(address), address, party, node_gpus)

    return msgspec.structs.replace(inner, dial=dial)


def masked(node: Node, numbers: tuple[int, ...] | None) -> Node:
    """The node with the job's GPUs as its mask, as the node prolog would see it: what concerns the others is none of the job's business."""
    if numbers is None or node.gpus is None:
        return node
    listed = {"SLURM_JOB_GPUS": ",".join(map(str, numbers))}
    return msgspec.structs.replace(node, mask=read_mask(listed, node.gpus))


class _Start(msgspec.Struct):
    """One node's part in the start of all."""

    client: "Client"
    request: "api.StartRequest"
    deadline_s: float
    settled: "asyncio.Future[Any]"


class _Party:
    """All the nodes of a run, whose workers start together."""

    def __init__(self, wait_s: float, look_s: float) -> None:
        self.wait_s = wait_s
        self.look_s = look_s
        self.coming: dict[str, _Start] = {}
        self.task: asyncio.Task[None] | None = None

    async def start(self, name: str, client: "Client", request: "api.StartRequest", deadline_s: float) -> Any:
        """This node's reply, when all have one or the time is up. Raises TransportError."""
        settled = asyncio.get_running_loop().create_future()
        self.coming[name] = _Start(client, request, deadline_s, settled)
        if self.task is None:
            self.task = asyncio.ensure_future(self._together())
        return await settled

    async def _together(self) -> None:
        await asyncio.sleep(0)  # the coordinator asks all nodes in one turn
        coming, self.coming, self.task = self.coming, {}, None
        try:
            replies = await self._all(coming)
        except BaseException as error:  # handed on to those who wait
            replies = dict.fromkeys(coming, error)
            if not isinstance(error, Exception):
                raise
        finally:
            for name, start in coming.items():
                reply = replies.get(name, TransportError("the start was given up"))
                if not start.settled.done():
                    (start.settled.set_exception if isinstance(reply, BaseException) else start.settled.set_result)(
                        reply
                    )

    async def _all(self, coming: Mapping[str, _Start]) -> dict[str, Any]:
        until = time.monotonic() + self.wait_s
        replies = await _started(coming)
        while busy := sorted(name for name, reply in replies.items() if isinstance(reply, AgentBusy)):
            if time.monotonic() >= until:
                break
            await _let_go({name: start for name, start in coming.items() if name not in busy}, replies)
            first = {busy[0]: coming[busy[0]]}
            replies = await self._once_free(first, until)
            others = {name: start for name, start in coming.items() if name not in first}
            replies |= await _started(others)
        return replies

    async def _once_free(self, one: Mapping[str, _Start], until: float) -> dict[str, Any]:
        """The reply of a node that is busy, as soon as it is something else, or when the time is up."""
        while True:
            await asyncio.sleep(self.look_s * (1 + random.random()))
            replies = await _started(one)
            if not isinstance(next(iter(replies.values())), AgentBusy) or time.monotonic() >= until:
                return replies


async def _started(coming: Mapping[str, _Start]) -> dict[str, Any]:
    from preflight.fleet import api

    calls = (
        start.client.call_watched("/v1/start", start.request, api.StartReply, start.deadline_s)
        for start in coming.values()
    )
    return dict(zip(coming, await asyncio.gather(*calls, return_exceptions=True), strict=True))


async def _let_go(coming: Mapping[str, _Start], replies: Mapping[str, Any]) -> None:
    """End what was started, so that another run can have it meanwhile."""
    from preflight.fleet import api

    calls = (
        start.client.call("/v1/end", api.EndRequest(run_id=start.request.run_id), api.EndReply, END_S)
        for name, start in coming.items()
        if not isinstance(replies[name], BaseException)
    )
    await asyncio.gather(*calls, return_exceptions=True)


class _PatientClient:
    """One agent, as the coordinator sees it."""

    def __init__(
        self, inner: "Client", address: "Address", party: _Party, node_gpus: Mapping[str, tuple[int, ...]] | None
    ) -> None:
        self.inner = inner
        self.name = address.name
        self.party = party
        self.numbers = None if node_gpus is None else node_gpus.get(address.name, ())

    async def call(self, path: str, request: object, reply_type: type[T], deadline_s: float) -> T:
        """As the agent's own client does. Raises TransportError."""
        return await self._asked(self.inner.call, path, request, reply_type, deadline_s)

    async def call_watched(self, path: str, request: object, reply_type: type[T], deadline_s: float) -> T:
        """The same."""
        return await self._asked(self.inner.call_watched, path, request, reply_type, deadline_s)

    async def is_there(self) -> bool:
        """Whether the agent answers at all."""
        return await self.inner.is_there()

    async def _asked(
        self, ask: Callable[..., Any], path: str, request: Any, reply_type: type[T], deadline_s: float
    ) -> T:
        from preflight.fleet import api

        reply: Any
        if isinstance(request, api.StartRequest):
            reply = await self.party.start(self.name, self.inner, request, deadline_s)
        else:
            reply = await ask(path, request, reply_type, deadline_s)
            if isinstance(reply, api.DiscoverReply):
                reply = msgspec.structs.replace(reply, node=masked(reply.node, self.numbers))
        assert isinstance(reply, reply_type)
        return reply
