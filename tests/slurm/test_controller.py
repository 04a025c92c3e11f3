"""The controller prolog without a Slurm: whatever happens, the job starts."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preflight.model import Evidence, Report
from preflight.slurm.commands import Slurm
from preflight.slurm.controller import ANSWER, run_controller
from preflight.slurm.controller_record import MAX_STARTS, REQUEUE, Course, Record, Records
from preflight.slurm.controller_run import time_out_s
from preflight.slurm.telling import Telling

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_RESTART_COUNT": "0", "SLURM_JOB_NODELIST": "n[1-4]", "SLURM_JOB_UID": "1000"}


@pytest.fixture
def site(tmp_path):
    """The site's file; Slurm's programs are nowhere."""
    tmp_path.chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "metrics").mkdir()
    path = tmp_path / "site.toml"
    told = {"state_dir": "state", "bin_dir": "bin", "textfile_dir": "metrics"}
    lines = "".join(f'{key} = "{tmp_path / name}"\n' for key, name in told.items())
    path.write_text(f'[slurm]\nenforce = true\ncontroller_budget = "1s"\n{lines}')
    return path


def test_a_slurm_that_is_not_found_lets_the_job_start_and_is_told(site, capfd):
    assert run_controller(JOB, config=str(site)) == 0
    said = capfd.readouterr().err
    assert "no scontrol in" in said
    assert "the job starts" in said
    metrics = next((site.parent / "metrics").iterdir()).read_text()
    assert 'preflight_run_answer{answer="undecided",command="slurm prolog-slurmctld"' in metrics


def test_what_was_decided_is_not_decided_again(site):
    with Records(str(site.parent / "state")) as records:
        records.keep(Record(job=7, restart=0, began_at_s=1.0, exit_code=REQUEUE, outcome="n2 drained"))
    assert run_controller(JOB, config=str(site)) == REQUEUE
    assert run_controller({**JOB, "SLURM_JOB_RESTART_COUNT": "1"}, config=str(site)) == 0


def test_a_prolog_that_is_killed_each_time_lets_the_job_start(site, capfd):
    with Records(str(site.parent / "state")) as records:
        records.keep(Record(job=7, restart=0, began_at_s=1.0, starts=MAX_STARTS))
    assert run_controller(JOB, config=str(site)) == 0
    assert f"killed {MAX_STARTS} times while at work" in capfd.readouterr().err


def test_a_job_whose_last_prolog_was_ended_by_slurms_time_out_starts_at_once(site, capfd):
    with Records(str(site.parent / "state")) as records:
        records.keep(Record(job=7, restart=0, began_at_s=1.0))
    assert run_controller({**JOB, "SLURM_JOB_RESTART_COUNT": "1"}, config=str(site)) == 0
    assert "PrologEpilogTimeout must be 120 s more than controller_budget" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("told", "limit_s"),
    [
        ("PrologEpilogTimeout     = 65534\n", None),
        ("PrologEpilogTimeout     = 30\nPrologFlags             = Alloc\n", 30.0),
        ("PrologEpilogTimeout     = 30 sec\n", 30.0),
        ("EpilogTimeout           = 10 sec\nPrologTimeout           = 420 sec\n", 420.0),
        ("PrologTimeout           = UNLIMITED\n", None),
        ("", None),
    ],
)
def test_slurms_own_time_out_is_read(tmp_path, told, limit_s):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\n/bin/cat <<EOF\nConfiguration data as of now\n{told}EOF\n")
    scontrol.chmod(0o755)
    assert time_out_s(Slurm(str(tmp_path))) == limit_s


def test_another_start_of_the_same_is_waited_for_and_not_for_ever(site, capfd):
    with Records(str(site.parent / "state")) as records, records.alone(7, 0, 0):
        assert run_controller(JOB, config=str(site)) == 0
    assert "another start of it does not come to an end" in capfd.readouterr().err


# a worker of ours that does not start is a FAIL of the report, and nothing is decided by it
@pytest.mark.parametrize("course", get_args(Course))
def test_the_log_line_and_the_metrics_begin_with_what_was_decided(tmp_path, capsys, course):
    report = Report(
        run_id="r", command="x", evidence=Evidence(), started_at_s=1, duration_s=1, answer="no-go", findings=()
    )
    Telling("slurm prolog-slurmctld", "c1", textfile_dir=str(tmp_path)).result(report, "text", answer=ANSWER[course])
    assert f" on c1: {ANSWER[course]} in " in capsys.readouterr().err
    (metrics,) = tmp_path.glob("*.prom")
    assert re.search(rf'preflight_run_answer{{answer="{ANSWER[course]}".*}} 1.0', metrics.read_text())


@pytest.mark.parametrize("text", ["", "[slurm]\nenforce = 1\n", "no toml", "[slurm]\nwhen = 'sometimes'\n"])
def test_a_site_file_that_says_nothing_or_nonsense_lets_the_job_start(tmp_path, text):
    path = tmp_path / "site.toml"
    path.write_text(text or '[slurm]\nwhen = "never"\n')
    assert run_controller(JOB, config=str(path)) == 0


def test_a_missing_site_file_that_was_named_lets_the_job_start(tmp_path, capfd):
    assert run_controller(JOB, config=str(tmp_path / "nowhere.toml")) == 0
    assert "nowhere.toml" in capfd.readouterr().err


HOSTILE = st.text(st.characters(exclude_characters="\0"), max_size=60)
NAMES = [
    *("SLURM_JOB_ID", "SLURM_JOB_RESTART_COUNT", "SLURM_JOB_NODELIST", "SLURM_JOB_COMMENT", "SLURM_JOB_EXTRA"),
    *("SLURM_JOB_CONSTRAINTS", "SLURM_JOB_UID", "SLURM_JOB_PARTITION", "SLURM_JOB_USER"),
]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.dictionaries(st.sampled_from(NAMES), HOSTILE | st.sampled_from(["7", "preflight: tp=8", "n[1-9999999]"]))
)
def test_whatever_users_write_lets_the_job_start(site, changes):
    assert run_controller({**JOB, **changes}, config=str(site)) == 0


def test_signals_that_slurmctld_blocks_reach_us_again_and_nothing_is_left(site):
    """Ended while scontrol hangs: at once, with a word, and with its lock."""
    scontrol = site.parent / "bin" / "scontrol"
    scontrol.write_text(f"#!/bin/sh\necho $$ >{site.parent}/pid\nexec /bin/sleep 60\n")
    scontrol.chmod(0o755)
    program = "import os, sys; from preflight.slurm.controller import run_controller; sys.exit(run_controller(os.environ, config=sys.argv[1]))"
    prolog = subprocess.Popen(
        [sys.executable, "-c", program, str(site)],
        env={**JOB, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGALRM]),  # noqa: PLW1509
    )
    pid_file, until = site.parent / "pid", time.monotonic() + 60
    while not (pid_file.exists() and pid_file.read_text().strip()):
        assert time.monotonic() < until
        time.sleep(0.02)
    prolog.send_signal(signal.SIGTERM)
    _, said = prolog.communicate(timeout=60)
    assert prolog.returncode == 0
    assert b"it was ended (SIGTERM); the job starts" in said
    assert not list((site.parent / "state" / "jobs").glob("lock-*"))
    child = Path(f"/proc/{pid_file.read_text().strip()}/stat")
    while child.exists() and child.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until
        time.sleep(0.02)
