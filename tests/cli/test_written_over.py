"""No command writes over what it reads, or replaces a copy by nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from preflight.cli.main import run_command_line
from preflight.cli.run_history import keep
from preflight.fleet.history import History
from preflight.report.document import save_report
from tests.report.pages import fabric


@pytest.fixture
def report():
    return fabric(["n1", "n2"], slots=2)


@pytest.mark.parametrize("spelling", ["report.json", "../run/report.json", "other-name.json"])
@pytest.mark.parametrize("named", ["", "report.json"])
def test_a_page_never_takes_the_place_of_its_run(report, tmp_path, capsys, named, spelling):
    folder = tmp_path / "run"
    folder.mkdir()
    save_report(report, folder / "report.json")
    os.link(folder / "report.json", folder / "other-name.json")
    before = (folder / "report.json").read_bytes()
    assert run_command_line(["report", str(folder / named), "--html", str(folder / spelling)]) == 64
    assert "is what is read" in capsys.readouterr().err
    assert (folder / "report.json").read_bytes() == before


def test_nor_that_of_the_run_it_is_compared_with(report, tmp_path):
    for name in ("a", "b"):
        save_report(report, tmp_path / f"{name}.json")
    before = (tmp_path / "b.json").read_bytes()
    command = ["report", str(tmp_path / "a.json"), "--compare", str(tmp_path / "b.json"), "--html"]
    assert run_command_line([*command, str(tmp_path / "b.json")]) == 64
    assert (tmp_path / "b.json").read_bytes() == before


@pytest.mark.parametrize("ending", ["", "-wal", "-shm"])
def test_a_copy_never_takes_the_place_of_the_history(report, tmp_path, capsys, ending):
    path = tmp_path / "history.sqlite"
    keep(History(path), report)
    if not path.with_name(path.name + ending).exists():
        pytest.skip("no write-ahead log here")
    assert run_command_line(["history", "--file", str(path), "--export", f"{path}{ending}"]) == 64
    assert "is what is read" in capsys.readouterr().err
    assert [line.run_id for line in History(path).runs()] == ["r1"]


def test_a_copy_is_not_replaced_by_nothing(tmp_path, capsys):
    copy = tmp_path / "copy.jsonl"
    copy.write_text("older\n")
    assert run_command_line(["history", "--file", str(tmp_path / "gone.sqlite"), "--export", str(copy)]) == 3
    assert "there is no history" in capsys.readouterr().err
    assert copy.read_text() == "older\n"


def test_the_name_of_a_page_steers_no_terminal(report, tmp_path, capsys):
    save_report(report, tmp_path / "report.json")
    assert run_command_line(["report", str(tmp_path), "--html", str(tmp_path / "a\x1b[2Jb\u202e.html")]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_half_a_copy_is_no_success_and_a_reader_that_leaves_has_what_it_wanted(report, tmp_path):
    path = tmp_path / "history.sqlite"
    keep(History(path), report)
    command = [sys.executable, "-m", "preflight", "history", "--file", str(path), "--export", "-"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert done.stderr == "preflight: the output can't be written: No space left on device\n"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_copy_is_the_same_whatever_letters_the_terminal_shows(tmp_path):
    path = tmp_path / "history.sqlite"
    keep(History(path), fabric(["knoten-\u00e4", "n2"], slots=2, slow="knoten-\u00e4"))
    command = [sys.executable, "-m", "preflight", "history", "--file", str(path), "--export"]
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*command, "-"], env=environ, capture_output=True, timeout=60, check=True)
    subprocess.run([*command, str(tmp_path / "copy")], env=environ, timeout=60, check=True)
    assert done.stdout == (tmp_path / "copy").read_bytes()
    assert "knoten-\u00e4" in done.stdout.decode()
