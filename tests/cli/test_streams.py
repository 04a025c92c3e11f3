"""What commands do when a stream is closed, full or left by its reader: the exit code is the verdict's or 3, never 1, and nothing steers a terminal."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from preflight.cli.main import run_command_line

PLAN = """
[model]
parameters = "70B"
layers = 80
[parallel]
tp = 8
pp = 4
[hardware]
nodes = 512
gpus_per_node = 8
[launch]
launcher = "slurm"
distribution = "cyclic"
"""
NO_GO = 10


@pytest.fixture
def job(tmp_path):
    """A plan file whose report is longer than the buffers between us and a reader."""
    path = tmp_path / "job.toml"
    path.write_text(PLAN)
    return path


def run(*arguments, take: int | None, stdout=subprocess.PIPE):
    """Exit code and stderr of a command whose reader takes `take` bytes and then leaves."""
    command = [sys.executable, "-m", "preflight", *map(str, arguments)]
    with subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True) as process:
        if take is not None:
            process.stdout.read(take)
            process.stdout.close()
        error = process.stderr.read()
    return process.returncode, error


@pytest.mark.parametrize("form", ["text", "json", "junit"])
@pytest.mark.parametrize("take", [0, 10])
def test_a_reader_that_leaves_costs_neither_the_verdict_nor_a_message(job, form, take):
    assert run("plan", job, "--format", form, take=take) == (NO_GO, "")


def test_a_reader_that_leaves_a_help_text_is_not_answered_with_1():
    code, error = run("plan", "--help", take=0)
    assert (code in (0, 3), error) == (True, "")


@pytest.mark.parametrize("module", ["preflight.cli.main", "preflight.errors", "preflight.cli.checks"])
def test_an_interruption_while_modules_are_loaded_is_one_line_and_no_traceback(tmp_path, module):
    (tmp_path / "sitecustomize.py").write_text(
        f"""
import sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
"""
    )
    command = [sys.executable, "-m", "preflight", "checks", "list"]
    environment = {**os.environ, "PYTHONPATH": os.fspath(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert (done.returncode, done.stderr.strip(), done.stdout) == (3, "preflight: interrupted", "")


def test_a_full_disk_is_said():
    with Path("/dev/full").open("w") as full:
        code, error = run("plan", "--help", take=None, stdout=full)
    assert code in (0, 3)
    assert "No space left on device" in error


@pytest.mark.parametrize("form", ["text", "json", "junit"])
def test_a_full_disk_costs_no_verdict(job, form):
    with Path("/dev/full").open("w") as full:
        code, error = run("plan", job, "--format", form, take=None, stdout=full)
    assert code == NO_GO
    assert "can't be written: No space left on device" in error


@pytest.mark.parametrize("arguments", [["plan", "--help"], ["plan", "/nowhere.toml"], ["nonsense"], ["checks", "list"]])
def test_where_not_even_the_message_can_be_written_the_code_is_never_1(arguments):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "preflight", *arguments], stdout=full, stderr=full, check=False, timeout=60
        )
    assert done.returncode in (0, 3, 64, 78)


@pytest.mark.parametrize("name", ["\x1b]0;title\x07", "two\nlines", "\udcff"])
def test_what_was_written_is_named_without_letters_that_steer_a_terminal(tmp_path, capsys, job, name):
    target = tmp_path / f"{name}.toml"
    assert run_command_line(["plan", "--from", str(job), "--save", str(target)]) == NO_GO
    assert target.is_file()
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("written: ")]
    assert line.isprintable()
    assert line.endswith(".toml")


LIMITED = "import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); runpy.run_module('preflight', run_name='__main__')"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("form", ["text", "json", "junit"])
def test_output_that_a_disk_takes_only_in_part_is_said_to_be_cut(tmp_path, job, form, unbuffered):
    with (tmp_path / "report").open("wb") as report:
        done = subprocess.run(
            [sys.executable, "-c", LIMITED, "plan", str(job), "--format", form],
            stdout=report,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    assert (tmp_path / "report").stat().st_size == 1000
    assert "the output can't be written: File too large" in done.stderr
    assert done.returncode == NO_GO
