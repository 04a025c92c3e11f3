"""A run as Prometheus metrics, for node_exporter's textfile collector or a scrape. The only importer of prometheus_client.

A private registry keeps Python's own process metrics out. Names, helps, types and labels are those of the catalogue, preflight/metrics.py, which also says what bounds a file. No label carries a run or job
id. What is unknown is absent. Series of a simulated run carry `simulated="true"`; others lack that label.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from preflight.formats import write_atomically
from preflight.metrics import BY_NAME, MAX_BYTES, PREFIX, cumulated, with_success_of, within_bounds
from preflight.model import Report
from preflight.report.gauges import (
    LARGE,
    alone_gauges,
    by_weight,
    coverage_gauges,
    fabric_gauges,
    finding_gauges,
    gpu_gauges,
    group_gauges,
    pair_gauges,
    run_gauges,
)
from preflight.report.pair_facts import Gauge, PairFact, facts_of, ratios_by_route
from preflight.report.text import clean

HISTOGRAM = "pair_bandwidth_ratio"
VERDICTS_BY_NAME = ("findings", "worst_finding")
OF_HISTOGRAM = 40  # series at most


def metrics_text(report: Report) -> str:
    """The report in Prometheus' text format. The caller writes it by rename, to a name that ends in .prom."""
    return _text(_ReportCollector(report))


def verdict_text(report: Report) -> str:
    """As `metrics_text`, without the figures of single nodes, leaves, pairs and GPUs: for a Pushgateway."""
    return _text(_ReportCollector(report, whole=False))


def _text(collector: Collector) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry).decode()


def write_metrics_file(report: Report, path: Path) -> None:
    """The report's metrics as a file, replaced in one step; the time of the last success as the file before had it. Raises WorldError."""
    before = ""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                before = file.read(MAX_BYTES).decode(errors="replace")
    write_atomically(path, with_success_of(before, metrics_text(report)))
    with contextlib.suppress(OSError):  # the file is there; its name is on the disk a moment later
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _gauges(report: Report, facts: list[PairFact]) -> Iterator[Gauge]:
    yield from run_gauges(report)
    yield from finding_gauges(report)
    yield from coverage_gauges(report, facts)
    yield from group_gauges(report)
    yield from pair_gauges(facts)
    yield from alone_gauges(report)
    yield from fabric_gauges(report)
    yield from gpu_gauges(report)


class _ReportCollector(Collector):
    """Fresh families for one report. `whole` False: only what is of the cluster as a whole."""

    def __init__(self, report: Report, *, whole: bool = True) -> None:
        self._report, self._whole = report, whole

    def collect(self) -> Iterable[Metric]:
        """All families that have something to say. Texts from elsewhere are cleaned: they become label values."""
        more = _more(self._report)
        facts = facts_of(self._report.evidence)
        gauges = by_weight([*_gauges(self._report, facts)])
        if not self._whole:
            gauges = [gauge for gauge in gauges if gauge.name not in LARGE or gauge.name in VERDICTS_BY_NAME]
        kept, left_out = within_bounds(gauges, spent=OF_HISTOGRAM)
        for name, series in (*kept, ("families_withheld", [((), left_out)])):
            metric = BY_NAME[name]
            added = {label: value for label, value in more.items() if label not in metric.labels}
            family = GaugeMetricFamily(f"{PREFIX}{name}", metric.text, labels=[*metric.labels, *added])
            for values, figure in dict(_cleaned(series)).items():
                family.add_metric([*values, *added.values()], figure)
            if family.samples:
                yield family
        metric = BY_NAME[HISTOGRAM]
        histogram = HistogramMetricFamily(f"{PREFIX}{HISTOGRAM}", metric.text, labels=[*metric.labels, *more])
        for values, ratios in ratios_by_route(facts).items():
            histogram.add_metric([*values, *more.values()], cumulated(ratios), sum(ratios))
        if histogram.samples:
            yield histogram


def _cleaned(series: Iterable[tuple[tuple[str, ...], float]]) -> Iterator[tuple[tuple[str, ...], float]]:
    """Names that differ only in what is not printed become one: no series may stand there twice."""
    return ((tuple(map(clean, values)), figure) for values, figure in series)


def _more(report: Report) -> Mapping[str, str]:
    """The labels of all series beside their own: the command, of a run on one node alone its name, and whether it was simulated."""
    more = {"command": clean(report.command)}
    nodes = report.evidence.inventory.nodes if report.evidence.inventory else ()
    if report.command == "node" and len(nodes) == 1:
        more["node"] = clean(nodes[0].name)
    return more | ({"simulated": "true"} if report.evidence.settings.simulated else {})
