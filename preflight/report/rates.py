"""The bandwidths of a run as the reports show them, derived from the raw durations."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from preflight.model import Collective, Evidence, Measurement, Plan
from preflight.model.bandwidth import ALONE
from preflight.model.base import Record
from preflight.model.measurement import median

MODES = ("alone", "together", "mixed", "skewed")


class GroupRate(Record, frozen=True):
    """busbw of one group in bytes per second, median over the repeats; None: not measured, or the measurement failed. `mixed`: while groups of other axes are at work; `skewed`: alone, with an uneven split."""

    axis: str
    group: str
    collective: Collective
    size_bytes: int
    alone: float | None
    together: float | None
    mixed: float | None = None
    skewed: float | None = None

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
        if busbw is not None and not (probe.split and probe.mode != "alone"):
            modes["skewed" if probe.split else probe.mode].append(busbw)
    return tuple(
        GroupRate(*key, *(median(modes[mode]) if modes.get(mode) else None for mode in MODES))
        for key, modes in found.items()
    )


def pair_rates(measurements: Iterable[Measurement]) -> dict[tuple[int, int], float | None]:
    """(lower rank, higher rank) -> busbw in bytes per second, median over the repeats; None: every attempt failed. Pairs that were left out are not in it."""
    found: dict[tuple[int, int], list[float]] = {}
    for measurement in measurements:
        ranks = measurement.probe.ranks
        left_out = measurement.failure is not None and measurement.failure.kind == "not_run"
        if (
            measurement.probe.axis is not None
            or measurement.probe.collective != "send_recv"
            or len(ranks) != 2
            or left_out
        ):
            continue  # "send" goes one way, at other rates
        values = found.setdefault((min(ranks), max(ranks)), [])
        busbw = measurement.busbw_bytes_per_s
        if busbw is not None:
            values.append(busbw)
    return {pair: median(values) if values else None for pair, values in found.items()}


def alone_rates(measurements: Iterable[Measurement]) -> dict[Collective, dict[int, float]]:
    """What each GPU does by itself: operation -> rank -> floating-point operations per second of a matmul, bytes per second of copies; median over the repeats."""
    found: dict[Collective, dict[int, list[float]]] = {}
    for measurement in measurements:
        probe, duration_s = measurement.probe, measurement.duration_s
        if probe.collective not in ALONE or len(probe.ranks) != 1 or not duration_s or measurement.failure:
            continue
        work = probe.flops if probe.collective == "matmul" else probe.size_bytes
        if work:
            found.setdefault(probe.collective, {}).setdefault(probe.ranks[0], []).append(work / duration_s)
    return {op: {rank: median(rates) for rank, rates in by_rank.items()} for op, by_rank in found.items()}


def first_calls_s(measurements: Iterable[Measurement]) -> dict[str, list[float]]:
    """Axis, "pairs" or "GPUs alone" -> seconds of every rank's first operation, where connections are made."""
    found: dict[str, list[float]] = {}
    for measurement in measurements:
        for samples in measurement.samples:
            if samples.first_call_s is not None:
                kind = "GPUs alone" if measurement.probe.collective in ALONE else "pairs"
                found.setdefault(measurement.probe.axis or kind, []).append(samples.first_call_s)
    return found


def node_of(plan: Plan | None, rank: int) -> str | None:
    """The node on which the plan places the rank; None without a plan, or for a rank that it doesn't have."""
    ranks = plan.placement.ranks if plan else ()
    return ranks[rank].node if 0 <= rank < len(ranks) else None


def leaf_of(evidence: Evidence, rank: int) -> str | None:
    """The leaf switch of a rank's node, from the topology or else the placement; None: nobody told."""
    node = node_of(evidence.plan, rank)
    if node is None or evidence.plan is None:
        return None
    placement = evidence.plan.placement
    told = evidence.topology.leaf_of(node) if evidence.topology else None
    return told or (placement.leaves[placement.node_ranks[rank]] if placement.leaves else None)


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
