"""Plug-ins of a site: real processes, among them such that hang, flood, fork and die."""

import os
import select

import pytest

from preflight.discover.verdicts import run_plugin
from preflight.errors import ConfigError

LONG_S = 60.0


def script(tmp_path, text, name="check_disk", mode=0o755):
    path = tmp_path / name
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(mode)
    return str(path)


def _gone(pid):
    """Whether the process has ended, or does so within the patience of a test."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], LONG_S)[0])
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("code", "verdict"), [(0, "PASS"), (1, "WARN"), (2, "FAIL"), (3, "UNKNOWN"), (4, "UNKNOWN"), (127, "UNKNOWN")]
)
def test_the_exit_code_is_the_verdict(tmp_path, code, verdict):
    found = run_plugin([script(tmp_path, f'echo "DISK says $1 | x=1"; echo more; exit {code}'), "hello"], LONG_S)
    assert (found.origin, found.verdict) == ("check_disk", verdict)
    assert "DISK says hello" in found.text
    assert "x=1" not in found.text


def test_arguments_are_no_shells_text(tmp_path):
    found = run_plugin([script(tmp_path, 'echo "$1"'), "$(touch /tmp/x); `id`"], LONG_S)
    assert found.text == "$(touch /tmp/x); `id`"


def test_one_that_hangs_is_ended_with_all_that_it_started(tmp_path):
    pid_file = tmp_path / "pid"
    found = run_plugin([script(tmp_path, f"sleep 600 & echo $! > {pid_file}; echo begun; wait")], 0.5)
    assert found.verdict == "UNKNOWN"
    assert "had not answered" in found.text
    assert _gone(int(pid_file.read_text()))


def test_one_that_leaves_a_child_with_the_pipe_open_is_not_waited_for(tmp_path):
    found = run_plugin([script(tmp_path, "sleep 600 &\necho done; exit 0")], LONG_S)
    assert (found.verdict, found.text) == ("PASS", "done")


def test_one_that_closes_its_output_and_goes_on_is_ended(tmp_path):
    found = run_plugin([script(tmp_path, "exec >&- 2>&-; sleep 600")], 0.3)
    assert found.verdict == "UNKNOWN"


def test_one_that_floods_ends_and_its_first_line_is_kept(tmp_path):
    found = run_plugin([script(tmp_path, "echo first; head -c 3000000 /dev/zero; exit 2")], LONG_S)
    assert (found.verdict, found.text) == ("FAIL", "first")


def test_one_that_dies_by_a_signal_is_unknown(tmp_path):
    found = run_plugin([script(tmp_path, "kill -SEGV $$")], LONG_S)
    assert (found.verdict, found.text) == ("UNKNOWN", "ended by signal 11")


def test_one_that_reads_its_input_gets_none(tmp_path):
    assert run_plugin([script(tmp_path, "cat; echo end")], LONG_S).text == "end"


def test_what_cannot_be_started_is_unknown(tmp_path):
    assert run_plugin([str(tmp_path / "none")], LONG_S).verdict == "UNKNOWN"
    assert run_plugin([str(tmp_path)], LONG_S).text == "is no regular file"
    assert run_plugin([script(tmp_path, "exit 0", mode=0o644)], LONG_S).verdict == "UNKNOWN"


def test_what_everybody_can_write_is_not_run(tmp_path):
    found = run_plugin([script(tmp_path, "exit 0", mode=0o777)], LONG_S)
    assert (found.verdict, "not run" in found.text) == ("UNKNOWN", True)


@pytest.mark.parametrize("argv", [[], ["check_disk"], ["./check_disk"], [""]])
def test_a_plug_in_needs_an_absolute_path(argv):
    with pytest.raises(ConfigError, match="absolute path"):
        run_plugin(argv, LONG_S)


def test_no_child_is_left_unreaped(tmp_path):
    run_plugin([script(tmp_path, "exit 0")], LONG_S)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
