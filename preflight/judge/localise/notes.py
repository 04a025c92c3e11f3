"""What is said and blamed on nothing: gaps between route classes, transients, crowded pairs; and an environment that is slow as a whole."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from preflight.judge.localise.table import INSIDE
from preflight.model.localisation import Culprit, Ends
from preflight.model.units import show_rate

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Bools = NDArray[Any]

    from preflight.judge.localise.whole import Grounds, Judged

ALIKE_NODES = 4  # from how many nodes on the environment is blamed for what all have in common
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
                f"{name}: {rows[0][1]} give {show_rate(rows[0][0])}, {gap:.0%} less than {rows[-1][1]} with {show_rate(rows[-1][0])}: a difference between routes, by itself no part's fault"
            )
    return notes


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
            rate, who = show_rate(r.bytes_per_s), "nodes" if ends.whole_nodes else "GPUs"
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
