"""Whether a part is slower now than it used to be: the last of a series of runs beside those before it (pure; plain Python, since reports and small runs must not pay for numpy).

A step: the series is split where the two sides lie closest to their own medians (least sum of absolute deviations, over all places with LEAST_BEFORE runs before). A drift: the oldest third beside the newest
few, where Kendall's tau says that it went down all the way. Both are called only if

* there are LEAST_BEFORE earlier runs at least, and fewer than SETTLED runs at the new level: after that it is what the part usually does;
* the depth is at least the floor and several times the noise, which is the larger of what neighbouring runs differ by and what the runs before scatter by (1.4826 x median absolute deviation), and never taken to be under NOISE;
* the earlier runs were nearly all faster (FASTER: share of the pairs earlier / later in which the earlier one is faster: the rank test of Mann and Whitney without its tables), so that what comes and goes is not called;
* the last run itself is that low: a part that recovered is well.

A drop of one or two runs may be the runs': it must be deeper (SUDDEN), and no earlier run may have been near it, as those of a part are that is held up now and then. Medians throughout: up to a quarter of the values may be outliers. Figures of how often quiet series are called: tests/soak/test_quiet_series.py.
"""

import itertools
from collections.abc import Sequence
from datetime import datetime, timezone
from math import log, sqrt
from typing import Literal

from preflight.model.base import Record
from preflight.model.measurement import median

LEAST_BEFORE = 5  # earlier runs
MOST = 50  # newest runs that are looked at
SETTLED = 20  # runs at the new level
PERSISTENT = 3  # runs at the new level, from which on it is no matter of one run
FLOOR = 0.10  # the localiser's smallest depth
SUDDEN = 0.15  # the floor for a drop of fewer than PERSISTENT runs
NOISE = 0.005
SIGMAS, SUDDEN_SIGMAS = 5.0, 8.0  # the localiser's own, of one shot: 8
FASTER = 0.75
LEAST_DRIFT = 10  # runs
TAU = -0.6
_MAD, _TWO = 1.4826, sqrt(2)


class Drop(Record, frozen=True):
    """`at`: the index of the first run at the new level, of a drift that of the first run after the part was last near its old level. `before`, `after`: medians, in the unit of the series. `depth`: 1 - after / before.

    `runs_before`, `runs_after`: how many runs these are made of.
    """

    kind: Literal["step", "drift"]
    at: int
    before: float
    after: float
    depth: float
    runs_before: int
    runs_after: int

    @property
    def lasting(self) -> bool:
        """Whether it was seen in several runs."""
        return self.runs_after >= PERSISTENT


def drop_in(rates: Sequence[float], *, floor: float = FLOOR) -> Drop | None:
    """The drop to where the series is now. `rates`: one figure for each run, oldest first, the run to be judged last; all positive. None: there is none, or it can't be told.

    >>> drop_in([100, 101, 99, 100, 101, 80, 81, 79]).at
    5
    """
    skipped = max(0, len(rates) - MOST)
    recent = tuple(rates[skipped:])
    if len(recent) <= LEAST_BEFORE or recent[-1] > (1 - floor / 2) * max(recent[:-1]):
        return None
    found = _step(recent, floor) or _drift(recent, floor)
    return found.replace(at=found.at + skipped) if found else None


def day(at_s: float) -> str:
    """The day in UTC: "2026-11-30"; of a clock that can't be one, "?"."""
    try:
        return datetime.fromtimestamp(at_s, tz=timezone.utc).date().isoformat()
    except (ValueError, OverflowError, OSError):
        return "?"


def _step(rates: tuple[float, ...], floor: float) -> Drop | None:
    splits = range(LEAST_BEFORE, len(rates))
    at = min(splits, key=lambda k: _scatter(rates[:k]) + _scatter(rates[k:]))
    before, after = rates[:at], rates[at:]
    lasting = len(after) >= PERSISTENT
    level, now = median(before), median(after)
    least = max(
        floor if lasting else max(floor, SUDDEN), (SIGMAS if lasting else SUDDEN_SIGMAS) * _noise(rates, before)
    )
    depth = 1 - now / level
    if depth < least or rates[-1] > (1 - 0.7 * depth) * level or len(after) >= SETTLED:
        return None
    if (_share_faster(before, after) < FASTER) if lasting else (min(before) < (level + now) / 2):
        return None
    return Drop("step", at, level, now, depth, len(before), len(after))


def _drift(rates: tuple[float, ...], floor: float) -> Drop | None:
    number = len(rates)
    if number < LEAST_DRIFT:
        return None
    first, last = rates[: max(LEAST_BEFORE, number // 3)], rates[-max(PERSISTENT, number // 6) :]
    level, now = median(first), median(last)
    depth = 1 - now / level
    if depth < max(floor, SIGMAS * _noise(rates, ())) or rates[-1] > (1 - 0.7 * depth) * level:
        return None
    pairs = number * (number - 1) / 2
    rising = sum((b > a) - (b < a) for i, a in enumerate(rates) for b in rates[i + 1 :])
    if rising / pairs > TAU:
        return None
    near = [i for i, rate in enumerate(rates) if rate >= (1 - 0.25 * depth) * level]
    return Drop("drift", min(near[-1] + 1, number - 1) if near else 0, level, now, depth, len(first), len(last))


def _scatter(values: Sequence[float]) -> float:
    middle = median(values)
    return sum(abs(value - middle) for value in values)


def _noise(rates: Sequence[float], before: Sequence[float]) -> float:
    logs = [log(rate) for rate in rates]
    apart = median([abs(b - a) for a, b in itertools.pairwise(logs)])
    middle = log(median(before)) if before else 0.0
    around = median([abs(log(rate) - middle) for rate in before]) if before else 0.0
    return max(NOISE, _MAD * apart / _TWO, _MAD * around)


def _share_faster(before: Sequence[float], after: Sequence[float]) -> float:
    return sum(b > a for b in before for a in after) / (len(before) * len(after))
