"""The agent's workers: start one for each rank, hand out tasks, collect outcomes until the deadline, replace what hangs or dies."""

import asyncio
import socket
import time

import msgspec

from preflight.errors import AgentBusy, ProbeError
from preflight.fleet.api import RankOutcome, RoundReply, RoundRequest, StartReply, StartRequest, StoreReply, WorkerSpec
from preflight.fleet.channel import Closed
from preflight.fleet.clocks import Around, ClockReader
from preflight.fleet.hangs import Asked, answer_of, trouble_with
from preflight.fleet.launch import Launch
from preflight.fleet.tenants import Tenants
from preflight.fleet.zygotes import Child, Zygote, exit_text
from preflight.model import Failure, Incident, Probe
from preflight.model.evidence import IncidentKind
from preflight.probe.breadcrumbs import Page
from preflight.probe.messages import Outcome, Spawn, Task, WorkerFailed, WorkerReady

REPLACE_S = 6.0  # a new worker, or a new zygote whose torch is in the page cache by now
SPAWN_S = 15.0  # a fork takes 20 ms; a busy node and a first CUDA context take seconds
FLOOR_S = {"gloo": 4.0, "nccl": 10.0}  # for a window of operations at least, however fast they are expected to be


class Pool:
    """All processes that one agent runs for a coordinator. `user` is the (uid, gid) that workers become, None: as we are. `launch` None: of our own Python.

    `gives_way`: nothing runs where others are at work, and what runs ends when others come.
    """

    def __init__(
        self,
        node: str,
        address: str,
        user: tuple[int, int] | None,
        launch: Launch | None = None,
        *,
        gives_way: bool = False,
    ) -> None:
        self.node = node
        self.address = address
        self.launch = launch or Launch(user=user)
        self.user = None if self.launch.is_sites else user  # what the site's command starts is that user already
        self.gives_way = gives_way
        self.tenants: Tenants | None = None  # whom the run under way gives way to
        self.zygote: Zygote | None = None
        self.workers: dict[int, Child] = {}
        self.pages: dict[int, Page] = {}  # what each worker says it is doing
        self.gpus: dict[int, str | None] = {}
        self.store: Child | None = None
        self.clocks = ClockReader()
        self.began = time.monotonic()
        self.tasks = 0
        self.untold: list[Incident] = []  # what happened between two rounds

    async def start(self, request: StartRequest) -> StartReply:
        """Start a worker for each rank, all at once. A rank that doesn't get ready is an incident, not an error. Raises AgentBusy, ProbeError."""
        await self.stop()
        until = time.monotonic() + request.deadline_s
        self.gpus = {spec.rank: spec.gpu for spec in request.workers}
        await self._refuse_beside_others(request)
        began = self.began = time.monotonic()
        zygote = await self._zygote(max(1.0, until - began))
        zygote_s = time.monotonic() - began
        left_s = max(1.0, until - time.monotonic())
        results = await asyncio.gather(*(self._start_worker(zygote, spec, left_s) for spec in request.workers))
        return StartReply(
            ready=tuple(sorted(self.workers)),
            incidents=tuple(incident for incident in results if incident),
            versions=zygote.versions,
            zygote_s=zygote_s,
            workers_s=time.monotonic() - began - zygote_s,
        )

    async def _refuse_beside_others(self, request: StartRequest) -> None:
        """Raises AgentBusy."""
        if not self.gives_way:
            return
        self.clocks.silent = False
        tenants = Tenants([gpu for gpu in self.gpus.values() if gpu is not None], request.job)
        why = await tenants.before(self.clocks, request.deadline_s / 3)
        if why is not None:
            raise AgentBusy(f"{self.node} gives way to others: {why}")
        self.tenants = tenants

    async def _zygote(self, deadline_s: float) -> Zygote:
        if self.zygote is not None and not self.zygote.alive:
            self._bury()
            await self.zygote.stop()
            self.zygote = None
        if self.zygote is None:
            self.zygote = await Zygote.start(self.launch, deadline_s)
        return self.zygote

    def _bury(self) -> None:
        """The workers of a zygote that has ended died with it, wherever they were; each is told of with the next reply."""
        assert self.zygote is not None
        how = exit_text(self.zygote.process.poll()) if self.zygote.process.poll() is not None else "no more usable"
        for rank in self.workers:
            text = f"the worker of rank {rank} ended with the process that forks the workers of {self.node} ({how})"
            self.untold.append(self._incident("worker_died", text, rank))
        self.workers.clear()

    async def _start_worker(self, zygote: Zygote, spec: WorkerSpec, deadline_s: float) -> Incident | None:
        uid, gid = self.user or (None, None)
        spawn = Spawn(role="worker", ticket=0, rank=spec.rank, gpu=spec.gpu, uid=uid, gid=gid)
        try:
            page = self._new_page(spec.rank)
            child = await zygote.spawn(spawn, min(SPAWN_S, deadline_s), [page.descriptor])
        except (ProbeError, OSError) as error:
            text = f"the worker of rank {spec.rank} was not started: {error}"
            return self._incident("worker_not_started", text, spec.rank)
        finally:
            if spec.rank in self.pages:
                self.pages[spec.rank].handed_over()
        try:
            ready = await child.channel.receive(WorkerReady | WorkerFailed, min(SPAWN_S, deadline_s))
            if isinstance(ready, WorkerReady):
                self.workers[spec.rank] = child
                return None
            text = ready.text
        except asyncio.TimeoutError:
            text = f"it said nothing for {min(SPAWN_S, deadline_s):g} s and {child.describe()}"
        except Closed:
            await asyncio.wait([asyncio.ensure_future(child.ended.wait())], timeout=1)
            text = child.describe()
        await child.kill()
        return self._incident(
            "worker_not_started", f"the worker of rank {spec.rank} did not get ready: {text}", spec.rank
        )

    async def host_store(self, deadline_s: float) -> StoreReply:
        """Start the rendezvous server of a round on this agent's address. Raises ProbeError."""
        await self.end_store()
        zygote = await self._zygote(deadline_s)
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as listening:
            try:
                listening.bind((self.address, 0))
                listening.listen(1024)
            except OSError as error:
                raise ProbeError(f"the rendezvous can't listen on {self.address}: {error.strerror}") from error
            port = listening.getsockname()[1]
            uid, gid = self.user or (None, None)
            spawn = Spawn(role="store", ticket=0, uid=uid, gid=gid, address=self.address)
            child = await zygote.spawn(spawn, min(SPAWN_S, deadline_s), [listening.fileno()])
        self.store = child
        try:
            await child.channel.receive(WorkerReady, min(SPAWN_S, deadline_s))
        except (asyncio.TimeoutError, Closed) as error:
            state = child.describe()
            await self.end_store()
            raise ProbeError(f"the rendezvous server did not start: it {state}") from error
        return StoreReply(address=self.address, port=port)

    async def end_store(self) -> None:
        """Stop the rendezvous server, if there is one."""
        store, self.store = self.store, None
        if store is not None:
            await store.kill()

    async def run_round(self, request: RoundRequest) -> RoundReply:
        """Give each of our ranks its task, wait for all outcomes until the deadline, replace the workers that gave none. Raises AgentBusy, when all has ended, if others came."""
        deadline = time.monotonic() + request.deadline_s
        jobs = {rank: probe for probe in request.probes for rank in probe.ranks if rank in self.gpus}
        around = Around(self.clocks, self.gpus, jobs, watched=self.tenants is not None)
        done = await asyncio.gather(*(self._run_rank(rank, probe, request, deadline) for rank, probe in jobs.items()))
        gpus = await around.of_ranks()
        await self._give_way(around)
        incidents = [incident for _, incidents in done for incident in incidents]
        if self.zygote is not None and not self.zygote.alive:
            self._bury()
        lost = [WorkerSpec(rank=rank, gpu=gpu) for rank, gpu in self.gpus.items() if rank not in self.workers]
        if lost and request.replace:
            incidents += await self._replace(lost)
        incidents += self.untold
        self.untold = []
        outcomes = tuple(msgspec.structs.replace(outcome, around=gpus.get(outcome.rank)) for outcome, _ in done)
        return RoundReply(outcomes=outcomes, incidents=tuple(incidents))

    async def _give_way(self, around: Around) -> None:
        """End if somebody else has come: what the round measured beside them counts for nothing. Raises AgentBusy."""
        why = await self.tenants.now(around.latest) if self.tenants is not None else None
        if why is not None:
            stuck = await self.stop()
            left = "".join(f"; {incident.text}" for incident in stuck)
            raise AgentBusy(f"{self.node} gave way to others, and its workers were ended: {why}{left}")

    async def _replace(self, lost: list[WorkerSpec]) -> list[Incident]:
        """Once: a rank whose replacement doesn't get ready is given up for this run."""
        try:
            zygote = await self._zygote(REPLACE_S)
            again = await asyncio.gather(*(self._start_worker(zygote, spec, REPLACE_S) for spec in lost))
        except ProbeError as error:
            again = [self._incident("worker_not_started", f"rank {spec.rank}: {error}", spec.rank) for spec in lost]
        for incident in again:
            if incident and incident.rank is not None:
                self.gpus.pop(incident.rank, None)
        return [incident for incident in again if incident]

    async def _run_rank(
        self, rank: int, probe: Probe, request: RoundRequest, deadline: float
    ) -> tuple[RankOutcome, list[Incident]]:
        """The rank's outcome, whatever happens to its worker. One that ended, or hung, while it left an earlier probe whose results were in is replaced, and asked again."""
        incidents: list[Incident] = []
        while True:
            child = self.workers.get(rank)
            if child is None:
                failure = Failure(kind="crashed", text=f"rank {rank} has no worker: it ended before", rank=rank)
                return RankOutcome(rank=rank, subject=probe.subject, failure=failure), incidents
            task = self._task(probe, request, deadline)
            page = self.pages[rank]
            answer = await answer_of(child, page, task, deadline)
            if isinstance(answer, Outcome):
                if answer.failure is not None and self.gpus[rank] is not None:
                    del self.workers[rank]  # it has left by itself: a CUDA context after a fault is not used again
                    await child.kill()
                return _of_rank(rank, probe.subject, answer), incidents
            if answer == "closed":
                await asyncio.wait([asyncio.ensure_future(child.ended.wait())], timeout=1)
            state = child.describe()
            asked = Asked(rank=rank, task=task, crumb=page.read(), state=state, waited_s=request.deadline_s)
            trouble = trouble_with(answer, asked)
            del self.workers[rank]
            incidents.append(self._incident(trouble.kind, trouble.text, trouble.rank, trouble.probe))
            if not await child.kill():
                text = f"process {child.pid} of rank {rank} can't be killed: it {child.describe()}"
                incidents.append(self._incident("worker_unkillable", text, rank, trouble.probe))
            if trouble.failure is not None:
                return RankOutcome(rank=rank, subject=probe.subject, failure=trouble.failure), incidents
            incidents += await self._replace([WorkerSpec(rank=rank, gpu=self.gpus[rank])])

    def _task(self, probe: Probe, request: RoundRequest, deadline: float) -> Task:
        self.tasks += 1
        return Task(
            number=self.tasks,
            probe=probe,
            backend=request.backend,
            store_address=request.store_address,
            store_port=request.store_port,
            prefix=request.prefix,
            timeout_s=request.timeout_s,
            address=self.address,
            num_tasks=request.num_tasks,
            align=len(request.probes) > 1 or request.num_tasks > len(probe.ranks),
            first_s=request.timeout_s,
            floor_s=min(request.timeout_s, FLOOR_S[request.backend]),
            stop_s=deadline - max(1.0, request.deadline_s / 10),
        )

    def _new_page(self, rank: int) -> Page:
        """Raises OSError if there is no memory, or no descriptor, for one."""
        old = self.pages.pop(rank, None)
        if old is not None:
            old.close()
        page = self.pages[rank] = Page()
        return page

    async def stop(self) -> tuple[Incident, ...]:
        """End everything. Gives an incident for each process that can't be reaped."""
        zygote, self.zygote = self.zygote, None
        self.workers.clear()
        self.gpus = {}
        self.tenants = None
        self.store = None
        for page in self.pages.values():
            page.close()
        self.pages.clear()
        if zygote is None:
            return ()
        return tuple(self._incident("worker_unkillable", text, None) for text in await zygote.stop())

    def _incident(self, kind: IncidentKind, text: str, rank: int | None, probe: str | None = None) -> Incident:
        at_s = time.monotonic() - self.began
        return Incident(kind=kind, text=text, phase="", at_s=at_s, node=self.node, rank=rank, probe=probe)


def _of_rank(rank: int, subject: str, outcome: Outcome) -> RankOutcome:
    return RankOutcome(
        rank=rank,
        subject=subject,
        samples=outcome.samples,
        data_correct=outcome.data_correct,
        members=outcome.members,
        transport=outcome.transport,
        told=outcome.told,
        failure=outcome.failure,
    )
