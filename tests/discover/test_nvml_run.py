"""Whatever the child that reads NVML does, the reading comes back in time and without an exception."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from preflight.discover.nvml_reading import NvmlReading
from preflight.discover.nvml_run import NvmlRun, end_group
from preflight.model import Gpu, to_json


def run_program(code, deadline_s=10.0):
    with contextlib.closing(NvmlRun(deadline_s, [sys.executable, "-c", textwrap.dedent(code)])) as run:
        return run.result()


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


def wait_until(condition, deadline_s=20.0):
    ends_at = time.monotonic() + deadline_s
    while time.monotonic() < ends_at:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_an_honest_answer_comes_through():
    reading = NvmlReading(driver_version="550", gpus=(Gpu(index=0, uuid="GPU-1"),))
    assert run_program(f"print({to_json(reading).decode()!r})") == reading


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import time; time.sleep(600)", "did not answer within 1 s"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("raise SystemExit(7)", "exit code 7"),
        ("raise RuntimeError('out of order')", "RuntimeError: out of order"),
        ("", "makes no sense"),
        ("print('{\"gpus\": [')", "makes no sense"),
        ("print('{\"gpus\": 8}')", "makes no sense"),
        ("print('[' * 200000)", "makes no sense"),
        ("import sys; sys.stdout.buffer.write(bytes([0xff, 0xfe]))", "makes no sense"),
        ("while True: print('x' * 65536)", "more than 4 MiB"),
        ("import os, time; os.close(1); os.close(2); time.sleep(600)", "did not answer within 1 s"),
    ],
)
def test_a_child_that_hangs_dies_or_lies_leaves_the_gpus_unknown_with_a_reason(code, words):
    deadline_s = 1.0 if "600" in code else 10.0
    reading = run_program(code, deadline_s)
    assert reading.gpus is None
    assert words in reading.note
    assert [problem.text for problem in reading.problems] == [reading.note]


def test_complaints_without_end_do_not_fill_memory_or_hide_the_answer():
    reading = run_program("import sys; sys.stderr.write('x' * 10**6); print('{}')")
    assert reading == NvmlReading()


def test_a_program_that_is_not_there_is_a_reason_not_an_exception():
    with contextlib.closing(NvmlRun(5.0, ["/nonexistent/python"])) as run:
        assert "can't be started" in run.result().note


def test_a_hanging_child_is_killed_with_its_whole_group(tmp_path):
    code = f"""
        import os, subprocess, sys, time
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open({str(tmp_path / "pids")!r}, "w").write(f"{{os.getpid()}} {{grandchild.pid}}")
        time.sleep(600)
    """
    with contextlib.closing(NvmlRun(30.0, [sys.executable, "-c", textwrap.dedent(code)])):
        assert wait_until(
            lambda: len((tmp_path / "pids").read_text().split()) == 2 if (tmp_path / "pids").exists() else False
        )
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert all(is_running(pid) for pid in pids)
    assert wait_until(lambda: not any(is_running(pid) for pid in pids))


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd_open")
@pytest.mark.parametrize("apart", [False, True])
def test_what_a_child_left_behind_holds_up_no_answer_and_is_ended_with_its_group(tmp_path, apart):
    code = f"""
        import os, sys, time
        if os.fork() == 0:
            {"os.setsid()" if apart else "pass"}
            open({os.fspath(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
            time.sleep(600)
        while not os.path.exists({os.fspath(tmp_path / "pid")!r}) or not open({os.fspath(tmp_path / "pid")!r}).read():
            time.sleep(0.01)
        sys.stdout.write('{{"gpus": [], "note": "' + "x" * 200000 + '"}}')
        sys.stdout.flush()
        os._exit(0)
    """
    assert run_program(code, deadline_s=60.0).gpus == ()
    pid = int((tmp_path / "pid").read_text())
    if apart:  # a session of its own, out of reach
        assert is_running(pid)
        os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not is_running(pid))


def test_a_stopped_child_is_killed_too():
    reading = run_program("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", deadline_s=1.0)
    assert "did not answer" in reading.note


class HeldByTheKernel:
    """A process in uninterruptible sleep, as a hung driver leaves it: no signal ends it. Its pid is nobody's."""

    pid = 2**22 + 1

    def poll(self):
        return None

    def wait(self, timeout=None):
        raise subprocess.TimeoutExpired("child", timeout)


def test_a_child_that_cannot_be_killed_is_reported_and_left_behind():
    assert "needs a reboot" in end_group(HeldByTheKernel(), reap_s=0.01)


def test_the_child_dies_with_its_parent_even_by_kill_9(tmp_path):
    """The parent starts our own child main with a reader that never returns, and is then killed."""
    parent_code = f"""
        import os, subprocess, sys
        child_code = '''
        import os, sys, time
        import preflight.discover.nvml as nvml
        def hang(tell):
            open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
            time.sleep(600)
        nvml.read_facts = hang
        from preflight.discover.nvml_child import main
        main(int(sys.argv[1]))
        '''
        import textwrap
        child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(child_code), str(os.getpid())], start_new_session=True)
        child.wait()
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(parent_code)])
    try:
        assert wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        pid = int((tmp_path / "pid").read_text())
        assert is_running(pid)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert wait_until(lambda: not is_running(pid))


def test_a_child_whose_parent_is_already_gone_leaves_without_reading():
    code = "from preflight.discover.nvml_child import main; main(1 if __import__('os').getppid() != 1 else 2)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, b"")


def test_the_working_directory_does_not_decide_what_the_child_imports(tmp_path, monkeypatch):
    (tmp_path / "pynvml.py").write_text(f"open({str(tmp_path / 'trap')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.fspath(tmp_path))
    with contextlib.closing(NvmlRun(20.0)) as run:
        run.result()
    assert not (tmp_path / "trap").exists()


def test_what_the_child_does_without_is_there_when_it_is_asked_for():
    code = """
        import sys
        from preflight.discover.nvml_child import _spare_ctypes_util
        _spare_ctypes_util()
        from ctypes.util import find_library
        assert "subprocess" not in sys.modules
        assert find_library("surely-not-there") is None
        assert "subprocess" in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)


def test_the_child_answers_without_the_modules_that_take_longer_than_asking():
    code = """
        import sys
        import preflight.discover.nvml_child, preflight.discover.nvml
        preflight.discover.nvml.read_facts()
        print(*sorted({"msgspec", "preflight.model", "pathlib", "click"} & set(sys.modules)))
    """
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{textwrap.dedent(code)}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.split() == []
