"""Rounds over the groups of a plan: alone, together, mixed, skewed."""

from collections.abc import Iterable, Sequence

import msgspec

from preflight.model import Group, Mode, Plan, Probe
from preflight.model.base import Record
from preflight.model.localisation import Ends
from preflight.probe.schedule.axes import Message, planned_message
from preflight.probe.schedule.probes import LOOP_S, Round

MANY_GROUPS = 64  # of an axis: beyond, only one group for each set of nodes is timed alone
MOST_ALONE = 32  # rounds in which groups of an axis are timed alone; beyond, evenly spread ones
MIXED_ROLES = 2  # mixed rounds with other groups of each axis at work
SKEW = 0.3  # of the tokens for one rank: an expert in great demand
SKEW_OF_FEW = 1.5  # times its fair share where the group is so small that SKEW is little more than that


class Alone(Record, frozen=True):
    """Rounds in which groups of an axis are timed alone: first one group for each set of nodes, then the others."""

    first: list[tuple[Group, ...]]
    others: list[tuple[Group, ...]]


def alone_rounds(plan: Plan, ends: Ends, axis: str, *, share_machine: bool = False) -> Alone:
    """The groups of an axis in rounds in which each counts as alone: no two share a node, or a leaf's way up that both use.

    Where leaves are unknown, two groups that leave their node may share a link, and are timed one after the other. `share_machine`: all "nodes" are one machine, where all share
    everything. One group stands for all with the same nodes, and the others come later, or not at all where there are more than MANY_GROUPS; of more than MOST_ALONE rounds
    evenly spread ones are taken.
    """
    groups = plan.on_axis(axis)
    nodes_of = {frozenset(ends.node[rank] for rank in group.ranks): group.index for group in reversed(groups)}
    first = set(nodes_of.values())
    others = [group for group in groups if group.index not in first] if len(groups) <= MANY_GROUPS else []
    return Alone(
        _apart(ends, [group for group in groups if group.index in first], share_machine=share_machine),
        _apart(ends, others, share_machine=share_machine),
    )


def _apart(ends: Ends, groups: Iterable[Group], *, share_machine: bool) -> list[tuple[Group, ...]]:
    """Each group in the first round in which nobody uses its links."""
    rounds: list[tuple[set[object], list[Group]]] = []
    for group in groups:
        needs: set[object] = {"the machine"} if share_machine else _links(ends, group.ranks)
        free = next((number for number, (taken, _) in enumerate(rounds) if taken.isdisjoint(needs)), len(rounds))
        if free == len(rounds):
            rounds.append((set(), []))
        rounds[free][0].update(needs)
        rounds[free][1].append(group)
    step = max(1.0, len(rounds) / MOST_ALONE)
    return [tuple(rounds[int(number * step)][1]) for number in range(min(len(rounds), MOST_ALONE))]


def _links(ends: Ends, ranks: Iterable[int]) -> set[object]:
    """What a group needs for itself: its nodes, and the ways up of their leaves if it crosses them."""
    nodes = {ends.node[rank] for rank in ranks}
    leaves = {None if ends.leaves is None else ends.leaves[node] for node in nodes}
    within = len(nodes) == 1 or (len(leaves) == 1 and None not in leaves)
    return {*nodes} if within else {*nodes, *(f"leaf {leaf}" for leaf in leaves)}


def group_round(
    groups: Iterable[Group], message: Message, backend: str, *, mode: Mode = "alone", skewed: bool = False
) -> Round:
    """These groups at once, each with this message."""
    probes = (_probe(group, message, backend, 0) for group in groups)
    if skewed:
        probes = (msgspec.structs.replace(probe, split=skewed_split(len(probe.ranks))) for probe in probes)
    return tuple(msgspec.structs.replace(probe, mode=mode) for probe in probes)


def skewed_split(num_ranks: int) -> tuple[float, ...]:
    """What each rank sends to each when the first one's experts are in demand: 30 % of the tokens, in groups of up to 5 half as many again as its share.

    Worked example, 8 ranks: 0.3 to the first, 0.1 to each of the other seven.
    """
    most = max(SKEW, SKEW_OF_FEW / num_ranks)
    return (most, *((1 - most) / (num_ranks - 1) for _ in range(num_ranks - 1)))


def mixed_groups(axes: Sequence[Sequence[Group]], turn: int) -> list[Group]:
    """Groups of several axes that have no rank in common, as evenly over the axes as they allow, taking turns; `turn`: with which axis to begin.

    A rank can be in one probe at a time, so that in training's mixture each rank here plays one part: some groups reduce gradients while others pass activations on or exchange
    tokens. A GPU that does both at once with one NIC is busier than this shows. Empty where no two axes find room beside each other.
    """
    lists = [*axes[turn % len(axes) :], *axes[: turn % len(axes)]] if axes else []
    waiting = [iter(groups) for groups in lists]
    chosen: list[Group] = []
    busy: set[int] = set()
    while waiting:
        for groups in tuple(waiting):
            group = next((group for group in groups if not busy.intersection(group.ranks)), None)
            if group is None:
                waiting.remove(groups)
            else:
                chosen.append(group)
                busy.update(group.ranks)
    return chosen if len({group.axis for group in chosen}) > 1 else []


def group_probe(plan: Plan, group: Group, backend: str, repeat: int) -> Probe:
    """The probe of one planned group alone, at the message size that the plan implies, within the backend's range."""
    return _probe(group, planned_message(plan, group.axis, backend), backend, repeat)


def _probe(group: Group, message: Message, backend: str, repeat: int) -> Probe:
    whole = 4 * len(group.ranks)  # every rank's part is a whole number of 4-byte elements
    return Probe(
        subject=group.name,
        axis=group.axis,
        collective=message.collective,
        ranks=group.ranks,
        size_bytes=max(whole, message.size_bytes // whole * whole),
        size_source=message.size_source,
        repeat=repeat,
        loop_s=LOOP_S[backend],
        size_name=message.size_name,
    )
