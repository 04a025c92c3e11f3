"""Reads the RDMA devices in a child, under a limit of time.

Files of sysfs that tell of a card ask its firmware, and wait in the kernel where no signal reaches them if it is dead (mlx5: a minute for each command). A child
that waits there is left behind, and this process stays free to answer and to end. Where there is no device, there is no child.

Light to import, as nvml_run.py is.
"""

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from preflight.discover.files import names_in
from preflight.discover.nvml_run import end_group

if TYPE_CHECKING:
    from preflight.discover.infiniband import HcaReading

LIMIT_S = 3.0  # for one device; eight that answer take less than a tenth of a second together
READY = b"ready"  # what the child says first
_CLASS = "sys/class/infiniband"
_MAX_DEVICES = 1024
_MAX_LINE = 4 * 2**20  # a device with a full address table is some 30 kB
# as that of the NVML child: -I and -S, imports from exactly where this process does
_BOOTSTRAP = (
    "import sys; root, names = sys.argv[1], sys.argv[2].split('/'); sys.path[:] = sys.argv[3:]; "
    "from preflight.discover.hca_child import main; main(root, names)"
)


def child_command(root: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Our own child for these devices; their names, being names of files, hold no "/"."""
    paths = dict.fromkeys([*filter(None, sys.path), os.fspath(Path(__file__).parents[2])])
    return (sys.executable, "-I", "-S", "-c", _BOOTSTRAP, os.fspath(root.absolute()), "/".join(names), *paths)


class HcaRun:
    """The reading of the devices below a root: started on creation, ended by close(). `command`: the program to run in the place of our child, for all devices
    that are left.
    """

    def __init__(self, root: Path, command: Sequence[str] | None = None, limit_s: float = LIMIT_S) -> None:
        self._root = root
        self._command = command
        self._limit_s = limit_s
        self._left = list(names_in(root / _CLASS) or ())[:_MAX_DEVICES]
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes] | None":
        if not self._left:
            return None
        try:
            return subprocess.Popen(  # noqa: S603 - our own interpreter, no shell
                self._command or child_command(self._root, self._left),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except (OSError, ValueError):
            return None

    def close(self) -> str | None:
        """End the child if it is still there. A text if it would not go."""
        process, self._process = self._process, None
        if process is None:
            return None
        stuck = end_group(process)
        if process.stdout is not None:
            process.stdout.close()
        return stuck

    def result(self, total_s: float) -> "HcaReading | None":
        """The devices, waiting at most that long; a device that doesn't answer is one of which only the name is known, and the next ones are asked by a new child.

        None: there is no child (no device either, or none can be seen), or it ended early or was not ready in time: the caller may read by itself.
        """
        from preflight.discover.infiniband import together, unanswered

        ends_at = time.monotonic() + total_s
        readings: list[HcaReading] = []
        if not self._left:
            return None
        while self._left:
            outcome = "ended" if self._process is None else self._collect(self._process, ends_at, readings)
            if not self._left:
                break
            if outcome == "late":
                readings += [unanswered(name, f"not read: {total_s:.3g} s were over") for name in self._left]
                break
            if outcome == "ended":
                return None
            why = f"did not answer within {self._limit_s:.3g} s: its driver or firmware hangs"
            stuck = self.close()
            readings.append(unanswered(self._left.pop(0), f"{why}; {stuck}" if stuck else why))
            self._process = self._start()
        return together(readings)

    def _collect(
        self, process: "subprocess.Popen[bytes]", ends_at: float, readings: "list[HcaReading]"
    ) -> Literal["ended", "hangs", "late"]:
        """Take what the child tells, until all is told or it "ended" too early, "hangs" at one device, or time is over ("late").

        A child that isn't even ready when time is over says nothing of any device (its program may lie on a slow file system): as if it had ended.
        """
        assert process.stdout is not None
        pipe, rest, is_ready = process.stdout.fileno(), b"", False
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            since = time.monotonic()
            while self._left:
                until = min(ends_at, since + self._limit_s) if is_ready else ends_at
                if not selector.select(max(0.0, until - time.monotonic())):
                    return "ended" if not is_ready else "late" if until == ends_at else "hangs"
                data = os.read(pipe, 65536)
                if not data:
                    return "ended"
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) > _MAX_LINE:
                    return "ended"
                if lines:
                    since = time.monotonic()
                    if not is_ready and lines.pop(0) != READY:
                        return "ended"
                    is_ready = True
                for line in lines[: len(self._left)]:
                    reading = _decode(line)
                    if reading is None:
                        return "ended"
                    readings.append(reading)
                    self._left.pop(0)
        return "ended"


def _decode(line: bytes) -> "HcaReading | None":
    import msgspec

    from preflight.discover.infiniband import HcaReading

    try:
        return msgspec.json.decode(line, type=HcaReading)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
