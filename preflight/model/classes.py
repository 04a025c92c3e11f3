"""Things sorted by a value that they should share: who has which, who is the majority, who doesn't tell (pure, linear time).

A check that compares nodes says the classes and who is in them; "mismatch" alone sends someone to look at every node.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from preflight.model.base import Record
from preflight.model.crossing import shortened
from preflight.model.hostlist import fold

T = TypeVar("T")
MAX_SHOWN = 6  # classes that a sentence lists


class Classes(Record, frozen=True):
    """`members`: value -> names of those that have it, the largest class first, of equals the one met first. `unknown`: names of those whose value is None."""

    members: dict[Hashable, tuple[str, ...]]
    unknown: tuple[str, ...] = ()

    @property
    def num_known(self) -> int:
        """How many have a value."""
        return sum(len(names) for names in self.members.values())

    @property
    def uniform(self) -> bool:
        """Whether all that are known are alike; true if none is known."""
        return len(self.members) <= 1

    @property
    def majority(self) -> Hashable | None:
        """The value that more than half of the known have; None if there is none."""
        value, names = next(iter(self.members.items()), (None, ()))
        return value if 2 * len(names) > self.num_known else None

    @property
    def unlike(self) -> tuple[str, ...]:
        """The names outside the majority, in order of their classes; empty without a majority."""
        if self.majority is None:
            return ()
        return tuple(name for value, names in self.members.items() if value != self.majority for name in names)

    def text(self, show: Callable[[Hashable], str] = str, *, folded: Callable[[Iterable[str]], str] = fold) -> str:
        """As in "550 on node[0-5]; 535 on node[6-7]; unknown on node8"."""
        listed = list(self.members.items())
        parts = [f"{show(value)} on {shortened(folded(names))}" for value, names in listed[:MAX_SHOWN]]
        if listed[MAX_SHOWN:]:
            rest = sum(len(names) for _, names in listed[MAX_SHOWN:])
            parts.append(f"{len(listed) - MAX_SHOWN} more values on {rest}")
        if self.unknown:
            parts.append(f"unknown on {shortened(folded(self.unknown))}")
        return "; ".join(parts)


def classify(things: Iterable[T], fact: Callable[[T], Hashable | None], name: Callable[[T], str]) -> Classes:
    """The classes of these things by one fact. `fact` gives None for unknown; `name` is what a thing is called."""
    members: dict[Hashable, list[str]] = {}
    unknown: list[str] = []
    for thing in things:
        value = fact(thing)
        (unknown if value is None else members.setdefault(value, [])).append(name(thing))
    largest = sorted(members.items(), key=lambda item: -len(item[1]))  # stable: of equals the one met first
    return Classes({value: tuple(names) for value, names in largest}, tuple(unknown))


def join_near(numbers: Iterable[float], tolerance_ratio: float) -> dict[float, float]:
    """Each number -> the commonest of those near it, so that near ones can be counted as one value. Near: within that share of the smallest of them."""
    counts = Counter(numbers)
    joined: dict[float, float] = {}
    near: list[float] = []
    for number in [*sorted(counts), None]:
        if near and (number is None or number - near[0] > tolerance_ratio * number):
            commonest = max(near, key=lambda value: counts[value])
            joined |= dict.fromkeys(near, commonest)
            near = []
        if number is not None:
            near.append(number)
    return joined
