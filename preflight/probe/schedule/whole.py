"""Everything that a plan asks for, as one list."""

from preflight.model import Plan
from preflight.probe.schedule.groups import group_rounds
from preflight.probe.schedule.pairs import pair_rounds
from preflight.probe.schedule.probes import GROUP_REPEATS, PAIR_REPEATS, Round


def full_schedule(plan: Plan, backend: str, *, share_machine: bool = False) -> list[Round]:
    """Everything, most telling first: all pairs once, all groups once, then the repeats. A budget takes a prefix."""
    rounds: list[Round] = []
    for repeat in range(max(PAIR_REPEATS, GROUP_REPEATS)):
        if repeat < PAIR_REPEATS:
            rounds += pair_rounds(plan, backend, repeat)
        if repeat < GROUP_REPEATS:
            rounds += group_rounds(plan, backend, repeat, share_machine=share_machine)
    return rounds
