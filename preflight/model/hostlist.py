"""Folded node names: ("n1", "n2", "n3", "n7") <-> "n[1-3,7]", the way Slurm and ClusterShell print them."""

import re
from collections import defaultdict
from collections.abc import Iterable

MAX_NODES = 2**20  # far above any cluster; a slip of the pen must not fill the memory

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


def unfold(text: str) -> list[str]:
    """The names that a folded list stands for, in its order: "n[01-03],login" -> n01, n02, n03, login.

    Several brackets and suffixes are allowed ("r[1-2]n[1-2]-ib"). Raises ValueError.
    """
    names = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        names += _unfold_one(part.strip())
    if not names:
        raise ValueError(f"{text!r} names no node")
    return names


def _unfold_one(part: str) -> list[str]:
    match = re.fullmatch(r"([^\[\]]*)\[([0-9,\-]+)\](.*)", part)
    if match is None:
        if not part or set("[] ") & set(part):
            raise ValueError(f"{part!r} is not a node name or a list such as n[01-08]")
        return [part]
    numbers: list[str] = []
    for piece in match[2].split(","):
        span = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", piece)
        if span is None or (span[2] and int(span[2]) < int(span[1])):
            raise ValueError(f"{piece!r} in {part!r} is not a number or a range")
        if int(span[2] or span[1]) - int(span[1]) > MAX_NODES:
            raise ValueError(f"{part!r} names more than {MAX_NODES} nodes")
        numbers += [f"{number:0{len(span[1])}d}" for number in range(int(span[1]), int(span[2] or span[1]) + 1)]
    tails = _unfold_one(match[3]) if match[3] else [""]
    if len(numbers) * len(tails) > MAX_NODES:
        raise ValueError(f"{part!r} names more than {MAX_NODES} nodes")
    return [match[1] + number + tail for number in numbers for tail in tails]


def fold_numbers(numbers: Iterable[int]) -> str:
    """Ranks as a short list: (0, 1, 2, 5) -> "0-2,5"; an empty list gives "none"."""
    values = set(numbers)
    if not values:
        return "none"
    return _fold_one("", 0, values).strip("[]")
