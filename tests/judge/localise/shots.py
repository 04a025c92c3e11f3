"""Shots of small made-up fabrics, for tests of the localiser: a rate for each pair, log-normal noise, nothing else."""

import random
from collections.abc import Callable, Iterable, Sequence

from preflight.model import Ends, Shots

GB = 1e9
HEALTHY = 48 * GB

Rate = Callable[[int, int], float | None]


def node_ends(names: Sequence[str], leaves: Sequence[str | None] | None = None, **more) -> Ends:
    """An end for each node: what a log of runs between nodes has."""
    number = range(len(names))
    return Ends(
        nodes=tuple(names),
        node=tuple(number),
        slot=(0,) * len(names),
        whole_nodes=True,
        leaves=tuple(leaves) if leaves else None,
        **more,
    )


def gpu_ends(nodes: int, slots: int, leaf_size: int | None = None, **more) -> Ends:
    """`slots` GPUs on each node; leaves of `leaf_size` nodes, None: nobody told."""
    leaves = tuple(f"leaf{node // leaf_size}" for node in range(nodes)) if leaf_size else None
    ends = range(nodes * slots)
    return Ends(
        nodes=tuple(f"n{node}" for node in range(nodes)),
        node=tuple(end // slots for end in ends),
        slot=tuple(end % slots for end in ends),
        leaves=leaves,
        **more,
    )


def shots_of(rows: Iterable[tuple[int, int, str, float | None]]) -> Shots:
    """(a, b, op, bytes per second or None: it failed) in order."""
    listed = list(rows)
    return Shots(
        a=tuple(row[0] for row in listed),
        b=tuple(row[1] for row in listed),
        op=tuple(row[2] for row in listed),
        bytes_per_s=tuple(row[3] for row in listed),
        failure=tuple("" if row[3] is not None else "timed_out" for row in listed),
        round=tuple(range(len(listed))),
        key=tuple(f"{row[2]} {row[0]}-{row[1]} #{number}" for number, row in enumerate(listed)),
    )


def measured(
    pairs: Iterable[tuple[int, int]], rate: Rate, *, noise: float = 0.01, seed: int = 0, op: str = "send_recv"
) -> list[tuple[int, int, str, float | None]]:
    chance = random.Random(seed)
    found = []
    for a, b in pairs:
        value = rate(a, b)
        found.append((a, b, op, None if value is None else value * chance.lognormvariate(0, noise)))
    return found


def all_pairs(number: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(number) for b in range(a + 1, number)]


def rail_pairs(ends: Ends, rounds: int, seed: int = 0) -> list[tuple[int, int]]:
    """In each round every node meets another one over all slots: the first inside leaves, the others anywhere."""
    chance = random.Random(seed)
    slots = max(ends.slot) + 1
    pairs = []
    for number in range(rounds):
        if number == 0 and ends.leaves:
            order = sorted(range(len(ends.nodes)), key=lambda node: (ends.leaves[node], chance.random()))
        else:
            order = chance.sample(range(len(ends.nodes)), len(ends.nodes))
        for a, b in zip(order[::2], order[1::2], strict=False):
            pairs += [(a * slots + slot, b * slots + slot) for slot in range(slots)]
    return pairs


def named(localisation) -> list[tuple]:
    """(kind, ends, nodes, other nodes, leaf, slot) of what is blamed."""
    return [
        (c.kind, c.ends, c.nodes, c.other_nodes, c.leaf, c.slot) for c in localisation.culprits if c.kind is not None
    ]
