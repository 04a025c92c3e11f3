"""Rounds over the groups of a plan."""

from itertools import zip_longest

import msgspec

from preflight.model import Collective, Group, Plan, Probe
from preflight.probe.schedule.probes import LOOP_S, SIZES, Round

# The collective that each axis uses in training; cp exchanges keys and values around a ring, which for timing is neighbours exchanging.
# What is not here reduces gradients (dp_cp, fsdp, embedding, ...).
AXIS_COLLECTIVE: dict[str, Collective] = {
    "tp": "all_reduce",
    "dp": "all_reduce",
    "edp": "all_reduce",
    "etp": "all_reduce",
    "ep": "all_to_all",
    "pp": "send_recv",
    "cp": "send_recv",
}


def group_rounds(plan: Plan, backend: str, repeat: int = 0, *, share_machine: bool = False) -> list[Round]:
    """For each axis its groups alone, then all of them together.

    Groups inside different nodes share no link, so they count as alone when timed in one round; share_machine says that the
    "nodes" are one machine, where they do. An axis with a single group has no "together".
    """
    rounds: list[Round] = []
    for axis in plan.timed_axes:
        groups = [(group, group_probe(plan, group, backend, repeat)) for group in plan.on_axis(axis)]
        inside: dict[str, list[Probe]] = {}
        for group, probe in groups:
            nodes = plan.placement.nodes_of(group.ranks)
            if len(nodes) == 1 and not share_machine:
                inside.setdefault(nodes[0], []).append(probe)
            else:
                rounds.append((probe,))
        rounds += [tuple(p for p in row if p) for row in zip_longest(*inside.values())]
        if len(groups) > 1:
            rounds.append(tuple(together(probe) for _, probe in groups))
    return rounds


def group_probe(plan: Plan, group: Group, backend: str, repeat: int) -> Probe:
    """The probe of one planned group alone, at the message size that the plan implies, within the backend's range."""
    _, smallest, largest = SIZES[backend]
    axis = _sized_axis(plan, group.axis)
    planned = plan.estimate.message_bytes.get(axis)
    size = largest if planned is None else min(max(planned, smallest), largest)
    if planned is None:
        source = "default: the plan implies no message size"
    elif size == planned:
        source = plan.estimate.message_sources.get(axis, "the plan")
    else:
        source = f"the plan's {planned} bytes, kept within {smallest} to {largest} on {backend}"
    whole = 4 * len(group.ranks)  # every rank's part is a whole number of 4-byte elements
    return Probe(
        subject=group.name,
        axis=group.axis,
        collective=AXIS_COLLECTIVE.get(group.axis, "all_reduce"),
        ranks=group.ranks,
        size_bytes=max(whole, size // whole * whole),
        size_source=source,
        repeat=repeat,
        loop_s=LOOP_S[backend],
    )


def _sized_axis(plan: Plan, axis: str) -> str:
    """The axis whose message these groups carry: their own, or of those with the same groups the one that sends most."""
    sizes = plan.estimate.message_bytes
    same = [other for other in sizes if plan.groups.get(other) == plan.groups[axis]]
    return max(same, key=lambda other: sizes[other], default=axis)


def together(probe: Probe) -> Probe:
    """The same probe, to be timed with all other groups of its axis."""
    return msgspec.structs.replace(probe, mode="together")
