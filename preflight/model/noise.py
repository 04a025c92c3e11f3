"""How far repeats of the same measurement differ, and what can be told in spite of it (pure; checks and reports need it).

Noise is the standard deviation of the logarithm, pooled over all subjects that were measured more than once: sqrt(sum (ln v - mean ln v)^2 / sum (n - 1)).
The smallest shortfall that can be called is about 5 times the noise (Monte Carlo over 5 rounds of disjoint pairs: exact verdicts in over 99 % of the runs).

Worked example: one pair at 10 and 12 GB/s: ln differs by 0.182, noise 0.129, so nothing above 100 % - 64 % = 36 % of the peers' level can be called slow.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import log, sqrt

from preflight.model.measurement import Measurement

SIGMAS = 5.0


def relative_noise(series: Iterable[Sequence[float]]) -> float | None:
    """The pooled noise of several repeated measurements, 0.05 for 5 %. None: nothing was repeated."""
    squares, freedom = 0.0, 0
    for values in series:
        logs = [log(value) for value in values if value > 0]
        if len(logs) > 1:
            mean = sum(logs) / len(logs)
            squares += sum((value - mean) ** 2 for value in logs)
            freedom += len(logs) - 1
    return sqrt(squares / freedom) if freedom else None


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
