"""Folded node names: ("n1", "n2", "n3", "n7") <-> "n[1-3,7]", the way Slurm and ClusterShell print them."""

import re
from collections import defaultdict
from collections.abc import Iterable

_TAIL = re.compile(r"^(.*?)([0-9]+)$")


def fold(names: Iterable[str]) -> str:
    """Node names as a short list; the width of zero-padded numbers is kept.

    >>> fold(["n01", "n02", "n03", "login"])
    'login,n[01-03]'
    """
    numbered: dict[tuple[str, int], set[int]] = defaultdict(set)
    plain: set[str] = set()
    for name in names:
        match = _TAIL.match(name)
        if match is None:
            plain.add(name)
            continue
        digits = match[2]
        width = len(digits) if digits.startswith("0") and len(digits) > 1 else 0
        numbered[(match[1], width)].add(int(digits))
    # n09 and n10 belong to one padded family: unpadded numbers of a padded width join it
    for prefix, width in sorted(key for key in numbered if key[1]):
        free = numbered.get((prefix, 0), set())
        joined = {number for number in free if len(str(number)) == width}
        numbered[(prefix, width)] |= joined
        free -= joined
    folded = [_fold_one(prefix, width, numbers) for (prefix, width), numbers in numbered.items() if numbers]
    return ",".join(sorted([*plain, *folded]))


def _fold_one(prefix: str, width: int, numbers: set[int]) -> str:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    parts = [f"{a:0{width}d}" if a == b else f"{a:0{width}d}-{b:0{width}d}" for a, b in runs]
    if len(parts) == 1 and "-" not in parts[0]:
        return prefix + parts[0]
    return f"{prefix}[{','.join(parts)}]"


def fold_numbers(numbers: Iterable[int]) -> str:
    """Ranks as a short list: (0, 1, 2, 5) -> "0-2,5"; an empty list gives "none"."""
    values = set(numbers)
    if not values:
        return "none"
    return _fold_one("", 0, values).strip("[]")
