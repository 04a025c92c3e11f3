"""Two leaves only: all between them is one class of routes, whose own reference hides a slow way. A gap beyond that of healthy classes is the path between them, or the fabric is built so.

What tells the two apart is a pair that has the way to itself: too few uplinks slow only those who share them.
"""

from typing import TYPE_CHECKING

from preflight.judge.localise.reference import ClassReference
from preflight.judge.localise.table import OTHER_LEAF, SAME_LEAF, Table, base_op
from preflight.model.localisation import LONE, Ask, Culprit
from preflight.model.units import show_rate

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Bools = NDArray[Any]

    from preflight.judge.localise.whole import Grounds

DESIGN_GAP = 0.25  # between the two leaves of a run: twice what healthy route classes differ by at most
LONE_SHOTS = 2
FASTEST_NIC = 100e9  # bytes per second: 800 Gbit/s. What is faster between two GPUs is NVLink, and a rack (NVL72) is no leaf that the network could match


def class_apart(pairs: Table, references: list[ClassReference]) -> "Bools":
    """The shots between the two leaves of a run, where their class as a whole is so slow that it is named: what they do among themselves tells nothing, and they swing."""
    import numpy as np

    apart = np.zeros(pairs.a.size, np.bool_)
    for _, far in _far_apart(pairs, references):
        apart |= (pairs.op == far.op) & (pairs.route == far.route)
    return apart


def _far_apart(pairs: Table, references: list[ClassReference]) -> list[tuple[ClassReference, ClassReference]]:
    """(same leaf, other leaf) of the same operation, where there are two leaves and the second is far below. Not where NVLink joins the nodes of a leaf."""
    of = {(r.op, r.route): r for r in references}
    twos = [
        (of.get((op, near)), of.get((op, far)))
        for op in range(len(pairs.ops))
        for near, far in zip(SAME_LEAF, OTHER_LEAF, strict=True)
    ]
    return [
        (same, other)
        for same, other in twos
        if len(pairs.leaves) == 2
        and same
        and other
        and other.bytes_per_s <= (1 - DESIGN_GAP) * same.bytes_per_s
        and (pairs.ends.whole_nodes or same.bytes_per_s <= FASTEST_NIC)
    ]


def between_two_leaves(grounds: "Grounds", table: Table) -> list[Culprit]:
    """The path between the two leaves where it is far slower than inside them: "likely" where a pair with the way to itself is slow too and neither leaf is one node only, else "possible"."""
    import numpy as np

    t, found = grounds.pairs, []
    for same, other in _far_apart(t, grounds.references):
        depth = 1 - other.bytes_per_s / same.bytes_per_s
        if depth < grounds.scale.floor:
            continue
        sides = [np.flatnonzero(t.node_leaf == leaf).tolist() for leaf in (0, 1)]
        one, two = (tuple(t.ends.nodes[i] for i in side) for side in sides)
        near, far = show_rate(same.bytes_per_s), show_rate(other.bytes_per_s)
        keys = [int(t.position[i]) for i in np.flatnonzero((t.op == other.op) & (t.route == other.route))[:12]]
        by_itself = lone_rate(table, other)
        slow = by_itself is not None and by_itself <= (1 - DESIGN_GAP) * same.bytes_per_s
        alone = next((side[0] for side in (one, two) if len(side) == 1), None)
        found.append(
            Culprit(
                kind="path",
                confidence="likely" if slow and alone is None else "possible",
                nodes=one,
                other_nodes=two,
                ops=(t.ops[other.op],),
                observed_bytes_per_s=other.bytes_per_s,
                reference_bytes_per_s=same.bytes_per_s,
                depth=depth,
                reference=f"like peers in this run: {near} {t.routes[same.route]}",
                reason=f"every pair between {t.leaves[0]} and {t.leaves[1]} is slow, {far}, {1 - depth:.0%} of pairs inside them, where healthy fabrics lose 5 to 12 %: {_why(by_itself, slow=slow, alone=alone)}",
                evidence=tuple(grounds.keys[place] for place in keys),
            )
        )
    return found


def _why(by_itself: float | None, *, slow: bool, alone: str | None) -> str:
    if alone is not None:
        return f"the way between the leaves, or {alone} itself, beside which no node of its leaf was tried"
    if by_itself is None:
        return "the way between the leaves, or too few uplinks by design"
    rate = show_rate(by_itself)
    if slow:
        return f"a pair with the way to itself is slow too, {rate}, so it is not shared out: the way between the leaves"
    return f"a pair with the way to itself gives {rate}, so it is shared out: too few uplinks by design, or some of them down"


def lone_rate(table: Table, far: ClassReference) -> float | None:
    """The best rate, in bytes per second, of pairs between the leaves that had the way to themselves. None: fewer than LONE_SHOTS were tried."""
    import numpy as np

    same_op = np.isin(table.op, [i for i, op in enumerate(table.ops) if op == f"{table.ops[far.op]} {LONE}"])
    rates = table.rate[same_op & (table.route == far.route) & np.isfinite(table.rate)]
    return float(rates.max()) if rates.size >= LONE_SHOTS else None


def lone_asks(table: Table, grounds: "Grounds") -> list[Ask]:
    """The two pairs between the leaves that were fastest, each with the way to itself, where that was not tried."""
    import numpy as np

    t, asks = grounds.pairs, []
    for _, far in _far_apart(t, grounds.references):
        if lone_rate(table, far) is None:
            rows = np.flatnonzero((t.op == far.op) & (t.route == far.route) & np.isfinite(t.rate))
            best = {(int(t.a[row]), int(t.b[row])): row for row in rows[np.argsort(t.rate[rows])].tolist()}
            pairs = sorted(best, key=lambda pair: -float(t.rate[best[pair]]))[:LONE_SHOTS]
            why, op = "with the way between the leaves to itself", base_op(t.ops[far.op])
            asks += [Ask(a=a, b=b, op=op, reason=why, lone=True) for a, b in (pairs * LONE_SHOTS)[:LONE_SHOTS]]
    return asks
