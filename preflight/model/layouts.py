"""The NVLinks between pairs of GPUs (the number in "NV18"), what they add up to, and what boards of a product without a profile seem to be like (pure).

The other GPUs of the same product are a measure that can tell one GPU from its peers, and can't tell that all of them lack something.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Literal

from preflight.model.gpu import Gpu
from preflight.model.profile import NvlinkLayout

Pair = tuple[int, int]  # indices of two GPUs, lower first
Numbers = Mapping[Pair, int | None]  # NVLinks between them; None: unknown
WIRED = ("switched", "mesh", "cube")  # kinds of layouts whose links are part of the board


def pair_numbers(gpus: Sequence[Gpu]) -> dict[Pair, int | None]:
    """The NVLinks of every pair of these GPUs. Where only one end tells, its word counts; where they differ, the smaller number."""
    numbers: dict[Pair, int | None] = {}
    for a, b in combinations(sorted(gpus, key=lambda gpu: gpu.index), 2):
        ends = [peer.num_nvlinks for peer in (a.peer(b.index), b.peer(a.index)) if peer is not None]
        numbers[a.index, b.index] = min((number for number in ends if number is not None), default=None)
    return numbers


def by_product(gpus: Iterable[Gpu]) -> dict[str | None, list[Gpu]]:
    """GPUs by the product's name. Those in MIG mode are left out: they take no part in NVLink traffic."""
    products: dict[str | None, list[Gpu]] = {}
    for gpu in gpus:
        if not gpu.mig_enabled:
            products.setdefault(gpu.name, []).append(gpu)
    return products


def members_of(numbers: Iterable[Pair]) -> tuple[int, ...]:
    """The GPUs that occur in these pairs, ascending."""
    return tuple(sorted({index for pair in numbers for index in pair}))


def islands(members: Iterable[int], numbers: Numbers) -> list[tuple[int, ...]]:
    """Sets of GPUs that reach each other over NVLink, directly or by way of others; GPUs that reach none are sets of one. By lowest index."""
    sets = {index: {index} for index in members}
    for (a, b), number in numbers.items():
        if number and a in sets and b in sets and sets[a] is not sets[b]:
            sets[a] |= sets[b]
            for index in sets[b]:
                sets[index] = sets[a]
    return sorted({tuple(sorted(island)) for island in sets.values()})


def guess_layout(machines: Sequence[Numbers]) -> NvlinkLayout | None:
    """What boards of a product without a profile seem to be like, from the machines of that product that are here (equally many GPUs each).

    "switched" if more than half of four or more GPUs' pairs have one and the same number; else "cube" if more than half of the GPUs, four or more, have the
    same sum. None: too little to compare, or no majority.
    """
    members = members_of(machines[0]) if machines else ()
    known = [number for numbers in machines for number in numbers.values() if number is not None]
    sums = [total for numbers in machines for total in link_sums(numbers).values()]
    if len(known) < 2 or not any(known):
        return None
    number, times = Counter(known).most_common(1)[0]
    each, same = Counter(sums).most_common(1)[0] if sums else (0, 0)
    kind: Literal["switched", "cube"]
    if number and 2 * times > len(known) and (len(members) > 3 or times == len(known)):
        kind, per_pair = "switched", {number}
    elif each and 2 * same > len(sums) and len(sums) > 3:
        kind, per_pair = "cube", {found for found in known if found}
    else:
        return None
    return NvlinkLayout(
        gpus=len(members),
        kind=kind,
        per_pair=tuple(sorted(per_pair)),
        per_gpu=each,
        source="as the GPUs of this product here; no profile exists for it",
    )


def link_sums(numbers: Numbers) -> dict[int, int]:
    """GPU -> its NVLinks to all others of the node, of those GPUs of which every pair is known."""
    unknown = {index for pair, number in numbers.items() if number is None for index in pair}
    return {
        index: sum(number or 0 for pair, number in numbers.items() if index in pair)
        for index in members_of(numbers)
        if index not in unknown
    }


def shared_deficits(missing: Mapping[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Whom to blame for links that GPUs of a directly wired board lack, each of which has two ends: (the blamed, those that are only at the far end).

    `missing`: GPU -> how many it lacks, if any. Two GPUs that lack equally many: the way between them. One that lacks as many as two or more others together:
    that one. None: no such single explanation.
    """
    total = sum(missing.values())
    if len(missing) == 2 and len(set(missing.values())) == 1:
        return tuple(sorted(missing)), ()
    middle = [index for index, number in missing.items() if 2 * number == total]
    if len(missing) > 2 and len(middle) == 1:
        return (middle[0],), tuple(sorted(set(missing) - set(middle)))
    return None


def show_numbers(numbers: Sequence[int]) -> str:
    """Several numbers of which one is meant: "4, 8 or 12"."""
    shown = [str(number) for number in sorted(set(numbers))]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"


def pairs_text(members: Sequence[int], numbers: Numbers) -> str:
    """As in "NV18 on all 28 pairs", "NV12 on GPUs 0-1 and 2-3"."""
    known = {pair: number for pair, number in numbers.items() if number}
    if not known:
        return "NVLink on no pair"
    labels = ", ".join(f"NV{number}" for number in sorted(set(known.values()), reverse=True))
    if len(known) == len(numbers) > 1:
        return f"{labels} on all {len(known)} pairs"
    pairs = sorted(known)[:4]
    named = " and ".join(f"{a}-{b}" for a, b in pairs) + (f" and {len(known) - 4} more" if len(known) > 4 else "")
    alone = [island for island in islands(members, numbers) if len(island) == 1]
    without = f", none on GPUs {', '.join(str(island[0]) for island in alone)}" if alone else ""
    return f"{labels} on GPUs {named}{without}"
