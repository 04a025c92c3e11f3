"""deploy/slurm/prolog-slurmctld.sh as it is: one exit code gets through, everything else lets the job start and is a line in the log."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "prolog-slurmctld.sh"


@pytest.fixture
def installed(tmp_path):
    """The script, set up to call a program of ours; a function that runs it with slurmctld's environment."""

    def install(program: str | None, limit: str = "30"):
        preflight = tmp_path / "preflight"
        if program is not None:
            preflight.write_text(f"#!/bin/sh\n{program}\n")
            preflight.chmod(0o755)
        text = SCRIPT.read_text()
        for name, value in {"PREFLIGHT": str(preflight), "LOG": str(tmp_path / "log"), "LIMIT": limit}.items():
            before = next(line for line in text.splitlines() if line.startswith(f"{name}="))
            text = text.replace(before, f"{name}={value}")
        script = tmp_path / "prolog-slurmctld.sh"
        script.write_text(text)
        script.chmod(0o755)
        return [str(script)]

    install.log = (tmp_path / "log").read_text
    install.folder = tmp_path
    return install


def run(command, **environment):
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout + done.stderr == ""
    return done.returncode


@pytest.mark.parametrize("code", [10, 0])
def test_preflight_has_told_these_itself(installed, code):
    assert run(installed(f"exit {code}"), SLURM_JOB_ID="7") == code
    assert installed.log() == ""


@pytest.mark.parametrize("code", [1, 2, 3, 64, 78, 126, 127, 137, 139, 255])
def test_every_other_code_lets_the_job_start_and_is_told(installed, code):
    assert run(installed(f"exit {code}"), SLURM_JOB_ID="7") == 0
    assert re.match(r"\[\d{4}-\d\d-\d\dT[\d:]{8}\] preflight: controller prolog of job 7:", installed.log())
    assert f"code {code}" in installed.log()


@pytest.mark.parametrize("number", ["TERM", "KILL", "SEGV"])
def test_a_preflight_that_is_killed_lets_the_job_start(installed, number):
    assert run(installed(f"kill -{number} $$"), SLURM_JOB_ID="7") == 0
    assert "the job starts" in installed.log()


def test_a_missing_preflight_lets_the_job_start(installed):
    assert run(installed(None), SLURM_JOB_ID="7") == 0
    assert "is it installed here?" in installed.log()


def test_one_that_does_not_end_is_ended(installed):
    assert run(installed("exec /bin/sleep 60", limit="1")) == 0
    assert "controller prolog of job unknown: ended after 1 s (code 124)" in installed.log()


def test_a_log_that_cannot_be_written_costs_nothing(installed):
    (installed.folder / "log").mkdir()
    assert run(installed("exit 10")) == 10


def test_a_hostile_job_number_does_not_get_into_the_log(installed):
    assert run(installed("exit 1"), SLURM_JOB_ID="$(touch /tmp/x) 7\n8") == 0
    assert "job unknown:" in installed.log()


def blocked():
    """As slurmctld starts its scripts: HUP, INT, QUIT, ABRT, USR1, USR2, PIPE, ALRM, TERM, CHLD, TSTP and XCPU blocked (22.05, SigBlk 897a27)."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [number + 1 for number in range(32) if 0x897A27 >> number & 1])


@pytest.mark.parametrize(("program", "code"), [("exit 10", 10), ("exit 0", 0), ("exec /bin/sleep 60", 0)])
def test_signals_that_slurmctld_blocks_are_not_needed(installed, program, code):
    command = installed(program, limit="1")
    done = subprocess.run(command, env={}, timeout=60, check=False, preexec_fn=blocked)
    assert done.returncode == code


def test_killing_the_group_of_the_script_ends_preflight(installed):
    command = installed(f"echo $$ >{installed.folder}/pid; exec /bin/sleep 60")
    script = subprocess.Popen(command, env={}, start_new_session=True)
    pid_file, until = installed.folder / "pid", time.monotonic() + 30
    while not (pid_file.exists() and pid_file.read_text().strip()):
        assert time.monotonic() < until
        time.sleep(0.02)
    os.killpg(script.pid, signal.SIGKILL)
    assert script.wait(30) == -signal.SIGKILL
    child = Path(f"/proc/{pid_file.read_text().strip()}/stat")
    while child.exists() and child.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until
        time.sleep(0.02)
