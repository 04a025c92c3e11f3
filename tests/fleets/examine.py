"""Examine a fleet as a coordinator would, without HTTP: five first rounds, the localiser's follow-ups, its verdict.

As in preflight.probe.schedule.agenda two batches of follow-ups of any kind, then four for pairs, each of a limited number of rounds. Stricter than there, "for pairs" means pairs that were measured
before (once more, or one way), and a GPU is told from its NIC by follow-ups alone: a run measures all pairs inside nodes first.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from preflight.judge.localise import localise
from preflight.model.localisation import Ask, Ends, Localisation, Shots
from preflight.probe.schedule import first_rounds, pack_asks
from preflight.probe.schedule.agenda import ASK_ROUNDS, FOLLOW_UPS, PAIR_FOLLOW_UPS
from preflight.probe.simulate import Cluster, Fabric

FIRST_ROUNDS = 5


class Examined(NamedTuple):
    """`follow_up_rounds`: how many rounds of probes the asks took."""

    fabric: Fabric
    shots: Shots
    localisation: Localisation
    follow_up_rounds: int


class Record:
    """The shots so far, as columns that grow."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.rows: list[tuple] = []
        self.round = 0

    def run(self, op: str, pairs: Sequence[tuple[int, int]]) -> None:
        """These pairs at the same time, as part of the round that is under way."""
        for (a, b), rate in zip(pairs, self.fabric.pairs(op, pairs, self.round), strict=True):
            failure = "" if rate is not None else self.fabric.failure((a, b), self.round)[0]
            self.rows.append((a, b, op, rate, failure, self.round, f"{op} {a}-{b} round {self.round}"))

    def shots(self) -> Shots:
        columns = zip(*self.rows, strict=True)
        names = ("a", "b", "op", "bytes_per_s", "failure", "round", "key")
        return Shots(**{name: tuple(column) for name, column in zip(names, columns, strict=True)})


def examine(cluster: Cluster, seed: int, *, judge: Callable[[Ends, Shots], Localisation] = localise) -> Examined:
    fabric = Fabric(cluster, seed)
    record = Record(fabric)
    for pairs in first_rounds(fabric.ends, seed=seed, rounds=FIRST_ROUNDS):
        record.run("send_recv", pairs)
        record.round += 1
    verdict = judge(fabric.ends, record.shots())
    for batch in range(FOLLOW_UPS + PAIR_FOLLOW_UPS):
        asks = verdict.asks if batch < FOLLOW_UPS else asks_of_pairs(verdict.asks, record)
        if not asks:
            break
        for packed in pack_asks(asks)[:ASK_ROUNDS]:
            for op in dict.fromkeys(ask.op for ask in packed):
                record.run(op, [(ask.a, ask.b) for ask in packed if ask.op == op])
            record.round += 1
        verdict = judge(fabric.ends, record.shots())
    return Examined(fabric, record.shots(), verdict, record.round - FIRST_ROUNDS)


def asks_of_pairs(asks: Sequence[Ask], record: Record) -> list[Ask]:
    """Those that measure a pair once more, in one way or both: follow-ups for pairs."""
    known = {frozenset(row[:2]) for row in record.rows}
    return [ask for ask in asks if ask.a != ask.b and frozenset((ask.a, ask.b)) in known]
