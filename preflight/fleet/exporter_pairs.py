"""The measured pairs of a history as columns, each held against healthy pairs of the same run, and the newest groups. Reads only.

A history has no localiser's references, so a reference is taken from each run by itself: what the better quarter of its GPUs reached at best over the same class of routes. There is none where fewer than three nodes (two inside
nodes) took part, or where the middle GPU is so far below that the better quarter says nothing of what is healthy; between leaves none that pairs inside a leaf don't bear out.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from preflight.metrics import Samples
from preflight.model.baseline import PAIR
from preflight.report.pair_table import PairTable, grouped, starts_of
from preflight.report.slow_ways import OP
from preflight.report.text import clean
from preflight.statistics import spread_of

if TYPE_CHECKING:
    from preflight.report.pair_table import Floats, Ints

MAX_FIGURES = 400_000  # the newest ones that are read
MIN_NODES = {"inside": 2, "between": 3}
CLEAR = 0.9  # the middle GPU's best / that of the better quarter: below, the run has no reference
NUM_CLASSES, FAR = 5, 4
LEAST_FAR = 0.85  # between leaves / inside them: on healthy clusters the two differ by 5 to 12 % (matrices of two real clusters, in tests/fleets)
SLOTS = 4096  # more than a node has GPUs

_PAIRS = (
    "SELECT members, busbw, size_bytes FROM figures WHERE run = ? AND axis = ? AND collective = ? AND busbw IS NOT NULL"
)
_GROUPS = "SELECT axis, collective, size_bytes, busbw FROM figures WHERE run = ? AND axis != ? AND busbw IS NOT NULL"


def pairs_of(db: sqlite3.Connection, runs: Sequence[tuple[int, float]], leaves: Mapping[str, str]) -> PairTable | None:
    """The pairs of these runs, given as (number, Unix time of the end), the newest first. None: there are none."""
    members: list[str] = []
    rates: list[float] = []
    sizes: list[int] = []
    lengths: list[int] = []
    for number, _ in runs:
        rows = [row for row in db.execute(_PAIRS, (number, PAIR, OP)) if row[0].count(" ") == 1]
        if len(members) + len(rows) > MAX_FIGURES:
            break
        lengths.append(len(rows))
        if rows:
            told, figures, of_sizes = zip(*rows, strict=True)
            members += told
            rates += figures
            sizes += of_sizes
    if not members:
        return None
    seats = _Seats()
    of_pairs = list(map(seats.__getitem__, " ".join(members).split(" ")))
    return _table(list(seats), (of_pairs, rates, sizes, lengths), [ended_s for _, ended_s in runs], leaves)


def groups_of(db: sqlite3.Connection, runs: Sequence[tuple[int, float]]) -> list[tuple[str, Samples]]:
    """What the newest run of each axis says of its groups."""
    groups: dict[tuple[str, str, str], tuple[int, list[float]]] = {}
    for number, _ in runs:
        for axis, collective, size, busbw in db.execute(_GROUPS, (number, PAIR)):
            of_run, rates = groups.setdefault((clean(axis), clean(collective), str(size)), (number, []))
            if of_run == number:
                rates.append(busbw)
    spreads = [((*key, "alone"), spread) for key, (_, rates) in sorted(groups.items()) if (spread := spread_of(rates))]
    name = "group_bus_bandwidth"
    lows = (f"{name}_minimum_bytes_per_second", [(key, spread.minimum) for key, spread in spreads])
    return [lows, (f"{name}_median_bytes_per_second", [(k, s.median) for k, s in spreads])]


class _Seats(dict[str, int]):
    """The spelling of a place, "n1/0" -> its number, in the order in which they came."""

    def __missing__(self, text: str) -> int:
        self[text] = len(self)
        return self[text]


def _table(
    spellings: Sequence[str],
    columns: tuple[Sequence[int], Sequence[float], Sequence[int], Sequence[int]],
    ended_s: Sequence[float],
    leaves: Mapping[str, str],
) -> PairTable | None:
    """`columns`: two places of each pair by number, its rate, its message size; how many pairs each run has. Of a pair that a run measured with several sizes the largest counts."""
    import numpy as np

    places = [_place(text) for text in spellings]
    names = sorted({node for node, _ in places if node})
    numbers = {name: number for number, name in enumerate(names)}
    place_of_seat = np.array([SLOTS * numbers[node] + slot if node else -1 for node, slot in places], np.int64)
    of_pair = np.sort(place_of_seat[np.array(columns[0])].reshape(-1, 2).T, axis=0)
    rates, size = np.array(columns[1], np.float64), np.array(columns[2], np.int64)
    run = np.repeat(np.arange(len(columns[3])), columns[3])
    chosen = np.lexsort((-size, run))
    chosen = chosen[(of_pair[0, chosen] >= 0) & (of_pair[0, chosen] != of_pair[1, chosen])]
    if not len(chosen):
        return None
    different, place = np.unique(of_pair, return_inverse=True)
    place = place.reshape(2, -1)
    pair = (run * len(different) + place[0]) * len(different) + place[1]
    rows = chosen[np.sort(np.unique(pair[chosen], return_index=True)[1])]
    run, size, rates, place, of_pair = run[rows], size[rows], rates[rows], place[:, rows], of_pair[:, rows]
    node, slot = of_pair // SLOTS, of_pair % SLOTS
    known = [leaves.get(name) for name in names]
    sizes, size = np.unique(size, return_inverse=True)
    leaf = _leaf_numbers(known)[node]
    keys = (run * len(sizes) + size) * NUM_CLASSES + _classes(node, slot, leaf)
    references = _not_by_itself(keys, leaf, rates, _references(keys, node, place, rates))
    return PairTable(names, known, (node, slot, rates, rates / references, run), ended_s)


def _place(text: str) -> tuple[str, int]:
    """(node, slot) of a place's spelling; an empty name: it is none."""
    node, _, slot = text.rpartition("/")
    good = node and " " not in text and slot.isascii() and slot.isdigit() and len(slot) < 5 and int(slot) < SLOTS
    return (node, int(slot)) if good else ("", 0)


def _leaf_numbers(leaves: Sequence[str | None]) -> "Ints":
    """By node; -1: nobody told."""
    import numpy as np

    numbers = {leaf: number for number, leaf in enumerate(sorted({leaf for leaf in leaves if leaf is not None}))}
    return np.array([-1 if each is None else numbers[each] for each in leaves], np.int64)


def _classes(node: "Ints", slot: "Ints", leaf: "Ints") -> "Ints":
    """Which routes are compared with each other: inside nodes (0), unlike slots, leaves not known, same leaf, other leaf. shape of each: (2, pairs)"""
    import numpy as np

    told = [node[0] == node[1], slot[0] != slot[1], (leaf < 0).any(axis=0), leaf[0] == leaf[1]]
    found: Ints = np.select(told, [0, 1, 2, 3], FAR)
    return found


def _references(keys: "Ints", node: "Ints", place: "Ints", rates: "Floats") -> "Floats":
    """What the better quarter of the GPUs reached at best, bytes per second, of each pair; NaN: nobody can say. `keys`: the same of pairs of one run, message size and class of routes, its rest by NUM_CLASSES."""
    import numpy as np

    number = int(place.max()) + 1
    node_of_place = np.zeros(number, np.int64)
    node_of_place[place] = node
    ends, minus_best, _ = grouped((keys * number + place).ravel(), np.concatenate([-rates, -rates]))
    order = np.lexsort((-minus_best, ends // number))
    group, best = (ends // number)[order], -minus_best[order]
    starts = starts_of(group)
    sizes = np.diff(np.append(starts, len(group)))
    quarters = best[starts + np.where(sizes >= 4, 3 * sizes // 4, sizes - 1)]
    middles = best[starts + (sizes - 1) // 2]
    nodes = np.unique((ends // number) * number + node_of_place[ends % number]) // number
    classes = group[starts] % NUM_CLASSES
    enough = np.unique(nodes, return_counts=True)[1] >= np.where(
        classes == 0, MIN_NODES["inside"], MIN_NODES["between"]
    )
    told = np.where(enough & (quarters > 0) & (middles >= CLEAR * quarters), quarters, np.nan)
    references: Floats = told[np.searchsorted(group[starts], keys)]
    return references


def _not_by_itself(keys: "Ints", leaf: "Ints", rates: "Floats", references: "Floats") -> "Floats":
    """The references of pairs, without those between leaves that nothing else bears out: where all ways out of leaves are much slower than the leaves inside, or there is one such way only and nobody measured inside. They may be
    slow by design, or ill, and nobody can say. `keys`: as `_references` has them.
    """
    import numpy as np

    of_pairs, told, place = np.unique(keys, return_index=True, return_inverse=True)
    reference = references[told]
    nearer = np.clip(np.searchsorted(of_pairs, of_pairs - 1), 0, len(of_pairs) - 1)
    best = np.zeros(len(of_pairs))
    np.maximum.at(best, place, rates)
    near = np.where(of_pairs[nearer] == of_pairs - 1, best[nearer], np.nan)
    ends = np.unique(np.concatenate([place, place]) * (int(leaf.max()) + 2) + leaf.ravel() + 1) // (int(leaf.max()) + 2)
    several = np.bincount(ends, minlength=len(of_pairs)) > 2  # leaves
    borne_out = np.where(np.isnan(near), several, reference >= LEAST_FAR * near)
    far = of_pairs % NUM_CLASSES == FAR
    found: Floats = np.where(far & ~borne_out, np.nan, reference)[place]
    return found
