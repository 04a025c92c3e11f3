"""Paths between two sets: pairs of units (leaves, or nodes) that are slow although both units are fast with others.

Such a pair is no unit's fault. The slow pairs are edges of a graph; where its connected parts have two sides with no fast pair between them, the sides are the two
sets. Where the slow pairs don't fall into two sides (three sets, or a stray slow pair) the sets are the connected parts of the graph of fast pairs.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from preflight.judge.localise.single import clearing_limit
from preflight.judge.localise.view import View

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Ints = NDArray[Any]
    Floats = NDArray[Any]
    Bools = NDArray[Any]

TYPICAL = 2.5  # slow pairs of ends of a pair of units of a path on average
FIRM = 4  # slow pairs of ends that make one pair of units an edge by itself: transients don't do that
MOST_SETS = 6


class Path(NamedTuple):
    """Two sets of units. `shots`: slow or failed, between the sets. `doubtful`: units that may belong to either set and were not compared enough. `edges`: slow pairs of units."""

    one: frozenset[int]
    other: frozenset[int]
    shots: "Bools"
    edges: int
    doubtful: frozenset[int]


class Edges(NamedTuple):
    """Pairs of units by what was seen between them. `weight`: of a slow pair, how many different pairs of ends were slow."""

    fast: dict[int, set[int]]
    slow: dict[int, set[int]]
    weight: dict[tuple[int, int], int]


def find_paths(
    view: View, unit_a: "Ints", unit_b: "Ints", still_open: "tuple[Bools, Bools]", *, by_company: bool = False
) -> list[Path]:
    """The paths among units, the one with most slow shots first. `still_open`: shots that are slow, and such as failed, and not explained yet."""
    import numpy as np

    slow, failed = still_open
    open_shots = slow | failed
    telling = slow if slow.any() else failed  # beside figures, a failure says nothing about who belongs where
    # what another part explains is fast enough to refute a path that is slower still
    limit = float(clearing_limit(view, np.median(view.ratio[slow]))) if slow.any() else view.scale.edge
    settled = np.where(np.isfinite(view.ratio) & ~slow, view.ratio, 0.0)
    beyond = telling & _beyond_its_ends(view, settled, unit_a, unit_b)
    edges = _edges(view, unit_a, unit_b, open_shots=beyond, settled=settled, limit=limit)
    found = _mutual_sets(edges)
    if not found:
        pruned = (_pruned(edges, one, other) for one, other in _sides(edges))
        found = [sides for sides in pruned if sides is not None]
    loose = _edges(view, unit_a, unit_b, open_shots=telling, settled=settled, limit=limit)
    units = Units(unit_a, unit_b, open_shots, loose, by_company=by_company)
    paths = [_path(edges, sides, units) for sides in found]
    supported = [path for path in paths if path is not None]
    return sorted(supported, key=lambda path: -int(path.shots.sum()))


def _beyond_its_ends(view: View, settled: "Floats", unit_a: "Ints", unit_b: "Ints") -> "Bools":
    """Shots whose two ends were clearly faster with other units, so that the ends don't explain them. Ends that were picked out because they are slow would make any pair of units look slow."""
    import numpy as np

    t = view.table
    between = unit_a != unit_b
    best = np.zeros(len(t.ends.node))
    np.maximum.at(best, t.a[between], settled[between])
    np.maximum.at(best, t.b[between], settled[between])
    known = np.isfinite(view.ratio)
    limit = np.where(known, clearing_limit(view, np.where(known, view.ratio, 1.0)), view.scale.edge)
    both: Bools = (best[t.a] >= limit) & (best[t.b] >= limit)
    return both


def _edges(
    view: View, unit_a: "Ints", unit_b: "Ints", *, open_shots: "Bools", settled: "Floats", limit: float
) -> Edges:
    """`settled`: the share of the reference of shots that are fast or explained, else 0. A pair of units is slow if none of its settled shots was clearly faster than its best open one."""
    import numpy as np

    across = (unit_a >= 0) & (unit_b >= 0) & (unit_a != unit_b)
    number = int(max(unit_a.max(initial=0), unit_b.max(initial=0))) + 1
    keys, place = np.unique(
        (np.minimum(unit_a, unit_b) * number + np.maximum(unit_a, unit_b))[across], return_inverse=True
    )
    best, best_open = np.zeros(keys.size), np.zeros(keys.size)
    np.maximum.at(best, place, settled[across])
    mine = open_shots[across]
    np.maximum.at(best_open, place[mine], np.nan_to_num(view.ratio[across][mine]))
    is_open = np.zeros(keys.size, np.bool_)
    is_open[place[mine]] = True
    fast = best >= np.where(is_open & (best_open > 0), clearing_limit(view, best_open), limit)
    weights = _different_pairs(view, across & open_shots, place[mine], keys.size)
    edges = Edges(defaultdict(set), defaultdict(set), {})
    rows = zip(keys.tolist(), fast.tolist(), is_open.tolist(), weights.tolist(), strict=True)
    for code, is_fast, is_slow, weight in rows:
        u, v = divmod(code, number)
        if is_fast or is_slow:
            others = edges.fast if is_fast else edges.slow
            others[u].add(v)
            others[v].add(u)
        if is_slow and not is_fast:
            edges.weight[u, v] = weight
    return edges


def _different_pairs(view: View, mask: "Bools", place: "Ints", number: int) -> "Ints":
    """Of each pair of units, by place of the shots of the mask: how many different pairs of ends. A repeat is no second witness."""
    import numpy as np

    t = view.table
    a, b = t.a[mask], t.b[mask]
    _, first = np.unique(np.minimum(a, b) * len(t.end_node) + np.maximum(a, b), return_index=True)
    found: Ints = np.bincount(place[first], minlength=number)
    return found


def _mutual_sets(edges: Edges) -> list[tuple[frozenset[int], frozenset[int]]]:
    """Every two of the sets that fast pairs join, if each two of them have slow pairs between them: three sets and more don't fall into two sides. Empty: it is not so."""
    parts = _components(edges.fast)
    if not 3 <= len(parts) <= MOST_SETS or min(map(len, parts)) < 2:
        return []
    twos = [(one, other) for i, one in enumerate(parts) for other in parts[i + 1 :]]
    return twos if all(any(edges.slow.get(u, set()) & other for u in one) for one, other in twos) else []


def _sides(edges: Edges) -> Iterable[tuple[frozenset[int], frozenset[int]]]:
    """The connected parts of the slow graph, each with its two sides. Heavy pairs decide first; a light one that contradicts them is a stray, and left out."""
    of: dict[int, int] = {}  # unit -> part
    parts: dict[int, tuple[set[int], set[int]]] = {}
    heaviest = max(edges.weight.values(), default=0)
    for u, v in sorted(edges.weight, key=lambda pair: -edges.weight[pair]):
        least = min(_slow_shots(edges, u), _slow_shots(edges, v))
        alone = least == 1 and heaviest >= FIRM  # beside firm pairs a single shot may be something passing
        if alone or not (edges.fast.get(u) and edges.fast.get(v)):
            continue
        for unit in (u, v):
            if unit not in of:
                of[unit] = unit
                parts[unit] = ({unit}, set())
        if of[u] == of[v]:
            continue
        mine, theirs = parts[of[u]], parts.pop(of[v])
        same = (u in mine[0]) == (v in theirs[0])
        first, second = (theirs[1], theirs[0]) if same else theirs
        of.update(dict.fromkeys(theirs[0] | theirs[1], of[u]))
        mine[0].update(first)
        mine[1].update(second)
    yield from ((frozenset(one), frozenset(other)) for one, other in parts.values())


def _slow_shots(edges: Edges, unit: int) -> int:
    return sum(edges.weight[min(unit, v), max(unit, v)] for v in edges.slow.get(unit, ()))


def _pruned(edges: Edges, one: frozenset[int], other: frozenset[int]) -> tuple[frozenset[int], frozenset[int]] | None:
    """The sides without the units that fast pairs refute, those with the lightest slow pairs first. None: too little is left to be a path."""
    sides = {**dict.fromkeys(one, 0), **dict.fromkeys(other, 1)}
    whole = len(sides)
    while True:
        clashes = {u: sum(sides.get(v, mine) != mine for v in edges.fast.get(u, ())) for u, mine in sides.items()}
        worst = max(clashes, key=lambda u: (clashes[u] / (1 + _weight(edges, sides, u)), -u), default=None)
        if worst is None or not clashes[worst]:
            break
        del sides[worst]
    if len(sides) * 2 < whole:
        return None
    first, second = (frozenset(u for u, side in sides.items() if side == which) for which in (0, 1))
    linked = [u for u in sides if edges.slow.get(u, set()) & (second if u in first else first)]
    first, second = first & frozenset(linked), second & frozenset(linked)
    return (first, second) if first and second else None


def _weight(edges: Edges, sides: dict[int, int], unit: int) -> int:
    """Slow shots between a unit and the other side."""
    others = (v for v in edges.slow.get(unit, ()) if v in sides and sides[v] != sides[unit])
    return sum(edges.weight[min(unit, v), max(unit, v)] for v in others)


def _components(fast: dict[int, set[int]]) -> list[frozenset[int]]:
    """The connected parts of the fast graph, largest first."""
    left, parts = set(fast), []
    while left:
        queue = [left.pop()]
        part = set(queue)
        while queue:
            fresh = fast[queue.pop()] & left
            left -= fresh
            part |= fresh
            queue += fresh
        parts.append(frozenset(part))
    return sorted(parts, key=lambda part: (-len(part), min(part)))


class Units(NamedTuple):
    """The units of the shots, with all open shots between them (`loose`: whatever else their ends do)."""

    at_a: "Ints"
    at_b: "Ints"
    open_shots: "Bools"
    loose: Edges
    by_company: bool  # a unit is on a side only beside one of that side with which it is fast


def _path(edges: Edges, sides: tuple[frozenset[int], frozenset[int]], units: Units) -> Path | None:
    """The path between the sets; None: too few slow pairs to tell it from a few slow links."""
    one, other = sides
    between = [(u, v) for u, v in edges.weight if (u in one and v in other) or (v in one and u in other)]
    firm = sum(edges.weight[pair] >= FIRM for pair in between)
    cyclic = len(between) >= len(one) + len(other) and min(len(one), len(other)) >= 2
    weight = sum(edges.weight[pair] for pair in between)
    if not (cyclic or (firm and weight >= TYPICAL * len(between))):
        return None
    kept = tuple(_in_company(edges, side) if units.by_company else side for side in sides)
    if not all(kept):
        return None
    wide = tuple(
        side | _strangers(edges, units.loose, theirs, one | other) for side, theirs in ((one, other), (other, one))
    )
    shots = units.open_shots & _between(units, *wide)
    first, second = sorted(kept, key=lambda part: (-len(part), min(part)))
    doubtful = _doubtful(edges, first, second) | wide[0] | wide[1]
    return Path(first, second, shots, len(between), doubtful - first - second)


def _in_company(edges: Edges, side: frozenset[int]) -> frozenset[int]:
    """Those of a side that were fast with another of it; a side of one is that one."""
    return side if len(side) == 1 else frozenset(u for u in side if edges.fast.get(u, set()) & side)


def _strangers(edges: Edges, loose: Edges, theirs: frozenset[int], known: frozenset[int]) -> frozenset[int]:
    """Units that were fast with nobody, and of the two sets met only units of the one: the path explains them, and which side they are on is not known. Others whose side is not known either don't count."""
    sides = (theirs, known - theirs)
    unsettled = _doubtful(edges, *sides) if all(sides) else frozenset()
    found = set()
    for unit, others in loose.slow.items():
        settled = {other for other in others if edges.fast.get(other) and other not in unsettled}
        if unit not in known and not edges.fast.get(unit) and settled and settled <= theirs:
            found.add(unit)
    return frozenset(found)


def _between(units: Units, one: frozenset[int], other: frozenset[int]) -> "Bools":
    import numpy as np

    a_one, b_one = np.isin(units.at_a, list(one)), np.isin(units.at_b, list(one))
    a_other, b_other = np.isin(units.at_a, list(other)), np.isin(units.at_b, list(other))
    across: Bools = (a_one & b_other) | (a_other & b_one)
    return across


def _doubtful(edges: Edges, one: frozenset[int], other: frozenset[int]) -> frozenset[int]:
    """Units outside that no fast pair with both sets clears."""
    units = set(edges.fast) | set(edges.slow)
    return frozenset(
        u for u in units - one - other if not (edges.fast.get(u, set()) & one and edges.fast.get(u, set()) & other)
    )


def joined_path(view: View, one: Path, two: Path, unit: str, open_shots: "Bools") -> Path | None:
    """Both as one path. None: they have no side in common, or something was fast between the joined sets."""
    import numpy as np

    t = view.table
    unit_a, unit_b = (t.leaf_a, t.leaf_b) if unit == "leaf" else (t.node_a, t.node_b)
    shots = one.shots | two.shots
    limit = float(clearing_limit(view, np.median(view.ratio[shots & view.slow]))) if (shots & view.slow).any() else 0.0
    known = view.fast | view.slow
    fast = known & ~open_shots & ~shots & (np.nan_to_num(view.ratio) >= limit)
    held = known & (np.nan_to_num(view.ratio) < limit)  # as slow as the path makes them
    for mine, theirs in ((two.one, two.other), (two.other, two.one)):
        first, second = one.one | mine, one.other | theirs
        if not (one.one & mine or one.other & theirs) or first & second:
            continue
        a_first, b_first = np.isin(unit_a, list(first)), np.isin(unit_b, list(first))
        a_second, b_second = np.isin(unit_a, list(second)), np.isin(unit_b, list(second))
        between = (a_first & b_second) | (a_second & b_first)
        apart = any(_apart((held, known), unit_a, unit_b, sides) for sides in ((one.one, mine), (one.other, theirs)))
        if not apart and not (between & fast).any():
            shots |= between & open_shots
            return Path(first, second, shots, one.edges + two.edges, (one.doubtful | two.doubtful) - first - second)
    return None


def _apart(
    shots: "tuple[Bools, Bools]", unit_a: "Ints", unit_b: "Ints", sides: tuple[frozenset[int], frozenset[int]]
) -> bool:
    """Whether two sets that would be one side were slow with one another each time: then they are two."""
    import numpy as np

    old, new = list(sides[0] - sides[1]), list(sides[1] - sides[0])
    across = (np.isin(unit_a, old) & np.isin(unit_b, new)) | (np.isin(unit_a, new) & np.isin(unit_b, old))
    held, known = shots
    return int(np.count_nonzero(across & held)) >= 2 and not bool((across & known & ~held).any())
