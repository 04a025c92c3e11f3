"""The scripts of deploy/slurm and the files that they touch: pipes, planted links, file systems that hang. The job starts all the same, in time."""

import os
import subprocess
import sys

import pytest

from tests.slurm import prologs

SCRIPTS = ("prolog.sh", "prolog-slurmctld.sh", "health.sh")


def run(path, *before, **environ):
    return subprocess.run(
        [*before, str(path)],
        env={**prologs.JOB, **environ},
        cwd=prologs.ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    ).returncode


def where_hangs(folder):
    """What a command begins with, to see that folder on a file system that hangs."""
    folder.mkdir()
    return (sys.executable, "-m", "tests.hung", str(folder))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_log_that_is_a_pipe_without_a_reader_holds_nobody(tmp_path, name):
    os.mkfifo(tmp_path / "log")
    path = prologs.script(tmp_path, name, PREFLIGHT=prologs.program(tmp_path, "exit 10"))
    assert run(path) == (0 if name == "health.sh" else 10)


@pytest.mark.parametrize("what", ["link to a file", "link to nothing", "link to a device", "folder behind the name"])
def test_nothing_that_lies_in_the_metrics_folder_is_followed(tmp_path, what):
    """It may be the exporter's own, who then chooses what a name there stands for. The script's number is known beforehand here."""
    metrics, victim = tmp_path / "metrics", tmp_path / "victim"
    metrics.mkdir()
    victim.mkdir()
    (victim / "file").write_text("precious")
    path = prologs.script(tmp_path, PREFLIGHT=prologs.program(tmp_path, "exit 1"), TEXTFILE_DIR=metrics)
    target = {"link to a file": victim / "file", "link to nothing": victim / "new", "link to a device": "/dev/full"}
    if what in target:
        first = f"/bin/ln -s {target[what]} {metrics}/.preflight-new.$$; exec {path}"
    else:
        first = f"/bin/ln -s {victim} {metrics}/preflight-slurm-prolog-n1.prom; exec {path}"
    assert run(prologs.program(tmp_path, first, "first")) == 0
    assert [file.name for file in victim.iterdir()] == ["file"]
    assert (victim / "file").read_text() == "precious"


@pytest.mark.root
def test_a_metrics_folder_that_hangs_does_not_hold_the_script(tmp_path):
    path = prologs.script(
        tmp_path, PREFLIGHT=prologs.program(tmp_path, "exit 1"), TEXTFILE_DIR=tmp_path / "hung" / "metrics"
    )
    code = run(path, *where_hangs(tmp_path / "hung"))
    if code == 99:
        pytest.skip("no FUSE here")
    assert code == 0
    assert "broke with code 1" in (tmp_path / "log").read_text()


@pytest.mark.root
@pytest.mark.soak
@pytest.mark.cc
@pytest.mark.parametrize("key", ["state_dir", "textfile_dir", "bin_dir", "rules", "config", "program"])
@pytest.mark.parametrize("name", ["prolog.sh", "health.sh"])
def test_whatever_hangs_the_job_starts(tmp_path, key, name):
    sick = prologs.libraries(tmp_path / "libraries")["sick"]
    command = f"exec {sys.executable} -m preflight"
    before = where_hangs(tmp_path / "hung")
    folders = {each: tmp_path / each for each in ("state_dir", "textfile_dir", "bin_dir", "rules")}
    folders[key] = tmp_path / "hung" / key
    (tmp_path / "textfile_dir").mkdir()
    text = "".join(f'{name} = "{folder}"\n' for name, folder in folders.items() if name != "rules" or key == "rules")
    config = tmp_path / "preflight.toml"
    config.write_text(f'[slurm]\nenforce = true\nhealth_budget = "8s"\n{text}')
    config.chmod(0o644)
    if key == "config":
        config = tmp_path / "hung" / "preflight.toml"
    given = prologs.program(tmp_path, f'cd {prologs.ROOT}; {command} "$@" --config {config}')
    path = prologs.script(tmp_path, name, PREFLIGHT=tmp_path / "hung/x" if key == "program" else given, LIMIT=6)
    assert run(path, *before, LD_LIBRARY_PATH=str(sick)) == 0
