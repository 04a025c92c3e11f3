"""Which nodes a sweep measures together (pure): the pair of nodes that waits longest is always among them, and suspects meet nodes that they haven't met.

Users come and go, so that no fixed tournament can be kept to: each choice is made from the nodes that are idle now and from when each pair was measured last.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import combinations

Pair = tuple[str, str]  # two nodes, in the order of their names
NEVER = float("inf")
MAX_POOL = 400  # nodes that are looked at pair by pair


def pair_of(a: str, b: str) -> Pair:
    """The pair in the order of names."""
    return (a, b) if a < b else (b, a)


def choose(
    idle: Iterable[str],
    covered: Mapping[Pair, float],
    *,
    size: int,
    now_s: float,
    age_s: float,
    most: int,
    suspects: Mapping[str, AbstractSet[str]] | None = None,
    tried: AbstractSet[Pair] = frozenset(),
) -> tuple[tuple[str, ...], ...]:
    """Disjoint sets of 2 to `size` of the idle nodes, at most `most`; each holds a pair that is due, or a suspect.

    `covered`: when a pair was measured last; it is due when that is more than `age_s` ago. `suspects`: node -> the nodes that it was measured with before; each meets others, as
    long as there are enough that are no suspects. `tried`: pairs that are not due whatever became of them, since this sweep has had them.
    """
    suspects = suspects or {}
    wait = _Waiting(covered, tried, now_s, age_s)
    free = sorted(idle, key=_shuffled)
    if len(free) > MAX_POOL:
        free = _least_known(free, wait)
    clean = [name for name in free if name not in suspects]
    chosen: list[list[str]] = []
    if len(clean) >= size - 1 and clean:
        for suspect in [name for name in free if name in suspects][:most]:
            partners = sorted(clean, key=lambda name: (name in suspects[suspect], -wait.of(suspect, name)))[: size - 1]
            if len(partners) < size - 1:
                break
            chosen.append([suspect, *partners])
            clean = [name for name in clean if name not in partners]
        free = clean  # suspects that no partners are left for wait for the next choice
    while len(chosen) < most:
        found = _grown(free, wait, size)
        if not found:
            break
        chosen.append(found)
        free = [name for name in free if name not in found]
    for short in chosen:  # company helps to tell which node of a slow pair it is
        while len(short) < size and free:
            short.append(free.pop(0))
    return tuple(tuple(sorted(names)) for names in chosen)


def share_covered(
    kinds: Iterable[Sequence[str]], covered: Mapping[Pair, float], *, now_s: float, age_s: float
) -> float | None:
    """The share of all pairs of nodes of one kind that were measured within `age_s`; None: there is no pair."""
    kind_of = {name: number for number, names in enumerate(kinds) for name in names}
    sizes = Counter(kind_of.values())
    pairs = sum(size * (size - 1) // 2 for size in sizes.values())
    fresh = sum(
        1 for (a, b), at_s in covered.items() if a in kind_of and kind_of[a] == kind_of.get(b) and now_s - at_s <= age_s
    )
    return fresh / pairs if pairs else None


class _Waiting:
    """How long pairs have been waiting for their measurement, in seconds beyond their age; 0: not due."""

    def __init__(self, covered: Mapping[Pair, float], tried: AbstractSet[Pair], now_s: float, age_s: float) -> None:
        self.covered, self.tried, self.now_s, self.age_s = covered, tried, now_s, age_s

    def of(self, a: str, b: str) -> float:
        pair = pair_of(a, b)
        if pair in self.tried:
            return 0.0
        at_s = self.covered.get(pair)
        return NEVER if at_s is None else max(0.0, self.now_s - at_s - self.age_s)

    def weight(self, a: str, b: str) -> float:
        """As `of`, but such that sums can be compared."""
        return min(self.of(a, b), 1e12)


def _grown(free: Sequence[str], wait: _Waiting, size: int) -> list[str]:
    """The pair that waits longest, and those that have most to do with it; empty: no pair is due."""
    longest, found = 0.0, []
    for a, b in combinations(free, 2):
        waiting = wait.of(a, b)
        if waiting > longest:
            longest, found = waiting, [a, b]
            if waiting == NEVER:
                break
    gain = {name: sum(wait.weight(name, member) for member in found) for name in free if name not in found}
    while found and len(found) < size and gain:
        best = max(gain, key=lambda name: gain[name])
        if gain.pop(best) <= 0:
            break
        found.append(best)
        for name in gain:
            gain[name] += wait.weight(name, best)
    return found


def _least_known(free: Sequence[str], wait: "_Waiting") -> list[str]:
    """Those of many that have the most pairs due."""
    due = {name: len(free) - 1 for name in free}
    for a, b in {*wait.covered, *wait.tried}:
        if a in due and b in due and not wait.of(a, b):
            due[a] -= 1
            due[b] -= 1
    chosen = set(sorted(free, key=lambda name: -due[name])[:MAX_POOL])
    return [name for name in free if name in chosen]


def _shuffled(name: str) -> bytes:
    """An order that has nothing to do with racks, the same every time."""
    return hashlib.sha256(name.encode()).digest()
