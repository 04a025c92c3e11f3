"""What a run says, as bounded series of the catalogue (preflight/metrics.py). What is unknown is absent."""

from collections import Counter
from collections.abc import Iterator

from preflight.metrics import ANSWERS
from preflight.model import Collective, Finding, Report, Verdict
from preflight.report.pair_table import MAX_WORST, Gauge, grouped
from preflight.report.rates import MODES, by_axis, group_rates
from preflight.report.run_pairs import durations_of
from preflight.statistics import spread_of

MAX_LEAVES = 64  # beyond, pairs of leaves would be more than 2,080 series
MAX_GPU_NODES = 64  # so many nodes at most have series for each GPU, from one place
MAX_SUBJECT = 120  # letters
KINDS = ("gpu", "nic", "slot", "rail", "node", "link", "leaf", "uplink", "path", "class", "environment", "unclear")
# the families that may be large, the most telling first: where a file can't hold all, the last ones are left out
LARGE = (
    *("worst_finding", "slowest_pair_bandwidth_ratio", "slowest_pair_bus_bandwidth_bytes_per_second", "findings"),
    *("node_bandwidth_ratio", "node_measured_timestamp_seconds"),
    *("leaf_pair_bandwidth_ratio", "leaf_pair_measured_timestamp_seconds"),
    "pair_bus_bandwidth_minimum_bytes_per_second",
    "leaf_pair_bus_bandwidth_minimum_bytes_per_second",
    *("pair_bus_bandwidth_median_bytes_per_second", "leaf_pair_bus_bandwidth_median_bytes_per_second"),
    *("gpu_matmul_minimum_operations_per_second", "gpu_host_to_device_minimum_bytes_per_second"),
    *("gpu_device_to_host_minimum_bytes_per_second", "gpu_matmul_median_operations_per_second"),
    *("gpu_host_to_device_median_bytes_per_second", "gpu_device_to_host_median_bytes_per_second", "gpu_info"),
)


def by_weight(gauges: list[Gauge]) -> list[Gauge]:
    """In the order in which they count where not all can be kept."""
    return sorted(gauges, key=lambda gauge: LARGE.index(gauge.name) + 1 if gauge.name in LARGE else 0)


def run_gauges(report: Report) -> Iterator[Gauge]:
    """Answer, times, versions."""
    command, settings = report.command, report.evidence.settings
    completed_s = report.started_at_s + report.duration_s
    yield Gauge("run_answer", [((command, answer), float(answer == report.answer)) for answer in ANSWERS])
    yield Gauge("run_completion_timestamp_seconds", [((command,), completed_s)])
    yield Gauge("run_success_timestamp_seconds", [((command,), completed_s)] if report.answer == "go" else [])
    yield Gauge("run_duration_seconds", [((command,), report.duration_s)])
    yield Gauge("run_phase_duration_seconds", [((command, phase), s) for phase, s in report.phases_s.items()])
    yield Gauge("run_partial", [((command,), float(report.partial))])
    yield Gauge("run_simulated", [((command,), float(settings.simulated))])
    yield Gauge("run_incidents", [((command,), len(report.evidence.incidents))])
    yield Gauge("run_info", [((command, settings.backend or ""), 1.0)])
    versions = sorted(report.environment.versions.items())
    yield Gauge("version_info", [((command, part, version), 1.0) for part, version in versions])


def finding_gauges(report: Report) -> Iterator[Gauge]:
    """Every verdict of every check that said something, zeros too: a series that vanishes can't be alerted on. The worst few by name."""
    command = report.command
    counts = Counter((finding.check, finding.verdict) for finding in report.findings)
    checks = sorted({check for check, _ in counts})
    series = [((command, c, verdict.value), float(counts[c, verdict])) for c in checks for verdict in Verdict]
    yield Gauge("findings", series)
    yield Gauge("check_duration_seconds", [((command, run.check), run.duration_s) for run in report.checks])
    bad = [f for f in report.findings if f.verdict.rank < Verdict.PASS.rank]
    worst = sorted(bad, key=lambda finding: finding.verdict.rank)[:MAX_WORST]
    nodes = _node_names(report)
    told = [
        (command, f.check, f.subject[:MAX_SUBJECT], node_of_finding(f, nodes) or "", f.verdict.value) for f in worst
    ]
    yield Gauge("worst_finding", [(values, 1.0) for values in told])


def _node_names(report: Report) -> frozenset[str]:
    plan, inventory = report.evidence.plan, report.evidence.inventory
    return frozenset(
        (*(plan.placement.nodes if plan else ()), *(node.name for node in (inventory.nodes if inventory else ())))
    )


def node_of_finding(finding: Finding, nodes: frozenset[str]) -> str | None:
    """The node that it blames, or is about; None: none, or several."""
    for name in (finding.blames.name if finding.blames else "", finding.subject):
        first = name.split(" ", 1)[0].rstrip(":,")
        if name in nodes or (first in nodes and not any(word.strip(":,") in nodes for word in name.split(" ")[1:])):
            return name if name in nodes else first
    return None


def coverage_gauges(report: Report, pairs: int) -> Iterator[Gauge]:
    """What the run meant to measure and measured; parts that are not known or not there are left out. `pairs`: that gave a figure."""
    seen, command = report.coverage, report.command
    if not seen.pairs_planned and not seen.groups_planned:
        return
    for name, figure in (
        ("pairs_planned", seen.pairs_planned),
        ("pairs_measured", seen.pairs_measured),
        ("pairs_withheld", max(0, pairs - MAX_WORST)),
        ("groups_planned", seen.groups_planned),
        ("groups_measured", seen.groups_measured),
    ):
        yield Gauge(name, [((command,), figure)])
    for name, planned, measured in (
        ("links", seen.links_planned, seen.links_measured),
        ("uplinks", seen.uplinks_planned, seen.uplinks_measured),
        ("leaf_pairs", seen.leaf_pairs_planned, seen.leaf_pairs_measured),
    ):
        if planned:
            yield Gauge(f"{name}_planned", [((command,), planned)])
            yield Gauge(f"{name}_measured", [((command,), measured)])


def group_gauges(report: Report) -> Iterator[Gauge]:
    """Slowest and middle group of each axis by mode, and the worst contention."""
    lows, middles, contentions = [], [], []
    for (axis, collective, size_bytes), rates in by_axis(group_rates(report.evidence.measurements or ())).items():
        key = (axis, collective, str(size_bytes))
        for mode in MODES:
            spread = spread_of(value for rate in rates if (value := getattr(rate, mode)) is not None)
            if spread:
                lows.append(((*key, mode), spread.minimum))
                middles.append(((*key, mode), spread.median))
        ratios = spread_of(rate.contention for rate in rates if rate.contention is not None)
        if ratios:
            contentions.append((key, ratios.minimum))
    yield Gauge("group_bus_bandwidth_minimum_bytes_per_second", lows)
    yield Gauge("group_bus_bandwidth_median_bytes_per_second", middles)
    yield Gauge("group_contention_minimum_ratio", contentions)


def alone_gauges(report: Report) -> Iterator[Gauge]:
    """What the GPUs of each node do by themselves, median over the repeats: the slowest and the middle one."""
    names: dict[Collective, tuple[str, str]] = {
        "matmul": ("gpu_matmul", "operations_per_second"),
        "host_to_device": ("gpu_host_to_device", "bytes_per_second"),
        "device_to_host": ("gpu_device_to_host", "bytes_per_second"),
    }
    plan = report.evidence.plan
    tried = [
        m
        for m in report.evidence.measurements or ()
        if (probe := m.probe).collective in names and len(probe.ranks) == 1 and m.samples and not m.failure
    ]
    if plan is None or not tried:
        return
    import numpy as np

    nodes, durations, probes = plan.placement.nodes, durations_of(tried), [m.probe for m in tried]
    ops = {op: number for number, op in enumerate(names)}
    ranks = np.fromiter([p.ranks[0] for p in probes], np.int64, len(probes))
    op = np.fromiter([ops[p.collective] for p in probes], np.int64, len(probes))
    flops, sizes = ([getattr(p, name) for p in probes] for name in ("flops", "size_bytes"))
    work = np.where(op == ops["matmul"], np.array(flops, np.int64), np.array(sizes, np.int64))
    placed = (ranks >= 0) & (ranks < len(plan.placement.node_ranks)) & (work > 0) & ~np.isnan(durations)
    node_ranks = np.array(plan.placement.node_ranks, np.int64)
    for number, (name, unit) in enumerate(names.values()):
        chosen = placed & (op == number)
        by_rank, _, rates = grouped(ranks[chosen], work[chosen] / durations[chosen])
        keys, lows, middles = grouped(node_ranks[by_rank], rates)
        told = [(nodes[key],) for key in keys.tolist()]
        yield Gauge(f"{name}_minimum_{unit}", sorted(zip(told, lows.tolist(), strict=True)))
        yield Gauge(f"{name}_median_{unit}", sorted(zip(told, middles.tolist(), strict=True)))


def fabric_gauges(report: Report) -> Iterator[Gauge]:
    """How many parts are named, by kind; what healthy probes give, and should give."""
    found = report.evidence.localisation
    if found is None or found.unjudged:
        return
    counts: Counter[str] = Counter(culprit.kind or "unclear" for culprit in found.culprits)
    yield Gauge("fabric_slow_parts", [((kind,), float(counts[kind])) for kind in KINDS])
    references = {(ref.op, ref.route): ref for ref in found.references}
    yield Gauge("fabric_reference_bytes_per_second", [(key, ref.bytes_per_s) for key, ref in references.items()])
    expected = [(key, ref.expected_bytes_per_s) for key, ref in references.items()]
    yield Gauge("fabric_expected_bytes_per_second", [(key, rate) for key, rate in expected if rate is not None])


def gpu_gauges(report: Report) -> Iterator[Gauge]:
    """Which GPU is where, with gpu, UUID and pci_bus_id spelled as dcgm-exporter does, for joins on UUID."""
    inventory = report.evidence.inventory
    nodes = inventory.nodes if inventory else ()
    series = [
        ((node.name, str(gpu.index), gpu.uuid, dcgm_bus_id(gpu.pci_bus_id), gpu.name or ""), 1.0)
        for node in (nodes if len(nodes) <= MAX_GPU_NODES else ())
        for gpu in node.gpus or ()
        if gpu.uuid is not None
    ]
    yield Gauge("gpu_info", list(dict(series).items()))


def dcgm_bus_id(pci_bus_id: str | None) -> str:
    """As in "0000:1a:00.0" -> "00000000:1A:00.0"; an empty label, which Prometheus takes as absent, if unknown."""
    if pci_bus_id is None:
        return ""
    domain, _, rest = pci_bus_id.partition(":")
    return f"{domain.zfill(8)}:{rest}".upper()
