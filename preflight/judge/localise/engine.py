"""The largest explanation first; what it covers is evidence for nothing else."""

from typing import TYPE_CHECKING, NamedTuple

from preflight.judge.localise.paths import Path, find_paths
from preflight.judge.localise.single import LEAST_TRANSIENTS, Cleared, Seen, candidates, cleared, seen
from preflight.judge.localise.view import Level, View, levels

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Bools = NDArray[Any]
    Floats = NDArray[Any]

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


class Outcome(NamedTuple):
    """What the shots of one view say. `rest`: slow shots that nothing explains. `transients`: the share of slow shots between cleared ends."""

    view: View
    explained: list[Explained]
    rest: "Bools"
    good: Cleared
    transients: float
    levels: dict[str, Level]


def explain(view: View) -> Outcome:
    """All explanations of a view, in the order in which they were taken."""
    open_shots, open_failed = view.slow.copy(), view.failed.copy()
    good = cleared(view)
    found: list[Explained] = []
    all_levels = levels(view)
    rate = LEAST_TRANSIENTS
    while len(found) < MOST_PARTS and (open_shots.any() or open_failed.any()):
        rate = transients(view, open_shots, good)
        best = _largest(view, all_levels, (open_shots, open_failed), good, rate)
        if best is None:
            break
        found.append(best)
        covered = _covered(view, best)
        open_shots &= ~covered
        open_failed &= ~covered
    return Outcome(view, found, open_shots, good, rate, {level.name: level for level in all_levels})


def transients(view: View, open_shots: "Bools", good: Cleared) -> float:
    """The share of shots between two cleared ends that are slow without an explanation: what chance may do to any shot."""
    import numpy as np

    t = view.table
    both = good.end[t.a] & good.end[t.b] & (view.fast | open_shots)
    number = int(np.count_nonzero(both))
    share = np.count_nonzero(both & open_shots) / number if number >= 50 else 0.0
    return float(min(0.3, max(LEAST_TRANSIENTS, share)))


def _largest(
    view: View, all_levels: list[Level], still_open: "tuple[Bools, Bools]", good: Cleared, rate: float
) -> Explained | None:
    open_shots, open_failed = still_open
    best: Seen | None = None
    most = 0
    for level in all_levels:
        for number, part in candidates(view, level, open_shots, rate):
            if number <= most:
                break
            found = seen(view, level, part, open_shots, good)
            if found is not None:
                best, most = found, number
                break
    path, unit = _path(view, open_shots | open_failed)
    if path is not None and int(path.shots.sum()) > most:
        return _weighed(view, "path", -1, path, unit, path.shots, path.shots, path.edges)
    if best is None:
        return None
    return _weighed(view, best.level, best.part, None, "", best.shots, best.crossing, best.partners)


def _path(view: View, shots: "Bools") -> tuple[Path | None, str]:
    """Between sets of leaves where the leaves are known, else, and where that tells nothing, between sets of nodes."""
    t = view.table
    if view.inside:
        return None, ""
    if len(t.leaves) > 2 and bool((t.leaf_a >= 0).all() and (t.leaf_b >= 0).all()):
        paths = find_paths(view, t.leaf_a, t.leaf_b, shots)
        if paths:
            return paths[0], "leaf"
    paths = find_paths(view, t.node_a, t.node_b, shots)
    return (paths[0], "node") if paths else (None, "")


def _weighed(
    view: View,
    level: str,
    part: int,
    path: Path | None,
    unit: str,
    shots: "Bools",
    across: "Bools",
    partners: int,
) -> Explained:
    import numpy as np

    values = view.ratio[shots & view.slow]
    median = float(np.median(values)) if values.size else 0.0
    called = not values.size or is_deep(view, values)
    return Explained(level, part, path, unit, shots, across, partners, median, called)


def is_deep(view: View, values: "Floats") -> bool:
    """Whether their typical depth is above the floor for certain: by three standard errors of the median, 1.25 x noise / sqrt(n) each."""
    import numpy as np

    error = 1.25 * view.scale.noise / np.sqrt(values.size)
    return bool(1 - np.median(values) - 3 * error * np.median(values) >= view.scale.floor)


def _covered(view: View, best: Explained) -> "Bools":
    """What an explanation covers: its slow shots, but for those that are much slower than it makes them, and its failed ones."""
    import numpy as np

    values = view.ratio[best.shots & view.slow]
    if not values.size:
        return best.shots
    spread = 1.4826 * float(np.median(np.abs(values / best.median - 1)))
    if spread > 3 * view.scale.noise:  # it slows them by different amounts, so that how much tells nothing
        return best.shots
    least = best.median * (1 - max(1 - view.scale.edge, 4 * spread))
    known = np.where(np.isfinite(view.ratio), view.ratio, np.inf)
    covered: Bools = best.shots & (known >= min(least, best.median))
    return covered
