"""A run as Prometheus metrics, for node_exporter's textfile collector or a scrape. The only importer of prometheus_client.

A private registry keeps Python's own process metrics out. No label carries a run or job id. What is unknown is absent. Pairs are
bounded: minimum and median for each node and route. Series of a simulated run carry `simulated="true"`; others lack that label.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from preflight.model import Report, Verdict
from preflight.report.gauges import Gauge, coverage_gauges, fabric_gauges, gpu_gauges, pair_gauges
from preflight.report.rates import MODES, by_axis, group_rates
from preflight.report.text import clean
from preflight.statistics import spread_of

_ANSWERS = ("go", "undecided", "no-go")


def metrics_text(report: Report) -> str:
    """The report in Prometheus' text format. The caller writes it by rename, to a name that ends in .prom."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_ReportCollector(report))
    return generate_latest(registry).decode()


class _ReportCollector(Collector):
    """Fresh families for one report."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def collect(self) -> Iterable[Metric]:
        """All families that have something to say. Texts from elsewhere are cleaned: they become label values."""
        marks = {"simulated": "true"} if self._report.evidence.settings.simulated else {}
        for part in (_run, _findings, coverage_gauges, _groups, pair_gauges, gpu_gauges, fabric_gauges, _gpus):
            for gauge in part(self._report):
                family = GaugeMetricFamily(f"preflight_{gauge.name}", gauge.text, labels=[*gauge.labels, *marks])
                for values, figure in gauge.series:
                    family.add_metric([*map(clean, values), *marks.values()], figure)
                if family.samples:
                    yield family


def _run(report: Report) -> Iterator[Gauge]:
    completed_s = report.started_at_s + report.duration_s
    answers = [((answer,), float(answer == report.answer)) for answer in _ANSWERS]
    phases = [((phase,), spent_s) for phase, spent_s in report.phases_s.items()]
    versions = [((part, version), 1.0) for part, version in sorted(report.environment.versions.items())]
    backend = report.evidence.settings.backend
    labels = ("command", "backend") if backend else ("command",)
    values = (report.command, backend) if backend else (report.command,)
    yield Gauge("run_answer", "1 for the answer of the last run, 0 for the others.", ("answer",), answers)
    yield Gauge("run_completion_timestamp_seconds", "When the last run ended, Unix time.", (), [((), completed_s)])
    yield Gauge("run_duration_seconds", "Wall time of the last run.", (), [((), report.duration_s)])
    yield Gauge("run_phase_duration_seconds", "Wall time of each phase of the last run.", ("phase",), phases)
    yield Gauge("run_partial", "1 if the last run ended before its plan was done.", (), [((), float(report.partial))])
    yield Gauge(
        "run_simulated",
        "1 if the last run was on a modelled cluster.",
        (),
        [((), float(report.evidence.settings.simulated))],
    )
    yield Gauge(
        "run_incidents", "Agents and workers that failed in the last run.", (), [((), len(report.evidence.incidents))]
    )
    yield Gauge("run_info", "What the last run was.", labels, [(values, 1.0)])
    yield Gauge("version_info", "Versions the last run used.", ("component", "version"), versions)


def _findings(report: Report) -> Iterator[Gauge]:
    """Every verdict of every check that said something, zeros too: a series that vanishes can't be alerted on."""
    counts = Counter((finding.check, finding.verdict) for finding in report.findings)
    checks = sorted({check for check, _ in counts})
    series = [((check, verdict.value), float(counts[check, verdict])) for check in checks for verdict in Verdict]
    yield Gauge("findings", "Findings of the last run by check and verdict.", ("check", "verdict"), series)
    durations = [((run.check,), run.duration_s) for run in report.checks]
    yield Gauge("check_duration_seconds", "Time each check took.", ("check",), durations)


def _groups(report: Report) -> Iterator[Gauge]:
    labels = ("axis", "collective", "message_size", "mode")
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
    name = "group_bus_bandwidth"
    text = "Bus bandwidth of the groups of an axis: each alone, all together, mixed with other axes, or with a skewed split"
    yield Gauge(f"{name}_minimum_bytes_per_second", f"{text}: slowest group.", labels, lows)
    yield Gauge(f"{name}_median_bytes_per_second", f"{text}: median over groups.", labels, middles)
    yield Gauge(
        "group_contention_minimum_ratio",
        "Bus bandwidth together / alone of the group of an axis that loses most; 1 is no contention.",
        labels[:3],
        contentions,
    )


def _gpus(report: Report) -> Iterator[Gauge]:
    """Which GPU is where, with gpu, UUID and pci_bus_id spelled as dcgm-exporter does, for joins on UUID."""
    inventory = report.evidence.inventory
    series = [
        ((node.name, str(gpu.index), gpu.uuid, _dcgm_bus_id(gpu.pci_bus_id), gpu.name or ""), 1.0)
        for node in (inventory.nodes if inventory else ())
        for gpu in node.gpus or ()
        if gpu.uuid is not None
    ]
    labels = ("node", "gpu", "UUID", "pci_bus_id", "modelName")
    yield Gauge("gpu_info", "GPUs that discovery found.", labels, list(dict(series).items()))


def _dcgm_bus_id(pci_bus_id: str | None) -> str:
    """As in "0000:1a:00.0" -> "00000000:1A:00.0"; an empty label, which Prometheus takes as absent, if unknown."""
    if pci_bus_id is None:
        return ""
    domain, _, rest = pci_bus_id.partition(":")
    return f"{domain.zfill(8)}:{rest}".upper()
