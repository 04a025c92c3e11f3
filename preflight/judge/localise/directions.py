"""Which way a part is slow: shots that went one way only, from the part and to it."""

from typing import TYPE_CHECKING, NamedTuple

from preflight.judge.localise.reference import class_references, ratios
from preflight.judge.localise.table import Table
from preflight.model.localisation import Direction

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Bools = NDArray[Any]
    Floats = NDArray[Any]


class OneWay(NamedTuple):
    """Shots one way, each with its share of what such shots give."""

    table: Table
    ratio: "Floats"


def one_way_of(table: Table, both_ways: dict[int, float]) -> OneWay:
    """The one-way shots. `both_ways`: route -> reference of shots both ways, below which no reference for one way lies: a single direction has no less than both at once give it."""
    import numpy as np

    mine = table.part(table.one_way & np.isfinite(table.rate))
    found = [
        reference._replace(bytes_per_s=max(reference.bytes_per_s, both_ways.get(reference.route, 0.0)))
        for reference in class_references(mine)
    ]
    return OneWay(mine, ratios(mine, found))


def direction_of(shots: OneWay, inside: "Bools", beyond: "Bools", edge: float) -> Direction | None:
    """Sending: slow from the ends of `inside` to those of `beyond` and fast the other way. None: not measured both ways, or fast both ways.

    The masks have one entry per end.
    """
    t = shots.table
    out = shots.ratio[inside[t.a] & beyond[t.b]]
    into = shots.ratio[beyond[t.a] & inside[t.b]]
    if not out.size or not into.size:
        return None
    # by the best of each way: other parts on the way may hold back some
    slow_out, slow_in = float(out.max()) < edge, float(into.max()) < edge
    if slow_out and slow_in:
        return "both"
    return "sending" if slow_out else "receiving" if slow_in else None


def counted(shots: OneWay, inside: "Bools", beyond: "Bools") -> tuple[int, int]:
    """How many shots went from the part, and to it."""
    import numpy as np

    t = shots.table
    out, into = inside[t.a] & beyond[t.b], beyond[t.a] & inside[t.b]
    return int(np.count_nonzero(out)), int(np.count_nonzero(into))
