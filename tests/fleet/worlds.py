"""Agents that live in the test: a coordinator's world without processes, with a clock that only measuring moves on."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from preflight.errors import AgentBusy, NoAnswer
from preflight.fleet import api
from preflight.fleet.coordinator import Coordinator
from preflight.fleet.local import Address
from preflight.fleet.task import Outcome, Progress, Request
from preflight.fleet.world import World
from preflight.model import Failure, Incident, Job, Node, Samples
from tests.builders import make_node

ROUND_S = 1.0


class FakeWorld:
    """`nodes`: what each tells of itself, one entry per reading. `refuse`: (node, path) -> an error to raise instead of answering, None: none."""

    def __init__(
        self, *nodes: Node | list[Node], refuse: Callable[[str, str], Exception | None] = lambda *_: None
    ) -> None:
        self.readings = [node if isinstance(node, list) else [node] for node in nodes]
        self.names = [readings[0].name for readings in self.readings]
        self.refuse = refuse
        self.now = 0.0
        self.asked: list[tuple[str, str]] = []
        self.requests: list[api.RoundRequest] = []
        self.hung: set[int] = set()  # ranks that never answer
        self.simulated = False

    def world(self) -> World:
        return World(dial=self.dial, clock=lambda: self.now, simulated=self.simulated)

    @asynccontextmanager
    async def dial(self, key: bytes) -> AsyncIterator[Callable[[Address], "FakeAgent"]]:
        del key
        yield lambda address: FakeAgent(self, self.names.index(address.name))

    def addresses(self) -> tuple[Address, ...]:
        return tuple(Address(name=name, host="10.0.0.1", port=1) for name in self.names)

    def rounds(self) -> list[api.RoundRequest]:
        """One request of each round."""
        return list({request.prefix: request for request in self.requests}.values())


class FakeAgent:
    def __init__(self, world: FakeWorld, index: int) -> None:
        self.world, self.index, self.name = world, index, world.names[index]

    async def is_there(self) -> bool:
        return not isinstance(self.world.refuse(self.name, "/healthz"), NoAnswer)

    async def call(self, path: str, request: Any, reply_type: Any, deadline_s: float) -> Any:
        del reply_type, deadline_s
        self.world.asked.append((self.name, path))
        error = self.world.refuse(self.name, path)
        if error is not None:
            raise error
        return getattr(self, "_" + path.rpartition("/")[2])(request)

    call_watched = call

    def _discover(self, request: api.DiscoverRequest) -> api.DiscoverReply:
        assert request.deadline_s > 0
        readings = self.world.readings[self.index]
        node = readings.pop(0) if len(readings) > 1 else readings[0]
        return api.DiscoverReply(node=node, address="10.0.0.1")

    def _start(self, request: api.StartRequest) -> api.StartReply:
        return api.StartReply(ready=tuple(spec.rank for spec in request.workers))

    def _store(self, request: api.StoreRequest) -> api.StoreReply:
        del request
        return api.StoreReply(address="10.0.0.1", port=1)

    def _round(self, request: api.RoundRequest) -> api.RoundReply:
        if not any(seen.prefix == request.prefix for seen in self.world.requests):
            self.world.now += ROUND_S
        self.world.requests.append(request)
        outcomes, incidents = [], []
        for probe in request.probes:
            missing = [rank for rank in probe.ranks if rank in self.world.hung]
            for rank in probe.ranks:
                if self.world.names[rank // self.per_node] == self.name:
                    outcomes.append(self._outcome(rank, probe, missing))
                    if rank in missing:
                        text = f"rank {rank} hung"
                        incidents.append(
                            Incident(
                                kind="worker_hung",
                                text=text,
                                phase="",
                                at_s=0,
                                node=self.name,
                                rank=rank,
                                probe=probe.key,
                            )
                        )
        return api.RoundReply(outcomes=tuple(outcomes), incidents=tuple(incidents))

    @property
    def per_node(self) -> int:
        return len(self.world.readings[0][0].gpus or ()) or 2

    def _outcome(self, rank: int, probe: Any, missing: list[int]) -> api.RankOutcome:
        if rank in missing:
            failure = Failure(kind="no_answer", text=f"rank {rank} hung", rank=rank)
            return api.RankOutcome(rank=rank, subject=probe.subject, failure=failure)
        if missing:
            failure = Failure(kind="timed_out", text="timed out", stage="first operation")
            return api.RankOutcome(rank=rank, subject=probe.subject, failure=failure)
        samples = Samples(rank=rank, durations_s=(probe.size_bytes / 10e9,) * 5)
        return api.RankOutcome(
            rank=rank, subject=probe.subject, samples=samples, data_correct=True, members=probe.ranks
        )

    def _end(self, request: api.EndRequest) -> api.EndReply:
        del request
        return api.EndReply()


def busy(_: str, path: str) -> Exception | None:
    return AgentBusy("works for run x") if path == "/v1/start" else None


def cpu_nodes(number: int) -> list[Node]:
    return [make_node(f"node{i}", gpus=0) for i in range(number)]


def request_of(job: Job, world: FakeWorld, **changes: Any) -> Request:
    facts = {"run_id": "r", "job": job, "agents": world.addresses(), "key": b"k", "budget_s": 300.0, "per_node": 2}
    return Request(**{**facts, **changes})


async def coordinate(world: FakeWorld, request: Request, progress: Progress = lambda *_: None) -> Outcome:
    import asyncio

    return await Coordinator(request, progress, asyncio.Event(), None, world.world()).run()
