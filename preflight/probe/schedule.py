"""What to measure, in which order: rounds of probes that may run at the same time.

A round is a tuple of probes on disjoint ranks. Pairs come in tournament rounds (circle method), so that no rank, and no link of a rank, is timed
by two pairs at once. Groups are timed alone, then all groups of their axis together.
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

import msgspec

from preflight.model import Collective, Group, Plan, Probe
from preflight.model.units import KIB, MIB

Round = tuple[Probe, ...]

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

# backend -> (pair size, smallest and largest group message). GPUs: bandwidth has its plateau only from about 256 MiB (nccl-tests tables for H100 and A100).
# CPUs over loopback: gloo is within 10 % of its plateau at 4 to 8 MiB, and larger messages only take longer.
SIZES = {"nccl": (256 * MIB, 1 * MIB, 1024 * MIB), "gloo": (4 * MIB, 256 * KIB, 8 * MIB)}
LOOP_S = {"nccl": 0.3, "gloo": 0.2}
PAIR_REPEATS, GROUP_REPEATS = 2, 3  # noise is taken from repeats within the run
FULL_CROSS_NODES = 4  # up to so many nodes unlike GPU slots are paired too; beyond, between nodes, like slots only


def circle_rounds(num_players: int) -> list[list[tuple[int, int]]]:
    """All pairs of num_players in rounds of disjoint pairs: n-1 rounds, n if odd (one rests in each).

    Fix the last player, rotate the others by one place each round, pair opposite places (the circle method).

    >>> circle_rounds(4)
    [[(0, 3), (1, 2)], [(1, 3), (0, 2)], [(2, 3), (0, 1)]]
    """
    if num_players < 2:
        return []
    even = num_players + num_players % 2
    rounds = []
    for turn in range(even - 1):
        pairs = [(turn, even - 1)]
        pairs += [((turn + k) % (even - 1), (turn - k) % (even - 1)) for k in range(1, even // 2)]
        rounds.append([(min(pair), max(pair)) for pair in pairs if max(pair) < num_players])
    return rounds


def pair_rounds(plan: Plan, backend: str, repeat: int = 0) -> list[Round]:
    """Rounds over rank pairs: inside nodes, then rail by rail between nodes, then what else tensor-parallel groups need.

    Inside nodes every pair, all nodes at once. Between nodes like slots; unlike slots too on up to FULL_CROSS_NODES nodes.
    """
    nodes: dict[str, list[int]] = {}
    for rank in plan.placement.ranks:
        nodes.setdefault(rank.node, []).append(rank.rank)
    done: set[tuple[int, int]] = set()
    rounds: list[Round] = []

    def add(pairs: Iterator[tuple[int, int]]) -> None:
        fresh = [pair for pair in dict.fromkeys((min(p), max(p)) for p in pairs) if pair not in done]
        done.update(fresh)
        if fresh:
            rounds.append(tuple(pair_probe(pair, backend, repeat) for pair in fresh))

    members = list(nodes.values())
    inside = [[[(ranks[a], ranks[b]) for a, b in pairs] for pairs in circle_rounds(len(ranks))] for ranks in members]
    for together in zip_longest(*inside, fillvalue=[]):
        add(pair for pairs in together for pair in pairs)
    widest = max(len(ranks) for ranks in members)
    for shift in range(widest if len(members) <= FULL_CROSS_NODES else 1):
        for pairs in circle_rounds(len(members)):
            add(_slots(members, pairs, shift, widest))
    for together in zip_longest(*(_group_rounds(group.ranks) for group in plan.on_axis("tp")), fillvalue=[]):
        add(pair for pairs in together for pair in pairs)
    return rounds


def _slots(
    members: list[list[int]], node_pairs: Sequence[tuple[int, int]], shift: int, widest: int
) -> Iterator[tuple[int, int]]:
    """Slot s of the one node with slot s + shift of the other."""
    for a, b in node_pairs:
        for slot in range(widest):
            other = (slot + shift) % widest
            if slot < len(members[a]) and other < len(members[b]):
                yield members[a][slot], members[b][other]


def _group_rounds(ranks: tuple[int, ...]) -> list[list[tuple[int, int]]]:
    return [[(ranks[a], ranks[b]) for a, b in pairs] for pairs in circle_rounds(len(ranks))]


def pair_probe(pair: tuple[int, int], backend: str, repeat: int) -> Probe:
    """Both ranks send and receive at once; the figure is one direction's."""
    return Probe(
        subject=f"pair {pair[0]}-{pair[1]}",
        axis=None,
        collective="send_recv",
        ranks=pair,
        size_bytes=SIZES[backend][0],
        size_source=f"fixed for pairs on {backend}",
        repeat=repeat,
        loop_s=LOOP_S[backend],
    )


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


def full_schedule(plan: Plan, backend: str, *, share_machine: bool = False) -> list[Round]:
    """Everything, most telling first: all pairs once, all groups once, then the repeats. A budget takes a prefix."""
    rounds: list[Round] = []
    for repeat in range(max(PAIR_REPEATS, GROUP_REPEATS)):
        if repeat < PAIR_REPEATS:
            rounds += pair_rounds(plan, backend, repeat)
        if repeat < GROUP_REPEATS:
            rounds += group_rounds(plan, backend, repeat, share_machine=share_machine)
    return rounds


def seconds_of(probes: Round) -> float:
    """What a healthy round takes, roughly: joining and first calls 0.3 s, warm-up, then the loop."""
    return 0.4 + 1.5 * max(probe.loop_s for probe in probes)
