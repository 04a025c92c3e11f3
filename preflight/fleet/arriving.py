"""The first phases: agents come up, and each tells what its node has."""

from collections.abc import Awaitable, Callable

from preflight.errors import WorldError
from preflight.fleet import api
from preflight.fleet.local import Address
from preflight.fleet.replies import failed, gather_calls, kind_of, lost_kind, renamed
from preflight.fleet.state import ENDING_S, RunState
from preflight.fleet.world import ClientFactory
from preflight.model import Incident, Inventory, Node
from preflight.model.counters import counters_of

Connect = Callable[[float], Awaitable[tuple[Address, ...]]]  # deadline in seconds -> agents, in node order

DISCOVER_S = 30.0
AGAIN_S = 4.0  # a node is read in a second or two, and has been read before
ANSWER_S = 2.0  # beyond, for what hangs to be killed and the answer to come
AGENTS_S = 30.0


async def bring_up(state: RunState, connect: Connect) -> None:
    """Start the agents of this run. Raises Stopped, ProbeError."""
    state.progress("starting agents", 0, 1)
    deadline_s = max(1.0, min(AGENTS_S, state.left_s() / 3))

    async def connected() -> tuple[Address, ...]:
        return await connect(deadline_s)

    state.agents = await state.unless_interrupted(connected())


async def discover(state: RunState, factory: ClientFactory) -> None:
    """Ask every agent what its node has. One that doesn't answer leaves a node of which nothing is known. Raises Stopped; WorldError if none answers."""
    deadline_s = max(1.0, min(DISCOVER_S, state.left_s() / 4))
    state.progress("discovering nodes", 0, 1)
    clients = [factory(address) for address in state.agents]
    request = api.DiscoverRequest(deadline_s=deadline_s)
    calls = (
        failed(address.problem, blameless=address.blameless)
        if address.problem
        else client.call_watched("/v1/discover", request, api.DiscoverReply, deadline_s + 3)
        for address, client in zip(state.agents, clients, strict=True)
    )
    replies = await state.unless_interrupted(gather_calls(calls))
    for address, client, reply in zip(state.agents, clients, replies, strict=True):
        if isinstance(reply, api.DiscoverReply):
            state.nodes.append(renamed(reply.node, address.name))
            state.clients[address.name] = client
        else:
            state.nodes.append(Node(name=address.name, gpu_note="the agent could not be asked"))
            kind = kind_of(reply, lost_kind(reply))
            state.note(Incident(kind=kind, text=str(reply), phase="", at_s=0, node=address.name))
    if not state.clients:
        raise WorldError("no agent answered:\n  " + "\n  ".join(i.text for i in state.incidents[:8]))


def keep_time_to_read_again(state: RunState) -> None:
    """If there are counters, whose growth during the run tells of links and memory that are going, keep some of the budget for reading them again."""
    if not state.world.simulated and any(counters_of(node) for node in state.nodes):
        state.kept_s += AGAIN_S + ANSWER_S


async def discover_again(state: RunState) -> None:
    """Read the nodes that have counters once more, when the workers have ended: what grew meanwhile grew under load.

    A node that can't be read again in time, or whose driver doesn't answer now, stays as it was found, and is not among those "before".
    """
    wanted = [node for node in state.nodes if node.name in state.clients and counters_of(node)]
    deadline_s = min(AGAIN_S, state.left_s() + state.kept_s - ENDING_S - ANSWER_S)
    if not wanted or state.world.simulated or deadline_s < 1:
        return
    request = api.DiscoverRequest(deadline_s=deadline_s)
    calls = (
        state.clients[node.name].call("/v1/discover", request, api.DiscoverReply, deadline_s + ANSWER_S)
        for node in wanted
    )
    replies = await state.unless_interrupted(gather_calls(calls))
    again = {
        node.name: renamed(reply.node, node.name)
        for node, reply in zip(wanted, replies, strict=True)
        if isinstance(reply, api.DiscoverReply) and (node.gpus is None or reply.node.gpus is not None)
    }
    if again:
        state.before = Inventory(nodes=tuple(node for node in state.nodes if node.name in again))
        state.nodes = [again.get(node.name, node) for node in state.nodes]
