"""The bandwidths of a run as the reports show them, derived from the raw durations."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from preflight.model import Collective, Evidence, Measurement, Plan
from preflight.model.base import Record
from preflight.model.measurement import median


class GroupRate(Record, frozen=True):
    """busbw of one group in bytes per second, median over the repeats; None: not measured, or the measurement failed."""

    axis: str
    group: str
    collective: Collective
    size_bytes: int
    alone: float | None
    together: float | None

    @property
    def contention(self) -> float | None:
        """Together / alone: 1 is none. None if either is missing."""
        return self.together / self.alone if self.together and self.alone else None


def group_rates(measurements: Iterable[Measurement]) -> tuple[GroupRate, ...]:
    """One entry for each group, collective and message size, in the order of the measurements."""
    found: dict[tuple[str, str, Collective, int], dict[str, list[float]]] = {}
    for measurement in measurements:
        probe = measurement.probe
        if probe.axis is None:
            continue
        modes = found.setdefault((probe.axis, probe.subject, probe.collective, probe.size_bytes), defaultdict(list))
        busbw = measurement.busbw_bytes_per_s
        if busbw is not None:
            modes[probe.mode].append(busbw)
    return tuple(
        GroupRate(*key, *(median(modes[mode]) if modes.get(mode) else None for mode in ("alone", "together")))
        for key, modes in found.items()
    )


def pair_rates(measurements: Iterable[Measurement]) -> dict[tuple[int, int], float | None]:
    """(lower rank, higher rank) -> busbw in bytes per second, median over the repeats; None: every attempt failed. Pairs that were left out are not in it."""
    found: dict[tuple[int, int], list[float]] = {}
    for measurement in measurements:
        ranks = measurement.probe.ranks
        left_out = measurement.failure is not None and measurement.failure.kind == "not_run"
        if measurement.probe.axis is not None or len(ranks) != 2 or left_out:
            continue
        values = found.setdefault((min(ranks), max(ranks)), [])
        busbw = measurement.busbw_bytes_per_s
        if busbw is not None:
            values.append(busbw)
    return {pair: median(values) if values else None for pair, values in found.items()}


def first_calls_s(measurements: Iterable[Measurement]) -> dict[str, list[float]]:
    """Axis, or "pairs" -> seconds of every rank's first operation, where connections are made."""
    found: dict[str, list[float]] = {}
    for measurement in measurements:
        for samples in measurement.samples:
            if samples.first_call_s is not None:
                found.setdefault(measurement.probe.axis or "pairs", []).append(samples.first_call_s)
    return found


def node_of(plan: Plan | None, rank: int) -> str | None:
    """The node on which the plan places the rank; None without a plan, or for a rank that it doesn't have."""
    ranks = plan.placement.ranks if plan else ()
    return ranks[rank].node if 0 <= rank < len(ranks) else None


def rates_by_node(evidence: Evidence) -> dict[tuple[str, str], list[float]]:
    """(node, "inside" or "between" nodes) -> busbw of the pairs with an end on that node."""
    found: dict[tuple[str, str], list[float]] = {}
    for (a, b), busbw in pair_rates(evidence.measurements or ()).items():
        ends = (node_of(evidence.plan, a), node_of(evidence.plan, b))
        if busbw is None or ends[0] is None or ends[1] is None:
            continue
        route = "inside" if ends[0] == ends[1] else "between"
        for node in dict.fromkeys(ends):
            found.setdefault((str(node), route), []).append(busbw)
    return found


def by_axis(rates: Iterable[GroupRate]) -> Mapping[tuple[str, str, int], list[GroupRate]]:
    """(axis, collective, message size) -> its groups."""
    found: dict[tuple[str, str, int], list[GroupRate]] = {}
    for rate in rates:
        found.setdefault((rate.axis, rate.collective, rate.size_bytes), []).append(rate)
    return found
