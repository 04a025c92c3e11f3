"""Metrics: parseable, well named, no ids, absent where unknown."""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from preflight.model import (
    CheckRun,
    Coverage,
    Environment,
    Evidence,
    Finding,
    Report,
    Settings,
    Verdict,
)
from preflight.report.prometheus import metrics_text
from tests.builders import make_evidence, make_inventory, make_measurement, make_plan


def make_report(evidence: Evidence | None = None, **facts) -> Report:
    base = {
        "run_id": "run-20260101-abcdef",
        "command": "run",
        "started_at_s": 1000.0,
        "duration_s": 60.0,
        "answer": "no-go",
        "findings": (
            Finding(check="pair_outlier", subject="n1", verdict=Verdict.FAIL, observed="slow"),
            Finding(check="pair_outlier", subject="n2", verdict=Verdict.PASS, observed="fast"),
        ),
        "evidence": evidence or full(),
        "checks": (CheckRun(check="pair_outlier", duration_s=0.25, num_findings=2),),
        "coverage": Coverage(pairs_planned=28, pairs_measured=27),
        "environment": Environment(versions={"torch": '2.13.0"\n\\'}),
        "phases_s": {"start-up": 3.0},
    }
    return Report(**{**base, **facts})


def full(**settings) -> Evidence:
    groups = [
        make_measurement(
            (2 * i, 2 * i + 1), subject=f"tp{i}", axis="tp", collective="all_reduce", mode=mode, algbw_bytes_per_s=rate
        )
        for i, rates in enumerate(((100e9, 90e9), (80e9, 40e9), (60e9, 60e9)))
        for mode, rate in zip(("alone", "together"), rates, strict=True)
    ]
    pairs = [make_measurement((0, 1)), make_measurement((0, 4), algbw_bytes_per_s=10e9)]
    return make_evidence(
        plan=make_plan(nodes=2, gpus_per_node=4, tp=4, dp=2),
        inventory=make_inventory(2, 4),
        measurements=(*groups, *pairs),
        settings=Settings(**settings),
    )


def series(report: Report) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics_text(report))
        for sample in family.samples
    }


def value(report: Report, name: str, **labels: str) -> float:
    return series(report)[f"preflight_{name}", frozenset({"command": "run", **labels}.items())]


def test_the_answer_is_one_series_of_three_that_is_1():
    got = {answer: value(make_report(), "run_answer", answer=answer) for answer in ("go", "undecided", "no-go")}
    assert got == {"go": 0, "undecided": 0, "no-go": 1}


def test_findings_are_counted_by_check_and_verdict_zeros_included():
    counts = {v.value: value(make_report(), "findings", check="pair_outlier", verdict=v.value) for v in Verdict}
    assert counts == {"FAIL": 1, "UNKNOWN": 0, "WARN": 0, "PASS": 1, "SKIP": 0}


def test_times_are_in_seconds():
    report = make_report()
    assert value(report, "run_completion_timestamp_seconds") == 1060
    assert value(report, "run_duration_seconds") == 60
    assert value(report, "run_phase_duration_seconds", phase="start-up") == 3
    assert value(report, "check_duration_seconds", check="pair_outlier") == 0.25


def test_groups_give_minimum_and_median_by_mode_and_the_worst_contention():
    report = make_report()
    labels = {"axis": "tp", "collective": "all_reduce", "message_size": str(2**26)}
    name = "group_bus_bandwidth"
    assert value(report, f"{name}_minimum_bytes_per_second", mode="alone", **labels) == pytest.approx(60e9)
    assert value(report, f"{name}_median_bytes_per_second", mode="alone", **labels) == pytest.approx(80e9)
    assert value(report, f"{name}_minimum_bytes_per_second", mode="together", **labels) == pytest.approx(40e9)
    assert value(report, "group_contention_minimum_ratio", **labels) == pytest.approx(0.5)


def test_pairs_are_bounded_by_node_and_route():
    report = make_report()
    name = "pair_bus_bandwidth_minimum_bytes_per_second"
    assert value(report, name, node="node0", route="inside") == pytest.approx(100e9)
    assert value(report, name, node="node1", route="between") == pytest.approx(10e9)


def test_gpus_are_spelled_as_dcgm_exporter_does():
    labels = {
        "node": "node0",
        "gpu": "1",
        "UUID": "GPU-node0-1",
        "pci_bus_id": "00000000:11:00.0",
        "model": "NVIDIA H100 80GB HBM3",
    }
    assert value(make_report(), "gpu_info", **labels) == 1


def test_no_series_carries_the_run_id_or_a_job_id():
    text = metrics_text(make_report())
    assert "run-20260101-abcdef" not in text
    assert re.search(r"\b(run_id|job_id|job)=", text) is None


def test_what_was_not_measured_is_absent():
    names = {name for name, _ in series(make_report(Evidence(), coverage=Coverage(), phases_s={}, checks=()))}
    assert not any("bandwidth" in name or "contention" in name or "gpu" in name or "pairs" in name for name in names)


def test_names_have_the_prefix_and_no_process_metrics_slip_in():
    text = metrics_text(make_report())
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert all(re.fullmatch(r"preflight_[a-z_]+", name) for name in names)
    assert text.count("# HELP") == len(names)


def test_every_series_of_a_simulated_run_says_so_and_none_of_a_real_one():
    marked = series(make_report(full(simulated=True)))
    assert all(("simulated", "true") in labels for _, labels in marked)
    assert not any(name == "simulated" for _, labels in series(make_report()) for name, _ in labels)


def test_a_partial_run_is_marked():
    assert value(make_report(partial=True), "run_partial") == 1
    assert value(make_report(), "run_partial") == 0
