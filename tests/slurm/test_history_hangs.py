"""A history that hangs, is locked for ever or is no file: prolog and health program end in time, with the exit code that they would have had without it."""

import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from preflight.errors import WorldError
from preflight.fleet.history import History
from preflight.slurm.beside import in_child
from preflight.slurm.limits import TimeIsUpError, limited
from tests.slurm import prologs


def prolog(tmp_path, history, *before):
    """Exit code, what it said, seconds. The node has a sick GPU."""
    config = tmp_path / "preflight.toml"
    config.write_text(f'[slurm]\nenforce = true\nstate_dir = "{tmp_path / "state"}"\n[history]\nfile = "{history}"\n')
    config.chmod(0o644)
    sick = prologs.libraries(tmp_path / "libraries")["sick"]
    began = time.monotonic()
    done = subprocess.run(
        [*before, sys.executable, "-m", "preflight", "slurm", "prolog", "--config", str(config)],
        env={**prologs.JOB, "LD_LIBRARY_PATH": str(sick)},
        cwd=prologs.ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    return done.returncode, done.stderr, time.monotonic() - began


@pytest.mark.cc
@pytest.mark.root
def test_a_history_that_hangs_holds_no_prolog_and_changes_no_exit_code(tmp_path):
    (tmp_path / "here").mkdir()
    usual, said, _ = prolog(tmp_path, tmp_path / "here/history.sqlite")
    assert "not in the history" not in said
    assert len(History(tmp_path / "here/history.sqlite").runs()) == 1
    (tmp_path / "hung").mkdir()
    code, said, took_s = prolog(
        tmp_path, tmp_path / "hung/h/history.sqlite", sys.executable, "-m", "tests.hung", str(tmp_path / "hung")
    )
    if code == 99:
        pytest.skip("no FUSE here")
    assert code == usual
    assert "not in the history: it took too long" in said
    assert took_s < 40  # for ever without a child


@pytest.mark.cc
@pytest.mark.soak
@pytest.mark.parametrize("what", ["pipe", "folder", "locked", "link", "no database"])
def test_nor_does_one_that_is_no_history(tmp_path, what):
    usual, _, _ = prolog(tmp_path, tmp_path / "usual.sqlite")
    path = tmp_path / "history.sqlite"
    lock = None
    if what == "pipe":
        os.mkfifo(path, 0o644)
    elif what == "folder":
        path.mkdir()
    elif what == "link":
        path.symlink_to(tmp_path / "usual.sqlite")
    elif what == "locked":
        path.write_bytes((tmp_path / "usual.sqlite").read_bytes())
        path.chmod(0o644)
        lock = sqlite3.connect(path)
        lock.execute("BEGIN EXCLUSIVE")
    else:
        path.write_text("no database\n" * 1000)
        path.chmod(0o644)
    code, said, _ = prolog(tmp_path, path)
    assert code == usual
    assert "not in the history" in said
    if lock:
        lock.close()


def test_what_a_child_fails_at_is_told_by_the_parent():
    def fails():
        raise WorldError("the disk is full")

    def breaks():
        raise ValueError("a mistake")

    def dies():
        os.kill(os.getpid(), 9)

    for work, said in ((fails, "the disk is full"), (breaks, "ValueError: a mistake"), (dies, "was killed")):
        with pytest.raises(WorldError, match=said):
            in_child(work)
    in_child(lambda: None)


def test_a_child_ends_with_the_alarm_and_leaves_no_descriptor():
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    with pytest.raises(TimeIsUpError), limited(0.2):
        in_child(lambda: time.sleep(60))
    assert len(list(descriptors.iterdir())) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
