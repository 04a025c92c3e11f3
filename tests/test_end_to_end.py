"""From a plan file to a report and back: what `run` wrote, `judge` reads, and says the same."""

import subprocess
import sys

import pytest

from preflight.model import Report, from_json, to_json
from tests.fleet.runs import Run

pytestmark = [pytest.mark.fabric, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    started = Run(tmp_path_factory.mktemp("run"), "--local", "2x2", "--format", "json", nodes=2, per_node=2, tp=2)
    started.code = started.wait(150)
    yield started
    started.kill_all()


def test_a_local_run_measures_every_pair_and_every_group_alone_and_together(run):
    assert run.code == 0, run.errors.read_text()
    report = run.report()
    assert report.coverage.pairs_measured == report.coverage.pairs_planned == 6
    modes = {(m.probe.subject, m.probe.mode) for m in report.evidence.measurements if m.samples and m.probe.axis}
    assert modes == {
        (f"{axis}{i}", mode) for axis, n in (("tp", 2), ("dp", 2)) for i in range(n) for mode in ("alone", "together")
    }
    assert all(m.members == m.probe.ranks and m.data_correct for m in report.evidence.measurements)
    measured = report.evidence.measurements
    assert all(s.first_call_s for m in measured for s in m.samples)
    assert all(s.join_s for m in measured if len(m.probe.ranks) > 1 for s in m.samples)


def test_starting_workers_is_reported_apart_from_probing(run):
    assert {"starting agents", "starting workers", "import torch", "fork workers", "probing"} <= set(
        run.report().phases_s
    )


def test_the_document_on_stdout_is_the_report_that_was_written(run):
    assert from_json(run.stdout, Report) == run.report()


def test_judging_the_saved_report_gives_the_same_findings_without_measuring(run):
    done = subprocess.run(
        [sys.executable, "-m", "preflight", "judge", str(run.out / "report.json"), "--format", "json"],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == run.code
    assert from_json(done.stdout, Report).findings == run.report().findings


def test_a_report_survives_a_round_trip(run):
    report = run.report()
    assert from_json(to_json(report), Report) == report


def test_gpu_checks_are_skipped_on_a_declared_cpu_backend(run):
    verdicts = {f.check: f.verdict.value for f in run.report().findings}
    assert verdicts["gpu_count"] == "SKIP"
    assert verdicts["tp_in_nvlink_domain"] == "SKIP"
