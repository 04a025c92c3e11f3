"""A run as Prometheus metrics, for node_exporter's textfile collector or a scrape.

Names, helps, types and labels are those of the catalogue, preflight/metrics.py, which also says what bounds a file. No label carries a run or job
id. What is unknown is absent. Series of a simulated run carry `simulated="true"`; others lack that label.
"""

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from preflight.formats import write_atomically
from preflight.metrics import MAX_BYTES, Samples, exposition, histogram, with_success_of, within_bounds
from preflight.model import Report
from preflight.report.gauges import (
    LARGE,
    MAX_LEAVES,
    alone_gauges,
    by_weight,
    coverage_gauges,
    fabric_gauges,
    finding_gauges,
    gpu_gauges,
    group_gauges,
    run_gauges,
)
from preflight.report.pair_table import Gauge, PairTable, pair_families, ratios_by_route
from preflight.report.run_pairs import table_of_run
from preflight.report.text import clean

HISTOGRAM = "pair_bandwidth_ratio"
VERDICTS_BY_NAME = ("findings", "worst_finding")
TIMES = (
    "node_measured_timestamp_seconds",
    "leaf_pair_measured_timestamp_seconds",
)  # here all run_completion_timestamp_seconds: the first to go
OF_HISTOGRAM = 40  # series at most


def metrics_text(report: Report) -> str:
    """The report in Prometheus' text format. The caller writes it by rename, to a name that ends in .prom."""
    return _text(report)


def verdict_text(report: Report) -> str:
    """As `metrics_text`, without the figures of single nodes, leaves, pairs and GPUs: for a Pushgateway."""
    return _text(report, whole=False)


def _text(report: Report, *, whole: bool = True) -> str:
    """All families that have something to say. `whole` False: only what is of the cluster as a whole. Texts from elsewhere are cleaned: they become label values."""
    pairs = table_of_run(report.evidence, report.started_at_s + report.duration_s)
    gauges = sorted(by_weight([*_gauges(report, pairs)]), key=lambda gauge: gauge.name in TIMES)
    if not whole:
        gauges = [gauge for gauge in gauges if gauge.name not in LARGE or gauge.name in VERDICTS_BY_NAME]
    kept, left_out = within_bounds(gauges, spent=OF_HISTOGRAM)
    kept.append(("families_withheld", [((), float(left_out))]))
    more = _more(report)
    return exposition([(name, _cleaned(series)) for name, series in kept], more) + histogram(
        HISTOGRAM, ratios_by_route(pairs), more
    )


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


def _gauges(report: Report, pairs: PairTable | None) -> Iterator[Gauge]:
    yield from run_gauges(report)
    yield from finding_gauges(report)
    yield from coverage_gauges(report, len(pairs) if pairs else 0)
    yield from group_gauges(report)
    yield from pair_families(pairs, max_leaves=MAX_LEAVES)
    yield from alone_gauges(report)
    yield from fabric_gauges(report)
    yield from gpu_gauges(report)


def _cleaned(series: Samples) -> Samples:
    """Names that differ only in what is not printed become one: no series may stand there twice."""
    return [(tuple(map(clean, values)), figure) for values, figure in series]


def _more(report: Report) -> Mapping[str, str]:
    """The labels of all series beside their own: the command, of a run on one node alone its name, and whether it was simulated."""
    more = {"command": clean(report.command)}
    nodes = report.evidence.inventory.nodes if report.evidence.inventory else ()
    if report.command == "node" and len(nodes) == 1:
        more["node"] = clean(nodes[0].name)
    return more | ({"simulated": "true"} if report.evidence.settings.simulated else {})
