"""Running a plug-in of the site's, by the conventions of Nagios: one line of output, and an exit code.

It gets no shell and no input, its own process group, and a limit of time and output; whatever it started is ended with it. It is not ours, so nothing that it does may hold or harm us.
"""

import os
import selectors
import stat
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from preflight.discover.nvml_run import kill_group
from preflight.discover.verdicts.nagios import of_output
from preflight.discover.verdicts.words import one_line
from preflight.errors import ConfigError
from preflight.formats import readable
from preflight.model import OutsideVerdict

MAX_OUTPUT = 65536
REAP_S = 1.0  # after SIGKILL; what still lives then waits in the kernel
_TICK_S = 0.02
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def run_plugin(argv: Sequence[str], deadline_s: float) -> OutsideVerdict:
    """The verdict of a plug-in. UNKNOWN if it can't be started, is ended at the deadline or by a signal, or exits with a code other than 0 to 3.

    `argv`: its absolute path and its arguments. Raises ConfigError if that is no absolute path.
    """
    if not argv or not argv[0].startswith("/"):
        raise ConfigError(readable(argv[0]) if argv else "plug-in", "must be an absolute path")
    name = one_line(Path(argv[0]).name, 80)
    refusal = _refusal(argv[0])
    if refusal:
        return _unknown(name, refusal)
    try:
        process = subprocess.Popen(  # noqa: S603 - a list of arguments, its program named by the site's administrator
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
            env={"PATH": _PATH, **os.environ, "LC_ALL": "C"},
        )
    except (OSError, ValueError) as error:
        return _unknown(
            name, f"{argv[0]} can't be started: {(error.strerror if isinstance(error, OSError) else None) or error}"
        )
    try:
        output, ended = _follow(process, time.monotonic() + deadline_s)
    finally:
        kill_group(process.pid)  # before the leader is reaped, so that the group's number is still its own
    return _verdict(process, name, output, None if ended else deadline_s)


def _verdict(process: "subprocess.Popen[bytes]", name: str, output: bytes, overran_s: float | None) -> OutsideVerdict:
    try:
        code = process.wait(REAP_S)
    except subprocess.TimeoutExpired:
        return _unknown(name, "can't be ended: it waits in the kernel")
    finally:
        if process.stdout:
            process.stdout.close()
    if overran_s is not None:
        return _unknown(name, f"ended after {overran_s:g} s: it had not answered")
    if code < 0:
        return _unknown(name, f"ended by signal {-code}")
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return of_output(lines[0] if lines else "", code, name)


def _unknown(name: str, text: str) -> OutsideVerdict:
    return OutsideVerdict(origin=name, name=name, verdict="UNKNOWN", text=one_line(text))


def _refusal(path: str) -> str | None:
    """Why this file is not run: what anybody can write, root doesn't execute."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError) as error:
        return f"{path} can't be started: {(error.strerror if isinstance(error, OSError) else None) or error}"
    if not stat.S_ISREG(status.st_mode):
        return "is no regular file"
    return "can be written by everybody: not run" if status.st_mode & stat.S_IWOTH else None


def _follow(process: "subprocess.Popen[bytes]", ends: float) -> tuple[bytes, bool]:
    """The output up to its limit, and whether the plug-in ended by itself. What it left behind may hold the pipe open: that isn't waited for."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    os.set_blocking(descriptor, False)
    kept = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            ended = _has_ended(process.pid)
            open_ = _take(descriptor, kept) if ended or selector.select(_TICK_S) else True
            if ended:
                return bytes(kept), True
            if time.monotonic() > ends:
                return bytes(kept), False
            if not open_:  # closed its output and goes on
                time.sleep(_TICK_S)


def _take(descriptor: int, kept: bytearray) -> bool:
    """Read what is there now; False at the end. Beyond the limit it is read and thrown away, so that the writer isn't held."""
    taken = 0
    while taken < 4 * MAX_OUTPUT:
        try:
            data = os.read(descriptor, MAX_OUTPUT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        taken += len(data)
        kept += data[: MAX_OUTPUT - len(kept)]
    return True


def _has_ended(pid: int) -> bool:
    """Whether the process ended; it stays unreaped."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
