"""What is left to do in a run, the most telling first. Pure: no clock; the coordinator says what is left of the budget and what rounds cost.

agenda = Agenda(plan, backend, ends, position=position, share_machine=False)
while (probes := agenda.next_round(left_s)) is not None:
    ...                                   # run them
    agenda.done(probes, seconds)
    if agenda.judging_due:
        agenda.ask(localise(ends, shots).asks)
"""

from collections.abc import Iterable, Sequence

from preflight.model import Inventory, Measurement, Plan
from preflight.model.localisation import Ask, Ends
from preflight.model.position import Position
from preflight.model.report import Coverage
from preflight.probe.schedule.probes import Round


class Agenda:
    """The rounds of one run."""

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
        raise NotImplementedError

    @property
    def position(self) -> Position:
        """Where the next run goes on."""
        raise NotImplementedError

    @property
    def planned_s(self) -> float:
        """What everything that is still to do takes, seconds, roughly; for progress."""
        raise NotImplementedError

    @property
    def judging_due(self) -> bool:
        """Whether the localiser should look now, and `ask` be called with what it wants to know."""
        raise NotImplementedError

    def next_round(self, left_s: float) -> Round | None:
        """The most telling round that fits into what is left; None: nothing does, or all is done."""
        raise NotImplementedError

    def done(self, probes: Round, seconds: float) -> None:
        """The round that next_round gave last was run (as a whole or in part) and took so long."""
        raise NotImplementedError

    def ask(self, asks: Sequence[Ask]) -> None:
        """Probes that the localiser wants next; empty: none."""
        raise NotImplementedError

    def coverage(self, measurements: Iterable[Measurement]) -> Coverage:
        """How much of what is planned these measured."""
        raise NotImplementedError
