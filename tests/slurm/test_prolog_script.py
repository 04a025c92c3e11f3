"""deploy/slurm/prolog.sh and health.sh: of all that can happen to preflight, only its code 10 reaches Slurm."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.slurm import prologs


def start(path, *shell, **environ):
    """The script as slurmd starts it: in a group of its own, without PATH, with a pipe that is read until nobody holds it."""
    return subprocess.Popen(
        [*shell, str(path)],
        env={**prologs.JOB, **environ},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def run(path, *shell, **environ):
    """The exit code, after which nothing of the script is left."""
    with start(path, *shell, **environ) as running:
        said = running.communicate(timeout=60)[0]
        prologs.wait_until(lambda: not prologs.of_group(running.pid), "nothing left of the script")
    assert said == b""  # slurmd would wait for whoever holds this pipe
    return running.returncode


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("exit 0", None),
        ("exit 3", None),
        ("exit 78", None),
        ("exit 1", "broke with code 1"),
        ("exit 2", "broke with code 2"),
        ("exit 64", "broke with code 64"),
        ("exit 126", "can't be run (code 126)"),
        ("exit 127", "can't be run (code 127)"),
        ("exit 255", "broke with code 255"),
        ("kill -9 $$", "code 137"),
        ("kill -SEGV $$", "code 139"),
        ("kill -TERM $$", "code 143"),
        ("kill -ABRT $$", "code 134"),
    ],
)
def test_every_end_but_a_drain_lets_the_job_start_and_is_in_the_log(tmp_path, lines, words):
    path = prologs.script(tmp_path, PREFLIGHT=prologs.program(tmp_path, lines))
    assert run(path) == 0
    log = (tmp_path / "log").read_text()
    assert (log == "") if words is None else (words in log and "the job starts" in log)


def test_code_10_alone_fails_the_prolog(tmp_path):
    assert run(prologs.script(tmp_path, PREFLIGHT=prologs.program(tmp_path, "exit 10"))) == 10


@pytest.mark.parametrize("shell", [(), ("/bin/bash", "--posix"), ("/bin/bash",)])
def test_any_shell_does(tmp_path, shell):
    path = prologs.script(tmp_path, PREFLIGHT=prologs.program(tmp_path, "exit 10"))
    assert run(path, *shell) == 10
    path = prologs.script(tmp_path, PREFLIGHT=prologs.program(tmp_path, "exit 1"))
    assert run(path, *shell) == 0


def test_a_missing_program_lets_the_job_start(tmp_path):
    assert run(prologs.script(tmp_path, PREFLIGHT="/nowhere/preflight")) == 0
    assert "is it installed here?" in (tmp_path / "log").read_text()


def test_a_program_that_may_not_be_run_lets_the_job_start(tmp_path):
    assert run(prologs.script(tmp_path, PREFLIGHT=prologs.program(tmp_path, "exit 10", mode=0o644))) == 0
    assert "126" in (tmp_path / "log").read_text()


def test_so_does_a_system_without_timeout_or_sleep(tmp_path):
    given = prologs.program(tmp_path, "exit 10")
    assert run(prologs.script(tmp_path, PREFLIGHT=given, TIMEOUT="/nowhere/timeout")) == 0
    assert run(prologs.script(tmp_path, PREFLIGHT=given, SLEEP="/nowhere/sleep")) == 10


def test_a_prolog_that_takes_too_long_is_ended(tmp_path):
    path = prologs.script(tmp_path, PREFLIGHT=prologs.program(tmp_path, "exec /bin/sleep 300"), LIMIT=1)
    assert run(path) == 0
    assert "ended after 1 s (code 124)" in (tmp_path / "log").read_text()


@pytest.mark.soak
def test_one_that_does_not_listen_is_killed(tmp_path):
    lines = "trap '' TERM\nwhile :; do :; done"
    path = prologs.script(tmp_path, PREFLIGHT=prologs.program(tmp_path, lines), LIMIT=1)
    assert run(path) == 0
    assert "code 137" in (tmp_path / "log").read_text()


def test_one_that_can_not_be_ended_is_left_behind(tmp_path):
    """A process that hangs in the kernel: stood in for by a `timeout` that never comes back, in a group of its own."""
    stuck = prologs.program(tmp_path, f"echo $$ >{tmp_path}/pid\nexec /bin/sleep 300", "timeout")
    path = prologs.script(tmp_path, PREFLIGHT="/bin/true", TIMEOUT=f"{tmp_path}/own", GIVE_UP=1)
    setsid = next(place for place in ("/usr/bin/setsid", "/bin/setsid") if Path(place).exists())
    prologs.program(tmp_path, f'[ "$4" = 2 ] && exit 0\nexec {setsid} {stuck}', "own")
    with start(path) as running:
        try:
            assert running.wait(60) == 0
            assert running.stdout.read() == b""
        finally:
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert "left behind" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(each, marks=pytest.mark.soak) for each in (signal.SIGINT, signal.SIGHUP))]
)
def test_a_script_that_is_asked_to_end_takes_everything_with_it(tmp_path, number):
    path = prologs.script(tmp_path, PREFLIGHT=prologs.program(tmp_path, f"echo >{tmp_path}/up\nexec /bin/sleep 300"))
    with start(path) as running:
        prologs.wait_until((tmp_path / "up").exists, "the program runs")
        prologs.wait_until(lambda: not prologs.of_group(running.pid, states="RD"), "all of it waits")
        running.send_signal(number)
        assert running.wait(60) == 0
        prologs.wait_until(lambda: not prologs.of_group(running.pid), "nothing left of the script")


@pytest.mark.soak
def test_slurmd_s_kill_of_the_group_leaves_nothing(tmp_path):
    path = prologs.script(tmp_path, PREFLIGHT=prologs.program(tmp_path, f"echo >{tmp_path}/up\nexec /bin/sleep 300"))
    with start(path) as running:
        prologs.wait_until((tmp_path / "up").exists, "the program runs")
        os.killpg(running.pid, signal.SIGKILL)
        running.wait(60)
        prologs.wait_until(lambda: not prologs.of_group(running.pid), "nothing left of the script")


def test_a_log_that_can_not_be_written_costs_nothing(tmp_path):
    (tmp_path / "folder").mkdir()
    for log in ("/nowhere/log", tmp_path / "folder"):
        for lines, code in (("exit 1", 0), ("exit 10", 10)):
            assert run(prologs.script(tmp_path, PREFLIGHT=prologs.program(tmp_path, lines), LOG=log)) == code


def test_a_crash_leaves_one_unknown_among_the_metrics(tmp_path):
    (tmp_path / "metrics").mkdir()
    given = prologs.program(tmp_path, "exit 1")
    path = prologs.script(tmp_path, PREFLIGHT=given, TEXTFILE_DIR=tmp_path / "metrics")
    assert run(path) == 0
    found = prologs.metrics(tmp_path / "metrics")
    assert found["preflight_run_answer", "undecided"] == 1
    assert found["preflight_findings", "slurm_prolog UNKNOWN"] == 1
    assert sum(found.values()) == 2
    (file,) = (tmp_path / "metrics").iterdir()
    assert file.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("name", ["../../x", 'n1"} 1', "", "n1\nx"])
def test_a_strange_node_name_gets_into_no_path_and_no_metric(tmp_path, name):
    (tmp_path / "metrics").mkdir()
    path = prologs.script(tmp_path, PREFLIGHT=prologs.program(tmp_path, "exit 1"), TEXTFILE_DIR=tmp_path / "metrics")
    assert run(path, SLURMD_NODENAME=name) == 0
    assert [file.name for file in (tmp_path / "metrics").iterdir()] == ["preflight-slurm-prolog-unknown.prom"]


def test_the_command_gets_what_slurmd_gives_and_the_metrics_folder(tmp_path):
    (tmp_path / "metrics").mkdir()
    given = prologs.program(tmp_path, f'echo "$@" >{tmp_path}/said; echo "$SLURM_JOB_ID" >>{tmp_path}/said')
    run(prologs.script(tmp_path, PREFLIGHT=given, TEXTFILE_DIR=tmp_path / "metrics"))
    assert (tmp_path / "said").read_text() == f"slurm prolog --textfile-dir {tmp_path}/metrics\n4711\n"
    run(prologs.script(tmp_path, PREFLIGHT=given))
    assert (tmp_path / "said").read_text() == "slurm prolog\n4711\n"


@pytest.mark.soak
def test_a_hanging_logger_keeps_no_job(tmp_path):
    logger = prologs.program(tmp_path, "exec /bin/sleep 300", "logger")
    assert run(prologs.script(tmp_path, PREFLIGHT=prologs.program(tmp_path, "exit 1"), LOGGER=logger)) == 0


@pytest.mark.parametrize(("lines", "logged"), [("exit 0", False), ("exit 10", False), ("exit 1", True)])
def test_the_health_script_ends_well_whatever_happens(tmp_path, lines, logged):
    assert run(prologs.script(tmp_path, "health.sh", PREFLIGHT=prologs.program(tmp_path, lines))) == 0
    assert ("broke" in (tmp_path / "log").read_text()) is logged


@pytest.mark.soak
def test_the_health_script_ends_what_takes_too_long(tmp_path):
    given = prologs.program(tmp_path, "exec /bin/sleep 300")
    assert run(prologs.script(tmp_path, "health.sh", PREFLIGHT=given, LIMIT=1)) == 0
