"""The repeats of planned groups, sorted so that only like is compared with like, and what the better ones of them reach (pure; checks and reports need it)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from preflight.model.bandwidth import Collective
from preflight.model.base import Record
from preflight.model.measurement import Measurement, Mode, median
from preflight.model.noise import upper_median
from preflight.model.plan import Plan

UPPER_SHARE = 0.25  # so many of the values must be in an upper mode, and at least two


class Series(Record, frozen=True):
    """One group's probe and its repeats. `rates`: busbw in bytes per second; `durations_s`: seconds of one operation. `split`: of a skewed all_to_all, empty: even."""

    group: str
    axis: str
    collective: Collective
    size_bytes: int
    ranks: tuple[int, ...]
    mode: Mode
    split: tuple[float, ...]
    rates: tuple[float, ...]
    durations_s: tuple[float, ...]

    @property
    def typical(self) -> float:
        """The middle of its repeats, in bytes per second."""
        return median(self.rates)

    @property
    def message(self) -> tuple[str, Collective, int]:
        """What was sent: axis, collective and size, whoever sent it."""
        return (self.axis, self.collective, self.size_bytes)


def series_of(measurements: Iterable[Measurement]) -> tuple[Series, ...]:
    """One series for each group, collective, size, mode and split, in order of first appearance. Failed measurements, and those made to find a culprit, are left out."""
    rates: dict[tuple[str, str, Collective, int, tuple[int, ...], Mode, tuple[float, ...]], list[float]] = {}
    seconds: dict[tuple[str, str, Collective, int, tuple[int, ...], Mode, tuple[float, ...]], list[float]] = {}
    for measurement in measurements:
        probe = measurement.probe
        if probe.axis is None or measurement.failure or probe.attempt:
            continue
        busbw, duration_s = measurement.busbw_bytes_per_s, measurement.duration_s
        if not busbw or not duration_s:
            continue
        key = (probe.subject, probe.axis, probe.collective, probe.size_bytes, probe.ranks, probe.mode, probe.split)
        rates.setdefault(key, []).append(busbw)
        seconds.setdefault(key, []).append(duration_s)
    return tuple(Series(*key, tuple(values), tuple(seconds[key])) for key, values in rates.items())


def shape_of(plan: Plan, ranks: Sequence[int]) -> tuple[tuple[int, ...], bool | None]:
    """How a group is spread: ranks per node, most first; and whether it leaves its leaf switch. None: it leaves its node, and the leaves are not known.

    Only groups of one shape are peers: an odd number of nodes, say, may halve a rate (NVIDIA/nccl issue 1856: 40, 20 and 40 GB/s over two, three and four nodes).
    """
    placement = plan.placement
    places = [placement.node_ranks[rank] for rank in ranks if 0 <= rank < len(placement.node_ranks)]
    per_node = tuple(sorted(Counter(places).values(), reverse=True))
    if len(per_node) < 2:
        return per_node, False
    leaves = {placement.leaves[place] if placement.leaves else None for place in places}
    return per_node, None if None in leaves else len(leaves) > 1


class Reference(Record, frozen=True):
    """What like groups reach. `how`: in words, with numbers."""

    bytes_per_s: float
    how: str


def peers_reference(values: Sequence[float], gap: float) -> Reference:
    """The middle of these values, or of the upper of two modes. Two modes: a step of more than `gap` (relative to the upper one) with at least two values and a quarter of all above it.

    The middle one lies in the slow mode where more than half are slow (16.2 of 33 GB/s in the pairs of a public 17-node cluster whose only fault is a path). Raises ValueError if empty.

    >>> peers_reference([10.0, 10.1, 10.2, 19.9, 20.0], 0.1)
    Reference(bytes_per_s=20.0, how='the upper of two modes: 2 of 5 like groups in this run')
    """
    ordered = sorted(values)
    steps = [
        (1 - low / high, index + 1)
        for index, (low, high) in enumerate(pairwise(ordered))
        if high > 0 and len(ordered) - index - 1 >= max(2, UPPER_SHARE * len(ordered))
    ]
    step, start = max(steps, default=(0.0, 0))
    if step <= gap or start <= len(ordered) // 2:
        return Reference(upper_median(ordered), f"the median of {len(ordered)} like groups in this run")
    upper = ordered[start:]
    return Reference(
        upper_median(upper), f"the upper of two modes: {len(upper)} of {len(ordered)} like groups in this run"
    )
