"""A simulated world for the coordinator: agents that answer from a modelled fabric, and a clock that counts simulated seconds.

The coordinator, its rounds, retries and budget, and the judge are those of a real run. What a real agent would say of a hung or dead worker, the simulated one says too. Workers start
at once and cost what real ones cost in seconds; a node whose agent is lost answers nothing.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from preflight.errors import NoAnswer, TransportError
from preflight.fleet import api
from preflight.fleet.local import Address
from preflight.fleet.munge import Munge
from preflight.fleet.simulated_nodes import gpu_uuid, simulated_node, simulated_topology
from preflight.fleet.simulated_round import Seats, play
from preflight.fleet.world import Client, ClientFactory, World
from preflight.plan.profiles import find_profile
from preflight.probe.simulate import Cluster, Fabric
from preflight.registry import profile_folders

T = TypeVar("T")

DISCOVER_S, ZYGOTE_S, WORKERS_S, STORE_S = 0.5, 4.0, 3.0, 0.05  # as on an idle machine with eight GPUs
SILENCE_S = 10.0  # after which a lost agent is noticed (fleet/client.py: two missed beats)
TURNS = 25  # of the event loop without a new request, after which a round begins with the nodes that were asked


def simulated_world(cluster: Cluster, seed: int, source: str) -> tuple[World, tuple[Address, ...]]:
    """The world of a run on this cluster, and its agents. `source`: the file it comes from. The same cluster, seed and requests give the same figures."""
    fleet = _Fleet(cluster, seed)
    world = World(dial=fleet.dial, clock=fleet.clock, simulated=True, topology=simulated_topology(cluster, source))
    return world, tuple(Address(name=name, host="simulated", port=0) for name in cluster.nodes)


class _Fleet:
    """All nodes together: rounds are played for all of them at once, since their flows share the fabric."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.fabric = Fabric(cluster, seed)
        self.profile = find_profile(cluster.product, profile_folders())
        self.places = {name: number for number, name in enumerate(cluster.nodes)}
        self.uuids = {
            name: {gpu_uuid(name, slot): slot for slot in range(cluster.gpus_per_node)} for name in self.places
        }
        self.seats: Seats = {}
        self.now_s = 0.0
        self.number = 0  # of the next round
        self.asked: dict[str, api.RoundRequest] = {}
        self.playing: asyncio.Future[dict[str, api.RoundReply]] | None = None

    def clock(self) -> float:
        """Simulated seconds."""
        return self.now_s

    @asynccontextmanager
    async def dial(self, key: bytes | Munge) -> AsyncIterator[ClientFactory]:
        """Clients of all agents; nothing is opened."""
        del key
        yield lambda address: _SimulatedAgent(self, address.name)

    def is_lost(self, node: str) -> bool:
        """Whether its agent answers nothing (any more)."""
        return any(
            fault.kind == "agent_lost" and node in fault.nodes and fault.first_round <= self.number
            for fault in self.cluster.faults
        )

    def until(self, moment_s: float) -> None:
        """Let time pass; what happens on several nodes at once takes as long as the slowest."""
        self.now_s = max(self.now_s, moment_s)

    async def round(self, node: str, request: api.RoundRequest) -> api.RoundReply:
        """This node's part of the round that all nodes are asked for now."""
        self.asked[node] = request
        if self.playing is None:
            self.playing = asyncio.ensure_future(self._play())
        return (await asyncio.shield(self.playing))[node]

    async def _play(self) -> dict[str, api.RoundReply]:
        quiet, known = 0, 0
        while quiet < TURNS and not self._all_asked():
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self.asked) == known else 0
            known = len(self.asked)
        asked, self.asked, self.playing = self.asked, {}, None
        replies, seconds = play(self.fabric, self.seats, asked, self.number)
        self.number += 1
        self.until(self.now_s + seconds)
        gc.freeze()  # what a round gave stays until the report: looking for garbage among it takes as long as making it
        return replies

    def _all_asked(self) -> bool:
        """Whether every rank of the round sits on a node that was asked."""
        wanted = next(iter(self.asked.values())).num_tasks
        if len(self.asked) * self.cluster.gpus_per_node < wanted:
            return False
        seats, asked = self.seats, self.asked
        probes = {probe.subject: probe for request in asked.values() for probe in request.probes}
        return wanted == sum(seats[rank].node in asked for probe in probes.values() for rank in probe.ranks)


class _SimulatedAgent:
    """One node's agent, as AgentClient shows a real one."""

    def __init__(self, fleet: _Fleet, node: str) -> None:
        self.fleet = fleet
        self.node = node
        self.answers: dict[type, Callable[[Any], Any]] = {
            api.DiscoverRequest: self._discover,
            api.StartRequest: self._start,
            api.StoreRequest: self._store,
            api.EndRequest: lambda _: api.EndReply(),
        }
        self.began_s: dict[str, float] = {}

    async def call(self, path: str, request: object, reply_type: type[T], deadline_s: float) -> T:
        """The reply. Raises NoAnswer if the agent is lost."""
        began_s = self.fleet.now_s
        await asyncio.sleep(0)  # let all nodes be asked at the same time
        if self.fleet.is_lost(self.node):
            self.fleet.until(began_s + min(SILENCE_S, deadline_s))
            raise NoAnswer(f"agent {self.node} (simulated) shows no sign of life")
        if isinstance(request, api.RoundRequest):
            reply: object = await self.fleet.round(self.node, request)
        elif type(request) in self.answers:
            reply, seconds = self.answers[type(request)](request), _COST_S.get(type(request), 0.0)
            self.fleet.until(began_s + seconds)
        else:
            raise TransportError(f"agent {self.node} (simulated) doesn't answer {path}")
        assert isinstance(reply, reply_type)
        return reply

    async def call_watched(self, path: str, request: object, reply_type: type[T], deadline_s: float) -> T:
        """As `call`."""
        return await self.call(path, request, reply_type, deadline_s)

    async def is_there(self) -> bool:
        """Whether the agent answers at all."""
        return not self.fleet.is_lost(self.node)

    def _discover(self, request: api.DiscoverRequest) -> api.DiscoverReply:
        del request
        fleet = self.fleet
        node = simulated_node(fleet.cluster, fleet.profile, fleet.places[self.node])
        return api.DiscoverReply(node=node, address="127.0.0.1")

    def _start(self, request: api.StartRequest) -> api.StartReply:
        self.fleet.seats.update(_seats(self.fleet, self.node, request))
        ready = tuple(spec.rank for spec in request.workers)
        return api.StartReply(ready=ready, zygote_s=ZYGOTE_S, workers_s=WORKERS_S)

    def _store(self, request: api.StoreRequest) -> api.StoreReply:
        del request
        return api.StoreReply(address="127.0.0.1", port=1)


_COST_S: dict[type, float] = {
    api.DiscoverRequest: DISCOVER_S,
    api.StartRequest: ZYGOTE_S + WORKERS_S,
    api.StoreRequest: STORE_S,
}


def _seats(fleet: _Fleet, node: str, request: api.StartRequest) -> Seats:
    """Rank -> its end of the fabric: by the GPU that it is given, else (on CPUs) in the order of ranks."""
    from preflight.fleet.simulated_round import Seat

    slots = fleet.uuids[node]
    first = fleet.places[node] * fleet.cluster.gpus_per_node
    seats: Seats = {}
    for place, spec in enumerate(sorted(request.workers, key=lambda spec: spec.rank)):
        slot = slots[spec.gpu] if spec.gpu is not None else place % fleet.cluster.gpus_per_node
        seats[spec.rank] = Seat(node, first + slot)
    return seats


_: type[Client] = _SimulatedAgent
