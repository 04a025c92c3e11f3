"""What a run's coordinator stands in: real agents over HTTP and the real clock, or a simulated fabric with its own time."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, TypeVar

import msgspec

from preflight.fleet.client import AgentClient, new_session
from preflight.fleet.local import Address
from preflight.fleet.munge import Munge
from preflight.model import Topology

T = TypeVar("T")


class Client(Protocol):
    """One agent, as the coordinator sees it. AgentClient is the real one."""

    async def call(self, path: str, request: object, reply_type: type[T], deadline_s: float) -> T:
        """Ask, and give the reply. Raises TransportError: no answer in time, refused, or an answer that isn't one."""

    async def call_watched(self, path: str, request: object, reply_type: type[T], deadline_s: float) -> T:
        """As `call`, but given up when the agent shows no sign of life meanwhile. Raises TransportError; AnswerLate if the agent is there."""

    async def is_there(self) -> bool:
        """Whether the agent answers at all."""


ClientFactory = Callable[[Address], Client]
Dial = Callable[[bytes | Munge], AbstractAsyncContextManager[ClientFactory]]


@asynccontextmanager
async def over_http(key: bytes | Munge) -> AsyncIterator[ClientFactory]:
    """Clients that share one HTTP session, which lasts as long as this context. Raises MungeError if munge makes no credential here: every agent would be in vain."""
    if isinstance(key, Munge):
        await key.tools.encode(b"", uid=key.agent_uid)
    async with new_session() as session:
        yield lambda address: AgentClient(session, key, target=address.name, host=address.host, port=address.port)


class World(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run takes place.

    `dial`: opens a factory of clients for the time of the run, given the run's key. `clock`: seconds, only differences count; budget, costs and phases are counted by
    it. `simulated`: nothing is measured on hardware; every report says so. `topology`: known beforehand, None: as the plan file and the nodes tell.
    """

    dial: Dial = over_http
    clock: Callable[[], float] = time.monotonic
    simulated: bool = False
    topology: Topology | None = None
