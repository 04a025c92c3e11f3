"""Robust figures that several stages need. Plain Python: reports and small runs must not pay for numpy."""

from collections.abc import Iterable

from preflight.model.base import Record
from preflight.model.measurement import median


class Spread(Record, frozen=True):
    """What a set of values looks like: smallest, middle, largest, and how many there are (at least one)."""

    minimum: float
    median: float
    maximum: float
    number: int


def spread_of(values: Iterable[float]) -> Spread | None:
    """The spread of the values, None if there are none.

    >>> spread_of([3.0, 1.0, 2.0])
    Spread(minimum=1.0, median=2.0, maximum=3.0, number=3)
    """
    ordered = sorted(values)
    if not ordered:
        return None
    return Spread(ordered[0], median(ordered), ordered[-1], len(ordered))
