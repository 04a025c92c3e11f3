"""Every path writes what the catalogue says, and nothing else: names, types, helps, labels; promtool finds nothing; a page has its bounds."""

import subprocess
import time

import msgspec
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from deploy.prometheus import build_metrics
from preflight import metrics
from preflight.fleet.agent_metrics import AgentMetrics
from preflight.fleet.exporter import Exporter
from preflight.fleet.history import History
from preflight.metrics import BY_NAME, CATALOGUE, MAX_BYTES, MAX_SERIES, MORE_LABELS, PREFIX
from preflight.model import Evidence, Finding, Report, Settings, Verdict
from preflight.model.history import NodeVerdict
from preflight.report.pair_table import PairTable, pair_families
from preflight.report.prometheus import metrics_text, verdict_text
from preflight.report.run_pairs import table_of_run
from preflight.slurm.scan_metrics import scan_metrics
from preflight.slurm.textfile import metrics_text as prolog_text
from tests.builders import make_evidence, make_inventory, make_measurement, make_plan
from tests.prometheus.fleet import judgement, simulated_report
from tests.report.pair_facts import PairFact, facts_of

PATHS = ("agent", "run", "prolog", "scan", "exporter")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Texts of each path, which together hold all that it ever writes."""
    folder = tmp_path_factory.mktemp("run")
    return {
        "agent": [agent_page()],
        "run": [metrics_text(simulated_report(folder, 8)), metrics_text(mixed_report()), metrics_text(real_run())],
        "prolog": [prolog_text("slurm prolog", "n1", answer="go", findings={("xid", "PASS"): 1}, duration_s=1.0)],
        "scan": [scan_page(0.5), scan_page(None)],
        "exporter": [exporter_page(folder), Exporter(folder / "none", age_s=1, leaves={}).page().decode()],
    }


def agent_page() -> str:
    node = make_inventory(1, 2).nodes[0]
    agent = AgentMetrics(node.name)
    agent.judgement(judgement(node, bad=False))
    agent.count("/healthz", 200)
    return agent.page().decode()


def scan_page(coverage: float | None) -> str:
    verdicts = [NodeVerdict(node="n1", verdict=Verdict.PASS, at_s=1.0, run_id="r")]
    facts = {"ended_s": 1.0, "duration_s": 1.0, "jobs": {}, "drained": 0, "failed": False}
    return scan_metrics(coverage=coverage, last=verdicts, **facts)


def mixed_report() -> Report:
    """Of `preflight node`: one node, a finding that blames it."""
    bad = Finding(check="xid", subject="node0", verdict=Verdict.FAIL, observed="Xid 79")
    evidence = Evidence(inventory=make_inventory(1, 2))
    return Report(
        run_id="r", command="node", started_at_s=1.0, duration_s=1.0, answer="go", findings=(bad,), evidence=evidence
    )


def real_run(
    at_s: float = 1.8e9, slow: float = 1.0, slow_nodes: tuple[int, ...] = (3,), far: float = 1.0, **facts
) -> Report:
    """Four nodes of two GPUs, like slots measured, all alike but these, which reach so much of the others' rate. `far`: the same of the first two nodes with the last two."""
    plan = make_plan(nodes=4, gpus_per_node=2, tp=2, dp=4)
    pairs = [
        make_measurement(
            (2 * a + slot, 2 * b + slot),
            algbw_bytes_per_s=50e9 * (slow if {a, b} & {*slow_nodes} else 1) * (far if a < 2 <= b else 1),
        )
        for slot in range(2)
        for a in range(4)
        for b in range(a + 1, 4)
    ]
    inside = [make_measurement((2 * node, 2 * node + 1), algbw_bytes_per_s=300e9) for node in range(4)]
    groups = [
        make_measurement((2 * i, 2 * i + 1), subject=f"tp{i}", axis="tp", collective="all_reduce") for i in range(4)
    ]
    evidence = make_evidence(
        plan=plan, measurements=(*pairs, *inside, *groups), settings=Settings(backend="gloo", cpu_declared=True)
    )
    told = {"run_id": "r1", "command": "run", "duration_s": 10.0, "answer": "go", "findings": ()}
    return Report(**{**told, "started_at_s": at_s, "evidence": evidence, **facts})


def exporter_page(folder) -> str:
    history = History(folder / "history.sqlite")
    now_s = time.time()
    bad = Finding(check="slow_part", subject="node3", verdict=Verdict.FAIL, observed="60 %")
    history.add(real_run(now_s - 100, slow=0.6, answer="no-go", findings=(bad,)))
    exporter = Exporter(folder / "history.sqlite", age_s=86400, leaves={f"node{i}": f"leaf{i % 2}" for i in range(4)})
    exporter.look()
    verdict = NodeVerdict(node="node3", verdict=Verdict.FAIL, at_s=now_s, run_id="r2")
    history.add(real_run(now_s - 50, run_id="r2", findings=(bad,)), sweep="s1", verdicts=[verdict])
    exporter.look()
    assert exporter.problem is None
    return exporter.page().decode()


def families(text: str):
    return {family.name: family for family in text_string_to_metric_families(text)}


def catalogued(family):
    """The catalogue's entry; the parser takes _total off a counter's name."""
    name = family.name.removeprefix(PREFIX) + ("_total" if family.type == "counter" else "")
    assert family.name.startswith(PREFIX)
    return BY_NAME[name]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_writes_only_what_the_catalogue_gives_it_with_its_help_type_and_labels(pages, path):
    for text in pages[path]:
        for family in families(text).values():
            metric = catalogued(family)
            assert path in metric.paths, metric.name
            assert (family.documentation, family.type) == (metric.text, metric.kind)
            for sample in family.samples:
                labels = set(sample.labels) - {"le", "simulated"}
                assert labels - set(MORE_LABELS[path]) <= set(metric.labels), metric.name
                assert set(metric.labels) <= labels, metric.name


@pytest.mark.parametrize("path", PATHS)
def test_a_path_writes_each_metric_that_the_catalogue_gives_it(pages, path):
    written = {catalogued(family).name for text in pages[path] for family in families(text).values()}
    assert {metric.name for metric in CATALOGUE if path in metric.paths} - written == set()


@pytest.mark.debian("prometheus", "promtool")
@pytest.mark.parametrize("path", [*PATHS, "push"])
def test_promtool_finds_nothing_wrong(pages, path):
    for text in [verdict_text(mixed_report())] if path == "push" else pages[path]:
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=text.encode(), capture_output=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("path", PATHS)
def test_no_series_stands_twice(pages, path):
    for text in pages[path]:
        series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
        assert len(series) == len(set(series))


def test_the_table_of_metrics_is_current():
    assert build_metrics.PAGE.read_text() == build_metrics.page()


def test_names_have_units_and_no_label_could_be_a_run_or_a_job():
    for metric in CATALOGUE:
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name
        assert not {"run_id", "job_id", "job", "instance", "type", "cluster"} & set(metric.labels), metric.name
    assert len(BY_NAME) == len(CATALOGUE)


def test_the_file_of_a_command_holds_its_name_in_every_series_so_that_two_files_hold_none_twice(pages):
    for text in pages["run"]:
        samples = [sample for family in families(text).values() for sample in family.samples]
        assert all(sample.labels["command"] in {"run", "node"} for sample in samples)
    one_node = [sample for family in families(pages["run"][1]).values() for sample in family.samples]
    assert all(sample.labels["node"] == "node0" for sample in one_node)


def test_the_slow_node_is_told_from_its_partners_by_ratio(pages):
    family = families(exporter_with(slow=0.6))["preflight_node_bandwidth_ratio"]
    ratios = {(sample.labels["node"], sample.labels["route"]): sample.value for sample in family.samples}
    assert ratios["node3", "between"] == pytest.approx(0.6)
    assert all(ratio == pytest.approx(1) for (node, _), ratio in ratios.items() if node != "node3")


def exporter_with(slow: float, number: int = 1) -> str:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        for i in range(number):
            History(Path(folder) / "h").add(real_run(time.time() - 100 + i, slow=slow, run_id=f"r{i}"))
        exporter = Exporter(Path(folder) / "h", age_s=86400, leaves={})
        exporter.look()
        return exporter.page().decode()


def table_of(*runs: tuple[float, list[PairFact]]) -> PairTable:
    """(end, pairs) of each run, the newest first."""
    facts = [(number, fact) for number, (_, of_run) in enumerate(runs) for fact in of_run]
    leaves = {node: leaf for _, f in facts for node, leaf in ((f.node, f.leaf), (f.other_node, f.other_leaf))}
    names = sorted(leaves)
    number = {name: i for i, name in enumerate(names)}
    node = np.array([[number[f.node], number[f.other_node]] for _, f in facts]).T
    slot = np.array([[f.slot, f.other_slot] for _, f in facts]).T
    rate = np.array([f.rate for _, f in facts])
    ratio = np.array([np.nan if f.ratio is None else f.ratio for _, f in facts])
    run = np.array([number for number, _ in facts])
    return PairTable(names, [leaves[name] for name in names], (node, slot, rate, ratio, run), [end for end, _ in runs])


def shown(table: PairTable) -> dict[str, dict[tuple[str, ...], float]]:
    return {name: dict(series) for name, series in pair_families(table, max_leaves=64)}


def mesh(nodes: str, *, slow: str = "", ratio: float = 0.5, leaf=lambda _: None) -> list[PairFact]:
    """Each with each, two slots; pairs with a slow node reach the ratio."""
    return [
        PairFact(a, slot, b, slot, 1e9 * share, share, leaf(a), leaf(b))
        for slot in range(2)
        for i, a in enumerate(nodes)
        for b in nodes[i + 1 :]
        for share in [ratio if {a, b} & {*slow} else 1.0]
    ]


def test_a_node_with_one_partner_has_no_ratio_since_either_may_be_slow():
    facts = [PairFact("a", i, "b", i, 1.0, 0.5) for i in range(8)]
    assert shown(table_of((1.0, facts)))["node_bandwidth_ratio"] == {}
    third = [PairFact("b", i, "c", i, 1.0, 1.0) for i in range(8)]
    assert shown(table_of((1.0, [*facts, *third])))["node_bandwidth_ratio"] == {("b", "between"): 1.0}


def test_figures_of_a_node_are_those_of_its_newest_run_and_of_no_other():
    found = shown(table_of((30.0, mesh("abc", slow="c")), (20.0, mesh("cdef")), (10.0, mesh("abcdef", slow="d"))))
    assert found["node_bandwidth_ratio"] == {
        **dict.fromkeys([(node, "between") for node in "abdef"], 1.0),
        ("c", "between"): 0.5,
    }
    assert found["pair_bus_bandwidth_median_bytes_per_second"]["c", "between"] == 0.5e9
    assert found["pair_bus_bandwidth_minimum_bytes_per_second"]["d", "between"] == 1e9
    measured = found["node_measured_timestamp_seconds"]
    assert measured == {(node, "between"): 30.0 if node in "abc" else 20.0 for node in "abcdef"}


def test_a_run_that_measured_a_node_inside_alone_says_nothing_new_of_its_ways_to_others():
    inside = [PairFact("c", 0, "c", 1, 5e9, 1.0)]
    found = shown(table_of((30.0, inside), (20.0, mesh("abc", slow="c"))))
    assert found["node_measured_timestamp_seconds"]["c", "between"] == 20
    assert found["node_measured_timestamp_seconds"]["c", "inside"] == 30
    assert found["node_bandwidth_ratio"]["c", "between"] == 0.5


def test_a_newest_run_that_can_not_tell_leaves_the_ratio_unknown_and_does_not_bring_back_an_older_one():
    lone = [PairFact("b", 0, "c", 0, 1e9, None)]
    found = shown(table_of((30.0, lone), (20.0, mesh("abc", slow="c"))))
    assert ("c", "between") not in found["node_bandwidth_ratio"]
    assert found["node_measured_timestamp_seconds"]["c", "between"] == 30


def test_no_path_between_leaves_is_called_slow_for_the_sake_of_a_slow_node():
    leaf = {"a": "l1", "b": "l1", "c": "l2", "d": "l2"}.get
    found = shown(table_of((30.0, mesh("abcd", slow="d", leaf=leaf))))
    assert found["leaf_pair_bandwidth_ratio"] == {("l1", "l1"): 1.0, ("l1", "l2"): 1.0}
    path = [fact._replace(ratio=0.6) if fact.leaf != fact.other_leaf else fact for fact in mesh("abcd", leaf=leaf)]
    found = shown(table_of((40.0, path), (30.0, mesh("abcd", leaf=leaf))))
    assert found["leaf_pair_bandwidth_ratio"]["l1", "l2"] == 0.6
    assert found["leaf_pair_measured_timestamp_seconds"]["l1", "l2"] == 40
    assert set(found["node_bandwidth_ratio"].values()) == {1.0}


def test_of_a_pair_that_several_runs_measured_the_newest_figure_stands_among_the_slowest():
    found = shown(table_of((30.0, mesh("abc")), (20.0, mesh("abcd", slow="d"))))
    slowest = found["slowest_pair_bandwidth_ratio"]
    assert {key for key, ratio in slowest.items() if ratio < 1} == {
        (a, str(slot), "d", str(slot)) for a in "abc" for slot in range(2)
    }
    assert slowest["a", "0", "b", "0"] == 1


def test_the_columns_of_a_run_say_of_each_pair_what_a_look_at_each_says(tmp_path):
    report = simulated_report(tmp_path, 8)
    extra = make_measurement((0, 9), algbw_bytes_per_s=1e9)  # another one of a pair, with windows of its own
    uneven = msgspec.structs.replace(
        extra, samples=(extra.samples[0], msgspec.structs.replace(extra.samples[1], durations_s=(0.5,)))
    )
    measured = (*(report.evidence.measurements or ()), extra, uneven)
    evidence = msgspec.structs.replace(report.evidence, measurements=measured)
    table = table_of_run(evidence, 5.0)
    told = {
        (table.nodes[a], slot, table.nodes[b], other): (rate, None if np.isnan(ratio) else ratio)
        for a, b, slot, other, rate, ratio in zip(
            *table.node.tolist(), *table.slot.tolist(), table.rate.tolist(), table.ratio.tolist(), strict=True
        )
    }
    facts = {f[:4]: f for f in facts_of(evidence)}
    assert told.keys() == facts.keys()
    for key, (rate, ratio) in told.items():
        assert rate == pytest.approx(facts[key].rate)
        assert ratio == (None if facts[key].ratio is None else pytest.approx(facts[key].ratio))
    assert dict(zip(table.nodes, table.leaves, strict=True)) == {f.node: f.leaf for f in facts.values()} | {
        f.other_node: f.other_leaf for f in facts.values()
    }


def test_a_run_that_was_not_judged_gives_no_ratios():
    text = metrics_text(real_run())
    assert "_ratio{" not in text.replace("group_contention", "")
    assert "preflight_pair_bus_bandwidth_minimum_bytes_per_second{" in text


def test_a_page_is_bounded_and_says_what_it_left_out():
    facts = [
        PairFact(f"n{i:04}", 0, f"n{j:04}", 0, 1.0, 1.0) for i in range(3000) for j in range(i + 1, min(i + 4, 3000))
    ]
    gauges = list(pair_families(table_of((1.0, facts)), max_leaves=64))
    kept, left_out = metrics.within_bounds(gauges)
    assert left_out > 0
    assert sum(len(series) for _, series in kept) <= MAX_SERIES
    text = metrics.exposition(kept, {"command": "run"})
    assert len(text) < 1.1 * MAX_BYTES


def test_hostile_names_break_no_page_and_long_ones_no_bound():
    name = 'n"1\\\n{evil="1"} 5 \u202e\x1b[31m' + "x" * 5000
    bad = Finding(check=name, subject=name, verdict=Verdict.FAIL, observed=name)
    report = Report(
        run_id="r",
        command=name,
        started_at_s=1.0,
        duration_s=1.0,
        answer="no-go",
        findings=(bad,) * 500,
        evidence=Evidence(),
    )
    text = metrics_text(report)
    assert families(text)
    assert len(text) < 1.1 * MAX_BYTES
    assert "\x1b" not in text
    agent = AgentMetrics(name)
    agent.judgement(report)
    assert families(agent.page().decode())


def test_the_time_of_the_last_success_stays_while_runs_fail():
    before = metrics_text(mixed_report())
    failed = metrics_text(real_run(answer="undecided"))
    assert "run_success" not in metrics.with_success_of(before, failed)  # another command's
    went = metrics_text(real_run(1.0e9))
    kept = metrics.with_success_of(went, failed)
    assert families(kept)["preflight_run_success_timestamp_seconds"].samples[0].value == 1.0e9 + 10
    assert metrics.with_success_of(kept, failed) == kept
    for wrong in ("NaN", "+Inf", "-5.0"):
        forged = went.replace("1000000010.0", wrong)
        assert forged != went
        assert metrics.with_success_of(forged, failed) == failed
