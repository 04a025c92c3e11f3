"""Under srun: the coordinator finds the agents of its step, and lets them go when the run is over.

It looks at a step's ports in the order in which agents try them. Whoever answers must know the name that this step gave the node, and sign for it: another job's agent refuses,
and what another program says is not signed.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec

from preflight.errors import AgentBusy, AgentRefused, PreflightError
from preflight.fleet import api
from preflight.fleet.local import Address
from preflight.fleet.munge import Munge
from preflight.fleet.srun import Step
from preflight.fleet.world import Client, ClientFactory, Dial, over_http

CALL_S = 4.0  # nothing is done for such a call
AT_ONCE = 128  # nodes that are asked at a time
COMPANY_S = 30.0  # a third of an agent's lease
PAUSES_S = (0.1, 1.0)  # between two looks at a node whose agent isn't there yet, the first and the longest
_HELLO = api.EndRequest(
    run_id="hello", store_only=True
)  # no run is called so: an agent of ours says, signed, that it has none


def dial_targets(step: Step) -> Dial:
    """Clients of a run's nodes, signed for the names that the agents of this step answer to. While the run lasts, none of these has to fear that its coordinator is gone, whatever it measures elsewhere."""

    @asynccontextmanager
    async def dial(key: bytes | Munge) -> AsyncIterator[ClientFactory]:
        clients: list[Client] = []
        async with over_http(key) as factory:

            def client_of(address: Address) -> Client:
                client = factory(msgspec.structs.replace(address, name=step.target(address.name)))
                clients.append(client)
                return client

            beating = asyncio.ensure_future(_keep_company(clients))
            try:
                yield client_of
            finally:
                beating.cancel()

    return dial


async def _keep_company(clients: Sequence[Client]) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def greet(client: Client) -> None:
        async with gate:
            with contextlib.suppress(PreflightError):
                await client.call("/v1/end", _HELLO, api.EndReply, CALL_S)

    while True:
        await asyncio.sleep(COMPANY_S)
        await asyncio.gather(*map(greet, clients))


class Finder:
    """Looks for the agents of one step. `places`: node -> its addresses; `ports`: in the agents' order."""

    def __init__(
        self, step: Step, key: bytes | Munge, places: Mapping[str, Sequence[str]], ports: Sequence[int]
    ) -> None:
        self.step = step
        self.key = key
        self.places = places
        self.ports = ports
        self.gate = asyncio.Semaphore(AT_ONCE)

    async def find(self, nodes: Sequence[str], deadline_s: float) -> tuple[Address, ...]:
        """Where the agents of these nodes listen, in that order. One that isn't found by the deadline has a `problem`; one that refuses us is there, so that the run is told why."""
        async with over_http(self.key) as factory:
            return tuple(await asyncio.gather(*(self._find(factory, node, deadline_s) for node in nodes)))

    def client(self, factory: ClientFactory, address: Address) -> Client:
        """A client for the agent of that node, wherever it is."""
        return factory(msgspec.structs.replace(address, name=self.step.target(address.name)))

    async def _find(self, factory: ClientFactory, node: str, deadline_s: float) -> Address:
        if not self.places.get(node):
            problem = f"{node}: its name stands for no address, and Slurm knows none"
            return Address(name=node, host="", port=0, problem=problem, blameless=True)
        look = _Look(self, factory, node)
        try:
            return await asyncio.wait_for(look.until_found(), deadline_s)
        except asyncio.TimeoutError:
            return look.not_found(deadline_s)

    async def release(self, found: Sequence[Address], deadline_s: float) -> None:
        """Tell the agents that the run is over. Those that can't be told leave when their lease ends."""

        async def told(factory: ClientFactory, address: Address) -> None:
            if address.problem is not None:
                address = await self._find(factory, address.name, deadline_s)
            if address.problem is None:
                with contextlib.suppress(PreflightError):
                    async with self.gate:
                        await self.client(factory, address).call("/v1/end", request, api.EndReply, CALL_S)

        request = api.EndRequest(run_id="over", leave=True)
        async with over_http(self.key) as factory:
            await asyncio.gather(*(told(factory, address) for address in found))


class _Look:
    """The search for one node's agent. What it met on the way is kept, to say why it was in vain."""

    def __init__(self, finder: Finder, factory: ClientFactory, node: str) -> None:
        self.finder = finder
        self.factory = factory
        self.node = node
        self.refused: Address | None = None
        self.said = ""

    async def until_found(self) -> Address:
        pause_s, longest_s = PAUSES_S
        while True:
            async with self.finder.gate:
                for ports in (self.finder.ports[:1], self.finder.ports[1:]):
                    hosts = self.finder.places[self.node]
                    candidates = [Address(name=self.node, host=host, port=port) for port in ports for host in hosts[:4]]
                    answers = await asyncio.gather(*map(self._asked, candidates))
                    found = next((a for a, ours in zip(candidates, answers, strict=True) if ours), None)
                    if found is not None:
                        return found
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    async def _asked(self, address: Address) -> bool:
        client = self.finder.client(self.factory, address)
        try:
            if not await client.is_there():  # costs no credential
                return False
            await client.call("/v1/end", _HELLO, api.EndReply, CALL_S)
        except AgentBusy:  # signed
            return True
        except AgentRefused as error:
            self.refused, self.said = address, str(error)
            return False
        except PreflightError:  # another program's port, or it has just gone
            return False
        return True

    def not_found(self, after_s: float) -> Address:
        if self.refused is not None and f"not {self.finder.step.target(self.node)}" not in self.said:
            return self.refused
        problem = (
            f"no agent of step {self.finder.step.job}.{self.finder.step.step} answered on {self.node} within {after_s:.0f} s: did srun start its task there, "
            f"and are ports {min(self.finder.ports)} to {max(self.finder.ports)} open?"
            + (f" Last: {self.said}" if self.said else "")
        )
        return Address(name=self.node, host=self.finder.places[self.node][0], port=0, problem=problem, blameless=True)
