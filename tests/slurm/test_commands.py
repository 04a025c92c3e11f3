"""How Slurm's programs are run: programs of our own in a folder take their place, since the real ones never hang when one wants them to."""

import os
import time
from pathlib import Path

import pytest

from preflight.errors import SlurmError
from preflight.slurm.commands import Slurm, job_id, node_name, plain


def slurm_of(folder: Path, script: str, **named) -> Slurm:
    """A Slurm whose scontrol is these lines of shell."""
    program = folder / "scontrol"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return Slurm(str(folder), **named)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, what: str) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def test_a_command_that_hangs_ends_at_the_deadline_with_all_that_it_started(tmp_path):
    slurm = slurm_of(tmp_path, f"echo $$ > {tmp_path}/pids; sleep 300 & echo $! >> {tmp_path}/pids; wait", deadline_s=1)
    with pytest.raises(SlurmError, match=r"scontrol show config: no answer within 1 s"):
        slurm.now_s()
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    for pid in pids:
        wait_until(lambda pid=pid: not is_alive(pid), "ended")


def test_a_child_that_keeps_the_output_open_holds_nobody_up_beyond_the_deadline(tmp_path):
    slurm = slurm_of(tmp_path, f"sleep 300 & echo $! > {tmp_path}/pid", deadline_s=1)
    with pytest.raises(SlurmError, match="no answer within 1 s"):
        slurm.now_s()
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not is_alive(pid), "ended")


def test_an_alarm_of_the_whole_command_leaves_no_program_behind(tmp_path):
    """As the prolog's own limit of time: an exception out of a signal handler, in the middle of the wait."""
    import signal

    def ring(*_):
        raise TimeoutError

    slurm = slurm_of(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 300")
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 1)
    try:
        with pytest.raises(TimeoutError):
            slurm.nodes()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not is_alive(pid), "ended")


def test_all_commands_together_end_in_time(tmp_path):
    slurm = slurm_of(tmp_path, "exec sleep 300", ends_at=time.monotonic() - 1)
    with pytest.raises(SlurmError, match="no answer within 0 s"):
        slurm.nodes()


def test_what_slurm_complains_of_is_told(tmp_path):
    slurm = slurm_of(tmp_path, "echo 'slurm_update error: Invalid user id' >&2; exit 1")
    with pytest.raises(
        SlurmError, match="scontrol update nodename=n1 state=drain reason=x: slurm_update error: Invalid"
    ):
        slurm.update_node("n1", state="drain", reason="x")


def test_a_complaint_without_words_is_its_exit_code(tmp_path):
    with pytest.raises(SlurmError, match="exit code 3"):
        slurm_of(tmp_path, "exit 3").version()


def test_a_complaint_beside_an_answer_does_not_spoil_it(tmp_path):
    assert slurm_of(tmp_path, "echo 'warning: NodeName=x' >&2; echo 'slurm-wlm 22.05.8'").version() == (22, 5)


def test_an_endless_answer_is_cut_off(tmp_path):
    with pytest.raises(SlurmError, match="more than 64 MiB"):
        slurm_of(tmp_path, "exec yes", deadline_s=60).nodes()


def test_the_commands_see_nothing_of_the_environment_but_where_the_controller_is(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", "/some/slurm.conf")
    monkeypatch.setenv("SLURM_CLUSTERS", "another")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    monkeypatch.setenv("TZ", "America/New_York")
    slurm_of(tmp_path, f"/usr/bin/env > {tmp_path}/seen; echo 1.2").version()
    seen = dict(line.split("=", 1) for line in (tmp_path / "seen").read_text().splitlines())
    assert {key: seen.pop(key) for key in ("SLURM_CONF", "TZ", "SLURM_TIME_FORMAT", "LC_ALL")} == {
        "SLURM_CONF": "/some/slurm.conf",
        "TZ": "UTC0",
        "SLURM_TIME_FORMAT": "standard",
        "LC_ALL": "C",
    }
    assert set(seen) <= {"PATH", "PWD", "SHLVL", "_"}


def test_a_missing_program_is_said_with_the_key_that_helps(tmp_path):
    with pytest.raises(SlurmError, match=r"no scontrol in .*: set bin_dir"):
        Slurm(str(tmp_path)).nodes()


def test_the_folder_of_the_daemon_that_started_us_comes_first(tmp_path):
    """As under slurmd with a wrapper between: the daemon is a copy of a shell by that name."""
    import shutil
    import subprocess
    import sys

    (tmp_path / "sbin").mkdir()
    (tmp_path / "bin").mkdir()
    daemon = tmp_path / "sbin" / "slurmd"
    shutil.copy("/bin/sh", daemon)
    (tmp_path / "bin" / "scontrol").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "scontrol").chmod(0o755)
    ask = "from preflight.slurm.commands import Slurm; print(Slurm().folder())"
    done = subprocess.run(
        [str(daemon), "-c", "/bin/sh -c \"$0 -c '$1'; true\"; true", sys.executable, ask],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": ""},
    )
    assert done.stdout.strip() == str(tmp_path / "bin"), done.stderr


@pytest.mark.parametrize("name", ["ALL", "all", "n[1-2]", "n1,n2", "-n1", "", "n1 state=drain", "n1\n", "n" * 300])
def test_what_is_not_one_plain_node_is_refused(name):
    with pytest.raises(SlurmError, match="is not the name of one node"):
        node_name(name)


@pytest.mark.parametrize("job", ["", "x", "1 2", "-1", "1;", "17_", "1" * 30])
def test_what_is_no_number_of_a_job_is_refused(job):
    with pytest.raises(SlurmError, match="is not the number of a job"):
        job_id(job)


@pytest.mark.parametrize("text", ["two\nlines", "tab\t", "µ", "x" * 1001, "\x1b[31m"])
def test_what_is_not_a_short_plain_line_is_never_handed_to_slurm(text):
    with pytest.raises(SlurmError, match="is not a short line"):
        plain(text)
