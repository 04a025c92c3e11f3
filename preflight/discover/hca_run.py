"""Reads the RDMA devices in a child, under a limit of time.

Files of sysfs that tell of a card ask its firmware, and wait in the kernel where no signal reaches them if it is dead (mlx5: a minute for each command). A child
that waits there is left behind, and this process stays free to answer and to end. Where there is no device, there is no child.

Light to import, as nvml_run.py is.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.discover.files import names_in
from preflight.discover.nvml_run import end_group

if TYPE_CHECKING:
    from preflight.discover.infiniband import HcaReading

LIMIT_S = 3.0  # eight cards that answer take a tenth of a second
_CLASS = "sys/class/infiniband"
_MAX_DEVICES = 1024
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

        None: there is no child (no device either, or none can be seen), or it ended early: the caller may read by itself.
        """
        from preflight.discover.infiniband import together, unanswered

        if not self._left:
            return None
        ends_at = time.monotonic() + total_s
        readings: list[HcaReading] = []
        while self._left:
            if self._process is None:
                return None
            limit_s = min(self._limit_s, ends_at - time.monotonic())
            if limit_s <= 0:
                readings += [unanswered(name, f"not read: {total_s:.3g} s were over") for name in self._left]
                break
            hangs = self._collect(self._process, limit_s, readings)
            if not self._left:
                break
            if not hangs:
                return None
            why = f"did not answer within {limit_s:.3g} s: its driver or firmware hangs"
            stuck = self.close()
            readings.append(unanswered(self._left.pop(0), f"{why}; {stuck}" if stuck else why))
            self._process = self._start()
        return together(readings)

    def _collect(self, process: "subprocess.Popen[bytes]", limit_s: float, readings: "list[HcaReading]") -> bool:
        """Take what the child tells; True if it has not ended in time."""
        hangs, answer = False, b""
        try:
            answer, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired as late:
            hangs, answer = True, late.output or b""
        # without its end, the last line may be half of one
        for line in answer.split(b"\n")[:-1]:
            reading = _decode(line)
            if reading is None or not self._left:
                break
            readings.append(reading)
            self._left.pop(0)
        return hangs


def _decode(line: bytes) -> "HcaReading | None":
    import msgspec

    from preflight.discover.infiniband import HcaReading

    try:
        return msgspec.json.decode(line, type=HcaReading)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
