"""Which processes of this system belong to the job of the process that looks, so that a training beside it is nobody else's.

By the scheduler's cgroup, by its job number among the variables (where it makes no cgroups), or by the session: a process, or one that started it, is of the
same terminal or task. A cgroup of another kind says nothing: without the scheduler's own, all jobs of a node live in that of its daemon.
Sources: Slurm's cgroups ("Cgroup Guide": .../job_<number>/step_<number>/..., version 1 and 2 alike); proc(5), proc_pid_cgroup(5); srun(1), qsub of PBS and bsub
of LSF on the variables.
"""

import re
from pathlib import Path

from preflight.discover.files import read_bytes, read_text, to_int

MAX_PARENTS = 32
MAX_ENVIRONMENT = 2**20  # bytes
_JOB_CGROUP = r"^\d+:[^:]*:(/.*?/job_\d+)(?:/|$)"
_JOB_VARIABLES = (b"SLURM_JOB_ID=", b"PBS_JOBID=", b"LSB_JOBID=")


class SameJob:
    """What this process is known by: its job's cgroups, its job's number, its session. `root`: where /proc is found."""

    def __init__(self, root: Path) -> None:
        self._proc = f"{root}/proc"
        self._cgroups = self._job_cgroups("self")
        self._numbers = self._job_numbers("self")
        self._session = self._parent_and_session("self")[1]

    def has(self, pid: int) -> bool | None:
        """Whether that process is of the same job. None: this process itself can't be told apart from others."""
        if not (self._cgroups or self._numbers or self._session):
            return None
        cgroups = self._job_cgroups(pid)
        if self._cgroups or cgroups:
            return bool(self._cgroups & cgroups)
        numbers = self._job_numbers(pid)
        if self._numbers and numbers:
            return bool(self._numbers & numbers)
        return self._of_session(pid)

    def _of_session(self, pid: int) -> bool:
        """Whether it, or a process that started it, is of this session: launchers give each worker a session of its own."""
        at: int | None = pid
        for _ in range(MAX_PARENTS):
            if at is None or at < 2:
                return False
            at, session = self._parent_and_session(at)
            if session and session == self._session:
                return True
        return False

    def _parent_and_session(self, pid: int | str) -> tuple[int | None, int | None]:
        """Of /proc/<pid>/stat: the name before these fields may hold blanks and brackets. 0 is no session of this namespace."""
        fields = (read_text(f"{self._proc}/{pid}/stat") or "").rpartition(")")[2].split()
        return (to_int(fields[1]), to_int(fields[3]) or None) if len(fields) > 3 else (None, None)

    def _job_cgroups(self, pid: int | str) -> set[str]:
        return set(re.findall(_JOB_CGROUP, read_text(f"{self._proc}/{pid}/cgroup") or "", re.MULTILINE))

    def _job_numbers(self, pid: int | str) -> set[bytes]:
        """Only those of the same user's processes can be read."""
        try:
            data = read_bytes(f"{self._proc}/{pid}/environ", MAX_ENVIRONMENT)
        except OSError:
            return set()
        return {entry for entry in data.split(b"\0") if entry.startswith(_JOB_VARIABLES) and not entry.endswith(b"=")}
