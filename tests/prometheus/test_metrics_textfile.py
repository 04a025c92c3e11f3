"""Text files: whole or not there, readable, one writer each, no series twice, never somebody else's file, never through a link (incident 15; what a real node_exporter makes of them is shown beside this)."""

import os
import stat
import subprocess
import sys
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from preflight.errors import WorldError
from preflight.report import prometheus
from preflight.report.prometheus import metrics_text, write_metrics_file
from preflight.slurm.files import PARTIAL
from preflight.slurm.textfile import STALE_S, write_metrics
from preflight.slurm.textfile import metrics_text as prolog_text
from tests.prometheus.test_metrics import mixed_report, real_run, scan_page


def prolog(answer: str = "go", node: str = "n1", **facts) -> str:
    return prolog_text("slurm prolog", node, answer=answer, findings={("xid", "PASS"): 1}, duration_s=1.0, **facts)


def write_all(folder) -> None:
    """All that ever writes into one folder, two nodes' files among them."""
    for command, node in (("slurm prolog", "n1"), ("slurm health", "n1"), ("slurm prolog", "n2")):
        text = prolog_text(command, node, answer="go", findings={("xid", "PASS"): 1}, duration_s=1.0)
        write_metrics(str(folder), command, node, text)
    write_metrics(str(folder), "scan", "fleet", scan_page(0.5))
    write_metrics_file(real_run(), folder / "run.prom")
    write_metrics_file(mixed_report(), folder / "node.prom")


def series_of(folder) -> list[str]:
    texts = [path.read_text() for path in folder.iterdir()]
    return [line.rpartition(" ")[0] for text in texts for line in text.splitlines() if not line.startswith("#")]


def test_all_writers_in_one_folder_write_no_series_twice_and_one_help_of_each_name(tmp_path):
    write_all(tmp_path)
    series = series_of(tmp_path)
    assert len(series) == len(set(series))
    told: dict[str, set[tuple[str, str]]] = {}
    for path in tmp_path.iterdir():
        for family in text_string_to_metric_families(path.read_text()):
            told.setdefault(family.name, set()).add((family.documentation, family.type))
    assert {name for name, ways in told.items() if len(ways) > 1} == set()


def test_all_files_can_be_read_by_the_exporter_whatever_the_umask_and_end_in_prom(tmp_path):
    before = os.umask(0o077)
    try:
        write_all(tmp_path)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o644}
    assert {path.suffix for path in tmp_path.iterdir()} == {".prom"}


def test_a_writer_that_raises_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    write_all(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with monkeypatch.context() as broken:
        broken.setattr(prometheus, "_gauges", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_metrics_file(real_run(answer="no-go"), tmp_path / "run.prom")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(WorldError):
        write_metrics_file(mixed_report(), tmp_path / "node.prom")
    with pytest.raises(OSError, match="No space"):
        write_metrics(str(tmp_path), "scan", "fleet", scan_page(None))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_writer_that_is_killed_leaves_whole_files(tmp_path):
    """Killed again and again in the middle of its work; readers see a whole file or none."""
    code = (
        "import sys; from preflight.slurm.textfile import metrics_text, write_metrics\n"
        "findings = {(f'check{i}', 'PASS'): 1 for i in range(200)}\n"
        "while True: write_metrics(sys.argv[1], 'slurm health', 'n1',"
        " metrics_text('slurm health', 'n1', answer='go', findings=findings, duration_s=1.0))"
    )
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) as process:
            file = tmp_path / "preflight-slurm-health-n1.prom"
            ends_at = time.monotonic() + 30
            while not file.exists():
                assert time.monotonic() < ends_at
            for _ in range(20):
                assert file.read_text().endswith("\n")
            process.kill()
        assert len(list(text_string_to_metric_families(file.read_text()))) == 8
    left = [path.name for path in tmp_path.iterdir() if path.name != file.name]
    assert all(
        name.startswith(PARTIAL) for name in left
    )  # which the collector doesn't read, and a later writer removes


def test_writers_of_one_file_at_once_leave_one_of_theirs_whole(tmp_path):
    code = (
        "import sys; from preflight.slurm.textfile import write_metrics\n"
        "for _ in range(50): write_metrics(sys.argv[1], 'slurm prolog', 'n1', 'x 1\\n' * 1000 + sys.argv[2])"
    )
    ends = [f"# {number}\n" for number in range(3)]
    writers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), end]) for end in ends]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    (file,) = tmp_path.iterdir()
    assert file.read_text() in {"x 1\n" * 1000 + end for end in ends}


def age(path, seconds: float) -> None:
    at_s = time.time() - seconds
    os.utime(path, (at_s, at_s), follow_symlinks=False)


def test_files_of_ours_that_nobody_writes_any_more_go_and_no_others(tmp_path):
    names = (
        "preflight-slurm-prolog-gone.prom",
        f"{PARTIAL}4711.x.prom",
        "other.prom",
        "preflight.prom",
        "preflight-x.txt",
    )
    for name in names:
        (tmp_path / name).write_text("x 1\n")
        age(tmp_path / name, STALE_S + 60)
    (tmp_path / "preflight-slurm-prolog-lately.prom").write_text("x 1\n")
    age(tmp_path / "preflight-slurm-prolog-lately.prom", STALE_S - 3600)
    (tmp_path / "precious").write_text("mine")
    age(tmp_path / "precious", STALE_S + 60)
    (tmp_path / "preflight-link.prom").symlink_to(tmp_path / "precious")
    age(tmp_path / "preflight-link.prom", STALE_S + 60)
    (tmp_path / "preflight-folder.prom").mkdir()
    age(tmp_path / "preflight-folder.prom", STALE_S + 60)
    write_metrics(str(tmp_path), "slurm prolog", "n1", prolog())
    left = {path.name for path in tmp_path.iterdir()}
    assert {"preflight-slurm-prolog-gone.prom", f"{PARTIAL}4711.x.prom"} & left == set()
    assert {*names[2:], "precious", "preflight-link.prom", "preflight-folder.prom"} <= left
    assert "preflight-slurm-prolog-lately.prom" in left


@pytest.mark.root
def test_another_users_file_is_neither_removed_nor_believed(tmp_path):
    theirs = tmp_path / "preflight-slurm-prolog-n2.prom"
    theirs.write_text(prolog(node="n2", completed_s=1.0e9))
    age(theirs, STALE_S + 60)
    os.chown(theirs, 65534, 65534)
    write_metrics(str(tmp_path), "slurm prolog", "n1", prolog())
    assert theirs.exists()
    write_metrics(str(tmp_path), "slurm prolog", "n2", prolog("undecided", "n2"))
    assert "run_success" not in theirs.read_text()


def test_the_time_of_the_last_success_stays_in_the_file_while_runs_fail(tmp_path):
    write_metrics(str(tmp_path), "slurm prolog", "n1", prolog(completed_s=1.0e9))
    write_metrics(str(tmp_path), "slurm prolog", "n1", prolog("undecided"))
    write_metrics(str(tmp_path), "slurm prolog", "n1", prolog("no-go"))
    text = (tmp_path / "preflight-slurm-prolog-n1.prom").read_text()
    assert 'preflight_run_success_timestamp_seconds{command="slurm prolog",node="n1"} 1000000000.0\n' in text
    write_metrics_file(real_run(1.0e9), tmp_path / "run.prom")
    write_metrics_file(real_run(answer="no-go"), tmp_path / "run.prom")
    assert (
        'preflight_run_success_timestamp_seconds{command="run"} 1000000010.0\n' in (tmp_path / "run.prom").read_text()
    )


def test_what_a_gpu_cannot_count_is_left_out_and_never_nan_or_empty(tmp_path):
    write_all(tmp_path)
    for path in tmp_path.iterdir():
        values = [line.rpartition(" ")[2] for line in path.read_text().splitlines() if not line.startswith("#")]
        assert all(float(value) == float(value) for value in values)
    assert "N/A" not in metrics_text(mixed_report())


def test_a_prolog_waits_for_no_disk_and_all_others_do(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    write_metrics(str(tmp_path), "slurm prolog", "n1", prolog())
    assert synced == []
    write_metrics(str(tmp_path), "slurm health", "n1", prolog())
    assert len(synced) == 2  # the file, and its name in the folder


def test_a_pipe_in_the_place_of_a_file_holds_nobody(tmp_path):
    os.mkfifo(tmp_path / "preflight-slurm-prolog-n1.prom")
    write_metrics(str(tmp_path), "slurm prolog", "n1", prolog())
    assert (tmp_path / "preflight-slurm-prolog-n1.prom").is_file()
    os.mkfifo(tmp_path / "run.prom")
    with pytest.raises(WorldError, match="pipe"):
        write_metrics_file(real_run(), tmp_path / "run.prom")
