"""Measured pairs of GPUs in columns, of one run or of a history, and the bounded series that are made of them (pure). A fleet of 512 nodes has tens of thousands of pairs: numpy, which is only loaded where there are some."""

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from preflight.metrics import Samples

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]
    Floats: TypeAlias = NDArray[np.float64]

MAX_WORST = 50  # pairs, and findings, that have a series of their own
MIN_PARTNERS = 2  # nodes: with a single partner nobody can say which of the two is slow
CLEARED = 0.85  # a node that reaches so much with some partner is not what makes others' pairs slow: the limit of PreflightNodeSlow
ROUTES = ("between", "inside")


class Gauge(NamedTuple):
    """One family: its name in the catalogue, and for each series the values of its own labels, in their order, and the figure."""

    name: str
    series: Samples


class PairTable:
    """One row for each pair and run that measured it, the newest run first; the first end is the one whose (node, slot) comes first.

    `nodes`: names, sorted; `leaves`: of each, None: nobody told. `node`, `slot`: of both ends (two rows), by number in `nodes`. `rate`: busbw in bytes per second; `ratio`: to its reference, NaN: nobody can say.
    `run`: number of the run, from 0, the newest; `ended_s`: Unix time of each run's end.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        leaves: Sequence[str | None],
        columns: "tuple[Ints, Ints, Floats, Floats, Ints]",
        ended_s: Sequence[float],
    ) -> None:
        import numpy as np

        self.nodes, self.leaves, self.ended_s = nodes, leaves, ended_s
        self.node, self.slot, self.rate, self.ratio, self.run = columns
        places = self.node * (int(self.slot.max()) + 1) + self.slot
        pair = places[0] * (int(places.max()) + 1) + places[1]
        self.newest_of_pair = np.unique(pair, return_index=True)[1]  # rows

    def __len__(self) -> int:
        return len(self.rate)


def grouped(keys: "Ints", values: "Floats") -> "tuple[Ints, Floats, Floats]":
    """Each key once, in their order, with the smallest and the middle one of its values."""
    import numpy as np

    order = np.lexsort((values, keys))
    keys, values = keys[order], values[order]
    starts = starts_of(keys)
    sizes = np.diff(np.append(starts, len(keys)))
    middles = (values[starts + (sizes - 1) // 2] + values[starts + sizes // 2]) / 2
    return keys[starts], values[starts], middles


def starts_of(ordered: "Ints") -> "Ints":
    """Where each run of equal values begins."""
    import numpy as np

    changed: Ints = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    return changed


def _newest(keys: "Ints", runs: "Ints", size: int) -> "Ints":
    """By key, up to `size`: the newest run that has it; -1: none."""
    import numpy as np

    newest = np.full(size, -1, np.int64)
    newest[keys[::-1]] = runs[::-1]  # rows stand with the newest run first: it is written last
    return newest


def pair_families(table: PairTable | None, *, max_leaves: int) -> Iterator[Gauge]:
    """What the newest run that measured each node, and each two leaves, gave, and when it ended; of all pairs the slowest, each as it was measured last. None: there are no pairs."""
    if table is None:
        return
    cleared = yield from _of_nodes(table)
    yield from _of_leaves(table, cleared, max_leaves)
    yield from _slowest(table)


def _of_nodes(table: PairTable) -> "Generator[Gauge, None, NDArray[np.bool_]]":
    """By node and route. Returns for each row whether both its nodes are cleared: fast with some partner in that run."""
    import numpy as np

    (a, b), number = table.node, len(table.nodes)
    between = np.flatnonzero(a != b)
    rows = np.concatenate([np.arange(len(a)), between])  # a pair stands once for each of its nodes
    node, partner = np.concatenate([a, b[between]]), np.concatenate([b, a[between]])
    order = np.argsort(rows, kind="stable")
    rows, node, partner = rows[order], node[order], partner[order]
    part, run = 2 * node + (node == partner), table.run[rows]
    newest = _newest(part, run, 2 * number)
    fresh = run == newest[part]
    keys, lows, middles = grouped(part[fresh], table.rate[rows[fresh]])
    told = [(table.nodes[key >> 1], ROUTES[key & 1]) for key in keys.tolist()]
    yield Gauge("pair_bus_bandwidth_minimum_bytes_per_second", list(zip(told, lows.tolist(), strict=True)))
    yield Gauge("pair_bus_bandwidth_median_bytes_per_second", list(zip(told, middles.tolist(), strict=True)))
    times = [(key, table.ended_s[of]) for key, of in zip(told, newest[keys].tolist(), strict=True)]
    yield Gauge("node_measured_timestamp_seconds", times)
    ratio = table.ratio[rows]
    known = ~np.isnan(ratio)
    in_run, best = _best_partner(((run * 2 * number + part) * number + partner)[known], ratio[known], number)
    parts = in_run % (2 * number)
    shown = in_run // (2 * number) == newest[parts]
    told = [(table.nodes[key >> 1], ROUTES[key & 1]) for key in parts[shown].tolist()]
    yield Gauge("node_bandwidth_ratio", list(zip(told, best[shown].tolist(), strict=True)))
    fast = in_run[(parts % 2 == 0) & (best >= CLEARED)]
    return np.isin((table.run * number + a) * 2, fast) & np.isin((table.run * number + b) * 2, fast)


def _best_partner(keys: "Ints", ratios: "Floats", number: int) -> "tuple[Ints, Floats]":
    """(run, node, route) as one number -> the middle ratio with the partner node that it does best with, since a fast pair clears both. Between nodes only where there are MIN_PARTNERS or more. `keys`: with the partner's number."""
    import numpy as np

    with_partner, _, middles = grouped(keys, ratios)
    alone = with_partner // number
    starts = starts_of(alone)
    if not len(starts):
        return alone, middles
    partners = np.diff(np.append(starts, len(alone)))
    found, best = alone[starts], np.maximum.reduceat(middles, starts)
    enough = (found % 2 == 1) | (partners >= MIN_PARTNERS)
    return found[enough], best[enough]


def _of_leaves(table: PairTable, cleared: "NDArray[np.bool_]", max_leaves: int) -> Iterator[Gauge]:
    """By pairs of leaves. The ratio: of pairs whose nodes are both cleared, so that no path is called slow for a node's sake."""
    import numpy as np

    names = sorted({leaf for leaf in table.leaves if leaf is not None})
    numbers = {leaf: number for number, leaf in enumerate(names)}
    of_node = np.array([-1 if leaf is None else numbers[leaf] for leaf in table.leaves], np.int64)
    ends = np.sort(of_node[table.node], axis=0)
    rows = np.flatnonzero((table.node[0] != table.node[1]) & (ends[0] >= 0))
    if not len(rows) or len(np.unique(ends[:, rows])) > max_leaves:
        return
    leaves, run = ends[0, rows] * len(names) + ends[1, rows], table.run[rows]
    newest = _newest(leaves, run, len(names) ** 2)
    fresh = run == newest[leaves]
    rows, leaves = rows[fresh], leaves[fresh]
    keys, lows, middles = grouped(leaves, table.rate[rows])
    told = [(names[key // len(names)], names[key % len(names)]) for key in keys.tolist()]
    yield Gauge("leaf_pair_bus_bandwidth_minimum_bytes_per_second", list(zip(told, lows.tolist(), strict=True)))
    yield Gauge("leaf_pair_bus_bandwidth_median_bytes_per_second", list(zip(told, middles.tolist(), strict=True)))
    times = [(key, table.ended_s[of]) for key, of in zip(told, newest[keys].tolist(), strict=True)]
    yield Gauge("leaf_pair_measured_timestamp_seconds", times)
    known = cleared[rows] & ~np.isnan(table.ratio[rows])
    keys, _, middles = grouped(leaves[known], table.ratio[rows[known]])
    told = [(names[key // len(names)], names[key % len(names)]) for key in keys.tolist()]
    yield Gauge("leaf_pair_bandwidth_ratio", list(zip(told, middles.tolist(), strict=True)))


def _slowest(table: PairTable) -> Iterator[Gauge]:
    import numpy as np

    rows = table.newest_of_pair
    ratio, rate = table.ratio[rows], table.rate[rows]
    unknown = np.isnan(ratio)
    worst = np.lexsort((np.where(unknown, rate, ratio), unknown))[:MAX_WORST]
    rows, ratios = rows[worst], ratio[worst].tolist()
    ends = zip(*table.node[:, rows].tolist(), *table.slot[:, rows].tolist(), strict=True)
    keys = [(table.nodes[a], str(slot), table.nodes[b], str(other)) for a, b, slot, other in ends]
    rates = table.rate[rows].tolist()
    yield Gauge("slowest_pair_bus_bandwidth_bytes_per_second", list(zip(keys, rates, strict=True)))
    known = [(key, ratio) for key, ratio in zip(keys, ratios, strict=True) if ratio == ratio]  # noqa: PLR0124 - no NaN
    yield Gauge("slowest_pair_bandwidth_ratio", known)


def ratios_by_route(table: PairTable | None) -> dict[tuple[str, ...], list[float]]:
    """(route,) -> ratios, for the histogram: of each pair as it was measured last."""
    if table is None:
        return {}
    import numpy as np

    rows = table.newest_of_pair
    rows = rows[~np.isnan(table.ratio[rows])]
    inside = table.node[0, rows] == table.node[1, rows]
    found = {(route,): table.ratio[rows[inside == bool(i)]].tolist() for i, route in enumerate(ROUTES)}
    return {key: ratios for key, ratios in found.items() if ratios}
