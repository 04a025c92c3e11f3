"""Which files are read, which are left out and why, and which nodes took part in runs that died early."""

import gzip
import os

import pytest

from preflight.errors import ConfigError
from preflight.probe.nccl_tests import files
from preflight.probe.nccl_tests.files import read_logs
from tests.probe.nccl_tests.writer import GIB, died, document, log

PAIR = ("node001", "node002")
RATES = {GIB: 91.8, 4 * GIB: 91.9}
GOOD = log(PAIR, RATES)


def test_a_folder_is_read_with_its_folders(tmp_path):
    (tmp_path / "day1").mkdir()
    (tmp_path / "day1" / "a.log").write_text(GOOD)
    (tmp_path / "b.txt").write_text(GOOD)
    logs = read_logs([tmp_path])
    assert [run.folder.rpartition("/")[2] for run in logs.runs] == [tmp_path.name, "day1"]
    assert logs.skipped == ()


def test_single_files_are_read_too(tmp_path):
    (tmp_path / "a.log").write_text(GOOD)
    (tmp_path / "b.log").write_text(GOOD)
    assert len(read_logs([tmp_path / "a.log", tmp_path / "b.log"]).runs) == 2


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("x.log", b"", "is empty"),
        ("x.log.gz", gzip.compress(GOOD.encode()), "is packed with gzip"),
        ("x.bin", b"\x7fELF\0\0\0", "is no text"),
        ("run.sh", b"#!/bin/sh\nmake\n", "is no output of nccl-tests"),
        ("x.json", b'{"nodes": 3}', "is no output of nccl-tests"),
        ("x.json", b'{"version": 2, "nccl_version": 22807, "config": {"nthr', "cut short"),
        ("x.json", b"{" * 100_000, "is no output of nccl-tests"),
    ],
)
def test_what_is_no_log_is_left_out_with_the_reason(tmp_path, name, content, why):
    (tmp_path / "a.log").write_text(GOOD)
    (tmp_path / name).write_bytes(content)
    logs = read_logs([tmp_path])
    assert len(logs.runs) == 1
    assert [why in reason for _, reason in logs.skipped] == [True]


def test_a_pipe_a_link_and_a_loop_of_links_hold_nobody_up(tmp_path):
    (tmp_path / "a.log").write_text(GOOD)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "latest.log").symlink_to(tmp_path / "a.log")
    (tmp_path / "loop").symlink_to(tmp_path)
    logs = read_logs([tmp_path])
    assert len(logs.runs) == 1
    assert len(logs.skipped) == 3
    with pytest.raises(ConfigError, match="neither a folder nor a regular file"):
        read_logs([tmp_path / "pipe"])


def test_a_file_that_is_too_large_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 10_000)
    (tmp_path / "a.log").write_text(GOOD)
    (tmp_path / "b.log").write_text(GOOD + "x" * 10_000)
    assert "is larger than" in read_logs([tmp_path]).skipped[0][1]


def test_too_many_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_FILES", 2)
    for name in "abc":
        (tmp_path / name).write_text(GOOD)
    with pytest.raises(ConfigError, match="more than 2 files"):
        read_logs([tmp_path])


@pytest.mark.parametrize("content", [{}, {"readme.txt": "hello"}, {"a.log": ""}])
def test_a_folder_without_a_log_is_an_error_that_says_so(tmp_path, content):
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match="no output of nccl-tests"):
        read_logs([tmp_path])


def test_a_missing_path_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="can't be read"):
        read_logs([tmp_path / "none"])


def test_json_is_read_as_the_text_is(tmp_path):
    (tmp_path / "a.json").write_text(document(PAIR, RATES))
    (run,) = read_logs([tmp_path]).runs
    assert (run.program, run.hosts, run.num_gpus, run.num_wrong, run.ended) == ("alltoall", PAIR, 16, 0, True)
    assert {row.size_bytes: row.out.busbw_bytes_per_s for row in run.rows} == {GIB: 91.8e9, 4 * GIB: 91.9e9}


def test_json_lists_one_device_of_each_process_which_stands_for_all_of_it(tmp_path):
    (tmp_path / "a.json").write_text(document(PAIR, RATES, per_process=8))
    (run,) = read_logs([tmp_path]).runs
    assert [(seat.rank, seat.host, seat.device) for seat in run.seats] == [
        (place * 8 + device, host, device) for place, host in enumerate(PAIR) for device in range(8)
    ]


def test_a_run_that_wrote_text_and_json_counts_once(tmp_path):
    (tmp_path / "a.log").write_text("# Writing JSON output to /tmp/out/a.json\n" + GOOD)
    (tmp_path / "a.json").write_text(document(PAIR, RATES))
    logs = read_logs([tmp_path])
    assert len(logs.runs) == 1
    assert logs.skipped[0][1] == "the same run as in a text log"


@pytest.mark.parametrize(
    "name", ["node003_node004.log", "alltoall-node003-node004.txt", "4gpus.node004.node003.out.log"]
)
def test_nodes_of_a_run_that_died_early_are_told_by_its_files_name(tmp_path, name):
    (tmp_path / "x.log").write_text(log(("node003", "node004"), RATES))
    (tmp_path / name).write_text(died(("node003", "node004"), listed=False))
    run = next(run for run in read_logs([tmp_path]).runs if run.failure)
    assert set(run.hosts) == {"node003", "node004"}
    assert run.hosts_from == "the name of its file"


def test_names_of_nodes_are_never_parts_of_other_names(tmp_path):
    (tmp_path / "x.log").write_text(log(("node1", "node12"), RATES))
    (tmp_path / "node12_node1.log").write_text(died(("a", "b"), listed=False))
    run = next(run for run in read_logs([tmp_path]).runs if run.failure)
    assert run.hosts == ("node12", "node1")


def test_a_node_all_of_whose_runs_died_is_told_by_its_likeness_to_a_listed_one(tmp_path):
    (tmp_path / "gpu-01_gpu-02.log").write_text(log(("gpu-01", "gpu-02"), RATES))
    (tmp_path / "gpu-01_gpu-06_run2_8.log").write_text(died(("a", "b"), listed=False))
    run = next(run for run in read_logs([tmp_path]).runs if run.failure)
    assert run.hosts == ("gpu-01", "gpu-06")


def test_a_node_that_died_by_itself_is_told_by_its_likeness_to_listed_ones(tmp_path):
    (tmp_path / "gpu-01.log").write_text(log(("gpu-01",), RATES))
    (tmp_path / "gpu-05.log").write_text(died(("a",), listed=False))
    assert next(run for run in read_logs([tmp_path]).runs if run.failure).hosts == ("gpu-05",)


def test_names_are_told_even_where_no_run_listed_any(tmp_path):
    (tmp_path / "gpu-a7_gpu-a9.log").write_text(died(("a", "b"), listed=False))
    assert read_logs([tmp_path]).runs[0].hosts == ("gpu-a7", "gpu-a9")


def test_a_run_that_died_early_in_a_file_that_is_called_anything_has_no_nodes(tmp_path):
    (tmp_path / "x.log").write_text(GOOD)
    (tmp_path / "slurm-4711.out").write_text(died(PAIR, listed=False))
    assert next(run for run in read_logs([tmp_path]).runs if run.failure).hosts == ()


def test_utf_16_and_stray_bytes_are_read(tmp_path):
    (tmp_path / "a.log").write_bytes(GOOD.encode("utf-16"))
    (tmp_path / "b.log").write_bytes(b"\xff\xc3 junk\n" + GOOD.encode())
    assert len(read_logs([tmp_path]).runs) == 2


@pytest.mark.parametrize("zeros", [1, 4096, 100_000])
@pytest.mark.parametrize("where", ["before", "after", "inside"])
def test_zeros_where_a_machine_went_down_cost_no_run(tmp_path, zeros, where):
    cut = GOOD.index("\n", len(GOOD) // 2) if where == "inside" else 0 if where == "before" else len(GOOD)
    (tmp_path / "a.log").write_bytes(GOOD[:cut].encode() + bytes(zeros) + GOOD[cut:].encode())
    (tmp_path / "b.log").write_text(GOOD)
    first, second = read_logs([tmp_path]).runs
    assert first.rows == second.rows
    assert first.hosts == second.hosts


def test_a_core_dump_that_holds_a_log_is_none(tmp_path):
    (tmp_path / "a.log").write_text(GOOD)
    (tmp_path / "core.1").write_bytes(b"\x7fELF\2\1\1" + bytes(range(1, 32)) * 30 + bytes(900) + GOOD.encode())
    logs = read_logs([tmp_path])
    assert len(logs.runs) == 1
    assert [why for _, why in logs.skipped] == ["is no text"]


def test_a_file_counts_once_however_often_it_is_given(tmp_path, monkeypatch):
    (tmp_path / "a.log").write_text(GOOD)
    (tmp_path / "latest.log").hardlink_to(tmp_path / "a.log")
    monkeypatch.chdir(tmp_path)
    logs = read_logs([tmp_path, tmp_path / "a.log", "a.log"])
    assert len(logs.runs) == 1
    assert ["given twice" in why for _, why in logs.skipped] == [True] * 3


def test_runs_without_end_are_refused_and_take_no_memory_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("preflight.probe.nccl_tests.text.MAX_RUNS", 10)
    monkeypatch.setattr(files, "MAX_RUNS", 10)
    (tmp_path / "a.log").write_text("nccl-tests version 2.1\n# Avg bus bandwidth    : 1\n" * 10_000)
    with pytest.raises(ConfigError, match="beyond 10 runs"):
        read_logs([tmp_path])
