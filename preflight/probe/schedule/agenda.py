"""What is left to do in a run, the most telling first. Pure: no clock; the coordinator says what is left of the budget and what rounds cost.

Order: each GPU by itself, twice; pairs inside nodes, then of tensor-parallel groups that leave theirs; the first rounds between nodes and a repetition, from which the localiser learns the
noise. Then it is judged. What the localiser asks for comes next; groups alone (one for each set of nodes) and together, at a large size and at the plan's own, mixed, skewed; on few
nodes, unlike slots; repetitions; the other groups alone; the rest of the tournament, after each further five rounds of which it is judged again.

The coordinator's loop: `next_round` until it gives None; each round that was run, as a whole or in part, is reported to `done`; when `judging_due`, `ask` for what the localiser wants.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from preflight.model import Inventory, Measurement, Plan, Probe
from preflight.model.localisation import Ask, Ends
from preflight.model.measurement import median
from preflight.model.position import Position
from preflight.model.report import Coverage
from preflight.probe.schedule.asks import ask_probe, can_run, pack_asks
from preflight.probe.schedule.coverage import coverage_of
from preflight.probe.schedule.pair_stages import Rounds, inside_nodes
from preflight.probe.schedule.position import resumed, scan_text
from preflight.probe.schedule.probes import GROUP_REPEATS, Round
from preflight.probe.schedule.stages import BETWEEN, Stage, Stages, pass_rounds, rest_rounds
from preflight.probe.schedule.strata import FIRST_ROUNDS

FOLLOW_UPS, PAIR_FOLLOW_UPS = 2, 4  # batches of asks: of any kind, then of pairs alone
LAST_FOLLOW_UPS = (
    6  # more of the latter, once there is nothing else to do: a scan of all pairs meets passing slowness to its end
)
MOST_BATCHES = FOLLOW_UPS + PAIR_FOLLOW_UPS + LAST_FOLLOW_UPS
ASK_ROUNDS = 16  # of one batch: a part under suspicion needs a dozen partners; what is beyond, the localiser asks for again if it still wants it
NOISE_ROUNDS = 1  # repeated before anything is judged; on few nodes all
KEPT_ROUNDS = 6  # for which time is kept back while the tournament goes on: what its last rounds raise is asked about, rather than left unknown
SURE, SPARE_S = 1.5, 1.0  # a round fits if so many times its measured cost, and a second, are left
UNSURE, UNSURE_SPARE_S = 3.0, 2.0  # the same by an estimate


class Agenda:
    """The rounds of one run. `position`: where the last run over these nodes stopped. `share_machine`: all "nodes" are one machine. `inventory`: GPUs in MIG mode are left out."""

    def __init__(
        self,
        plan: Plan,
        backend: str,
        ends: Ends,
        *,
        position: Position | None = None,
        share_machine: bool = False,
        inventory: Inventory | None = None,
    ) -> None:
        self._plan, self._backend, self._ends = plan, backend, ends
        self._barred = _barred(plan, inventory)
        self._start, self._tournament = resumed(position, ends)
        self._position = self._start
        stages = Stages(plan, backend, ends, share_machine=share_machine)
        self._small = stages.small
        at = self._start
        first, kinds = pass_rounds(self._tournament, at.inside, at.across, whole=self._small)
        rest, rest_kinds = rest_rounds(self._tournament, at.inside + sum(kinds), at.across + len(kinds) - sum(kinds))
        telling = first if first.count else inside_nodes(ends)
        noise = first.count if self._small and first.count else min(telling.count, NOISE_ROUNDS)
        again = Rounds(noise, lambda number: telling.make(telling.count - noise + number))
        self._before = [*stages.gpus(), *stages.near(), stages.pairs(first, self._counting(kinds)), stages.pairs(again)]
        self._asked: list[Stage] = []
        self._rest = stages.pairs(rest, self._counting(rest_kinds))
        once_more = Rounds(max(0, first.count - noise), first.make)
        self._after = [*stages.groups(0), *stages.unlike(), *stages.repeats(once_more), *stages.other_groups()]
        self._after.append(self._rest)
        self._after += [stage for _ in range(1, GROUP_REPEATS) for stage in stages.other_groups()]
        self._costs: dict[str, list[float]] = {}
        self._numbers: dict[tuple[object, ...], int] = {}
        self._running: tuple[Stage, Callable[[], None]] | None = None
        self._due, self._batches, self._unseen = False, 0, 0
        self._ending = False  # the tournament's next round would not leave what is kept back

    @property
    def position(self) -> Position:
        """Where the next run over these nodes goes on."""
        return self._position

    @property
    def planned_s(self) -> float:
        """What all that is still to do takes, seconds, roughly; for progress. The tournament over many nodes makes it far more than a run has."""
        return sum(stage.left * self._cost_s(stage) for stage in self._all() if stage.peek())

    @property
    def judging_due(self) -> bool:
        """Whether the localiser should look now, and `ask` be called with what it wants to know (nothing, if nothing)."""
        return self._may_ask and (self._due or self._batches >= FOLLOW_UPS + PAIR_FOLLOW_UPS)

    def next_round(self, left_s: float) -> Round | None:
        """The most telling round that fits into what is left, else a cheaper one; None: nothing fits, or all is done. Its ranks are disjoint, its keys new in this run."""
        for stage in self._all():
            while (head := stage.peek()) and self._needed_s(stage) <= left_s:
                if stage is self._rest:
                    self._ending = self._needed_s(stage) > left_s - self._cost_s(stage)
                self._running = stage, stage.take()
                probes = tuple(probe for probe in head if not self._barred.intersection(probe.ranks))
                if probes:
                    return tuple(self._numbered(probe) for probe in probes)
                self.done((), 0)
        return None

    def done(self, probes: Round, seconds: float) -> None:
        """The round that next_round gave last was run, as a whole or in part, and took so long: its own time, without repetitions after failures."""
        if self._running is None:
            return
        stage, count = self._running
        self._running = None
        if probes:
            self._costs.setdefault(stage.kind, []).append(seconds)
        count()
        self._unseen += stage is self._rest
        if stage in self._before:
            self._due = all(other.peek() is None for other in self._before)
        elif stage in self._asked:
            self._due = stage.peek() is None
        elif self._unseen >= FIRST_ROUNDS or (stage is self._rest and self._ending):
            self._due = True

    def ask(self, asks: Sequence[Ask]) -> None:
        """Probes that the localiser wants next; empty: none. FOLLOW_UPS batches of any kind are run, then PAIR_FOLLOW_UPS of pairs, and LAST_FOLLOW_UPS behind all else; what can't be run is left out."""
        self._due, self._unseen = False, 0
        wanted = [ask for ask in asks if can_run(ask) and max(ask.a, ask.b) < len(self._ends.node)]
        if self._batches >= FOLLOW_UPS:
            wanted = [ask for ask in wanted if ask.a != ask.b]
        if not wanted or not self._may_ask:
            return
        self._batches += 1
        packed = pack_asks(wanted)[:ASK_ROUNDS]
        rounds = [tuple(ask_probe(ask, self._backend) for ask in asks) for asks in packed]
        self._asked = [stage for stage in self._asked if stage.left]
        self._asked.append(Stage(BETWEEN, len(rounds), lambda number: rounds[number]))

    @property
    def _may_ask(self) -> bool:
        """Whether another batch of asks would be run."""
        if self._batches < FOLLOW_UPS + PAIR_FOLLOW_UPS:
            return True
        over = self._ending or all(stage.peek() is None for stage in self._all())
        return self._batches < MOST_BATCHES and over

    def coverage(self, measurements: Iterable[Measurement]) -> Coverage:
        """How much of what is planned these measured, and how far the tournament over all pairs of nodes has come."""
        scan = scan_text(self._start, self._position, self._tournament)
        return coverage_of(self._plan, self._ends, measurements, all_slots=self._small, scan=scan)

    def _all(self) -> list[Stage]:
        return [*self._before, *self._asked, *self._after]

    def _counting(self, kinds: Sequence[bool]) -> Callable[[int], None]:
        """Moves the position on by a round of the tournament: inside leaves, where `kinds` says so."""

        def count(number: int) -> None:
            at = self._position
            within = kinds[number]
            self._position = msgspec.structs.replace(at, inside=at.inside + within, across=at.across + (not within))

        return count

    def _cost_s(self, stage: Stage) -> float:
        return median(self._costs[stage.kind]) if stage.kind in self._costs else stage.head_s

    def _needed_s(self, stage: Stage) -> float:
        """What must be left for the stage's next round to be begun."""
        cost_s = self._cost_s(stage)
        kept_s = KEPT_ROUNDS * cost_s if stage is self._rest else 0.0
        return kept_s + (SURE * cost_s + SPARE_S if stage.kind in self._costs else UNSURE * cost_s + UNSURE_SPARE_S)

    def _numbered(self, probe: Probe) -> Probe:
        """The probe with the number of times that the same was given before."""
        same = (probe.subject, probe.collective, probe.mode, probe.size_name, probe.split)
        repeat = self._numbers.get(same, 0)
        self._numbers[same] = repeat + 1
        return msgspec.structs.replace(probe, repeat=repeat) if repeat else probe


def _barred(plan: Plan, inventory: Inventory | None) -> frozenset[int]:
    """Ranks on GPUs in MIG mode, which take no part in NCCL's communication."""
    mig = {gpu.uuid for node in inventory.nodes for gpu in node.gpus or () if gpu.mig_enabled} if inventory else set()
    uuids = plan.placement.gpu_uuids or ()
    return frozenset(rank for rank, uuid in enumerate(uuids) if uuid is not None and uuid in mig)
