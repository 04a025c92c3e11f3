"""Folded node names: ("n1", "n2", "n3", "n7") <-> "n[1-3,7]". `unfold` reads them as Slurm does, `fold` writes them for people, `fold_for_slurm` for Slurm's programs."""

import re
from collections import defaultdict
from collections.abc import Iterable

MANY_NAMES = 1024  # from here on a look at the usual case pays
MAX_DIGITS = 18  # of a number; Python refuses to convert a few thousand
MAX_NODES = 2**20  # far above any cluster; a slip of the pen must not fill the memory
MAX_LETTERS = 1024  # of a name without its numbers; a host's has at most 253 (RFC 1035). Without a limit a hundred kilobytes of text stand for gigabytes of names
MAX_SLURM_RANGE = 2**16  # what Slurm 22.05 reads of one range; it refuses a longer one

_NUMBER = re.compile(r"^(.*?)([0-9]+)([^0-9]*)$")  # the last number of a name


def fold(names: Iterable[str]) -> str:
    """Node names as a short list, by the last number of each name; the width of zero-padded numbers is kept. For people: in the order of the text, each name once,
    and with suffixes after a bracket, which Slurm refuses.

    >>> fold(["n01", "n02", "n03", "login"])
    'login,n[01-03]'
    """
    if isinstance(names, tuple) and len(names) >= MANY_NAMES and (run := _one_run(names)) is not None:
        return run
    numbered: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    plain: set[str] = set()
    last = ("", "", 0)
    family = numbered[last]  # of the name before: mostly of this one too
    for name in names:
        prefix = name.rstrip("0123456789")  # nearly every name ends with its number, and this is quicker than a pattern
        digits, suffix = name[len(prefix) :], ""
        if not digits or "\n" in name:
            match = _NUMBER.match(name)
            if match is None:
                plain.add(name)
                continue
            prefix, digits, suffix = match.groups()
        if len(digits) > MAX_DIGITS:
            plain.add(name)
            continue
        width = len(digits) if digits[0] == "0" and len(digits) > 1 else 0
        if last != (prefix, suffix, width):
            last = (prefix, suffix, width)
            family = numbered[last]
        family.add(int(digits))
    # n09 and n10 belong to one padded family: unpadded numbers of a padded width join it
    for prefix, suffix, width in sorted(key for key in numbered if key[2]):
        free = numbered.get((prefix, suffix, 0), set())
        joined = {number for number in free if len(str(number)) == width}
        numbered[(prefix, suffix, width)] |= joined
        free -= joined
    folded = [
        _fold_one(prefix, width, numbers, suffix) for (prefix, suffix, width), numbers in numbered.items() if numbers
    ]
    return ",".join(sorted([*plain, *folded]))


def _one_run(names: tuple[str, ...]) -> str | None:
    """The list as one bracket where it is n1, n2, n3, ... in that order, as with the nodes of a large machine; None: it is not."""
    first, last = _NUMBER.match(names[0]), _NUMBER.match(names[-1])
    if first is None or last is None or first[1] != last[1] or first[3] != last[3]:
        return None
    if max(len(first[2]), len(last[2])) > MAX_DIGITS:
        return None
    low, high, width = int(first[2]), int(last[2]), len(first[2]) if first[2][0] == "0" and len(first[2]) > 1 else 0
    if width not in {0, len(last[2])}:
        return None
    if high - low + 1 != len(names) or any(
        name != f"{first[1]}{number:0{width}d}{first[3]}" for number, name in enumerate(names, low)
    ):
        return None
    return _fold_one(first[1], width, set(range(low, high + 1)), first[3])


def _fold_one(prefix: str, width: int, numbers: set[int], suffix: str = "") -> str:
    runs: list[list[int]] = []
    low, high = min(numbers), max(numbers)
    if high - low + 1 == len(numbers):  # one run, as with 65,536 groups; the search for more would take longest
        runs, numbers = [[low, high]], set()
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    parts = [f"{a:0{width}d}" if a == b else f"{a:0{width}d}-{b:0{width}d}" for a, b in runs]
    if len(parts) == 1 and "-" not in parts[0]:
        return prefix + parts[0] + suffix
    return f"{prefix}[{','.join(parts)}]{suffix}"


def fold_for_slurm(names: Iterable[str]) -> str:
    """Node names as a list for Slurm's programs, which read just these names from it, in this order, one given twice too; as `scontrol show hostlist` prints it.

    Only neighbours are folded, by a number at the end of their names: "n1-ib,n2-ib" stays so.

    >>> fold_for_slurm(["n9", "n10", "n11", "login", "n01"])
    'n[9-11],login,n01'
    """
    families: list[tuple[str, list[_Run]]] = []  # neighbours that differ in their last numbers only
    for name in names:
        prefix = name.rstrip("0123456789")
        digits = name[len(prefix) :]
        if not 0 < len(digits) <= MAX_DIGITS:
            families.append((name, []))
        elif not families or families[-1][0] != prefix or not families[-1][1]:
            families.append((prefix, [_Run(digits)]))
        elif not families[-1][1][-1].takes(digits):
            families[-1][1].append(_Run(digits))
    return ",".join(_one_family(prefix, runs) for prefix, runs in families)


class _Run:
    """Numbers that follow each other, all written with one width: 8, 9, 10 with 1, or 08, 09, 10 with 2."""

    def __init__(self, digits: str) -> None:
        self.first = self.last = int(digits)
        self.width = len(digits)

    def takes(self, digits: str) -> bool:
        """Whether the number is the next one, and a common width writes it and the first as they are; then it belongs to the run."""
        number = int(digits)
        if number != self.last + 1 or number - self.first >= MAX_SLURM_RANGE:
            return False
        if len(digits) != self.width and len(str(number)) != len(digits):  # padded, to another width than the run's
            return False
        if len(digits) < self.width or (len(digits) > self.width and len(str(self.first)) != self.width):
            return False
        self.last = number
        return True

    def text(self) -> str:
        first, last = f"{self.first:0{self.width}d}", f"{self.last:0{self.width}d}"
        return first if self.first == self.last else f"{first}-{last}"


def _one_family(prefix: str, runs: list[_Run]) -> str:
    texts = ",".join(run.text() for run in runs)
    return prefix + texts if len(runs) < 2 and "-" not in texts else f"{prefix}[{texts}]"


def unfold(text: str) -> list[str]:
    """The names that a folded list stands for, in its order: "n[01-03],login" -> n01, n02, n03, login. A name given twice is there twice.

    As Slurm reads it: the first number of a range gives the width ("n[8-10]" -> n8, n9, n10; "n[08-10]" -> n08, n09, n10); of several brackets the last counts
    fastest, then the first, the second and so on ("r[1-2]c[1-2]n[1-2]" -> r1c1n1, r1c1n2, r2c1n1, r2c1n2, r1c2n1, ...: the order of ranks hangs on it).

    Other than there, a name may go on after a bracket ("r[1-2]n[1-2]-ib"), a range may be longer than 65536, and what looks like a slip of the pen is refused, where
    Slurm makes something of it: white space inside a name ("n1 n2", "n[1 -2]"), a bracket left open, a range without an end ("n[1-]"), a number of more than 18 digits
    in a bracket. Raises ValueError.
    """
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", text):
        if part.strip():
            names += _unfold_one(part.strip())
        if len(names) > MAX_NODES:
            raise ValueError(f"{text[:60]!r} names more than {MAX_NODES} nodes")
    if not names:
        raise ValueError(f"{text[:60]!r} names no node")
    return names


def _unfold_one(part: str) -> list[str]:
    """The names of one item, such as "r[1-2]n[01-16]": its texts and its brackets alternate."""
    texts_and_ranges = re.split(r"\[([^\[\]]*)\]", part)
    texts, brackets = texts_and_ranges[::2], texts_and_ranges[1::2]
    if any(set("[] \t") & set(text) for text in texts):
        raise ValueError(f"{part[:60]!r} is not a node name or a list such as n[01-08]")
    if sum(map(len, texts)) > MAX_LETTERS:
        raise ValueError(f"{part[:60]!r} has more than {MAX_LETTERS} letters")
    names = texts[:1]
    for place, (ranges, text) in enumerate(zip(brackets, texts[1:], strict=True), 1):
        numbers = _numbers(ranges, part)
        if len(names) * len(numbers) > MAX_NODES:
            raise ValueError(f"{part[:60]!r} names more than {MAX_NODES} nodes")
        if place == len(brackets):
            names = [name + number + text for name in names for number in numbers]
        else:
            names = [name + number + text for number in numbers for name in names]
    return names


def _numbers(ranges: str, part: str) -> list[str]:
    """The numbers of one bracket: "8-10,012" -> 8, 9, 10, 012."""
    numbers: list[str] = []
    for piece in ranges.split(","):
        span = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", piece)
        first, last = (int(span[1]), int(span[2] or span[1])) if span else (0, -1)
        if span is None or last < first:
            raise ValueError(f"{piece[:60]!r} in {part[:60]!r} is not a number or a range")
        if last - first + len(numbers) >= MAX_NODES:
            raise ValueError(f"{part[:60]!r} names more than {MAX_NODES} nodes")
        numbers += [f"{number:0{len(span[1])}d}" for number in range(first, last + 1)]
    return numbers


def natural_key(name: str) -> tuple[tuple[str | int, ...], str]:
    """For sorting names as people count: n2 before n10; what differs in spelling only (n2, n02) by its text."""
    # texts and numbers alternate, so that keys always compare; 18 digits are enough, and Python refuses to convert a few thousand
    parts = re.split(r"([0-9]{1,18})", name)
    return tuple(int(part) if i % 2 else part for i, part in enumerate(parts)), name


def fold_numbers(numbers: Iterable[int]) -> str:
    """Ranks as a short list: (0, 1, 2, 5) -> "0-2,5"; an empty list gives "none"."""
    if isinstance(numbers, range) and numbers.step == 1 and len(numbers) > 1:
        return f"{numbers[0]}-{numbers[-1]}"
    values = set(numbers)
    if not values:
        return "none"
    return _fold_one("", 0, values).strip("[]")
