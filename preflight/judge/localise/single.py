"""Single parts whose every shot is slow: the rule of the robust maximum, with what must be seen before one is named."""

from typing import TYPE_CHECKING, NamedTuple

from preflight.judge.localise.view import Level, View, count, crossing

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Ints = NDArray[Any]
    Floats = NDArray[Any]
    Bools = NDArray[Any]

CHANCE = 0.02  # the expected number of parts that transients alone make look slow throughout, at most, in runs and logs of a few nodes
FLEET_CHANCE = 2e-4  # and in fleets, which are examined again and again, and where probes that were slow are repeated without a person
FEW_PARTS = 200
LEAST_TRANSIENTS = 0.01  # assumed where fewer were seen: 1 % of the iterations dip by 10 % on a healthy 8 x B200
LEAST_STICKY = (
    0.002  # of pairs that are slow each time though both ends are good: with 500 pairs and none seen, one may be
)
STICKY_CHANCE = 0.005
SLOT_NODES = 4  # with three nodes two bad NICs explain a slow slot as well
ALIKE, FEW_ALIKE = (
    0.6,
    4,
)  # a GPU's own fault slows 95 of 100 of its shots by about the same; shots slowed by 10 to 50 % by chance lie so close together once in some ten parts
RESTLESS = (
    50  # GPUs on hosts with other work that one fleet may have, each of which gets the chance to be slow throughout
)
CLEARED = 2  # good partners beside which a part is named: with a single one, the pair explains as much


class Seen(NamedTuple):
    """A part that explains slow shots. `shots`: what it explains. `crossing`: all slow shots across it, explained by others too. `partners`: parts beyond it that are cleared."""

    level: str
    part: int
    shots: "Bools"
    crossing: "Bools"
    partners: int


class Best(NamedTuple):
    """The best shot of each end (`across`: of those between leaves), node and leaf's way out, as a share of the reference; 0: none. What a part reached once is not what holds
    back a slower shot.
    """

    end: "Floats"
    across: "Floats"
    node: "Floats"
    uplink: "Floats"

    def cleared(self, limit: float) -> "Cleared":
        """The parts that reached that much."""
        return Cleared(self.end >= limit, self.across >= limit, self.node >= limit, self.uplink >= limit)


class Cleared(NamedTuple):
    """Parts that are known to be good enough."""

    end: "Bools"
    across: "Bools"
    node: "Bools"
    uplink: "Bools"


def best_of(view: View) -> Best:
    """By the shots of this view; leaves' ways out by shots between leaves."""
    import numpy as np

    t = view.table
    ratio = np.where(np.isfinite(view.ratio), view.ratio, 0.0)
    end, node, uplink = (np.zeros(size) for size in (len(t.ends.node), len(t.ends.nodes), max(1, len(t.leaves))))
    far = np.zeros(len(t.ends.node))
    np.maximum.at(end, t.a, ratio)
    np.maximum.at(end, t.b, ratio)
    np.maximum.at(node, t.end_node, end)
    across = (t.leaf_a != t.leaf_b) & (t.leaf_a >= 0) & (t.leaf_b >= 0)
    np.maximum.at(far, t.a[across], ratio[across])
    np.maximum.at(far, t.b[across], ratio[across])
    np.maximum.at(uplink, t.leaf_a[across], ratio[across])
    np.maximum.at(uplink, t.leaf_b[across], ratio[across])
    return Best(end, far, node, uplink)


def clearing_limit(view: View, slow: "float | Floats") -> "Any":
    """The share of the reference that clears a part of what holds shots back to `slow`: as much above it as the edge is below the reference, or the edge."""
    import numpy as np

    return np.minimum(view.scale.edge, slow / view.scale.edge)


def need(parts: int, transients: float, *, least: float = LEAST_TRANSIENTS, chance: float | None = None) -> int:
    """How many slow shots make a part a suspect, so that transients alone would make a small number of all parts look so: parts x rate^need <= the chance.

    Example: 16,384 ends and 1 % transients: 16384 x 0.01^4 = 0.00016, so 4. At least 2: one slow shot is repeated before anything is blamed.
    """
    rate = max(transients, least)
    chance = chance or (CHANCE if parts <= FEW_PARTS else FLEET_CHANCE)
    number, expected = 2, parts * rate**2
    while expected > chance and number < 12:
        number, expected = number + 1, expected * rate
    return number


def candidates(view: View, level: Level, unexplained: "Bools", transients: float) -> list[tuple[int, int]]:
    """(slow shots, part) of the parts of a level that no fast shot refutes, most first."""
    import numpy as np

    slow = count(level, unexplained)
    measured = int(np.count_nonzero(count(level, view.fast | view.slow)))
    least = need(measured, transients)
    found = np.flatnonzero((slow >= least) & (count(level, view.fast) == 0))
    return sorted(((int(slow[part]), int(part)) for part in found), reverse=True)


def sticky(view: View, at_a: "Ints", at_b: "Ints", unexplained: "Bools", good: "Bools") -> float:
    """The share of pairs of good parts that were slow each time without an explanation: what a path that nobody has named yet, or collisions, do to any pair.

    `at_a`, `at_b`: the parts at either end of each shot. `good`: by part.
    """
    import numpy as np

    known = (view.fast | view.slow) & good[at_a] & good[at_b] & (at_a != at_b)
    number = good.size
    key = np.minimum(at_a, at_b) * number + np.maximum(at_a, at_b)
    pairs, place = np.unique(key[known], return_inverse=True)
    if pairs.size < 10:
        return LEAST_STICKY
    slow = np.bincount(place, unexplained[known], pairs.size)
    share = float(np.mean(slow == np.bincount(place, minlength=pairs.size)))
    return min(0.5, max(LEAST_STICKY, share))


def seen(
    view: View, level: Level, part: int, *, unexplained: "Bools", best: Best, stuck: "dict[str, float]"
) -> Seen | None:
    """The part with its evidence. None: a faster shot across it refutes it, explained by another part though it is, or not enough stands beside it to single it out."""
    import numpy as np

    mine = crossing(level, part)
    shots = mine & unexplained
    limit = float(clearing_limit(view, np.median(view.ratio[shots])))
    others = view.ratio[mine & ~unexplained & (view.fast | view.slow)]
    if others.size and float(others.max()) >= limit:
        return None
    if level.name == "end" and not alike_enough(view, view.ratio[shots]):
        return None
    if level.name == "end" and not _beyond_its_node(view, part, unexplained, int(np.count_nonzero(shots))):
        return None
    kind = "class" if level.name.startswith("class ") else level.name
    partners = _PARTNERS[kind](view, part, shots, best.cleared(limit))
    if partners is None or partners < _partners_needed(view, level, stuck):
        return None
    return Seen(level.name, part, shots, mine & view.slow, partners)


def _partners_needed(view: View, level: Level, stuck: "dict[str, float]") -> int:
    """How many good partners a single end or node must have been slow with: more where pairs of good ones are slow too."""
    if level.name not in stuck or view.inside:
        return CLEARED
    return need(level.number, stuck[level.name], least=LEAST_STICKY, chance=STICKY_CHANCE)


def alike_enough(view: View, values: "Floats") -> bool:
    """Whether a part's slow shots, as shares of the reference, are slow by about as much: a part that is ill holds each of them back alike, other work on a busy host each by another amount.

    A share of ALIKE of them lies within the edge of the largest group of them. Few shots tell nothing of that.
    """
    import numpy as np

    if values.size < FEW_ALIKE:
        return True
    ordered = np.sort(values)
    within = np.searchsorted(ordered, ordered / view.scale.edge, side="right") - np.arange(ordered.size)
    return bool(within.max() >= ALIKE * values.size)


def unrest_of(view: View, node: int, mine: "Bools", open_shots: "Bools") -> float:
    """The share of a node's other shots that were slow without an explanation; 0 where too few are known. `mine`: shots of the part in question."""
    import numpy as np

    t = view.table
    others = ((t.node_a == node) | (t.node_b == node)) & ~mine
    known = int(np.count_nonzero(others & (view.fast | view.slow)))
    return float(np.count_nonzero(others & open_shots & view.slow) / known) if known >= 8 else 0.0


def _beyond_its_node(view: View, end: int, unexplained: "Bools", slow: int) -> bool:
    """Whether so many slow shots are more than what happens to the other ends of its node: on a busy host each shot may be slow by chance, and some end has only slow ones."""
    import numpy as np

    t = view.table
    node, mine = t.end_node[end], (t.a == end) | (t.b == end)
    share = unrest_of(view, node, mine, unexplained)
    fast = np.count_nonzero(((t.node_a == node) | (t.node_b == node)) & ~mine & view.fast)
    return not fast or slow >= need(RESTLESS, min(share, 0.6), least=LEAST_STICKY, chance=FLEET_CHANCE)


def _end(view: View, part: int, shots: "Bools", good: Cleared) -> int | None:
    import numpy as np

    t = view.table
    others = np.unique(np.where(t.a[shots] == part, t.b[shots], t.a[shots]))
    number = int(np.count_nonzero(good.end[others]))
    return number if number >= CLEARED else None


def _node(view: View, part: int, shots: "Bools", good: Cleared) -> int | None:
    """At least two of its ends, or its only one. Inside the node there is nobody else to be a partner: other nodes are fast inside."""
    import numpy as np

    t = view.table
    if view.inside:
        ends = np.unique(np.concatenate([t.a[shots], t.b[shots]])).size
        elsewhere = int(np.count_nonzero(good.node)) - int(good.node[part])
        worst = int(np.bincount(np.concatenate([t.a[shots], t.b[shots]])).max())
        without_worst = int(np.count_nonzero(shots)) - worst  # slow pairs that no single GPU explains
        return elsewhere if ends >= 4 and elsewhere >= 2 and without_worst >= 3 else None
    others = np.unique(np.where(t.node_a[shots] == part, t.node_b[shots], t.node_a[shots]))
    number = int(np.count_nonzero(good.node[others]))
    mine = np.unique(np.where(t.node_a[shots] == part, t.a[shots], t.b[shots])).size
    enough = mine >= 2 or int(np.count_nonzero(t.end_node == part)) == 1
    return number if number >= CLEARED and enough else None


def _slot(view: View, _part: int, shots: "Bools", good: Cleared) -> int | None:
    """On several nodes of which other slots are fast."""
    import numpy as np

    t = view.table
    nodes = np.unique(np.concatenate([t.node_a[shots], t.node_b[shots]]))
    number = int(np.count_nonzero(good.node[nodes]))
    return number if number >= SLOT_NODES else None


def _leaf(view: View, part: int, shots: "Bools", good: Cleared) -> int | None:
    """Inside and outside alike: several nodes of it, and other leaves that are fast."""
    import numpy as np

    t = view.table
    inner = shots & (t.leaf_a == t.leaf_b)
    nodes = np.unique(np.concatenate([t.node_a[inner], t.node_b[inner]])).size
    return _uplink(view, part, shots, good) if nodes >= 3 else None


def _inside_leaf(view: View, part: int, shots: "Bools", good: Cleared) -> int | None:
    """Its nodes are fast elsewhere. Two nodes have only one pair inside."""
    import numpy as np

    t = view.table
    nodes = np.unique(np.concatenate([t.node_a[shots], t.node_b[shots]]))
    number = int(np.count_nonzero(good.node[nodes]))
    return number if nodes.size >= 4 and number >= 3 and part >= 0 else None


def _uplink(view: View, part: int, shots: "Bools", good: Cleared) -> int | None:
    """Several nodes of the leaf, towards several leaves that are fast with others. A leaf with one node is that node."""
    import numpy as np

    t = view.table
    across = shots & (t.leaf_a != t.leaf_b)
    here = np.unique(np.where(t.leaf_a[across] == part, t.node_a[across], t.node_b[across]))
    there = np.unique(np.where(t.leaf_a[across] == part, t.leaf_b[across], t.leaf_a[across]))
    number = int(np.count_nonzero(good.uplink[there]))
    return number if here.size >= 2 and number >= 2 else None


def _way_out(view: View, part: int, shots: "Bools", good: Cleared) -> int | None:
    import numpy as np

    t = view.table
    slots = int(t.end_slot.max(initial=0)) + 1
    leaf = part // slots
    across = shots & (t.leaf_a != t.leaf_b)
    here = np.unique(np.where(t.leaf_a[across] == leaf, t.a[across], t.b[across]))
    partners = np.unique(np.where(t.leaf_a[across] == leaf, t.b[across], t.a[across]))
    number = int(np.count_nonzero(good.end[partners]))
    return number if here.size >= 2 and number >= CLEARED and here.size >= _measured_ends(view, part, slots) else None


def _class(view: View, part: int, shots: "Bools", good: Cleared) -> int | None:
    """Several nodes, fewer than the others, and others that are fast among themselves. A single node is that node."""
    import numpy as np

    t = view.table
    nodes = np.unique(np.concatenate([t.node_a[shots], t.node_b[shots]]))
    uncleared = nodes[~good.node[nodes]]
    others = int(np.count_nonzero(good.node))
    return others if part >= 0 and uncleared.size >= 2 and others >= max(CLEARED, uncleared.size) else None


def _measured_ends(view: View, part: int, slots: int) -> int:
    """The ends of that leaf and slot that took part in shots between leaves."""
    import numpy as np

    t = view.table
    leaf, slot = divmod(part, slots)
    across = (view.fast | view.slow) & (t.leaf_a != t.leaf_b)
    ends = np.unique(np.concatenate([t.a[across], t.b[across]]))
    return int(np.count_nonzero((t.node_leaf[t.end_node[ends]] == leaf) & (t.end_slot[ends] == slot)))


def _leaf_slot(view: View, part: int, shots: "Bools", good: Cleared) -> int | None:
    """All of the way out, and inside the leaf too, on three nodes or more."""
    import numpy as np

    t = view.table
    inner = shots & (t.leaf_a == t.leaf_b)
    nodes = np.unique(np.concatenate([t.node_a[inner], t.node_b[inner]])).size
    return _way_out(view, part, shots, good) if nodes >= 3 else None


_PARTNERS = {
    "slot": _slot,
    "leaf": _leaf,
    "uplink": _uplink,
    "leaf slot": _leaf_slot,
    "way out": _way_out,
    "inside leaf": _inside_leaf,
    "class": _class,
    "node": _node,
    "end": _end,
}
