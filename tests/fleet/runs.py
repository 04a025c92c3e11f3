"""Real runs of the command line in processes of their own, and what a test does to them from outside."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

from preflight.model import Report, from_json

PLAN = """
[model]
parameters = "8M"
layers = 4
hidden_size = 512
[parallel]
tp = {tp}
dp = {dp}
[training]
micro_batches = 8
micro_batch_size = 1
seq_length = 512
[hardware]
nodes = {nodes}
gpus_per_node = {per_node}
backend = "gloo"
"""


class Run:
    """One `preflight run` under way. All its processes carry a mark in their environment, by which they are found."""

    def __init__(self, folder: Path, *arguments: str, nodes: int = 2, per_node: int = 2, tp: int = 2) -> None:
        self.out = folder / "out"
        plan = folder / "plan.toml"
        plan.write_text(PLAN.format(tp=tp, dp=nodes * per_node // tp, nodes=nodes, per_node=per_node))
        self.mark = f"PREFLIGHT_TEST_MARK={uuid.uuid4().hex}"
        name, value = self.mark.split("=")
        command = [sys.executable, "-m", "preflight", "run", str(plan), "--out", str(self.out), *arguments]
        self.errors = folder / "stderr"
        error_file = self.errors.open("wb")
        self.process = subprocess.Popen(
            command,
            env={**os.environ, name: value},
            stdout=subprocess.PIPE,
            stderr=error_file,
            text=True,
            start_new_session=True,
        )
        error_file.close()

    def wait(self, timeout_s: float = 100) -> int:
        """The exit code."""
        self.stdout, _ = self.process.communicate(timeout=timeout_s)
        return self.process.returncode

    def report(self) -> Report:
        return from_json((self.out / "report.json").read_bytes(), Report)

    def processes(self) -> dict[int, str]:
        """Process id -> name of every process of this run that is there, ended ones not counted."""
        found = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                marked = self.mark.encode() in (folder / "environ").read_bytes().split(b"\0")
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                if marked and state != "Z":
                    found[int(folder.name)] = (folder / "comm").read_text().strip()
            except OSError:
                continue
        return found

    def agents(self) -> list[int]:
        """Process ids of the agents, in node order."""
        found = []
        for pid in sorted(self.processes()):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"agent" in words and b"--name" in words:
                found.append((words[words.index(b"--name") + 1], pid))
        return [pid for _, pid in sorted(found)]

    def find(self, name: str, timeout_s: float = 60) -> int:
        """The process of that name, as soon as it is there."""
        return until(lambda: next((p for p, n in self.processes().items() if n == name), None), timeout_s, name)

    def until_busy(self, pid: int, timeout_s: float = 60) -> None:
        """Wait until a worker has used half a second of CPU time: it is measuring, not starting."""
        ticks = os.sysconf("SC_CLK_TCK")

        def used() -> bool | None:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / ticks > 0.5 or None

        until(used, timeout_s, f"process {pid} at work")

    def gone(self, timeout_s: float = 15) -> None:
        """Assert that no process of this run is left (an orphan needs a moment to be reaped)."""
        until(lambda: not self.processes() or None, timeout_s, f"the end of {self.processes()}")

    def kill_all(self) -> None:
        kill_all(self.process, self.processes())


def kill_all(process: subprocess.Popen, others: Iterable[int]) -> None:
    """SIGKILL to a process and all that came of it."""
    for pid in [process.pid, *others]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()


def until(probe: Callable[[], object], timeout_s: float, what: str):
    """Poll until the probe gives something; fails with what was waited for."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        value = probe()
        if value is not None:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {timeout_s} s in vain for {what}")
