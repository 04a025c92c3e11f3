"""Which jobs of Slurm are at work on this node, and to which of them a process belongs, from /proc.

Every step of a job has its slurmstepd, a process of root that calls itself "slurmstepd: [<job>.<step>]" (seen on 22.05; "batch" and "extern" are steps too). A process of the
job is in a cgroup of the job's (Slurm's Cgroup Guide: .../job_<number>/step_<number>/..., version 1 and 2 alike), or a descendant of that slurmstepd. Nothing that a user can write, such as a
variable or a name of its own process, is believed.
"""

import re
from pathlib import Path

from preflight.discover.files import read_text, to_int
from preflight.discover.processes import names_in_proc, sees_host_processes
from preflight.model.base import Record

MAX_PARENTS = 64
_JOB_CGROUP = re.compile(r"^\d+:[^:]*:/(?:.*/)?job_(\d{1,10})(?:/|$)", re.MULTILINE)
_TITLE = re.compile(r"slurmstepd: \[(\d{1,10})\.")


class JobStep(Record, frozen=True):
    """One slurmstepd. `job` None: it doesn't say whose."""

    pid: int
    job: str | None


def read_job_steps(root: Path = Path("/")) -> tuple[JobStep, ...] | None:
    """The steps on this node. None: the processes of the node can't be seen from here.

    Where a slurmd runs in our network namespace, it is this node's, and steps in other namespaces are of other nodes (nodes in containers).
    """
    names = names_in_proc(root) if sees_host_processes(root) else None
    if names is None:
        return None
    steps: list[JobStep] = []
    slurmd = False
    here = _network(root, "self")
    for name in names:
        comm = read_text(f"{root}/proc/{name}/comm")
        if comm == "slurmd":
            slurmd = slurmd or (here is not None and _network(root, name) == here)
        elif comm == "slurmstepd" and _is_roots(root, name):
            steps.append(JobStep(int(name), _job_of_step(root, name)))
    if slurmd:
        steps = [step for step in steps if _network(root, step.pid) in {None, here}]
    return tuple(steps)


def job_of(pid: int, root: Path = Path("/")) -> str | None:
    """The number of the job that a process belongs to. None: of none, or it can't be told."""
    at: int | None = pid
    for _ in range(MAX_PARENTS):
        if at is None or at < 2:
            return None
        found = _JOB_CGROUP.search(read_text(f"{root}/proc/{at}/cgroup") or "")
        if found:
            return found[1]
        if read_text(f"{root}/proc/{at}/comm") == "slurmstepd" and _is_roots(root, at):
            return _job_of_step(root, at)
        at = parent_of(at, root)
    return None


def descends_from(pid: int, ancestor: int, root: Path = Path("/")) -> bool:
    """Whether a process is that one, or was started by it or by one that it started, as far as they are there."""
    at: int | None = pid
    for _ in range(MAX_PARENTS):
        if at is None or at < 2:
            return False
        if at == ancestor:
            return True
        at = parent_of(at, root)
    return False


def parent_of(pid: int, root: Path = Path("/")) -> int | None:
    """From /proc/<pid>/stat: the name before its number may hold blanks and brackets. None: it has ended."""
    fields = (read_text(f"{root}/proc/{pid}/stat") or "").rpartition(")")[2].split()
    return to_int(fields[1]) if len(fields) > 1 else None


def _job_of_step(root: Path, pid: int | str) -> str | None:
    found = _TITLE.match(read_text(f"{root}/proc/{pid}/cmdline") or "")
    if found is None:
        found = _JOB_CGROUP.search(read_text(f"{root}/proc/{pid}/cgroup") or "")
    return found[1] if found else None


def _is_roots(root: Path, pid: int | str) -> bool:
    try:
        return Path(f"{root}/proc/{pid}").stat().st_uid == 0
    except OSError:
        return False


def _network(root: Path, pid: int | str) -> str | None:
    try:
        return str(Path(f"{root}/proc/{pid}/ns/net").readlink())
    except OSError:
        return None
