"""Does a machine's NVLink matrix match one of the ways in which boards of its product are wired? What differs, and which part explains it best (pure).

The layouts of a profile say which numbers of links are whole; more than that is never a fault.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from preflight.model.base import Record
from preflight.model.layouts import Numbers, Pair, islands, link_sums, members_of, shared_deficits, show_numbers
from preflight.model.profile import NvlinkLayout


class Oddity(Record, frozen=True):
    """What differs from a layout. `gpus`: whom it concerns. `kind`: "gpu" (that one GPU), "link" (between two), "bridge" (cards without one, where others have
    one; "maybe bridge": where most have none), "board" (all alike, or no part singled out), "more" (more links than the layout has: no fault of the machine).
    """

    kind: Literal["gpu", "link", "bridge", "maybe bridge", "board", "more"]
    gpus: tuple[int, ...]
    found: str
    expected: str
    certain: bool = True


class Fit(Record, frozen=True):
    """How a machine fits a layout; `odd_pairs` orders the layouts of one product: fewer fit better."""

    layout: NvlinkLayout
    oddities: tuple[Oddity, ...]
    odd_pairs: int


def best_fit(numbers: Numbers, layouts: Sequence[NvlinkLayout]) -> Fit | None:
    """The layout that the machine comes closest to. None: none of them has a place for so many GPUs, or nothing is known of any pair."""
    members = members_of(numbers)
    if all(number is None for number in numbers.values()):
        return None
    fits = [fit for layout in layouts if layout.kind != "bridge" for fit in _fit_wired(members, numbers, layout) if fit]
    bridges = sorted((layout for layout in layouts if layout.kind == "bridge"), key=lambda layout: layout.gpus)
    if bridges:
        fits.append(_fit_bridges(members, numbers, bridges))
    exact = len(members)
    return min(fits, key=lambda fit: (fit.odd_pairs, fit.layout.gpus != exact), default=None)


def _fit_wired(members: Sequence[int], numbers: Numbers, layout: NvlinkLayout) -> list[Fit]:
    """Empty if the layout has no place for so many GPUs. Fewer than a whole board (a virtual machine) are judged by pairs, which a cube's can't be."""
    boards = _boards(members, numbers, layout.gpus)
    if boards is None or (layout.kind == "cube" and any(len(board) != layout.gpus for board in boards)):
        return []
    judge = _judge_cube if layout.kind == "cube" else _judge_any_to_any
    fits = [judge(board, _within(board, numbers), layout) for board in boards]
    return [Fit(layout, tuple(oddity for fit in fits for oddity in fit.oddities), sum(fit.odd_pairs for fit in fits))]


def _boards(members: Sequence[int], numbers: Numbers, size: int) -> list[tuple[int, ...]] | None:
    """A node's GPUs by board of that size: one, or several of which one may lack links."""
    if len(members) <= size:
        return [tuple(members)]
    whole = [island for island in islands(members, numbers) if len(island) == size]
    rest = tuple(sorted(set(members) - {index for board in whole for index in board}))
    if rest and (len(rest) != size or not whole):
        return None
    return [*whole, rest] if rest else whole


def _within(members: Sequence[int], numbers: Numbers) -> dict[Pair, int | None]:
    return {pair: number for pair, number in numbers.items() if set(pair) <= set(members)}


def _judge_any_to_any(members: Sequence[int], numbers: Numbers, layout: NvlinkLayout) -> Fit:
    """Each pair must have a number that is whole. A GPU whose best pair falls short is odd itself, if two others show that whole ones exist."""
    whole = show_numbers(layout.per_pair)
    expected = f"{whole} NVLink{'s' * (whole != '1')} between any two GPUs"
    known = {pair: number for pair, number in numbers.items() if number is not None}
    odd = {pair: number for pair, number in known.items() if number not in layout.per_pair}
    short = {pair: number for pair, number in odd.items() if number < max(layout.per_pair)}
    if not odd:
        return Fit(layout, (), 0)
    if not short:
        found = f"{show_numbers(list(odd.values()))} NVLinks on {_of_pairs(odd, known)}"
        return Fit(layout, (Oddity("more", tuple(members), found, expected),), len(odd))
    good = members_of(pair for pair in known if pair not in short)
    if not good:
        found = f"{_number_of(short.values(), whole)} on {_of_pairs(short, known)}"
        return Fit(layout, (Oddity("board", tuple(members), found, expected),), len(odd))
    out = [index for index in members if index not in good and any(index in pair for pair in short)]
    oddities = [Oddity("gpu", (index,), _outside(index, good, known, whole), expected) for index in out]
    between = {pair: number for pair, number in short.items() if not set(pair) & set(out)}
    return Fit(layout, (*oddities, *_between(between, known, whole, expected)), len(odd))


def _between(short: Mapping[Pair, int], known: Mapping[Pair, int], whole: str, expected: str) -> Iterable[Oddity]:
    """Pairs that fall short though both GPUs have whole ones: one GPU that is in all of them (two or more) explains them best, else each by itself."""
    common = set.intersection(*(set(pair) for pair in short)) if len(short) > 1 else set()
    if len(common) == 1:
        (index,) = common
        peers = [other for pair in sorted(short) for other in pair if other != index]
        found = f"{_number_of(short.values(), whole)} to GPUs {', '.join(map(str, peers))}"
        return [Oddity("gpu", (index,), f"{found}; its other pairs are whole", expected, certain=False)]
    return [
        Oddity(
            "link",
            pair,
            f"{number} of {whole} NVLinks between them; {len(known) - len(short)} other pairs are whole",
            expected,
        )
        for pair, number in sorted(short.items())
    ]


def _outside(index: int, good: Sequence[int], known: Mapping[Pair, int], whole: str) -> str:
    """As in "NVLink to 0 of 7 peers, the others to 6 of 6 among themselves"."""
    mine = [number for pair, number in known.items() if index in pair]
    joined = [number for number in mine if number]
    others = [number for pair, number in known.items() if set(pair) <= set(good)]
    among = f"the others to {len(good) - 1} of {len(good) - 1} among themselves"
    if not all(others) or len(others) != len(good) * (len(good) - 1) // 2:
        among = f"{sum(map(bool, others))} of the {len(others)} other pairs have it"
    if len(joined) == len(mine):
        return f"{_number_of(joined, whole)} to each of its {len(mine)} peers; {among}"
    return f"NVLink to {len(joined)} of {len(mine)} peers, {among}"


def _judge_cube(members: Sequence[int], numbers: Numbers, layout: NvlinkLayout) -> Fit:
    """Each GPU's links add up; which neighbours it has is the board's business, and most boards differ only in their numbering."""
    expected = f"{layout.per_gpu} NVLinks from each GPU, over several neighbours"
    sums = link_sums(numbers)
    missing = {index: layout.per_gpu - total for index, total in sums.items() if total < layout.per_gpu}
    if not missing:
        over = tuple(index for index, total in sums.items() if total > layout.per_gpu)
        more = Oddity("more", over, f"up to {max(sums.values(), default=0)} NVLinks from one GPU", expected)
        return Fit(layout, (more,) if over else (), len(over))
    if len(missing) == len(members) > 2 and len(set(missing.values())) == 1:
        found = f"{layout.per_gpu - min(missing.values())} of {layout.per_gpu} NVLinks from every GPU"
        return Fit(layout, (Oddity("board", tuple(members), found, expected),), len(missing))
    blamed = shared_deficits(missing)
    if blamed and len(blamed[0]) == 2:
        lost = missing[blamed[0][0]]
        found = f"{lost} NVLink{'s' * (lost != 1)} missing at each of the two, the other GPUs have all {layout.per_gpu}"
        return Fit(layout, (Oddity("link", blamed[0], found, expected, certain=False),), lost)
    guilty, far = blamed or (tuple(sorted(missing)), ())
    oddities = []
    for index in guilty:
        ends = f"; the far ends are missing on GPUs {', '.join(map(str, far))}" if far else ""
        found = f"{sums[index]} of {layout.per_gpu} NVLinks{ends}"
        oddities.append(Oddity("gpu", (index,), found, expected, certain=bool(blamed)))
    return Fit(layout, tuple(oddities), sum(missing.values()))


def _fit_bridges(members: Sequence[int], numbers: Numbers, layouts: Sequence[NvlinkLayout]) -> Fit:
    """Joined cards must have whole bridges. Cards without one are odd only where others have one and enough are left over to fill another."""
    sets = islands(members, numbers)
    joined = [island for island in sets if len(island) > 1]
    alone = tuple(index for island in sets if len(island) == 1 for index in island)
    used, oddities, odd_pairs = layouts[0], [], 0
    for island in joined:
        used = next((layout for layout in layouts if layout.gpus >= len(island)), layouts[-1])
        whole = show_numbers(used.per_pair)
        expected = f"{whole} NVLinks between bridged cards"
        for pair, number in _within(island, numbers).items():
            if number is None or number in used.per_pair:
                continue
            odd_pairs += 1
            kind: Literal["link", "more"] = "link" if number < max(used.per_pair) else "more"
            oddities.append(Oddity(kind, pair, f"{number} of {whole} NVLinks of the bridge", expected))
    unknown = {index for pair, number in numbers.items() if number is None for index in pair}
    bare = tuple(index for index in alone if index not in unknown)
    if joined and len(bare) >= layouts[0].gpus:
        odd_pairs += len(bare) // layouts[0].gpus
        with_bridge = ", ".join("GPUs " + " and ".join(map(str, island)) for island in joined)
        found = f"no NVLink between them, while {with_bridge} are joined by a bridge"
        half = 2 * (len(members) - len(alone)) >= len(members)
        expected = "a working bridge, as the others have"
        oddities.append(Oddity("bridge" if half else "maybe bridge", bare, found, expected, certain=False))
    return Fit(used, tuple(oddities), odd_pairs)


def _number_of(found: Iterable[int], whole: str) -> str:
    """As in "8 of 12 NVLinks"."""
    return f"{show_numbers(list(found))} of {whole} NVLinks"


def _of_pairs(odd: Mapping[Pair, int], known: Mapping[Pair, int]) -> str:
    return f"every pair ({len(known)})" if len(odd) == len(known) else f"{len(odd)} of {len(known)} pairs"
