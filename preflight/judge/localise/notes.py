"""What is said and blamed on nothing: gaps between route classes, transients, crowded pairs; and an environment that is slow as a whole."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from preflight.judge.localise.reference import ClassReference
from preflight.judge.localise.table import INSIDE, OTHER_LEAF, SAME_LEAF, Table
from preflight.judge.localise.words import rate_text
from preflight.model.localisation import Culprit, Ends

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Bools = NDArray[Any]

    from preflight.judge.localise.whole import Grounds, Judged

ALIKE_NODES = 4  # from how many nodes on the environment is blamed for what all have in common
DESIGN_GAP = 0.25  # between the two leaves of a run: twice what healthy route classes differ by at most
GATE = 0.9  # of what a formula allows: gates in use sit 2 to 13 % under typical


def notes_of(judged: "list[Judged]", grounds: "Grounds") -> tuple[str, ...]:
    """In sentences without a subject that could be drained."""
    notes = list(_gaps(grounds))
    if grounds.noise is None:
        notes.append("no noise is known, since nothing was repeated")
    elif not grounds.noise.repeats:
        notes.append(f"the noise of {grounds.noise.value:.1%} is {grounds.noise.source}")
    for each in judged:
        passing = sum(pair.again > 1 for pair in each.rest.passing)
        if passing:
            notes.append(f"{each.op}: {passing} pairs were slow once and not again")
        if each.rest.crowded:
            number = len(each.rest.crowded)
            notes.append(
                f"{each.op}: {number} slow pairs, too many on one rail or node for faults of single links: flows that collide on links between switches, or work of others"
            )
        shallow = [explained for explained in each.outcome.explained if not explained.called]
        if shallow:
            notes.append(
                f"{each.op}: {len(shallow)} parts are slower than their peers by less than the {grounds.scale.floor:.0%} that this noise lets us call"
            )
    return tuple(notes)


def _gaps(grounds: "Grounds") -> list[str]:
    """How far the route classes of one operation are apart, largest rate first, inside nodes left out."""
    t, notes = grounds.pairs, []
    for op, name in enumerate(t.ops):
        rows = sorted((r.bytes_per_s, t.routes[r.route]) for r in grounds.references if r.op == op and r.route != 0)
        if len(rows) > 1 and rows[0][0] < 0.97 * rows[-1][0]:
            gap = 1 - rows[0][0] / rows[-1][0]
            notes.append(
                f"{name}: {rows[0][1]} give {rate_text(rows[0][0])}, {gap:.0%} less than {rows[-1][1]} with {rate_text(rows[-1][0])}: a difference between routes, blamed on no part"
            )
    return notes


def class_apart(pairs: Table, references: list[ClassReference]) -> "Bools":
    """The shots between the two leaves of a run, where their class as a whole is so slow that it is named: what they do among themselves tells nothing, and they swing."""
    import numpy as np

    apart = np.zeros(pairs.a.size, np.bool_)
    for _, far in _far_apart(pairs, references):
        apart |= (pairs.op == far.op) & (pairs.route == far.route)
    return apart


def _far_apart(pairs: Table, references: list[ClassReference]) -> list[tuple[ClassReference, ClassReference]]:
    """(same leaf, other leaf) of the same operation, where there are two leaves and the second is far below."""
    of = {(r.op, r.route): r for r in references}
    twos = [
        (of.get((op, near)), of.get((op, far)))
        for op in range(len(pairs.ops))
        for near, far in zip(SAME_LEAF, OTHER_LEAF, strict=True)
    ]
    return [
        (same, other)
        for same, other in twos
        if len(pairs.leaves) == 2 and same and other and other.bytes_per_s <= (1 - DESIGN_GAP) * same.bytes_per_s
    ]


def between_two_leaves(grounds: "Grounds") -> list[Culprit]:
    """Where there are two leaves only, all between them is one class, and its own reference hides a slow way. A gap far beyond that of healthy classes is the path, unless the fabric is built so."""
    import numpy as np

    t, found = grounds.pairs, []
    for same, other in _far_apart(t, grounds.references):
        depth = 1 - other.bytes_per_s / same.bytes_per_s
        if depth < grounds.scale.floor:
            continue
        sides = [np.flatnonzero(t.node_leaf == leaf).tolist() for leaf in (0, 1)]
        one, two = (tuple(t.ends.nodes[i] for i in side) for side in sides)
        near, far = rate_text(same.bytes_per_s), rate_text(other.bytes_per_s)
        keys = [int(t.position[i]) for i in np.flatnonzero((t.op == other.op) & (t.route == other.route))[:12]]
        found.append(
            Culprit(
                kind="path",
                confidence="possible",
                nodes=one,
                other_nodes=two,
                ops=(t.ops[other.op],),
                observed_bytes_per_s=other.bytes_per_s,
                reference_bytes_per_s=same.bytes_per_s,
                depth=depth,
                reference=f"like peers in this run: {near} {t.routes[same.route]}",
                reason=f"every pair between {t.leaves[0]} and {t.leaves[1]} is slow, {far}, {1 - depth:.0%} of pairs inside them, where healthy fabrics lose 5 to 12 %: the way between the leaves, or too few uplinks by design",
                evidence=tuple(grounds.keys[place] for place in keys),
            )
        )
    return found


def environment(grounds: "Grounds", expected: Mapping[tuple[str, str], tuple[float, str]], ends: Ends) -> list[Culprit]:
    """All routes between nodes, or all inside nodes, alike slow beside the formula, over four nodes or more. One route class that is slow alone is a gap between classes."""
    t, found = grounds.pairs, []
    for inside in (False, True):
        beside = [
            (1 - r.bytes_per_s / formula[0], r, formula)
            for r in grounds.references
            for formula in (expected.get((t.ops[r.op], t.routes[r.route])),)
            if formula is not None and formula[0] > 0 and (t.routes[r.route] == INSIDE) == inside
        ]
        if not beside or len(ends.nodes) < ALIKE_NODES:
            continue
        depth, r, formula = min(beside, key=lambda row: row[0])
        if depth > max(1 - GATE, grounds.scale.floor):
            rate, who = rate_text(r.bytes_per_s), "nodes" if ends.whole_nodes else "GPUs"
            found.append(
                Culprit(
                    kind="environment",
                    confidence="likely",
                    ops=(t.ops[r.op],),
                    observed_bytes_per_s=r.bytes_per_s,
                    reference_bytes_per_s=formula[0],
                    depth=depth,
                    reference=formula[1],
                    reason=f"{t.routes[r.route]}: even the best of {r.ends} {who} give {rate}, {1 - depth:.0%} of what the hardware allows",
                )
            )
    return found
