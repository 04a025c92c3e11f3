"""How far repeats of the same measurement differ, and what can be told in spite of it (pure; checks and reports need it).

Noise is the standard deviation of the logarithm. Of few repeats it is pooled: sqrt(sum (ln v - mean ln v)^2 / sum (n - 1)). From ROBUST_FROM differences between repeats on it is the median of
their sizes, which a single message that something held up (a transient) doesn't move: 1.4826 x median |ln v_i - ln v_j| / sqrt(2) over all pairs of repeats of a subject. Source: the median
absolute deviation and its factor for normal data, P. Rousseeuw and C. Croux, "Alternatives to the Median Absolute Deviation", J. Am. Stat. Assoc. 88 (1993); its efficiency is 37 %: 24
differences give the noise within 20 to 30 %. Transients are counted apart (`transient_share`), and what could be nothing but transients is called by nobody (`expected_chance_alarms`).
The smallest shortfall that can be called is about 5 times the noise (Monte Carlo over 5 rounds of disjoint pairs: exact verdicts in over 99 % of the runs).

Worked example: one pair at 10 and 12 GB/s: ln differs by 0.182, noise 0.129, so nothing above 100 % - 64 % = 36 % of the peers' level can be called slow.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import log, sqrt

from preflight.model.measurement import Measurement, median

SIGMAS = 5.0
ROBUST_FROM = 8  # differences; the median of fewer is itself too uncertain
MAD_FACTOR = 1.4826  # of a normal distribution: standard deviation over median absolute deviation
MOST_CHANCE_ALARMS = 0.001  # of one comparison of a run: how many healthy parts chance alone may make slow each time
LEAST_TRANSIENTS = (
    0.01  # so many probes are taken to be held up at least; a run's few hundred can't tell that there are fewer
)


def relative_noise(series: Iterable[Sequence[float]]) -> float | None:
    """The noise of several repeated measurements, 0.05 for 5 %, over all subjects together. None: nothing was repeated.

    >>> round(relative_noise([[10.0, 12.0]]), 3), round(relative_noise([[10.0, 10.1, 10.2]] * 3 + [[10.0, 10.1, 5.0]]), 3)
    (0.129, 0.01)
    """
    squares, freedom = 0.0, 0
    apart: list[float] = []
    for values in series:
        logs = [log(value) for value in values if value > 0]
        if len(logs) > 1:
            mean = sum(logs) / len(logs)
            squares += sum((value - mean) ** 2 for value in logs)
            freedom += len(logs) - 1
            apart += [abs(one - other) for one, other in combinations(logs, 2)]
    if not freedom:
        return None
    pooled = sqrt(squares / freedom)
    return min(pooled, MAD_FACTOR * median(apart) / sqrt(2)) if len(apart) >= ROBUST_FROM else pooled


def transient_share(series: Iterable[Sequence[float]], shortfall: float) -> float | None:
    """Of the values of subjects that were measured more than once, the share that is below the subject's own best by more than `shortfall`. None: nothing was repeated.

    >>> transient_share([[10.0, 10.1, 5.0], [9.9, 10.0], [7.0]], 0.1)
    0.2
    """
    values, low = 0, 0
    for each in series:
        if len(each) > 1:
            values += len(each)
            low += sum(value < (1 - shortfall) * max(each) for value in each)
    return low / values if values else None


def expected_chance_alarms(subjects: int, repeats: int, share: float) -> float:
    """How many of so many healthy subjects are slow each time, if each value is slow by chance with this share.

    Worked example: 384 subjects, 1 % of transients: measured twice 0.04 of them, three times 0.0004.
    """
    return subjects * share**repeats


def callable_shortfall(noise: float) -> float:
    """The smallest relative shortfall that this noise lets us call, at most 1."""
    return min(1.0, SIGMAS * noise)


def why_too_noisy(noise: float | None, shortfall: float) -> str | None:
    """Why a relative shortfall can't be judged in this noise, for a finding; None: it can.

    >>> why_too_noisy(0.04, 0.1)
    'too noisy to judge a shortfall below 20%: repeats differ by 4% (standard deviation)'
    """
    if noise is None:
        return "each was measured once, so the noise is unknown and no shortfall is judged"
    least = callable_shortfall(noise)
    if least <= shortfall:
        return None
    what = "any shortfall" if least >= 1 else f"a shortfall below {least:.0%}"
    return f"too noisy to judge {what}: repeats differ by {noise:.0%} (standard deviation)"


TOO_NOISY_REMEDY = "run when the nodes are idle, or with a larger --budget"


def repeats_of(measurements: Iterable[Measurement]) -> dict[tuple[str, str], list[float]]:
    """(subject, mode) -> busbw of its repeats in bytes per second; failed ones and those made to find a culprit are left out."""
    repeats: dict[tuple[str, str], list[float]] = {}
    for measurement in measurements:
        busbw = measurement.busbw_bytes_per_s
        if busbw and not measurement.failure and not measurement.probe.attempt:
            repeats.setdefault((measurement.probe.subject, measurement.probe.mode), []).append(busbw)
    return repeats


def upper_median(values: Iterable[float]) -> float:
    """The middle value, the higher one of two: with two subjects the better is the reference. Raises ValueError if empty."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    return ordered[len(ordered) // 2]


def by_subject(repeats: Mapping[tuple[str, str], list[float]], mode: str) -> dict[str, list[float]]:
    """The repeats of one mode, by subject."""
    return {subject: values for (subject, its_mode), values in repeats.items() if its_mode == mode}
