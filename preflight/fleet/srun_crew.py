"""Under srun: the coordinator's side of a step. Its own node's agent is started, those of the others are found, and all are let go at the end, whatever came between."""

import asyncio
import time
from collections.abc import Sequence

from preflight.errors import PreflightError, ProbeError
from preflight.fleet.interrupt import Interruptions
from preflight.fleet.local import Address
from preflight.fleet.srun import Step
from preflight.fleet.srun_address import addresses_of
from preflight.fleet.srun_agent import AgentOptions, OwnAgent
from preflight.fleet.srun_find import Finder, dial_targets
from preflight.fleet.srun_key import client_key
from preflight.fleet.world import World

FIND_S = 60.0  # tasks of a large step start within seconds; a cold network file system takes tens
LAST_S = 5.0  # for those that were not found, when the run is over
EARLY_S = 30.0  # and when it ended before its agents can have come up


class Crew:
    """The agents of a step, as its coordinator has them. Make it before any thread or event loop is there: the own agent is a fork."""

    def __init__(self, step: Step, key: bytes | None, options: AgentOptions) -> None:
        self.step = step
        self.options = options
        self.began = time.monotonic()
        self.own = OwnAgent(step, key, options)
        self.key = client_key(key, options.site)
        self.world = World(dial=dial_targets(step))
        self.found: tuple[Address, ...] | None = None

    def elapsed_s(self) -> float:
        """Seconds since the crew was called together."""
        return time.monotonic() - self.began

    def find(self, interruptions: Interruptions, deadline_s: float) -> tuple[Address, ...]:
        """The agents in the order of the step's nodes; those that were not found have a problem. Ends early when the run is interrupted. Raises MungeError if this node makes no credential."""
        self.found = asyncio.run(self._find(interruptions, min(FIND_S, deadline_s)))
        return self.found

    async def _find(self, interruptions: Interruptions, deadline_s: float) -> tuple[Address, ...]:
        interrupted = asyncio.Event()
        interruptions.attach(interrupted)
        work = asyncio.ensure_future(self._all(deadline_s))
        signal = asyncio.ensure_future(interrupted.wait())
        try:
            await asyncio.wait([work, signal], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            text = "the run was interrupted before its agent was found"
            return tuple(
                Address(name=node, host="", port=0, problem=f"{node}: {text}", blameless=True)
                for node in self.step.nodes
            )
        finally:
            signal.cancel()
            work.cancel()
            await asyncio.wait([work], timeout=2)

    async def _all(self, deadline_s: float) -> tuple[Address, ...]:
        others = [node for node in self.step.nodes if node != self.step.node]
        own, rest = await asyncio.gather(self._own(deadline_s), self._others(others, deadline_s))
        by_name = {address.name: address for address in (own, *rest)}
        return tuple(by_name[node] for node in self.step.nodes)

    async def _own(self, deadline_s: float) -> Address:
        name = self.step.node
        try:
            host, port = await self.own.address(deadline_s)
        except ProbeError as error:
            return Address(name=name, host="", port=0, problem=f"{name}: {error}", blameless=True)
        return Address(name=name, host=host, port=port)

    async def _others(self, nodes: Sequence[str], deadline_s: float) -> tuple[Address, ...]:
        return await (await self._finder(nodes)).find(nodes, deadline_s)

    async def _finder(self, nodes: Sequence[str]) -> Finder:
        places = await addresses_of(nodes, self.options.look_up)
        return Finder(self.step, self.key, places, self.options.ports(self.step))

    def release(self) -> None:
        """Tell all agents that the run is over, and wait for the own one to end. Raises nothing: agents that can't be told leave when their lease ends."""
        asyncio.run(self._release())

    async def _release(self) -> None:
        try:
            await self._tell_all()
        except (PreflightError, OSError):  # what kept the run from its agents was said already
            pass
        finally:
            await self.own.end()

    async def _tell_all(self) -> None:
        last_s = LAST_S
        if self.found is None:  # it ended before it began: the agents are coming up now
            last_s = max(LAST_S, EARLY_S - self.elapsed_s())
            self.found = await self._all(last_s)
        own = self.step.node
        others = [address for address in self.found if address.name != own]
        finder = await self._finder([address.name for address in others if address.problem is not None])
        await finder.release(self.found, last_s)
