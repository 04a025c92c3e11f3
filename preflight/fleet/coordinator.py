"""The coordinator: one per run. Dials the agents, discovers, plans, starts workers, runs the rounds within the budget, and keeps what it measured whatever happens.

It judges nothing: it returns the evidence. Every phase ends by the budget; an interruption ends the phase under way and skips the rest.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import aiohttp
import msgspec

from preflight.errors import ConfigError, NoAnswer, WorldError
from preflight.fleet import api, blame
from preflight.fleet.backend import Choice, choose_backend
from preflight.fleet.client import AgentClient, new_session
from preflight.fleet.local import Address
from preflight.fleet.replies import failed, gather_calls, kind_of, renamed
from preflight.fleet.rounds import RoundResult, RoundRunner, cut_short
from preflight.fleet.task import Outcome, Progress, Request, Stopped, coverage_of, describe
from preflight.fleet.topology import known_topology
from preflight.model import Evidence, Failure, Incident, Inventory, Measurement, Node, Plan, Profile, Settings, Topology
from preflight.plan.build import build_plan
from preflight.plan.profiles import profiles_of
from preflight.probe.schedule import Round, full_schedule, seconds_of
from preflight.registry import profile_folders

T = TypeVar("T")

DISCOVER_S = 30.0
START_S = 90.0  # importing torch from a cold network file system takes tens of seconds
AGENTS_S = 30.0
END_S = 11.0  # kept back from the budget: a cut round's last answers (4 s), ending workers (3 s) and local agents (4 s)
END_CALL_S = 3.0


class Coordinator:
    """One run, from dialling to the evidence."""

    def __init__(
        self,
        request: Request,
        progress: Progress,
        interrupted: asyncio.Event,
        connect: Callable[[float], Awaitable[tuple[Address, ...]]] | None = None,
    ) -> None:
        self.request = request
        self.agents = request.agents
        self.connect = connect
        self.progress = progress
        self.began = time.monotonic()
        self.interrupted = interrupted
        self.clients: dict[str, AgentClient] = {}
        self.nodes: list[Node] = []
        self.choice: Choice | None = None
        self.plan: Plan | None = None
        self.topology: Topology | None = None
        self.profiles: dict[str, Profile] = {}
        self.measurements: list[Measurement] = []
        self.incidents: list[Incident] = []
        self.left_out: dict[int, str] = {}
        self.versions: dict[str, str] = {}
        self.phases_s: dict[str, float] = {}
        self.schedule: list[Round] = []
        self.runner: RoundRunner | None = None
        self.phase = "connecting"

    async def run(self) -> Outcome:
        """Gather the evidence. Raises ConfigError (plan and nodes contradict each other) and WorldError (no agent at all)."""
        stopped = None
        async with new_session() as session:
            try:
                if self.connect:
                    await self._timed("starting agents", self._connect(self.connect))
                await self._timed("discovery", self._discover(session))
                self._plan()
                await self._timed("starting workers", self._start())
                await self._timed("probing", self._probe())
            except Stopped:
                stopped = f"interrupted while {self.phase}"
            finally:
                await self._timed("ending", self._end())
        return self._outcome(stopped)

    def left_s(self) -> float:
        """Seconds of the budget that are left for measuring."""
        return self.request.budget_s - END_S - (time.monotonic() - self.began)

    async def _timed(self, phase: str, work: Coroutine[Any, Any, None]) -> None:
        self.phase, began = phase, time.monotonic()
        try:
            await work
        finally:
            self.phases_s[phase] = time.monotonic() - began

    async def _unless_interrupted(self, work: Coroutine[Any, Any, T]) -> T:
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

    async def _connect(self, connect: Callable[[float], Awaitable[tuple[Address, ...]]]) -> None:
        self.progress("starting agents", 0, 1)
        deadline_s = max(1.0, min(AGENTS_S, self.left_s() / 3))

        async def connected() -> tuple[Address, ...]:
            return await connect(deadline_s)

        self.agents = await self._unless_interrupted(connected())

    async def _discover(self, session: aiohttp.ClientSession) -> None:
        deadline_s = max(1.0, min(DISCOVER_S, self.left_s() / 4))
        self.progress("discovering nodes", 0, 1)
        clients = [AgentClient(session, self.request.key, target=a.name, host=a.host, port=a.port) for a in self.agents]
        request = api.DiscoverRequest(deadline_s=deadline_s)
        calls = (
            failed(address.problem)
            if address.problem
            else client.call_watched("/v1/discover", request, api.DiscoverReply, deadline_s + 3)
            for address, client in zip(self.agents, clients, strict=True)
        )
        replies = await self._unless_interrupted(gather_calls(calls))
        for address, client, reply in zip(self.agents, clients, replies, strict=True):
            if isinstance(reply, api.DiscoverReply):
                self.nodes.append(renamed(reply.node, address.name))
                self.clients[address.name] = client
            else:
                self.nodes.append(Node(name=address.name, gpu_note="the agent could not be asked"))
                kind = kind_of(reply, "agent_lost")
                self._note(Incident(kind=kind, text=str(reply), phase="", at_s=0, node=address.name))
        if not self.clients:
            raise WorldError("no agent answered:\n  " + "\n  ".join(i.text for i in self.incidents[:8]))

    def _plan(self) -> None:
        request, hardware = self.request, self.request.job.hardware
        most = max((len([g for g in node.gpus or () if g.uuid]) for node in self.nodes), default=0)
        per_node = request.per_node or hardware.gpus_per_node or most
        if per_node < 1:
            raise ConfigError(
                request.job.source,
                "no node has a usable GPU, and nothing says how many workers each should run",
                key="hardware.gpus_per_node",
                remedy="give gpus_per_node in the plan file, or --local NxM",
            )
        self.choice = choose_backend(request.job, request.backend, self.nodes, per_node, share_machine=request.local)
        names = [node.name for node in self.nodes]
        self.topology = known_topology(request.job, self.nodes)
        self.profiles = profiles_of(Inventory(nodes=tuple(self.nodes)), profile_folders())
        self.plan = build_plan(
            request.job,
            node_names=names,
            gpus_per_node=per_node,
            gpu_uuids=self.choice.gpus,
            topology=self.topology,
        )
        self.schedule = full_schedule(self.plan, self.choice.backend, share_machine=request.local)

    async def _start(self) -> None:
        assert self.plan
        assert self.choice
        self.progress("starting workers", 0, 1)
        deadline_s = max(1.0, min(START_S, self.left_s() / 2))
        placed: dict[str, list[api.WorkerSpec]] = {}
        for rank in self.plan.placement.ranks:
            if rank.node not in self.clients:
                self.left_out[rank.rank] = f"{rank.node} has no agent"
            elif self.choice.backend == "nccl" and rank.gpu_uuid is None:
                self._drop(
                    rank.rank, "worker_not_started", f"{rank.node} has no usable GPU for rank {rank.rank}", rank.node
                )
            else:
                placed.setdefault(rank.node, []).append(api.WorkerSpec(rank=rank.rank, gpu=rank.gpu_uuid))
        calls = (
            self.clients[node].call_watched(
                "/v1/start",
                api.StartRequest(run_id=self.request.run_id, workers=tuple(specs), deadline_s=deadline_s),
                api.StartReply,
                deadline_s + 4,
            )
            for node, specs in placed.items()
        )
        replies = await self._unless_interrupted(gather_calls(calls))
        for (node, specs), reply in zip(placed.items(), replies, strict=True):
            self._started(node, specs, reply)
        self.runner = RoundRunner(
            self.request.run_id,
            self.choice.backend,
            {rank.rank: rank.node for rank in self.plan.placement.ranks},
            self.clients,
        )

    def _started(self, node: str, specs: Sequence[api.WorkerSpec], reply: api.StartReply | Exception) -> None:
        if not isinstance(reply, api.StartReply):
            kind = kind_of(reply, "worker_not_started")
            if kind == "worker_not_started" and isinstance(reply, NoAnswer):
                kind = "agent_lost"
                self.clients.pop(node, None)
            self._note(Incident(kind=kind, text=str(reply), phase="", at_s=0, node=node))
            self.left_out.update({spec.rank: f"{node} started no worker" for spec in specs})
            return
        self.versions.update(reply.versions)
        for name, value_s in (("import torch", reply.zygote_s), ("fork workers", reply.workers_s)):
            self.phases_s[name] = max(self.phases_s.get(name, 0.0), value_s)
        for incident in reply.incidents:
            self._note(incident)
        for spec in specs:
            if spec.rank not in reply.ready:
                self.left_out[spec.rank] = "its worker did not start"

    def _drop(self, rank: int, kind: Any, text: str, node: str) -> None:
        self.left_out[rank] = text
        self._note(Incident(kind=kind, text=text, phase="", at_s=0, node=node, rank=rank))

    async def _probe(self) -> None:
        total_s = sum(seconds_of(probes) for probes in self.schedule)
        done_s = 0.0
        for probes in self.schedule:
            here = tuple(probe for probe in probes if not self.left_out.keys() & set(probe.ranks))
            self._not_run([probe for probe in probes if probe not in here])
            if here:
                if self.left_s() < 3 * seconds_of(here) + 2:
                    break  # what the budget didn't reach is coverage
                self.progress(describe(here), done_s, total_s)
                await self._round_with_retries(here)
            done_s += seconds_of(probes)
        self.progress("done", total_s, total_s)

    def _not_run(self, probes: Sequence[Any]) -> None:
        for probe in probes:
            rank = next(rank for rank in probe.ranks if rank in self.left_out)
            failure = Failure(kind="not_run", text=f"rank {rank} is left out: {self.left_out[rank]}", rank=rank)
            self.measurements.append(Measurement(probe=probe, failure=failure))

    async def _round_with_retries(self, probes: Round) -> None:
        """Run a round; repeat what failed; then try each suspect with a cleared partner, and leave out those that fail again."""
        assert self.choice
        failed = await self._round(probes)
        if not failed:
            return
        failed = await self._round(blame.repeat_of(failed, set(self.left_out)))
        suspects = [rank for rank in blame.suspects_of(failed) if rank not in self.left_out]
        if not suspects:
            return
        cleared = blame.cleared_ranks(self.measurements, set(self.left_out))
        trial = blame.confirm(suspects, cleared, self.choice.backend, len(self.measurements))
        again = await self._round(trial)
        tried = {rank for probe in trial for rank in probe.ranks}
        guilty = {rank for m in again for rank in m.probe.ranks if rank in suspects}
        for rank in suspects:
            if rank in guilty or rank not in tried:
                self.left_out[rank] = "it failed, failed again when repeated" + (
                    " and with another partner" if rank in guilty else ""
                )

    async def _round(self, probes: Round) -> list[Measurement]:
        """Run one round, keep all it gave; the measurements that failed."""
        assert self.runner
        assert self.plan
        if not probes or self.left_s() < 1:
            return []
        left_s = self.left_s()
        result: RoundResult = await self._unless_interrupted(self.runner.run(probes, left_s))
        if left_s < self.runner.longest_s(probes):
            result = cut_short(result)
        self.measurements += result.measurements
        for incident in result.incidents:
            self._note(incident)
        for node in result.lost_nodes:
            self.clients.pop(node, None)
            for rank in self.plan.placement.ranks:
                if rank.node == node:
                    self.left_out.setdefault(rank.rank, f"the agent of {node} was lost")
        for incident in result.incidents:
            if incident.kind == "worker_not_started" and incident.rank is not None:
                self.left_out.setdefault(incident.rank, "its worker could not be replaced")
        return [m for m in result.measurements if m.failure and m.failure.kind != "not_run"]

    def _note(self, incident: Incident) -> None:
        at_s = round(time.monotonic() - self.began, 3)
        self.incidents.append(msgspec.structs.replace(incident, phase=self.phase, at_s=at_s))

    async def _end(self) -> None:
        request = api.EndRequest(run_id=self.request.run_id)
        calls = (client.call("/v1/end", request, api.EndReply, END_CALL_S) for client in self.clients.values())
        for reply in await gather_calls(calls):
            if isinstance(reply, api.EndReply):
                for incident in reply.incidents:
                    self._note(incident)

    def _outcome(self, stopped: str | None) -> Outcome:
        choice = self.choice
        settings = Settings(local=self.request.local)
        if choice:
            settings = Settings(
                backend=choice.backend,
                backend_reason=choice.reason,
                cpu_declared=choice.cpu_declared,
                local=self.request.local,
            )
        evidence = Evidence(
            settings=settings,
            inventory=Inventory(nodes=tuple(self.nodes)),
            plan=self.plan,
            topology=self.topology,
            profiles=self.profiles,
            measurements=tuple(self.measurements),
            incidents=tuple(self.incidents),
        )
        return Outcome(
            evidence=evidence,
            coverage=coverage_of(self.schedule, self.measurements),
            versions=self.versions,
            phases_s=self.phases_s,
            stopped=stopped,
        )
