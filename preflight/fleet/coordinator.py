"""The coordinator: one per run. Dials the agents, discovers, plans, starts workers, runs the rounds within the budget, and keeps what it measured whatever happens.

It judges nothing: it returns the evidence. Every phase ends by the budget; an interruption ends the phase under way and skips the rest.
"""

import asyncio
import contextlib
from collections.abc import Sequence

import msgspec

from preflight.errors import ConfigError
from preflight.fleet import api
from preflight.fleet.arriving import Connect, bring_up, discover, discover_again, keep_time_to_read_again
from preflight.fleet.backend import choose_backend
from preflight.fleet.probing import Probing
from preflight.fleet.replies import gather_calls
from preflight.fleet.starting import start_workers
from preflight.fleet.state import RunState
from preflight.fleet.task import Outcome, Progress, Request, Stopped
from preflight.fleet.threads import in_daemon_thread
from preflight.fleet.topology import known_topology
from preflight.fleet.world import World
from preflight.model import Coverage, Evidence, Inventory, Placement, Settings
from preflight.model.ends import ends_of
from preflight.model.gpu_rates import asks_of_slow
from preflight.model.localisation import Ask
from preflight.plan.build import build_plan
from preflight.plan.measured import predict_for
from preflight.plan.profiles import profiles_of
from preflight.probe.schedule import fingerprint_of
from preflight.probe.schedule.agenda import Agenda
from preflight.registry import profile_folders

END_CALL_S = 3.0
REAL = World()


class Coordinator:
    """One run, from dialling to the evidence. `connect` brings the agents up, None: they are there (request.agents)."""

    def __init__(
        self,
        request: Request,
        progress: Progress,
        interrupted: asyncio.Event,
        connect: Connect | None = None,
        world: World = REAL,
    ) -> None:
        self.request = request
        self.connect = connect
        self.world = world
        self.state = RunState(request, progress, interrupted, world)
        self.agenda: Agenda | None = None

    async def run(self) -> Outcome:
        """Gather the evidence. Raises ConfigError (plan and nodes contradict each other) and WorldError (no agent at all)."""
        stopped, state = None, self.state
        async with self.world.dial(self.request.key) as factory:
            try:
                if self.connect:
                    await state.timed("starting agents", bring_up(state, self.connect))
                await state.timed("discovery", discover(state, factory))
                keep_time_to_read_again(state)
                self._plan()
                await state.timed("starting workers", start_workers(state))
                await state.timed("probing", self._probe())
            except Stopped:
                stopped = f"interrupted while {state.phase}"
            finally:
                await state.timed("ending", self._end())
            if stopped is None:
                with contextlib.suppress(Stopped):  # what was asked for has been measured
                    await state.timed("reading counters again", discover_again(state))
        return self._outcome(stopped)

    def _plan(self) -> None:
        request, state, hardware = self.request, self.state, self.request.job.hardware
        most = max((len([g for g in node.gpus or () if g.uuid]) for node in state.nodes), default=0)
        per_node = request.per_node or hardware.gpus_per_node or most
        if per_node < 1:
            raise ConfigError(
                request.job.source,
                "no node has a usable GPU, and nothing says how many workers each should run",
                key="hardware.gpus_per_node",
                remedy="give gpus_per_node in the plan file, or --local NxM",
            )
        state.choice = choose_backend(request.job, request.backend, state.nodes, per_node, share_machine=request.local)
        state.topology = self.world.topology or known_topology(request.job, state.nodes)
        state.profiles = profiles_of(Inventory(nodes=tuple(state.nodes)), profile_folders())
        state.plan = build_plan(
            request.job,
            node_names=[node.name for node in state.nodes],
            gpus_per_node=per_node,
            gpu_uuids=state.choice.gpus,
            topology=state.topology,
            placement=self._measured(),
        )
        if state.plan.placement.source == "measured":
            predicted = predict_for(request.job, state.plan.placement, state.topology)
            state.plan = msgspec.structs.replace(state.plan, predicted=predicted)

    def _measured(self) -> Placement | None:
        """Where the job's ranks said that they are; their GPUs are of no use to a run on CPUs."""
        placement = self.request.placement
        if placement is None or (self.state.choice and self.state.choice.backend == "nccl"):
            return placement
        return msgspec.structs.replace(placement, gpu_uuids=None)

    async def _probe(self) -> None:
        """Raises Stopped."""
        request, state = self.request, self.state
        assert state.plan
        assert state.choice
        ends = ends_of(state.plan, state.topology)
        self.agenda = Agenda(
            state.plan,
            state.choice.backend,
            ends,
            position=request.memory.position_of(fingerprint_of(ends)) if request.memory else None,
            share_machine=request.local,
            inventory=Inventory(nodes=tuple(state.nodes)),
        )
        await Probing(state, self.agenda, self._asks).run()

    async def _asks(self) -> Sequence[Ask]:
        """What the localiser wants to know next, given what was measured so far, and repeats of GPUs that are slow by themselves. A localiser that breaks asks for nothing; the judge will
        tell of it.
        """
        evidence = self._evidence()

        def asks() -> tuple[Ask, ...]:
            from preflight.judge.localise import localise_evidence

            found = localise_evidence(evidence)
            return (*asks_of_slow(evidence), *(found.asks if found else ()))

        try:
            return await in_daemon_thread(asks)
        except Exception:  # noqa: BLE001 - what was measured must not be lost with it; the judge meets the same fault at the end, and says so
            return ()

    async def _end(self) -> None:
        request = api.EndRequest(run_id=self.request.run_id)
        clients = self.state.clients.values()
        calls = (client.call("/v1/end", request, api.EndReply, END_CALL_S) for client in clients)
        for reply in await gather_calls(calls):
            if isinstance(reply, api.EndReply):
                for incident in reply.incidents:
                    self.state.note(incident)

    def _evidence(self) -> Evidence:
        """All that was gathered so far."""
        state, choice = self.state, self.state.choice
        settings = Settings(local=self.request.local, simulated=self.world.simulated)
        if choice:
            settings = msgspec.structs.replace(
                settings, backend=choice.backend, backend_reason=choice.reason, cpu_declared=choice.cpu_declared
            )
        return Evidence(
            settings=settings,
            inventory=Inventory(nodes=tuple(state.nodes)),
            before=state.before,
            plan=state.plan,
            topology=state.topology,
            profiles=state.profiles,
            measurements=tuple(state.measurements),
            incidents=tuple(state.incidents),
        )

    def _outcome(self, stopped: str | None) -> Outcome:
        state = self.state
        return Outcome(
            evidence=self._evidence(),
            coverage=self.agenda.coverage(state.measurements) if self.agenda else Coverage(),
            versions=state.versions,
            phases_s=state.phases_s,
            stopped=stopped,
            position=self.agenda.position if self.agenda else None,
        )
