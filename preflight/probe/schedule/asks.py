"""Probes that the localiser asks for, as rounds of disjoint ends (pure)."""

from collections.abc import Iterable
from typing import get_args

import msgspec

from preflight.model.bandwidth import ALONE, Collective
from preflight.model.localisation import LONE, Ask
from preflight.model.measurement import Probe
from preflight.probe.schedule.alone import alone_probe
from preflight.probe.schedule.probes import pair_probe

_PAIRS: tuple[Collective, ...] = ("send_recv", "send")


def pack_asks(asks: Iterable[Ask], busy_limit: int | None = None) -> list[list[Ask]]:
    """Each ask in the first round in which both its ends are free, in the order of their priority; a lone one in a round of its own. `busy_limit`: at most so many asks in a round, None: no limit.

    Asks that can't be run (an unknown operation, one between two ends that a GPU does alone, a pair of one end) are left out, and what is asked for twice is asked twice.
    """
    rounds: list[list[Ask]] = []
    busy: list[set[int]] = []
    for ask in sorted(filter(can_run, asks), key=lambda ask: ask.priority):
        free = (
            number
            for number, ends in enumerate(busy)
            if not (ask.lone or rounds[number][0].lone or {ask.a, ask.b} & ends)
            and (busy_limit is None or len(rounds[number]) < busy_limit)
        )
        number = next(free, len(rounds))
        if number == len(rounds):
            rounds.append([])
            busy.append(set())
        rounds[number].append(ask)
        busy[number] |= {ask.a, ask.b}
    return rounds


def can_run(ask: Ask) -> bool:
    """Whether a worker knows this operation for so many ends."""
    return _collective(ask) in (ALONE if ask.a == ask.b else _PAIRS) and min(ask.a, ask.b) >= 0


def _collective(ask: Ask) -> str:
    """The operation's first word: the localiser tells routes apart by what follows ("send_recv over 18 NVLinks"), and the ends decide which it is."""
    return ask.op.partition(" ")[0]


def ask_probe(ask: Ask, backend: str) -> Probe:
    """The probe of one ask that can run; a pair both ways is named as in the plan, one way with its sender first."""
    op = next(name for name in get_args(Collective) if name == _collective(ask))
    if ask.a == ask.b:
        return alone_probe(ask.a, op, backend, reason=ask.reason)
    ranks = (ask.a, ask.b) if op == "send" else (min(ask.a, ask.b), max(ask.a, ask.b))
    probe = pair_probe(ranks, backend, 0, op, ask.reason)
    return msgspec.structs.replace(probe, size_name=LONE) if ask.lone else probe
