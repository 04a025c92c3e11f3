"""The largest explanation first; what it covers is evidence for nothing else."""

from typing import TYPE_CHECKING, NamedTuple

from preflight.judge.localise.paths import Path, find_paths, joined_path
from preflight.judge.localise.reference import MODE_WIDTH, upper_mode
from preflight.judge.localise.shares import Share, find_share
from preflight.judge.localise.single import LEAST_TRANSIENTS, Best, Cleared, Seen, best_of, candidates, seen, sticky
from preflight.judge.localise.view import Level, View, levels

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Bools = NDArray[Any]
    Floats = NDArray[Any]

WHOLE_FIRST = 1.25  # a share of an uplink explains so many times what a whole part does before it is preferred: of a slow slot's ends it may hold a few by chance
MOST_PARTS = 200  # explanations in one run; beyond that it is not a few faults


class Explained(NamedTuple):
    """One explanation. `level`: of single parts, or "path". `called`: its depth is certain to be above the floor. `median`: of the shots that it explains, as a share of the reference."""

    level: str
    part: int
    path: Path | None
    unit: str
    shots: "Bools"
    crossing: "Bools"
    partners: int
    median: float
    called: bool
    share: Share | None = None


class Outcome(NamedTuple):
    """What the shots of one view say. `rest`: slow shots that nothing explains. `transients`: the share of slow shots between cleared ends."""

    view: View
    explained: list[Explained]
    rest: "Bools"
    best: Best
    transients: float
    levels: dict[str, Level]

    @property
    def good(self) -> Cleared:
        """The parts that a fast shot clears."""
        return self.best.cleared(self.view.scale.edge)


def explain(view: View) -> Outcome:
    """All explanations of a view, in the order in which they were taken."""
    open_shots, open_failed = view.slow.copy(), view.failed.copy()
    best = best_of(view)
    found: list[Explained] = []
    all_levels = levels(view)
    rate = LEAST_TRANSIENTS
    while len(found) < MOST_PARTS and (open_shots.any() or open_failed.any()):
        rate = transients(view, open_shots, best)
        taken = {(one.level, one.part) for one in found if one.path is None}
        one = _largest(
            Search(view, all_levels, open_shots, open_failed, best, rate, _stuck(view, open_shots, best), taken)
        )
        if one is None:
            break
        one = _joined(view, found, one, open_shots)
        found.append(one)
        covered = _covered(view, one)
        open_shots &= ~covered
        open_failed &= ~covered
    return Outcome(view, found, open_shots, best, rate, {level.name: level for level in all_levels})


def transients(view: View, open_shots: "Bools", best: Best) -> float:
    """The share of shots between two cleared ends that are slow without an explanation: what chance may do to any shot."""
    import numpy as np

    t = view.table
    good = best.end >= view.scale.edge
    both = good[t.a] & good[t.b] & (view.fast | open_shots)
    number = int(np.count_nonzero(both))
    share = np.count_nonzero(both & open_shots) / number if number >= 50 else 0.0
    return float(min(0.3, max(LEAST_TRANSIENTS, share)))


def _stuck(view: View, open_shots: "Bools", best: Best) -> dict[str, float]:
    """By level: the share of pairs of good parts that are slow each time."""
    t, edge = view.table, view.scale.edge
    return {
        "end": sticky(view, t.a, t.b, open_shots, best.end >= edge),
        "node": sticky(view, t.node_a, t.node_b, open_shots, best.node >= edge),
    }


class Search(NamedTuple):
    """What is left to explain, and by what. `taken`: single parts that explain something already."""

    view: View
    levels: list[Level]
    open_shots: "Bools"
    open_failed: "Bools"
    best: Best
    rate: float
    stuck: dict[str, float]
    taken: set[tuple[str, int]]


def _largest(search: Search) -> Explained | None:
    """The single part, the share of an uplink or the path that explains most; a path between nodes only where nothing else explains anything."""
    view, open_shots = search.view, search.open_shots
    part = _largest_part(search)
    most = int(part.shots.sum()) if part else 0
    share = None if view.inside else find_share(view, open_shots, search.best, search.rate)
    taken = share is not None and ("share", share.leaf) in search.taken
    if share is not None and (taken or int(share.shots.sum()) <= WHOLE_FIRST * most):
        share = None
    most = int(share.shots.sum()) if share else most
    path, unit = _leaf_path(view, open_shots, search.open_failed), "leaf"
    if path is None and part is None and share is None:
        path, unit = _node_path(view, open_shots, search.open_failed), "node"
    if path is not None and int(path.shots.sum()) > most:
        return _weighed(view, Explained("path", -1, path, unit, path.shots, path.shots, path.edges, 0.0, called=True))
    if share is not None:
        ends = len(share.ends)
        shown = Explained("share", share.leaf, None, "", share.shots, share.shots, ends, 0.0, called=True, share=share)
        return _weighed(view, shown)
    if part is None:
        return None
    single = Explained(part.level, part.part, None, "", part.shots, part.crossing, part.partners, 0.0, called=True)
    return _weighed(view, single)


def _largest_part(search: Search) -> Seen | None:
    found: Seen | None = None
    most = 0
    for level in search.levels:
        for number, part in candidates(search.view, level, search.open_shots, search.rate):
            if number <= most:
                break
            if (level.name, part) in search.taken:
                continue
            one = seen(search.view, level, part, unexplained=search.open_shots, best=search.best, stuck=search.stuck)
            if one is not None:
                found, most = one, number
                break
    return found


def _joined(view: View, found: list[Explained], one: Explained, open_shots: "Bools") -> Explained:
    """A path that is a piece of one that was found before, joined with it, which is taken out of the list: equally slow, one side in common, and nothing fast between the joined sets.

    Pieces come about where another part hid some members until it was named.
    """
    for other in found if one.path is not None else []:
        if other.path is None or other.unit != one.unit or not _alike(view, one.median, other.median):
            continue
        assert one.path is not None
        both = joined_path(view, one.path, other.path, one.unit, open_shots)
        if both is not None:
            found.remove(other)
            return one._replace(path=both, shots=both.shots, crossing=one.crossing | other.crossing)
    return one


def _alike(view: View, one: float, two: float) -> bool:
    return min(one, two) >= max(one, two) * view.scale.edge


def _leaf_path(view: View, open_shots: "Bools", open_failed: "Bools") -> Path | None:
    """Between sets of leaves, where the leaves of all are known."""
    t = view.table
    if view.inside or len(t.leaves) <= 2 or not bool((t.leaf_a >= 0).all() and (t.leaf_b >= 0).all()):
        return None
    paths = find_paths(view, t.leaf_a, t.leaf_b, (open_shots, open_failed))
    return paths[0] if paths else None


def _node_path(view: View, open_shots: "Bools", open_failed: "Bools") -> Path | None:
    """Between sets of nodes: where leaves are not known, or explain nothing."""
    if view.inside:
        return None
    t = view.table
    paths = find_paths(view, t.node_a, t.node_b, (open_shots, open_failed), by_company=True)
    if len(t.leaves) > 2:  # two nodes of different leaves share no way that others of these leaves don't use
        paths = [path for path in paths if len(path.one | path.other) > 2 or _on_one_leaf(view, path)]
    return paths[0] if paths else None


def _on_one_leaf(view: View, path: Path) -> bool:
    leaves = {int(view.table.node_leaf[node]) for node in path.one | path.other}
    return len(leaves) == 1 and -1 not in leaves


def _weighed(view: View, explained: Explained) -> Explained:
    """With how fast it still is, by the upper mode of its shots, since what is slower may have another reason besides; and whether that is deep enough to be called."""
    import numpy as np

    values = view.ratio[explained.shots & view.slow]
    if not values.size:
        return explained
    level = upper_mode(values, max(MODE_WIDTH, view.scale.noise))
    own = values[values >= level * view.scale.edge]
    return explained._replace(median=float(np.median(own)), called=is_deep(view, own))


def is_deep(view: View, values: "Floats", *, sure: bool = True) -> bool:
    """Whether their mean depth is above the floor for certain: by two and a half standard errors, noise / sqrt(n) each. `sure` False: whether it may be."""
    import numpy as np

    mean = float(np.mean(values))
    margin = 2.5 * mean * view.scale.noise / np.sqrt(values.size)
    return bool(1 - mean - (margin if sure else -margin) >= view.scale.floor)


def _covered(view: View, best: Explained) -> "Bools":
    """What an explanation covers: its slow shots, but for those that are clearly slower than it makes them, and its failed ones. A path slows by different amounts: all of its shots."""
    import numpy as np

    values = view.ratio[best.shots & view.slow]
    if not values.size:
        return best.shots
    if best.path is not None:
        spread = 1.4826 * float(np.median(np.abs(values / np.median(values) - 1)))
        if spread > 3 * view.scale.noise:
            return best.shots
    known = np.where(np.isfinite(view.ratio), view.ratio, np.inf)
    covered: Bools = best.shots & (known >= best.median * view.scale.edge)
    return covered
