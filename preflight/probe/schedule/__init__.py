"""What to measure, in which order: rounds of probes that may run at the same time.

A round is a tuple of probes on disjoint ranks. Pairs come in tournament rounds (circle method), so that no rank, and no link of a rank, is timed
by two pairs at once. Groups are timed alone, then all groups of their axis together.
"""

from preflight.probe.schedule.agenda import Agenda
from preflight.probe.schedule.alone import alone_probe
from preflight.probe.schedule.asks import ask_probe, pack_asks
from preflight.probe.schedule.axes import AXIS_COLLECTIVE
from preflight.probe.schedule.circle import circle_rounds
from preflight.probe.schedule.groups import group_probe
from preflight.probe.schedule.position import fingerprint_of, new_position
from preflight.probe.schedule.probes import (
    FULL_CROSS_NODES,
    GROUP_REPEATS,
    LOOP_S,
    PAIR_REPEATS,
    SIZES,
    Round,
    pair_probe,
    seconds_of,
)
from preflight.probe.schedule.strata import FIRST_ROUNDS, Tournament, first_rounds
from preflight.probe.schedule.whole import full_schedule, group_rounds, pair_rounds

__all__ = [
    "AXIS_COLLECTIVE",
    "FIRST_ROUNDS",
    "FULL_CROSS_NODES",
    "GROUP_REPEATS",
    "LOOP_S",
    "PAIR_REPEATS",
    "SIZES",
    "Agenda",
    "Round",
    "Tournament",
    "alone_probe",
    "ask_probe",
    "circle_rounds",
    "fingerprint_of",
    "first_rounds",
    "full_schedule",
    "group_probe",
    "group_rounds",
    "new_position",
    "pack_asks",
    "pair_probe",
    "pair_rounds",
    "seconds_of",
]
