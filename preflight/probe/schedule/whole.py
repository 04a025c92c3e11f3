"""What a plan asks for between its ranks, as lists: everything that an Agenda deals out piece by piece, without repetitions for the localiser, sizes and mixtures."""

import msgspec

from preflight.model import Plan
from preflight.model.ends import ends_of
from preflight.probe.schedule.axes import planned_message
from preflight.probe.schedule.groups import alone_rounds, group_round
from preflight.probe.schedule.pair_stages import inside_groups, inside_nodes, unlike_slots
from preflight.probe.schedule.probes import FULL_CROSS_NODES, GROUP_REPEATS, PAIR_REPEATS, Round, pair_probe
from preflight.probe.schedule.stages import pass_rounds
from preflight.probe.schedule.strata import Tournament


def pair_rounds(plan: Plan, backend: str, repeat: int = 0) -> list[Round]:
    """Rounds over rank pairs: inside nodes, then rail by rail between nodes, then what else tensor-parallel groups need.

    Inside nodes every pair, all nodes at once. Between nodes like slots; unlike slots too on up to FULL_CROSS_NODES nodes.
    """
    ends, tensor = ends_of(plan), plan.groups.get("tp", ())
    small = len(set(ends.node)) <= FULL_CROSS_NODES
    parts = [
        inside_nodes(ends),
        pass_rounds(Tournament(ends, 0), 0, 0, whole=True)[0],
        *([unlike_slots(ends, tensor)] if small else []),
        inside_groups(ends, tensor, like_slots=False),
    ]
    rounds = (part.make(number) for part in parts for number in range(part.count))
    return [tuple(pair_probe(pair, backend, repeat) for pair in pairs) for pairs in rounds if pairs]


def group_rounds(plan: Plan, backend: str, repeat: int = 0, *, share_machine: bool = False) -> list[Round]:
    """For each axis its groups alone, then all of them together. An axis with a single group has no "together"."""
    ends = ends_of(plan)
    rounds: list[Round] = []
    for axis in plan.timed_axes:
        message, groups = planned_message(plan, axis, backend), plan.on_axis(axis)
        alone = alone_rounds(plan, ends, axis, share_machine=share_machine)
        rounds += [group_round(some, message, backend) for some in (*alone.first, *alone.others)]
        if len(groups) > 1:
            rounds.append(group_round(groups, message, backend, mode="together"))
    return [tuple(msgspec.structs.replace(probe, repeat=repeat) for probe in probes) for probes in rounds]


def full_schedule(plan: Plan, backend: str, *, share_machine: bool = False) -> list[Round]:
    """Everything, most telling first: all pairs once, all groups once, then the repeats. A budget takes a prefix."""
    rounds: list[Round] = []
    for repeat in range(max(PAIR_REPEATS, GROUP_REPEATS)):
        if repeat < PAIR_REPEATS:
            rounds += pair_rounds(plan, backend, repeat)
        if repeat < GROUP_REPEATS:
            rounds += group_rounds(plan, backend, repeat, share_machine=share_machine)
    return rounds
