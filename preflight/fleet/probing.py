"""The fourth phase: what the agenda says, within the budget. What fails is tried again, with other partners too, before a rank is left out."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

import msgspec

from preflight.fleet import blame
from preflight.fleet.rounds import RoundResult, RoundRunner, cut_short, timeout_s
from preflight.fleet.state import RunState
from preflight.fleet.task import describe
from preflight.model import Failure, Measurement, Probe
from preflight.model.localisation import Ask
from preflight.model.tries import SMALLER
from preflight.probe.schedule import Round, seconds_of

TICK_S = 0.5  # between two signs of progress in a long round
HOPELESS = 0.25  # of the time that a rank waits for one operation
LEAST_S = 1.0  # with less left, no round is begun
Localise = Callable[[], Coroutine[Any, Any, Sequence[Ask]]]


class Todo(Protocol):
    """The part of an Agenda that is needed here."""

    @property
    def planned_s(self) -> float:
        """Seconds of what is still to do."""

    @property
    def judging_due(self) -> bool:
        """Whether the localiser should look now."""

    def next_round(self, left_s: float) -> Round | None:
        """The most telling round that fits; None: none."""

    def done(self, probes: Round, seconds: float) -> None:
        """That round was run."""

    def ask(self, asks: Sequence[Ask]) -> None:
        """What the localiser wants next."""


class Probing:
    """Runs the agenda of one run. Raises Stopped when the run is interrupted; all that was measured is in the state then.

    `localise`: what the localiser asks for, given all that the state holds so far.
    """

    def __init__(self, state: RunState, agenda: Todo, localise: Localise) -> None:
        assert state.plan
        assert state.choice
        self.state = state
        self.agenda = agenda
        self.localise = localise
        self.backend = state.choice.backend
        self.nodes = {rank.rank: rank.node for rank in state.plan.placement.ranks}
        self.ranks: dict[str, list[int]] = {}
        for rank, node in self.nodes.items():
            self.ranks.setdefault(node, []).append(rank)
        self.runner = RoundRunner(
            state.request.run_id, self.backend, self.nodes, state.clients, clock=state.world.clock
        )
        self.too_slow: set[frozenset[int]] = (
            set()
        )  # ranks whose whole message comes through too late: a smaller one is sent
        self.failing: set[str] = set()  # subjects that failed, and failed when repeated
        self.done_s = 0.0
        self.host = ""  # of the latest rendezvous

    async def run(self) -> None:
        """All rounds that the budget allows; what it doesn't reach is coverage."""
        state, agenda = self.state, self.agenda
        while state.left_s() >= LEAST_S and (probes := agenda.next_round(state.left_s())) is not None:
            here = tuple(self._fitting(probe) for probe in probes if self._why_not(probe) is None)
            self._not_run(probes)
            if here:
                agenda.done(probes, await self._round_with_retries(here))
            else:
                agenda.done((), 0.0)
            if agenda.judging_due:
                agenda.ask(await self._asks())
        state.progress("done", self.done_s, self.done_s)

    async def _asks(self) -> Sequence[Ask]:
        """Nothing when the budget doesn't reach for it: then the judge alone looks, at the end."""
        if self.state.left_s() < LEAST_S:
            return ()
        self.state.progress("judging", self.done_s, self.done_s + self.agenda.planned_s)
        try:
            asks = await self.state.unless_interrupted(asyncio.wait_for(self.localise(), self.state.left_s()))
        except asyncio.TimeoutError:
            return ()
        out = self.state.left_out
        return [ask for ask in asks if ask.a not in out and ask.b not in out]

    def _fitting(self, probe: Probe) -> Probe:
        return blame.smaller(probe) if frozenset(probe.ranks) in self.too_slow else probe

    def _why_not(self, probe: Probe) -> tuple[int | None, str] | None:
        """Why a probe isn't run, with the rank that it is about; None: it is."""
        left_out = self.state.left_out
        rank = next((rank for rank in probe.ranks if rank in left_out), None)
        if rank is not None:
            return rank, f"rank {rank} is left out: {left_out[rank]}"
        failing = probe.subject in self.failing
        return (None, f"{probe.subject} failed, and failed again when it was repeated") if failing else None

    def _not_run(self, probes: Sequence[Probe]) -> None:
        for probe in probes:
            why = self._why_not(probe)
            if why is not None:
                failure = Failure(kind="not_run", text=why[1], rank=why[0])
                self.state.measurements.append(Measurement(probe=probe, failure=failure))

    async def _round_with_retries(self, probes: Round) -> float:
        """Run a round; then try again what failed, and leave out the ranks that fail with two partners: four rounds at most.

        Gives the seconds of the round itself.
        """
        state, began = self.state, self.state.world.clock()
        failed = await self._round(probes)
        cost_s, host = state.world.clock() - began, self.host
        self.done_s += cost_s
        if not failed:
            return cost_s
        trial = blame.trial_of(failed, state.measurements, self.nodes, state.left_out, self.backend)
        failed_again = await self._round(trial.probes, trial.hosts)
        bad = {rank for m in failed_again for rank in m.probe.ranks} & set(trial.suspects)
        self._leave_out(bad)
        if self._came_elsewhere(failed, set(trial.suspects) - bad):
            self.runner.host_trouble[host] += 1
        unnamed = [m for m in failed_again if not bad.intersection(m.probe.ranks) and not blame.progressed(m)]
        if unnamed:
            await self._confirm(unnamed)
        retried = {probe.subject for probe in trial.probes}
        owed = [m for m in failed if m.probe.subject not in retried and self._why_not(m.probe) is None]
        failed_again += await self._round(tuple(blame.again(m) for m in owed), trial.hosts)
        first = {m.probe.subject for m in failed}
        self.failing |= {m.probe.subject for m in failed_again if m.probe.subject in first}
        return cost_s

    async def _confirm(self, failed: Sequence[Measurement]) -> None:
        """Probes that failed twice without a name: those of their ranks that fail with a cleared partner too are left out."""
        state = self.state
        trial = blame.confirmation_of(failed, state.measurements, self.nodes, state.left_out, self.backend)
        failed_again = await self._round(trial.probes, trial.hosts)
        dead = {rank for m in failed_again if not blame.progressed(m) for rank in m.probe.ranks}
        self._leave_out(dead & set(trial.suspects))

    def _leave_out(self, ranks: set[int]) -> None:
        for rank in sorted(ranks):
            self.state.left_out.setdefault(rank, "it gave no answer, and none when it was tried once more")

    @staticmethod
    def _came_elsewhere(failed: Sequence[Measurement], cleared: set[int]) -> bool:
        """Whether ranks missed a rendezvous and came to the next one: the way to the first one's host may be what is broken."""
        return any(m.failure and m.failure.kind == "timed_out" and m.failure.rank in cleared for m in failed)

    def _note_slow(self, measurements: Sequence[Measurement]) -> None:
        """By what a smaller message took: whether the whole one could come through in time."""
        for m in measurements:
            if m.probe.size_name == SMALLER and m.duration_s is not None:
                hopeless = m.duration_s * blame.TIMES_SMALLER > timeout_s(self.backend, (m.probe,)) * HOPELESS
                (self.too_slow.add if hopeless else self.too_slow.discard)(frozenset(m.probe.ranks))

    async def _round(self, probes: Round, hosts: Sequence[str] = ()) -> list[Measurement]:
        """Run one round, keep all it gave; the measurements that failed."""
        state = self.state
        probes = tuple(probe for probe in probes if not state.left_out.keys() & set(probe.ranks))
        left_s = state.left_s()
        if not probes or left_s < LEAST_S:
            return []
        ticking = asyncio.ensure_future(self._tick(probes))
        try:
            result: RoundResult = await state.unless_interrupted(self.runner.run(probes, left_s, hosts))
        finally:
            ticking.cancel()
        self.host = result.host
        if left_s < self.runner.longest_s(probes):
            result = cut_short(result)
        if state.world.simulated:
            marked = (msgspec.structs.replace(m, simulated=True) for m in result.measurements)
            result = msgspec.structs.replace(result, measurements=tuple(marked))
        state.measurements += result.measurements
        self._note_slow(result.measurements)
        for incident in result.incidents:
            state.note(incident)
            if incident.kind == "worker_not_started" and incident.rank is not None:
                state.left_out.setdefault(incident.rank, "its worker could not be replaced")
        for node in result.lost_nodes:
            state.clients.pop(node, None)
            for rank in self.ranks[node]:
                state.left_out.setdefault(rank, f"the agent of {node} was lost")
        return [m for m in result.measurements if m.failure and m.failure.kind != "not_run"]

    async def _tick(self, probes: Round) -> None:
        """Say what is being measured, and how far it is, as long as it takes."""
        clock, began, planned_s = self.state.world.clock, self.state.world.clock(), seconds_of(probes)
        text = describe(probes)
        while True:
            elapsed_s = clock() - began
            told = f"{text}, {elapsed_s:.0f} of {planned_s:.0f} s" if elapsed_s > TICK_S else text
            self.state.progress(told, self.done_s + elapsed_s, self.done_s + max(self.agenda.planned_s, elapsed_s))
            await asyncio.sleep(TICK_S)
