"""The shots among which parts are looked for: their verdicts, and which parts each crossed."""

from typing import TYPE_CHECKING, NamedTuple

from preflight.judge.localise.table import Table

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Ints = NDArray[Any]
    Floats = NDArray[Any]
    Bools = NDArray[Any]


class Scale(NamedTuple):
    """`noise`: of one shot. `floor`: the smallest depth that is called. `edge`: the share of the reference below which a shot counts as slow, half way to the floor."""

    noise: float
    floor: float
    edge: float


class View(NamedTuple):
    """Shots with two ends that go both ways. `fast` and `slow` exclude each other; a failed shot is neither, and `failed`."""

    table: Table
    ratio: "Floats"
    fast: "Bools"
    slow: "Bools"
    failed: "Bools"
    scale: Scale
    inside: bool  # these are the pairs inside nodes

    @property
    def size(self) -> int:
        """How many shots."""
        return int(self.fast.size)


def view_of(table: Table, ratio: "Floats", scale: Scale, *, inside: bool) -> View:
    """The view of these shots."""
    import numpy as np

    known = np.isfinite(ratio)
    fast = known & (np.where(known, ratio, 0.0) >= scale.edge)
    return View(table, ratio, fast, known & ~fast, ~known, scale, inside)


class Level(NamedTuple):
    """A kind of part: for each shot the part that it crosses at either end, -1: none. `name`: of the level; larger parts first in LEVELS."""

    name: str
    at_a: "Ints"
    at_b: "Ints"
    number: int


def levels(view: View) -> list[Level]:
    """The levels that mean something for these shots, in the order in which equals are preferred."""
    import numpy as np

    t = view.table
    none = np.full(view.size, -1)
    slots = int(t.end_slot.max(initial=0)) + 1
    ends_of_node = np.bincount(t.end_node, minlength=len(t.ends.nodes))
    single = ends_of_node <= 1
    found = []
    like = t.slot_a == t.slot_b
    if not t.ends.whole_nodes and slots > 1:
        found.append(Level("slot", t.slot_a, np.where(like, -1, t.slot_b), slots))
    leaves = len(t.leaves)
    if leaves and not view.inside:
        known = (t.leaf_a >= 0) & (t.leaf_b >= 0)
        other = known & (t.leaf_a != t.leaf_b)
        here, there = np.where(known, t.leaf_a, -1), np.where(other, t.leaf_b, -1)
        found.append(Level("leaf", here, there, leaves))
        found.append(Level("uplink", np.where(other, t.leaf_a, -1), there, leaves))
        if slots > 1:
            ways = leaves * slots
            at_a, at_b = t.leaf_a * slots + t.slot_a, t.leaf_b * slots + t.slot_b
            found.append(
                Level("leaf slot", np.where(known, at_a, -1), np.where(known & (at_a != at_b), at_b, -1), ways)
            )
            found.append(Level("way out", np.where(other, at_a, -1), np.where(other, at_b, -1), ways))
        inner = known & ~other
        found.append(Level("inside leaf", np.where(inner, t.leaf_a, -1), none, leaves))
    found += [_class_level(view, fact) for fact in t.ends.classes]
    apart = t.node_a != t.node_b
    found.append(Level("node", t.node_a, np.where(apart, t.node_b, -1), len(t.ends.nodes)))
    found.append(
        Level(
            "end",
            np.where(single[t.node_a], -1, t.a),
            np.where(single[t.node_b], -1, t.b),
            len(t.ends.node),
        )
    )
    return found


def _class_level(view: View, fact: str) -> Level:
    """Nodes by the value of one software fact."""
    import numpy as np

    t = view.table
    values = t.ends.classes[fact]
    known = [value for value in dict.fromkeys(values) if value is not None]
    number = {value: i for i, value in enumerate(known)}
    of = np.array([-1 if value is None else number[value] for value in values], dtype=np.int64)
    a, b = of[t.node_a], of[t.node_b]
    return Level(f"class {fact}", a, np.where(a == b, -1, b), len(known))


def count(level: Level, mask: "Bools") -> "Ints":
    """How many shots of the mask cross each part of the level."""
    import numpy as np

    at_a, at_b = level.at_a[mask], level.at_b[mask]
    number: Ints = np.bincount(at_a[at_a >= 0], minlength=level.number) + np.bincount(
        at_b[at_b >= 0], minlength=level.number
    )
    return number


def crossing(level: Level, part: int) -> "Bools":
    """Which shots cross this part."""
    found: Bools = (level.at_a == part) | (level.at_b == part)
    return found
