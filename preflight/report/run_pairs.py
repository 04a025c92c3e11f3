"""The measured pairs of one run as columns, and what many measurements took, without a look at each of them in Python (pure). As rates.py says it of single ones."""

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from preflight.model import Evidence, Measurement
from preflight.report.pair_table import PairTable, grouped
from preflight.report.slow_ways import OP, slow_ways

if TYPE_CHECKING:
    from preflight.model.localisation import Ends, Localisation
    from preflight.report.pair_table import Floats, Ints

CLASSES = (
    "inside nodes",
    "unlike slots",
    "leaves not known, like slots",
    "same leaf, like slots",
    "other leaf, like slots",
)


def durations_of(measurements: Sequence[Measurement]) -> "Floats":
    """`duration_s` of each, NaN where nothing was timed."""
    import numpy as np

    samples = [measurement.samples for measurement in measurements]
    windows = [each.durations_s for of_one in samples for each in of_one]
    ranks, lengths = (np.fromiter(map(len, each), np.int64, len(each)) for each in (samples, windows))
    times = np.fromiter(chain.from_iterable(windows), np.float64, int(lengths.sum()))
    found = np.full(len(measurements), np.nan)
    timed = np.flatnonzero(ranks)
    if not len(timed):
        return found
    if ranks.min() == ranks.max() and 0 < lengths.min() == lengths.max():  # as a rule
        found = _median_of_slowest(times.reshape(-1, ranks[0], lengths[0]))
        found[found == 0] = np.nan
        return found
    first = (np.cumsum(ranks) - ranks)[timed]  # of each one's windows
    length, begin = lengths[first], (np.cumsum(lengths) - lengths)[first]
    even = (np.minimum.reduceat(lengths, first) == np.maximum.reduceat(lengths, first)) & (length > 0)
    shapes = np.where(even, length * (int(ranks.max()) + 1) + ranks[timed], -1)
    for shape in np.unique(shapes[even]).tolist():
        chosen = shapes == shape
        windows_each, ranks_each = divmod(shape, int(ranks.max()) + 1)
        of_shape = times[begin[chosen][:, None] + np.arange(ranks_each * windows_each)]
        found[timed[chosen]] = _median_of_slowest(of_shape.reshape(-1, ranks_each, windows_each))
    for number in timed[~even].tolist():
        found[number] = measurements[number].duration_s or np.nan
    found[found == 0] = np.nan
    return found


def _median_of_slowest(times: "Floats") -> "Floats":
    """Median over windows (last axis) of the maximum over ranks (middle axis)."""
    import numpy as np

    slowest, windows = times[:, 0], times.shape[2]
    for rank in range(1, times.shape[1]):  # a reduction over so short an axis takes three times as long
        slowest = np.maximum(slowest, times[:, rank])
    slowest = np.sort(slowest, axis=1)
    found: Floats = (slowest[:, (windows - 1) // 2] + slowest[:, windows // 2]) / 2
    return found


def table_of_run(evidence: Evidence, ended_s: float) -> PairTable | None:
    """Every pair that gave a figure and whose places the plan tells, median over its repeats. None: there is none. `ended_s`: Unix time of the run's end."""
    plan = evidence.plan
    tried = [
        m
        for m in evidence.measurements or ()
        if m.samples and (probe := m.probe).axis is None and probe.collective == OP and len(probe.ranks) == 2
    ]
    if plan is None or not tried:
        return None
    import numpy as np

    probes = [m.probe for m in tried]
    ranks = np.fromiter(chain.from_iterable([p.ranks for p in probes]), np.int64, 2 * len(tried)).reshape(-1, 2)
    rates = np.fromiter([p.size_bytes for p in probes], np.float64, len(tried)) / durations_of(tried)
    placement, world = plan.placement, len(plan.placement.node_ranks)
    low, high = np.minimum(ranks[:, 0], ranks[:, 1]), np.maximum(ranks[:, 0], ranks[:, 1])
    known = ~np.isnan(rates) & (low >= 0) & (high < world)
    if not known.any():
        return None
    keys, _, middles = grouped((low * world + high)[known], rates[known])
    a, b = keys // world, keys % world
    names = sorted(set(placement.nodes))
    numbers = {name: number for number, name in enumerate(names)}
    node_of_rank = np.array([numbers[name] for name in placement.nodes], np.int64)[np.array(placement.node_ranks)]
    slot_of_rank = np.array(placement.local_ranks, np.int64)
    node, slot = node_of_rank[[a, b]], slot_of_rank[[a, b]]
    swap = (node[0] > node[1]) | ((node[0] == node[1]) & (slot[0] > slot[1]))
    node, slot = (np.where(swap, column[::-1], column) for column in (node, slot))
    columns = node, slot, middles, middles / _references(evidence, a, b), np.zeros(len(a), np.int64)
    return PairTable(names, _leaves(evidence, names), columns, (ended_s,))


def ratios_of(evidence: Evidence) -> dict[tuple[tuple[str, int], tuple[str, int]], float]:
    """Two places (node, slot), the lower one first -> bandwidth / reference; pairs of which nobody can say are not in it."""
    table = table_of_run(evidence, 0.0)
    if table is None:
        return {}
    rows = zip(*table.node.tolist(), *table.slot.tolist(), table.ratio.tolist(), strict=True)
    return {((table.nodes[a], slot), (table.nodes[b], other)): ratio for a, b, slot, other, ratio in rows if ratio > 0}


def _leaves(evidence: Evidence, names: Sequence[str]) -> list[str | None]:
    """The leaf of each node, from the topology or else the placement; None: nobody told."""
    placement = evidence.plan.placement if evidence.plan else None
    placed = dict(zip(placement.nodes, placement.leaves, strict=True)) if placement and placement.leaves else {}
    topology = evidence.topology
    return [(topology.leaf_of(name) if topology else None) or placed.get(name) for name in names]


def references_of(found: "Localisation | None") -> dict[str, float]:
    """Class of routes -> what its healthy pairs gave. None where the run was too noisy to judge, and where GPUs of one class are joined in several ways, each with its own reference."""
    if found is None or found.unjudged or found.ends.whole_nodes:
        return {}
    ops: dict[str, set[str]] = {}
    for each in found.references:
        if each.op.split(" ", 1)[0] == OP:
            ops.setdefault(each.route, set()).add(each.op)
    return {
        each.route: each.bytes_per_s
        for each in found.references
        if ops.get(each.route) == {OP} and each.op == OP and each.bytes_per_s > 0
    }


def _references(evidence: Evidence, a: "Ints", b: "Ints") -> "Floats":
    """What healthy pairs of the same class of routes gave, or what the slow way was held against that a pair takes; NaN: nobody can say."""
    import numpy as np

    found = evidence.localisation
    by_class = references_of(found)
    if found is None or not by_class:
        return np.full(len(a), np.nan)
    rates = np.array([by_class.get(name, np.nan) for name in CLASSES])
    known = (a < len(found.ends.node)) & (b < len(found.ends.node))
    references = np.full(len(a), np.nan)
    references[known] = rates[_class_of(found.ends, a[known], b[known])]
    for way in slow_ways(found):
        side = np.array(way.side, np.int64)
        takes = np.flatnonzero(known)[side[a[known]] * side[b[known]] == 2]
        references[takes] = np.maximum(references[takes], way.bytes_per_s)
    return references


def _class_of(ends: "Ends", a: "Ints", b: "Ints") -> "Ints":
    """The place of each pair's class of routes in CLASSES, as the localiser calls them."""
    import numpy as np

    names = sorted({leaf for leaf in ends.leaves or () if leaf is not None})
    leaf_of_node = np.array(
        [names.index(leaf) if leaf is not None else -1 for leaf in ends.leaves or (None,) * len(ends.nodes)]
    )
    node, slot = np.array(ends.node)[[a, b]], np.array(ends.slot)[[a, b]]
    leaf = leaf_of_node[node]
    told = [node[0] == node[1], slot[0] != slot[1], (leaf < 0).any(axis=0), leaf[0] == leaf[1]]
    found: Ints = np.select(told, [0, 1, 2, 3], 4)
    return found
