"""Runs the NVML child under a deadline: whatever it does, a reading comes back, without an exception.

NVML calls can hang in the kernel where no signal reaches them, so killing has a deadline of its own, and a child that
survives it is reported and left behind. The child is exec'd (nothing of this process's threads or locks gets into it) in a
process group of its own, and the answer's size is limited.

Light to import: whoever starts the child before anything heavy is imported has the imports for nothing.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from preflight.discover.nvml_child import PROGRESS

if TYPE_CHECKING:
    from preflight.discover.nvml_reading import NvmlReading

MAX_ANSWER_BYTES = 4 * 2**20  # 16 GPUs of 18 links are about 80 kB
MAX_COMPLAINT_BYTES = 8192
REAP_S = 2.0  # a killed process is gone in milliseconds, unless the kernel holds it

# -I: neither the working directory nor PYTHON* variables decide what a prolog that runs as root imports; -S: nor does it look for site-packages anew
_BOOTSTRAP = (
    "import sys; parent = int(sys.argv[1]); sys.path[:] = sys.argv[2:]; "
    "from preflight.discover.nvml_child import main; main(parent)"
)


class Killable(Protocol):
    """What is needed of a process to end it."""

    pid: int

    def poll(self) -> int | None:
        """The exit code, None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; raises subprocess.TimeoutExpired."""


def child_command(*, only_load: bool = False) -> tuple[str, ...]:
    """Our own child, importing from exactly where this process does, and from our own place last, which only an import hook may know. `only_load`: it reads nothing else."""
    ours = os.fspath(Path(__file__).parents[2])
    paths = dict.fromkeys([*filter(None, sys.path), ours])
    bootstrap = _BOOTSTRAP.replace("main(parent)", "main(parent, only_load=True)") if only_load else _BOOTSTRAP
    return (sys.executable, "-I", "-S", "-c", bootstrap, str(os.getpid()), *paths)


class NvmlRun:
    """One reading in progress: started on creation, so that other facts can be read meanwhile; ended by close().

    `command`: the program to run in the place of our child.
    """

    def __init__(self, deadline_s: float, command: Sequence[str] | None = None) -> None:
        self.deadline_s = deadline_s
        self._ends_at = time.monotonic() + deadline_s
        self._process: subprocess.Popen[bytes] | None = None
        self._fault: str | None = None
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, no shell
                command or child_command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            self._fault = f"the NVML reader can't be started: {error}"

    def close(self) -> None:
        """Leave nothing behind, whether or not anyone waited for the result."""
        if self._process is not None:
            end_group(self._process)
            for pipe in (self._process.stdout, self._process.stderr):
                if pipe is not None:
                    pipe.close()

    def result(self) -> "NvmlReading":
        """What the child found, or a reading without GPUs that says what the child did instead. Waits until the deadline."""
        process = self._process
        if process is None:
            return _failed(self._fault or "the NVML reader was not started")
        answer, complaint, closed = self._read(process)
        code = self._wait(process) if closed else None
        if code is None and len(answer) <= MAX_ANSWER_BYTES:
            fault = f"NVML did not answer within {self.deadline_s:g} s: the driver hangs or is very slow{_asked(complaint)} (see the kernel log)"
        elif len(answer) > MAX_ANSWER_BYTES:
            fault = f"the NVML reader wrote more than {MAX_ANSWER_BYTES // 2**20} MiB"
        elif code is not None and code < 0:
            fault = f"NVML killed its reader ({_signal_name(-code)}){_asked(complaint)}"
        elif code:
            said = [line for line in _lines(complaint) if line and not line.startswith(PROGRESS)]
            fault = f"the NVML reader ended with exit code {code}" + (f": {said[-1]}" if said else "")
        else:
            return _decode(answer)
        stuck = end_group(process)
        return _failed(fault, *([stuck] if stuck else []))

    def _wait(self, process: subprocess.Popen[bytes]) -> int | None:
        try:
            return process.wait(max(0.0, self._ends_at - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None

    def _read(self, process: subprocess.Popen[bytes]) -> tuple[bytes, bytes, bool]:
        """Answer, complaint, and whether the child ended, or closed both pipes, before the deadline and within the limit."""
        assert process.stdout is not None
        assert process.stderr is not None
        answer, complaint = bytearray(), bytearray()
        with selectors.DefaultSelector() as selector, _ending(process.pid) as ending:
            for pipe, kept in ((process.stdout, answer), (process.stderr, complaint)):
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ, kept)
            num_others = 0 if ending is None else bool(selector.register(ending, selectors.EVENT_READ))
            ended = False
            while len(selector.get_map()) > num_others and not ended and len(answer) <= MAX_ANSWER_BYTES:
                left_s = self._ends_at - time.monotonic()
                if left_s <= 0:
                    break
                ready = [key for key, _ in selector.select(left_s)]
                ended = any(key.data is None for key in ready)
                # what the child wrote is all there once it has ended, though something that it left behind holds the pipes open
                for key in list(selector.get_map().values()) if ended else ready:
                    if key.data is not None and not _take(key.fd, key.data):
                        selector.unregister(key.fileobj)
                    del complaint[:-MAX_COMPLAINT_BYTES]
            if ended:  # and is not reaped yet, so that the group's number is still its own
                kill_group(process.pid)
            return bytes(answer), bytes(complaint), ended or len(selector.get_map()) == num_others


@contextlib.contextmanager
def _ending(pid: int) -> Iterator[int | None]:
    """A descriptor that becomes readable when that child ends; None where the system has no such thing (Linux before 5.3)."""
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _take(pipe: int, kept: bytearray) -> bool:
    """Read all that is there now, up to the limit of an answer; False at the end."""
    while len(kept) <= MAX_ANSWER_BYTES:
        try:
            data = os.read(pipe, 65536)
        except BlockingIOError:
            return True
        if not data:
            return False
        kept += data
    return True


def kill_group(pid: int) -> None:
    """Ends what a child left behind in its group; there may be nothing, or the kernel won't let us."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def end_group(process: Killable, reap_s: float = REAP_S) -> str | None:
    """Kill a process with its group and reap it. A text if it would not go within reap_s: it is then left behind."""
    if process.poll() is not None:
        return None
    kill_group(process.pid)  # waiting tells whether it went
    try:
        process.wait(reap_s)
    except subprocess.TimeoutExpired:
        return f"process {process.pid} can't be killed: it hangs in the driver, and the node needs a reboot"
    return None


def _asked(complaint: bytes) -> str:
    """What was being asked when no answer came, as in " when asked about GPU 3"."""
    asked = [line for line in _lines(complaint) if line.startswith(PROGRESS)]
    return f" when asked about {asked[-1].removeprefix(PROGRESS)[:40]}" if asked else ""


def _lines(complaint: bytes) -> list[str]:
    return complaint.decode("utf-8", errors="replace").strip().splitlines()


def _decode(answer: bytes) -> "NvmlReading":
    import msgspec

    from preflight.discover.nvml_reading import decode

    try:
        return decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _failed(f"the NVML reader's answer makes no sense: {error}")


def _failed(*faults: str) -> "NvmlReading":
    from preflight.discover.nvml_reading import NvmlReading
    from preflight.model import Problem

    return NvmlReading(note=faults[0], problems=tuple(Problem(source="NVML", text=fault) for fault in faults))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
