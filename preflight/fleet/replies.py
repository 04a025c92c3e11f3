"""What the coordinator makes of agents' replies, and of their absence."""

import asyncio
from typing import Any

import msgspec

from preflight.errors import AgentBusy, AgentRefused, AnswerLate, NoAnswer, TransportError
from preflight.model import Node
from preflight.model.evidence import IncidentKind


def renamed(node: Node, name: str) -> Node:
    """The node under the coordinator's name for it. Domains that are named after the node follow, or two nodes that call
    themselves alike would seem to share NVLinks.
    """
    gpus = node.gpus and tuple(
        msgspec.structs.replace(gpu, nvlink_domain=_renamed_domain(gpu.nvlink_domain, node.name, name))
        for gpu in node.gpus
    )
    return msgspec.structs.replace(node, name=name, gpus=gpus)


def _renamed_domain(domain: str | None, old: str, new: str) -> str | None:
    if domain is not None and (domain == old or domain.startswith(f"{old}:")):
        return new + domain[len(old) :]
    return domain


def kind_of(error: Exception, otherwise: IncidentKind) -> IncidentKind:
    """What an error of a call says of its node: these three are no fault of it."""
    known: dict[type[Exception], IncidentKind] = {
        AgentBusy: "agent_busy",
        AgentRefused: "agent_refused",
        AnswerLate: "agent_late",
    }
    return known.get(type(error), otherwise)


def lost_kind(error: Exception) -> IncidentKind:
    """Whether an agent that drops out is gone, which its node answers for, or there and unable, which says nothing of the node."""
    return "agent_lost" if isinstance(error, NoAnswer) else "agent_error"


async def failed(problem: str, *, blameless: bool = False) -> None:
    """A call to an agent that never came up. `blameless`: that says nothing of its node."""
    raise TransportError(problem) if blameless else NoAnswer(problem)


async def gather_calls(calls: Any) -> list[Any]:
    """All at once. Results in order; a TransportError stands in the place of its result."""

    async def one(call: Any) -> Any:
        try:
            return await call
        except TransportError as error:
            return error

    return list(await asyncio.gather(*(one(call) for call in calls)))
