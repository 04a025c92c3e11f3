"""Who else holds this node: a resident agent gives way to the jobs that the node is there for.

On GPUs it goes by the processes that NVML lists on them; daemons at home there and our own workers don't count. Where no job asked for the run, nobody keeps the node free for it: then any
step of a job of Slurm's is reason enough, since it may own GPUs that it doesn't use at this moment; so is one where the run has no GPUs, as all of it shares the node's processors.
What can't be found out is a reason not to start: a probe beside somebody's training slows it, and is slow itself, for which a good node would be blamed.
"""

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from preflight.discover.job_steps import descends_from, job_of, read_job_steps
from preflight.discover.processes import name_processes, sees_host_processes
from preflight.fleet.clocks import ClockReader
from preflight.fleet.threads import in_daemon_thread
from preflight.model import Gpu, GpuProcess
from preflight.model.gpu_daemons import holds, is_daemon

START_S = 10.0  # a driver that wakes up its GPUs takes seconds
MOST_SHOWN = 3


class Tenants:
    """Looks who holds what a run uses. `gpus`: UUIDs, none: it runs on processors. `job`: the Slurm job that the run is for, None: for none."""

    def __init__(self, gpus: Collection[str], job: str | None, root: Path = Path("/")) -> None:
        self.gpus = frozenset(gpus)
        self.job = job
        self.root = root

    async def before(self, reader: ClockReader, deadline_s: float) -> str | None:
        """Why the run must not start, in words; None: nobody is in its way."""
        found = await reader.gpus(min(START_S, deadline_s)) if self.gpus else ()
        if found is None:
            return "who is on its GPUs can't be found out: NVML gave no answer"
        known = {gpu.uuid: gpu for gpu in found}
        for uuid in sorted(self.gpus):
            if uuid not in known or known[uuid].processes is None:
                return f"who is on {uuid} can't be found out: the driver doesn't tell"
        if not await in_daemon_thread(lambda: sees_host_processes(self.root)):
            return "who is at work on this node can't be found out: its processes can't be seen from here"
        return await in_daemon_thread(lambda: self._holders(found))

    async def now(self, found: Sequence[Gpu] | None) -> str | None:
        """Who has come since, in words; None: nobody, as far as this reading of the GPUs tells."""
        return await in_daemon_thread(lambda: self._holders(found or ()))

    def _holders(self, found: Sequence[Gpu]) -> str | None:
        on_gpus = self._on_gpus(found)
        if on_gpus or (self.gpus and self.job is not None):
            return on_gpus
        steps = [step for step in read_job_steps(self.root) or () if step.job is None or step.job != self.job]
        if not steps:
            return None
        jobs = ", ".join(dict.fromkeys(f"job {step.job}" if step.job else "a job" for step in steps[:MOST_SHOWN]))
        pids = ", ".join(str(step.pid) for step in steps[:MOST_SHOWN])
        more = f" and {len(steps) - MOST_SHOWN} more" if steps[MOST_SHOWN:] else ""
        return f"{jobs} of Slurm runs on this node (slurmstepd {pids}{more})"

    def _on_gpus(self, found: Sequence[Gpu]) -> str | None:
        wanted = tuple(gpu for gpu in found if gpu.uuid in self.gpus)
        for gpu in name_processes(self.root, wanted):
            others = [p for p in gpu.processes or () if self._is_foreign(p)]
            if others:
                shown = ", ".join(self._shown(process) for process in others[:MOST_SHOWN])
                return f"{gpu.uuid} is held by {shown}"
        return None

    def _is_foreign(self, process: GpuProcess) -> bool:
        if is_daemon(process) or not holds(process) or descends_from(process.pid, os.getpid(), self.root):
            return False
        if process.name is None and not Path(f"{self.root}/proc/{process.pid}").exists():
            return False  # it has ended since
        return self.job is None or job_of(process.pid, self.root) != self.job

    def _shown(self, process: GpuProcess) -> str:
        job = job_of(process.pid, self.root)
        facts = [process.name or "name not visible from here"]
        facts += [f"user {process.user}"] if process.user else []
        facts += [f"job {job}"] if job else []
        return f"process {process.pid} ({', '.join(facts)})"
