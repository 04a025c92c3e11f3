"""The fourth phase: the rounds, within the budget. What fails is repeated, and its suspects are tried with other partners, before a rank is left out."""

from collections.abc import Sequence

from preflight.fleet import blame
from preflight.fleet.rounds import RoundResult, RoundRunner, cut_short
from preflight.fleet.state import RunState
from preflight.fleet.task import describe
from preflight.model import Failure, Measurement, Probe
from preflight.probe.schedule import Round, seconds_of


class Probing:
    """Runs the schedule of one run. Raises Stopped when the run is interrupted; all that was measured is in the state then."""

    def __init__(self, state: RunState, schedule: Sequence[Round]) -> None:
        assert state.plan
        assert state.choice
        self.state = state
        self.schedule = schedule
        self.backend = state.choice.backend
        self.nodes = {rank.rank: rank.node for rank in state.plan.placement.ranks}
        self.runner = RoundRunner(
            state.request.run_id, self.backend, self.nodes, state.clients, clock=state.world.clock
        )

    async def run(self) -> None:
        """All rounds that the budget allows."""
        state = self.state
        total_s = sum(seconds_of(probes) for probes in self.schedule)
        done_s = 0.0
        for probes in self.schedule:
            here = tuple(probe for probe in probes if not state.left_out.keys() & set(probe.ranks))
            self._not_run([probe for probe in probes if probe not in here])
            if here:
                if state.left_s() < 3 * seconds_of(here) + 2:
                    break  # what the budget didn't reach is coverage
                state.progress(describe(here), done_s, total_s)
                await self._round_with_retries(here)
            done_s += seconds_of(probes)
        state.progress("done", total_s, total_s)

    def _not_run(self, probes: Sequence[Probe]) -> None:
        left_out = self.state.left_out
        for probe in probes:
            rank = next(rank for rank in probe.ranks if rank in left_out)
            failure = Failure(kind="not_run", text=f"rank {rank} is left out: {left_out[rank]}", rank=rank)
            self.state.measurements.append(Measurement(probe=probe, failure=failure))

    async def _round_with_retries(self, probes: Round) -> None:
        """Run a round; repeat what failed; then try each suspect with a cleared partner, and leave out those that fail again."""
        state = self.state
        failed = await self._round(probes)
        if not failed:
            return
        failed = await self._round(blame.repeat_of(failed, set(state.left_out)))
        suspects = [rank for rank in blame.suspects_of(failed) if rank not in state.left_out]
        if not suspects:
            return
        cleared = blame.cleared_ranks(state.measurements, set(state.left_out))
        trial = blame.confirm(suspects, cleared, self.backend, len(state.measurements))
        again = await self._round(trial)
        tried = {rank for probe in trial for rank in probe.ranks}
        guilty = {rank for m in again for rank in m.probe.ranks if rank in suspects}
        for rank in suspects:
            if rank in guilty or rank not in tried:
                state.left_out[rank] = "it failed, failed again when repeated" + (
                    " and with another partner" if rank in guilty else ""
                )

    async def _round(self, probes: Round) -> list[Measurement]:
        """Run one round, keep all it gave; the measurements that failed."""
        state = self.state
        if not probes or state.left_s() < 1:
            return []
        left_s = state.left_s()
        result: RoundResult = await state.unless_interrupted(self.runner.run(probes, left_s))
        if left_s < self.runner.longest_s(probes):
            result = cut_short(result)
        state.measurements += result.measurements
        for incident in result.incidents:
            state.note(incident)
        for node in result.lost_nodes:
            state.clients.pop(node, None)
            for rank, place in self.nodes.items():
                if place == node:
                    state.left_out.setdefault(rank, f"the agent of {node} was lost")
        for incident in result.incidents:
            if incident.kind == "worker_not_started" and incident.rank is not None:
                state.left_out.setdefault(incident.rank, "its worker could not be replaced")
        return [m for m in result.measurements if m.failure and m.failure.kind != "not_run"]
