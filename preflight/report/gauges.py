"""Figures of pairs, GPUs alone and the fabric as bounded gauges: per node, per pair of leaves, the worst few. What is unknown is absent."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from preflight.model import Collective, Report
from preflight.report.rates import alone_rates, leaf_of, node_of, pair_rates, rates_by_node
from preflight.statistics import Spread, spread_of

MAX_LEAVES = 64  # beyond, pairs of leaves would be more than 2,080 series
MAX_WORST = 10  # pairs that have a series of their own
KINDS = ("gpu", "nic", "slot", "rail", "node", "link", "leaf", "uplink", "path", "class", "environment", "unclear")


class Gauge(NamedTuple):
    """One family: its name without the prefix, help, label names, and (label values, figure) of each series."""

    name: str
    text: str
    labels: tuple[str, ...]
    series: Sequence[tuple[tuple[str, ...], float]]


def coverage_gauges(report: Report) -> Iterator[Gauge]:
    """What the run meant to measure and measured; parts that are not known or not there are left out."""
    seen = report.coverage
    if not seen.pairs_planned and not seen.groups_planned:
        return
    yield Gauge("pairs_planned", "Pairs that the last run meant to measure.", (), [((), seen.pairs_planned)])
    yield Gauge("pairs_measured", "Pairs that the last run measured.", (), [((), seen.pairs_measured)])
    yield Gauge("groups_planned", "Groups that the last run meant to measure.", (), [((), seen.groups_planned)])
    yield Gauge("groups_measured", "Groups that the last run measured.", (), [((), seen.groups_measured)])
    for name, what, planned, measured in (
        ("links", "Ways of GPUs out of their nodes", seen.links_planned, seen.links_measured),
        ("uplinks", "Ways of leaves to other leaves", seen.uplinks_planned, seen.uplinks_measured),
        ("leaf_pairs", "Pairs of leaves", seen.leaf_pairs_planned, seen.leaf_pairs_measured),
    ):
        if planned:
            yield Gauge(f"{name}_planned", f"{what} that the last run meant to measure.", (), [((), planned)])
            yield Gauge(f"{name}_measured", f"{what} that the last run measured.", (), [((), measured)])


def pair_gauges(report: Report) -> Iterator[Gauge]:
    """Minimum and median for each node and route, and for each two leaves; the slowest pairs."""
    name, evidence = "pair_bus_bandwidth", report.evidence
    text = "Bus bandwidth of pairs with an end on the node, both ends inside it or between nodes"
    yield from _low_and_middle(name, text, ("node", "route"), sorted(rates_by_node(evidence).items()))
    pairs = {pair: rate for pair, rate in pair_rates(evidence.measurements or ()).items() if rate is not None}
    by_leaf: dict[tuple[str, ...], list[float]] = {}
    for pair, rate in pairs.items():
        leaves = [leaf_of(evidence, rank) for rank in pair]
        nodes = {node_of(evidence.plan, rank) for rank in pair}
        known = [leaf for leaf in leaves if leaf is not None]
        if len(known) == 2 and len(nodes) == 2:
            by_leaf.setdefault(tuple(sorted(known)), []).append(rate)
    if len({leaf for leaves in by_leaf for leaf in leaves}) <= MAX_LEAVES:
        text = "Bus bandwidth of pairs of nodes, by their leaf switches"
        yield from _low_and_middle("leaf_pair_bus_bandwidth", text, ("leaf", "other_leaf"), sorted(by_leaf.items()))
    slowest = sorted(pairs, key=lambda pair: pairs[pair])[:MAX_WORST]
    series = [((*map(str, pair), *(node_of(evidence.plan, r) or "" for r in pair)), pairs[pair]) for pair in slowest]
    labels = ("rank", "other_rank", "node", "other_node")
    yield Gauge("slowest_pair_bus_bandwidth_bytes_per_second", "Bus bandwidth of the slowest pairs.", labels, series)


def gpu_gauges(report: Report) -> Iterator[Gauge]:
    """What the GPUs of each node do by themselves: the slowest and the middle one."""
    names: dict[Collective, tuple[str, str, str]] = {
        "matmul": ("gpu_matmul", "operations_per_second", "Floating-point operations per second of one GPU"),
        "host_to_device": ("gpu_host_to_device", "bytes_per_second", "Copies from host to GPU"),
        "device_to_host": ("gpu_device_to_host", "bytes_per_second", "Copies from GPU to host"),
    }
    for op, by_rank in alone_rates(report.evidence.measurements or ()).items():
        if op not in names:
            continue
        by_node: dict[tuple[str, ...], list[float]] = {}
        for rank, rate in by_rank.items():
            node = node_of(report.evidence.plan, rank)
            if node is not None:
                by_node.setdefault((node,), []).append(rate)
        name, unit, text = names[op]
        yield from _low_and_middle(name, text, ("node",), sorted(by_node.items()), unit=unit, what="GPU of the node")


def fabric_gauges(report: Report) -> Iterator[Gauge]:
    """How many parts are named, by kind; what healthy probes give."""
    found = report.evidence.localisation
    if found is None or found.unjudged:
        return
    counts: Counter[str] = Counter(culprit.kind or "unclear" for culprit in found.culprits)
    kinds = [((kind,), float(counts[kind])) for kind in KINDS]
    yield Gauge(
        "fabric_slow_parts",
        "Parts of the fabric that the last run found slow, by kind; unclear: more than one explanation.",
        ("kind",),
        kinds,
    )
    references = {(ref.op, ref.route): ref.bytes_per_s for ref in found.references}
    yield Gauge(
        "fabric_reference_bytes_per_second",
        "What healthy probes of one operation give over one class of routes.",
        ("operation", "route"),
        list(references.items()),
    )


def _low_and_middle(
    name: str,
    text: str,
    labels: tuple[str, ...],
    rates: Iterable[tuple[tuple[str, ...], list[float]]],
    *,
    unit: str = "bytes_per_second",
    what: str = "pair",
) -> Iterator[Gauge]:
    spreads = [(key, spread_of(values)) for key, values in rates]
    known: list[tuple[tuple[str, ...], Spread]] = [(key, spread) for key, spread in spreads if spread]
    lows = [(key, spread.minimum) for key, spread in known]
    middles = [(key, spread.median) for key, spread in known]
    yield Gauge(f"{name}_minimum_{unit}", f"{text}: slowest {what}.", labels, lows)
    yield Gauge(f"{name}_median_{unit}", f"{text}: median {what}.", labels, middles)
