"""An agenda that a test writes down."""

from collections.abc import Sequence

from preflight.model.localisation import Ask
from preflight.probe.schedule import Round, seconds_of


class Rounds:
    """These rounds, one after the other; `judged_after`: numbers of rounds after which the localiser is due. `asked` keeps what it asked for, `costs` what rounds took."""

    def __init__(self, rounds: Sequence[Round], judged_after: Sequence[int] = ()) -> None:
        self.rounds, self.judged_after = list(rounds), set(judged_after)
        self.at = 0
        self.asked: list[Ask] = []
        self.costs: list[float] = []
        self.judging_due = False

    @property
    def planned_s(self) -> float:
        return sum(seconds_of(probes) for probes in self.rounds[self.at :])

    def next_round(self, left_s: float) -> Round | None:
        del left_s
        return self.rounds[self.at] if self.at < len(self.rounds) else None

    def done(self, probes: Round, seconds: float) -> None:
        assert probes in {(), self.rounds[self.at]}
        self.costs.append(seconds)
        self.at += 1
        self.judging_due = self.at in self.judged_after

    def ask(self, asks: Sequence[Ask]) -> None:
        self.judging_due = False
        self.asked += asks


async def nothing_asked() -> Sequence[Ask]:
    return ()
