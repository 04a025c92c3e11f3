"""What one run knows so far, and what every phase needs: the budget, the list of incidents, an end when the run is interrupted."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec

from preflight.fleet.backend import Choice
from preflight.fleet.local import Address
from preflight.fleet.task import Progress, Request, Stopped
from preflight.fleet.world import Client, World
from preflight.model import Incident, Inventory, Measurement, Node, Plan, Profile, Topology
from preflight.model.evidence import IncidentKind

T = TypeVar("T")

END_S = 11.0  # kept back from the budget: a cut round's last answers (4 s), ending workers (3 s) and local agents (4 s)
ENDING_S = 4.0  # the last part of that: ending local agents


class RunState:
    """Filled by one phase after the other.

    `clients`: of the nodes whose agents are there. `nodes`: as they are now, `before`: those that were read twice, as they were before probing. `left_out`: rank -> why no probe asks for it
    any more. `kept_s`: of the budget, for what comes after probing.
    """

    def __init__(self, request: Request, progress: Progress, interrupted: asyncio.Event, world: World) -> None:
        self.request = request
        self.progress = progress
        self.interrupted = interrupted
        self.world = world
        self.began = world.clock()
        self.phase = "connecting"
        self.agents: tuple[Address, ...] = request.agents
        self.clients: dict[str, Client] = {}
        self.nodes: list[Node] = []
        self.before: Inventory | None = None
        self.kept_s = END_S
        self.choice: Choice | None = None
        self.plan: Plan | None = None
        self.topology: Topology | None = None
        self.profiles: dict[str, Profile] = {}
        self.measurements: list[Measurement] = []
        self.incidents: list[Incident] = []
        self.left_out: dict[int, str] = {}
        self.versions: dict[str, str] = {}
        self.phases_s: dict[str, float] = {}

    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return self.world.clock() - self.began

    def left_s(self) -> float:
        """Seconds of the budget that are left for measuring."""
        return self.request.budget_s - self.kept_s - self.elapsed_s()

    async def timed(self, phase: str, work: Coroutine[Any, Any, None]) -> None:
        """Do the work of a phase, and keep how long it took."""
        self.phase, began = phase, self.world.clock()
        try:
            await work
        finally:
            self.phases_s[phase] = self.world.clock() - began

    async def unless_interrupted(self, work: Coroutine[Any, Any, T]) -> T:
        """The work's result. Raises Stopped at once when the run is interrupted; the work is cancelled then."""
        task = asyncio.ensure_future(work)
        signal = asyncio.ensure_future(self.interrupted.wait())
        try:
            await asyncio.wait([task, signal], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Stopped
            return task.result()
        finally:
            signal.cancel()
            task.cancel()
            await asyncio.wait([task], timeout=2)

    def note(self, incident: Incident) -> None:
        """Keep an incident, with the phase and time of now."""
        self.incidents.append(
            msgspec.structs.replace(incident, phase=self.phase, at_s=round(max(0.0, self.elapsed_s()), 3))
        )

    def drop(self, rank: int, kind: IncidentKind, text: str, node: str) -> None:
        """Leave a rank out of the rest of the run, and say why."""
        self.left_out[rank] = text
        self.note(Incident(kind=kind, text=text, phase="", at_s=0, node=node, rank=rank))
