"""What healthy probes give: the upper mode of each class of routes, and how far repeats differ.

Never the median of raw shots: where half of them are slow it lies among the slow ones (a public matrix of 17 nodes: fast mode 23.4, median 16.2). The mode is looked for
among the best shots of the ends, since one good partner is enough to clear an end; then it is centred on the raw shots around it, since a best of five
is a standard deviation above what one shot gives.
"""

from typing import TYPE_CHECKING, NamedTuple

from preflight.judge.localise.table import OTHER_LEAF, ROUTES, SAME_LEAF, Table

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Floats = NDArray[Any]
    Ints = NDArray[Any]
    Bools = NDArray[Any]

SIGMAS = 8.4  # 8, and a margin since the noise is estimated too: below this many times the noise nothing is called: without such a floor, faults of -12 % gave thousands of false accusations (prototype)
LEAST_DEPTH, LEAST_DEPTH_UNKNOWN = 0.10, 0.15  # healthy route classes differ by 5 to 12 %; unknown leaves mix them
MODE_WIDTH = (
    0.02  # of a healthy mode: a public cluster of 10 nodes stayed within 0.7 % over 45 pairs, H100 logs within 3.2 %
)
MODE_SHARE = 0.10  # of the ends that an upper mode holds at least
FEW_REPEATS = 20  # below it one repeat among them may be a transient without being told apart

MANY_ABOVE = 100  # shots above the reference, from which on their spread is as good as repeats
OFTEN = 0.3  # of the repeats that lie across the edge: more, and it is the noise that puts them there


class Noise(NamedTuple):
    """`value`: relative, of one shot. `source`: in words."""

    value: float
    source: str
    repeats: int


class ClassReference(NamedTuple):
    """Of one op over one route, by number. `lent_by`: the farther route whose value it has, None: its own."""

    op: int
    route: int
    bytes_per_s: float
    ends: int
    shots: int
    lent_by: int | None = None


def upper_mode(values: "Floats", width: float = MODE_WIDTH) -> float:
    """The centre of the highest of the modes in which enough of the values lie (in logarithms; `width`: relative). Values are above 0, and there is at least one.

    Example: 64 values near 23.4 and 67 between 10 and 17 give 23.4.
    """
    import numpy as np

    logs = np.sort(np.log(values))
    if logs.size == 1:
        return float(values[0])
    step = width / 4
    bins = min(20_000, int((logs[-1] - logs[0]) / step) + 2)
    counts, edges = np.histogram(logs, bins=bins, range=(logs[0] - step / 2, logs[0] - step / 2 + bins * step))
    reach = np.arange(-12, 13) * step / width
    density = np.convolve(counts, np.exp(-0.5 * reach**2))[12:-12]
    left, right = np.concatenate([[-1.0], density[:-1]]), np.concatenate([density[1:], [-1.0]])
    peaks = np.flatnonzero((density >= left) & (density > right) & (density >= 0.2 * density.max()))
    centres = (edges[:-1] + step / 2)[peaks]
    least = max(2 if logs.size > 3 else 1, MODE_SHARE * logs.size)
    for centre in centres[::-1]:
        near = logs[np.abs(logs - centre) <= 2.5 * width]
        if near.size >= least:
            return float(np.exp(np.median(near)))
    return float(np.exp(centres[-1]))


def best_of_ends(table: Table) -> "Floats":
    """The highest rate of each end that has one."""
    import numpy as np

    best = np.zeros(len(table.ends.node))
    np.maximum.at(best, table.a, table.rate)
    np.maximum.at(best, table.b, table.rate)
    found: Floats = best[best > 0]
    return found


def class_references(table: Table, width: float = MODE_WIDTH) -> list[ClassReference]:
    """One for each op and route of which there are figures."""
    import numpy as np

    good = table.part(np.isfinite(table.rate))
    found = []
    for op, route in sorted(set(zip(good.op.tolist(), good.route.tolist(), strict=True))):
        mine = good.part((good.op == op) & (good.route == route))
        best = best_of_ends(mine)
        centre = _centred(mine.rate, upper_mode(best, width), width)
        found.append(ClassReference(op, route, centre, int(best.size), int(mine.rate.size)))
    return [_at_least_the_farther(reference, found) for reference in found]


def _at_least_the_farther(near: ClassReference, found: list[ClassReference]) -> ClassReference:
    """A way inside a leaf has no part more than one between leaves. Where all that were tried are yet far slower, they are slow, and the healthy value is the other class's: of three nodes on two
    leaves a slow one makes the only pair on a leaf slow, which would else be its own measure.
    """
    if near.route not in SAME_LEAF:
        return near
    route = OTHER_LEAF[SAME_LEAF.index(near.route)]
    far = next((r for r in found if (r.op, r.route) == (near.op, route)), None)
    if far is None or near.bytes_per_s >= (1 - LEAST_DEPTH_UNKNOWN) * far.bytes_per_s:
        return near
    return near._replace(bytes_per_s=far.bytes_per_s, ends=far.ends, lent_by=route)


def _centred(rates: "Floats", mode: float, width: float) -> float:
    """The median of the raw shots around a mode that was found among best ones."""
    import numpy as np

    logs, centre = np.log(rates), float(np.log(mode))
    for step in range(30):
        near = logs[np.abs(logs - centre) <= max(4.0 - 0.5 * step, 2.5) * width]
        before, centre = centre, float(np.median(near)) if near.size else centre
        if step > 3 and abs(centre - before) < 1e-4:
            break
    return float(np.exp(centre))


def noise_of(table: Table, ratio: "Floats", references: list[ClassReference]) -> Noise | None:
    """How far repeats of the same probe differ; where few were repeated, also how wide the fast mode is above its centre. None: neither can be told.

    Repeats of which one was fast and one slow show a transient, not the noise, unless that happens often; slow ones are what is repeated, so that many may be
    such. Where many shots are fast, their spread above the centre is a second estimate.
    """
    import numpy as np

    wide, above = _spread_above(table, ratio, references)
    differences = _repeat_differences(table, ratio, 1 - max(SIGMAS / 2 * (wide or 0.0), LEAST_DEPTH / 2))
    number = int(differences.size)
    if wide is not None and above >= MANY_ABOVE and above >= 10 * number:  # beside so many shots repeats add nothing
        return Noise(wide, f"{above} shots above their reference", max(number, 1))
    if number >= FEW_REPEATS:
        value = 1.4826 * float(np.median(np.abs(differences)))
        if wide is not None and above >= MANY_ABOVE:
            # far above the spread the repeats are those of busy or passing ones, far below it healthy ends differ
            value = wide if value > 1.5 * wide else max(value, wide)
        return Noise(value, f"{number} repeats", number)
    if number:
        value = float(np.sqrt(np.mean(differences**2)))
        return Noise(max(value, wide or 0.0) if number < 5 else value, f"{number} repeats", number)
    near = ratio[np.isfinite(ratio) & (ratio >= 1 - LEAST_DEPTH_UNKNOWN)]
    if near.size < 2:
        return None
    # what nobody repeated: all that may still be fast, on both sides, and a few shots may lie close together by chance
    spread = max(wide or 0.0, float(np.sqrt(np.mean(np.log(near) ** 2)))) * (1 + 3 / float(np.sqrt(near.size)))
    return Noise(spread, "the spread of the fast shots, since nothing was repeated", 0)


def _repeat_differences(table: Table, ratio: "Floats", edge: float) -> "Floats":
    """Of consecutive repeats of one pair, op and direction: the difference of logarithms over the square root of two. How much a slow pair swings says nothing about what a fast one may
    do, so that one of the two must be fast; those across the edge are left out unless they are many.
    """
    import numpy as np

    good = np.isfinite(ratio)
    number = len(table.ends.node)
    one_way = table.one_way
    low = np.where(one_way, table.a, np.minimum(table.a, table.b))
    high = np.where(one_way, table.b, np.maximum(table.a, table.b))
    key = ((table.op * number + low) * number + high)[good]
    order = np.argsort(key, kind="stable")
    values = ratio[good][order]
    same = key[order][1:] == key[order][:-1]
    one, two = values[1:] >= edge, values[:-1] >= edge
    both, across = same & one & two, same & (one != two)
    often = np.count_nonzero(across) > OFTEN * np.count_nonzero(both | across)
    found: Floats = (np.diff(np.log(values)) / np.sqrt(2))[both | across if often else both]
    return found


def _spread_above(table: Table, ratio: "Floats", references: list[ClassReference]) -> tuple[float | None, int]:
    """How far shots lie above the reference of their class, up to a quarter: slow shots don't widen it, and a few that are far above don't either. And how many shots that are.

    The middle of the upper half of a normal distribution lies 0.6745 of its standard deviation above the centre.
    """
    import numpy as np

    above = [np.zeros(0)]
    for found in references:
        mine = ratio[(table.op == found.op) & (table.route == found.route)]
        if mine.size >= 3:
            above.append(np.log(mine[(mine > 1) & (mine < 1.25)]))
    values = np.concatenate(above)
    if not values.size:
        return None, 0
    root = float(np.sqrt(np.mean(values**2)))
    return (float(np.median(values)) / 0.6745 if values.size >= MANY_ABOVE else root), int(values.size)


def ratios(table: Table, references: list[ClassReference]) -> "Floats":
    """Each shot's share of its class's reference; NaN: it failed."""
    import numpy as np

    of = np.full((len(table.ops), len(ROUTES)), np.nan)
    for found in references:
        of[found.op, found.route] = found.bytes_per_s
    share: Floats = table.rate / of[table.op, table.route]
    return share
