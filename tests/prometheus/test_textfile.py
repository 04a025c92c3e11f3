"""The hazards of text files (one bad line drops a file, one series twice fails a scrape, ...) with a real node_exporter on a folder into which every writer of ours writes."""

import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from preflight.metrics import BY_NAME
from preflight.model.finding import Verdict
from preflight.model.history import NodeVerdict
from preflight.report.prometheus import write_metrics_file
from preflight.slurm.scan_metrics import scan_metrics
from preflight.slurm.textfile import metrics_text, write_metrics
from tests.builders import make_evidence, make_inventory
from tests.prometheus.stack import node_exporter
from tests.prometheus.test_metrics import mixed_report, real_run
from tests.slurm import prologs

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.debian("prometheus-node-exporter")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """(folder, exporter) with a file of every writer: real prologs and health programs of two nodes, a prolog that crashed, the scan, `run`, `node`, the controller's."""
    base = tmp_path_factory.mktemp("textfiles")
    config = prologs.site(base)
    folder = base / "metrics"
    for node in ("n1", "n2"):
        prologs.run("--config", str(config), SLURMD_NODENAME=node)
    prologs.run("--config", str(config), command="health", SLURMD_NODENAME="n1")
    script = prologs.script(base, PREFLIGHT=prologs.program(base, "exit 1"), TEXTFILE_DIR=folder)
    subprocess.run([str(script)], env={**prologs.JOB, "SLURMD_NODENAME": "n3"}, timeout=60, check=True)
    verdicts = [NodeVerdict(node="n1", verdict=Verdict.PASS, at_s=1.0, run_id="r")]
    swept = scan_metrics(ended_s=1.0, duration_s=1.0, coverage=None, jobs={}, last=verdicts, drained=0, failed=False)
    write_metrics(str(folder), "scan", "fleet", swept)
    text = metrics_text("slurm prolog-slurmctld", "n1", answer="no-go", findings={("xid", "FAIL"): 1}, duration_s=1.0)
    write_metrics(str(folder), "slurm prolog-slurmctld", "n1", text)
    write_metrics_file(real_run(), folder / "preflight.prom")
    write_metrics_file(mixed_report(), folder / "preflight-node.prom")
    with node_exporter(base / "exporter", folder) as exporter:
        yield folder, exporter


def samples(page):
    return [sample for family in text_string_to_metric_families(page) for sample in family.samples]


@pytest.mark.soak
def test_every_file_is_served_and_none_is_refused(served):
    folder, exporter = served
    page = exporter.get("/metrics")
    names = {Path(s.labels["file"]).name for s in samples(page) if s.name == "node_textfile_mtime_seconds"}
    assert names == {path.name for path in folder.iterdir()}
    assert len(names) == 8
    assert "\nnode_textfile_scrape_error 0\n" in page
    assert "level=error" not in exporter.log.read_text()


@pytest.mark.soak
def test_no_series_stands_there_twice_whoever_wrote_it(served):
    _, exporter = served
    found = [(s.name, tuple(sorted(s.labels.items()))) for s in samples(exporter.get("/metrics"))]
    assert len(found) == len(set(found))
    commands = {dict(labels).get("command") for name, labels in found if name == "preflight_run_answer"}
    assert commands == {"slurm prolog", "slurm health", "slurm prolog-slurmctld", "run", "node"}


@pytest.mark.soak
def test_each_help_and_type_is_the_same_in_every_file_and_in_the_catalogue(served):
    folder, _ = served
    for path in folder.iterdir():
        for kind, name, text in re.findall(r"^# (HELP|TYPE) preflight_(\S+) (.*)$", path.read_text(), re.MULTILINE):
            metric = BY_NAME[name]
            assert text == (metric.text if kind == "HELP" else metric.kind), (path.name, name)


@pytest.mark.soak
def test_files_are_readable_for_the_exporter_whatever_the_umask(served, tmp_path):
    folder, _ = served
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}
    before = os.umask(0o077)
    try:
        write_metrics(str(tmp_path), "slurm health", "n1", "preflight_scan_failed 0\n")
        write_metrics_file(real_run(), tmp_path / "preflight.prom")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o644}
    assert {path.suffix for path in tmp_path.iterdir()} == {".prom"}


@pytest.mark.soak
def test_what_a_gpu_does_not_support_is_left_out_and_never_an_empty_value(served, tmp_path):
    folder, _ = served
    bare = real_run(evidence=make_evidence(inventory=make_inventory(2, 2), measurements=None))
    write_metrics_file(bare, tmp_path / "bare.prom")
    for path in (*folder.iterdir(), *tmp_path.iterdir()):
        for line in path.read_text().splitlines():
            assert line.startswith("#") or re.fullmatch(r"[a-z_]+(\{.*\})? [-+.e0-9]+", line), (path.name, line)
        assert all(math.isfinite(sample.value) for sample in samples(path.read_text()))
    assert not {s.name for s in samples((tmp_path / "bare.prom").read_text()) if "bandwidth" in s.name}


@pytest.mark.soak
def test_the_exporter_does_complain_of_what_we_never_write(tmp_path):
    """Else the tests above would show nothing."""
    folder = tmp_path / "files"
    folder.mkdir()
    write_metrics(
        str(folder), "slurm health", "n1", metrics_text("slurm health", "n1", answer="go", findings={}, duration_s=1.0)
    )
    same = (folder / "preflight-slurm-health-n1.prom").read_text()
    with node_exporter(tmp_path / "exporter", folder) as exporter:
        (folder / "empty.prom").write_text("preflight_scan_failed \n")
        page = exporter.get("/metrics")
        assert "\nnode_textfile_scrape_error 1\n" in page
        assert 'preflight_run_answer{answer="go",command="slurm health",node="n1"} 1' in page
        (folder / "empty.prom").unlink()
        (folder / "other.prom").write_text(
            '# HELP preflight_run_answer Another.\npreflight_run_answer{answer="go"} 1\n'
        )
        exporter.get("/metrics")
        assert 'but should have \\"Another' in exporter.log.read_text()
        (folder / "other.prom").write_text(same)
        exporter.get("/metrics")
        assert "was collected before with the same name and label values" in exporter.log.read_text()


class BreaksOffError(Exception):
    pass


def test_a_writer_that_raises_in_the_middle_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    write_metrics(str(tmp_path), "slurm health", "n1", "preflight_scan_failed 0\n")
    write_metrics_file(real_run(), tmp_path / "preflight.prom")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def breaks(*_, **__):
        raise BreaksOffError

    for name in ("fchmod", "fsync", "rename", "link"):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, breaks)
            with pytest.raises(BreaksOffError):
                write_metrics(str(tmp_path), "slurm health", "n1", "preflight_scan_failed 1\n")
    for name in ("fchmod", "fsync"):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, breaks)
            with pytest.raises(BreaksOffError):
                write_metrics_file(real_run(slow=0.5), tmp_path / "preflight.prom")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


WRITER = """
import sys
from pathlib import Path
from preflight.report.prometheus import write_metrics_file
from preflight.slurm.textfile import metrics_text, write_metrics
from tests.prometheus.test_metrics import real_run
folder, number = sys.argv[1], 0
report = real_run()
print("ready", flush=True)
while True:
    number += 1
    findings = {(f"check{i}", "PASS"): number for i in range(200)}
    write_metrics(folder, "slurm health", "n1", metrics_text("slurm health", "n1", answer="go", findings=findings, duration_s=1.0))
    if number % 10 == 0:
        write_metrics_file(report, Path(folder) / "preflight.prom")
"""


@pytest.mark.soak
def test_a_writer_that_is_killed_while_it_writes_never_shows_half_a_file(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    chance = random.Random(0)
    with node_exporter(tmp_path / "exporter", folder) as exporter:
        for _ in range(5):
            writer = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], cwd=ROOT, stdout=subprocess.PIPE)
            assert writer.stdout
            try:
                writer.stdout.readline()
                until = time.monotonic() + chance.uniform(0.2, 0.8)
                while time.monotonic() < until:
                    whole(exporter)
            finally:
                writer.send_signal(signal.SIGKILL)
                writer.wait(10)
                writer.stdout.close()
            whole(exporter)
        for path in folder.iterdir():
            assert path.name in {"preflight-slurm-health-n1.prom", "preflight.prom"} or path.name.startswith("."), path
    assert "level=error" not in exporter.log.read_text()


def whole(exporter):
    """All checks stand there with one and the same figure, or the file is not there yet."""
    page = exporter.get("/metrics")
    assert "\nnode_textfile_scrape_error 0\n" in page, exporter.log.read_text()[-2000:]
    figures = re.findall(r'^preflight_findings\{.*verdict="PASS"\} (\S+)$', page, re.MULTILINE)
    assert len(figures) in {0, 200}
    assert len(set(figures)) <= 1
