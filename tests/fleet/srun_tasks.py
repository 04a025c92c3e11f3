"""A step as srun would start it, without Slurm: every task is a process with Slurm's variables, and each node a loopback address whose name is the address."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from preflight.model import Report, from_json
from preflight.model.hostlist import fold
from tests.fleet.runs import PLAN, Run, until

SITE = '[agent]\nmunge_socket = "{socket}"\n'


def step_variables(nodes: Sequence[str], node_rank: int, local_rank: int, *, per_node: int, job: int) -> dict[str, str]:
    """What Slurm 22.05 tells a task, as far as it is read."""
    return {
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(node_rank * per_node + local_rank),
        "SLURM_NODEID": str(node_rank),
        "SLURM_LOCALID": str(local_rank),
        "SLURM_STEP_NODELIST": fold(nodes),
        "SLURM_STEP_TASKS_PER_NODE": f"{per_node}(x{len(nodes)})",
        "SLURMD_NODENAME": nodes[node_rank],
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
    }


class Tasks:
    """The tasks of one step under way. `missing`: node ranks whose tasks never start."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        nodes: int = 2,
        per_node: int = 1,
        ranks_per_node: int = 1,
        job: int = 77,
        missing: Sequence[int] = (),
        socket: str = "",
        plan: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.out, self.folder = folder / "out", folder
        self.nodes = [f"127.0.0.{number + 2}" for number in range(nodes)]
        (folder / "site.toml").write_text(SITE.format(socket=socket) if socket else "")
        text = plan or PLAN.format(tp=1, dp=nodes * ranks_per_node, nodes=nodes, per_node=ranks_per_node)
        (folder / "plan.toml").write_text(text)
        self.mark = f"PREFLIGHT_TEST_MARK={uuid.uuid4().hex}"
        name, value = self.mark.split("=")
        self.environment = {k: word for k, word in os.environ.items() if not k.startswith(("SLURM", "PREFLIGHT"))}
        self.environment |= {"PREFLIGHT_CONFIG": str(folder / "site.toml"), "PREFLIGHT_RUN_NO_HISTORY": "1"}
        self.environment |= {name: value, **(environment or {})}
        self.command = [
            sys.executable,
            "-m",
            "preflight",
            "run",
            str(folder / "plan.toml"),
            "--out",
            str(self.out),
            *options,
        ]
        self.tasks: dict[tuple[int, int], subprocess.Popen[bytes]] = {}
        for node_rank in range(nodes):
            for local_rank in range(per_node) if node_rank not in missing else ():
                said = step_variables(self.nodes, node_rank, local_rank, per_node=per_node, job=job)
                self._start(node_rank, local_rank, said)

    def _start(self, node_rank: int, local_rank: int, said: Mapping[str, str]) -> None:
        output, errors = (self._file(node_rank, local_rank, kind).open("wb") for kind in ("out", "err"))
        with output, errors:
            self.tasks[node_rank, local_rank] = subprocess.Popen(
                self.command,
                env={**self.environment, **said},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )

    def _file(self, node_rank: int, local_rank: int, kind: str) -> Path:
        return self.folder / f"task-{node_rank}-{local_rank}.{kind}"

    def wait(self, timeout_s: float = 150) -> dict[tuple[int, int], int]:
        """(node rank, local rank) -> exit code of each task."""
        end = time.monotonic() + timeout_s
        return {task: process.wait(max(0.1, end - time.monotonic())) for task, process in self.tasks.items()}

    def code(self, timeout_s: float = 150) -> int:
        """What srun would end with: the highest code of its tasks."""
        return max(code if code >= 0 else 128 - code for code in self.wait(timeout_s).values())

    def printed(self, node_rank: int = 0, local_rank: int = 0, kind: str = "out") -> str:
        """What a task printed."""
        return self._file(node_rank, local_rank, kind).read_text()

    def said(self) -> str:
        """What all tasks said on standard error."""
        return "".join(self.printed(*task, "err") for task in self.tasks)

    def report(self) -> Report:
        return from_json((self.out / "report.json").read_bytes(), Report)

    processes = Run.processes
    find = Run.find
    until_busy = Run.until_busy

    def gone(self, timeout_s: float = 30) -> None:
        """Assert that no process of this step is left."""
        until(lambda: not self.processes() or None, timeout_s, f"the end of {self.processes()}")

    def __enter__(self) -> "Tasks":  # noqa: PYI034 - Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        for pid in [*(process.pid for process in self.tasks.values()), *self.processes()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.tasks.values():
            process.wait(10)
