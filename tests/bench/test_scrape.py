"""A scrape of 512 nodes of eight GPUs: series, bytes and time, beside a plain registry of prometheus-client with as many series."""

import statistics
import time
from collections.abc import Callable

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from preflight.fleet.agent_metrics import AgentMetrics
from preflight.fleet.exporter import Exporter
from preflight.fleet.history import History
from preflight.report.prometheus import metrics_text
from tests.prometheus.fleet import judgement, simulated_report

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]
NODES = 512
MAX_SERIES, MAX_BYTES = 5000, 1_000_000  # the limits of one coordinator
TRIES = 15


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return simulated_report(tmp_path_factory.mktemp("run"), NODES)


def seconds(work: Callable[[], object]) -> float:
    """Median of some tries."""
    spent = []
    for _ in range(TRIES):
        began = time.perf_counter()
        work()
        spent.append(time.perf_counter() - began)
    return statistics.median(spent)


def plain(text: str) -> CollectorRegistry:
    """The same series in a plain registry."""
    registry = CollectorRegistry()
    for family in text_string_to_metric_families(text):
        gauges: dict[str, Gauge] = {}
        for sample in family.samples:
            names = sorted(sample.labels)
            if sample.name not in gauges:
                gauges[sample.name] = Gauge(sample.name, family.documentation, names, registry=registry)
            gauge = gauges[sample.name]
            (gauge.labels(**sample.labels) if names else gauge).set(sample.value)
    return registry


def show(what: str, text: str, made_s: float, plain_s: float) -> int:
    series = sum(not line.startswith("#") for line in text.splitlines())
    print(
        f"{what:34} {series:6} series {len(text) / 1e3:8.1f} kB   {1e3 * made_s:8.1f} ms   plain registry {1e3 * plain_s:7.1f} ms"
    )
    assert series < MAX_SERIES
    assert len(text) < MAX_BYTES
    return series


def test_the_exporter(report, tmp_path):
    """What Prometheus waits for is the page; the history is read beside it, when it changed."""
    settings = msgspec.structs.replace(report.evidence.settings, simulated=False)
    evidence = msgspec.structs.replace(report.evidence, settings=settings)
    History(tmp_path / "h").add(msgspec.structs.replace(report, evidence=evidence, started_at_s=time.time() - 60))
    leaves = {node: above[0] for node, above in (report.evidence.topology.switches or {}).items()}
    exporter = Exporter(tmp_path / "h", age_s=86400.0, leaves=leaves)
    began = time.perf_counter()
    exporter.look()
    read_s = time.perf_counter() - began
    assert exporter.problem is None
    text = exporter._text(time.monotonic())
    registry = plain(text)
    made_s = seconds(lambda: exporter._text(time.monotonic()))
    plain_s = seconds(lambda: generate_latest(registry))
    print()
    show("exporter, 512 nodes", text, made_s, plain_s)
    figures = sum(len(m.probe.ranks) == 2 for m in report.evidence.measurements)
    print(f"  reading the history ({figures} probes of pairs) {read_s:.2f} s, in a thread beside")
    assert made_s < 0.2 * plain_s


def test_the_text_file_of_a_run(report):
    began = time.perf_counter()
    text = metrics_text(report)
    made_s = time.perf_counter() - began
    registry = plain(text)
    print()
    show("text file of a run, 512 nodes", text, made_s, seconds(lambda: generate_latest(registry)))


def test_an_agent(report):
    node = report.evidence.inventory.nodes[0]
    agent = AgentMetrics(node.name)
    agent.judgement(judgement(node, bad=False))

    def made() -> bytes:
        agent._made = float("-inf")
        return agent.page()

    text = made().decode()
    registry = plain(text)
    print()
    show("agent", text, seconds(made), seconds(lambda: generate_latest(registry)))
