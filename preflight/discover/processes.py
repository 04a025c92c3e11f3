"""Other processes of this system, from /proc: whether the daemons that GPUs need run, and who holds GPU memory.

Kernel: Documentation/filesystems/proc.rst (comm is cut at 15 letters; hidepid= hides the processes of others); stat's fields: proc(5).
"""

import os
import pwd
from pathlib import Path

import msgspec

from preflight.discover.files import ask_line, read_text
from preflight.discover.host import process_facts
from preflight.discover.same_job import SameJob
from preflight.model import Gpu, GpuProcess, Service
from preflight.model.base import Record

SERVICES = ("nv-fabricmanager", "nvidia-imex", "nvidia-persistenced", "nvlsm")
COMM_LETTERS = 15  # TASK_COMM_LEN of Linux, without the end mark
_MAX_PROCESSES = 100_000
_MAX_PASSWD_LINES = 100_000


def sees_host_processes(root: Path) -> bool:
    """Whether all processes of the machine can be seen: the kernel's own process 2 is there only in the first PID namespace, and hidden by hidepid."""
    return read_text(root / "proc/2/comm") == "kthreadd"


def read_services(root: Path) -> tuple[Service, ...]:
    """The daemons, each running or not; None where other processes can't be seen."""
    if not sees_host_processes(root):
        return tuple(Service(name=name) for name in SERVICES)
    wanted = {name[:COMM_LETTERS] for name in SERVICES}
    running: set[str] = set()
    names = names_in_proc(root)
    if names is None:
        return tuple(Service(name=name) for name in SERVICES)
    for pid in names:
        try:
            comm = ask_line(f"{root}/proc/{pid}/comm")
        except OSError:
            continue  # it ended meanwhile
        if comm in wanted and _is_alive(root, pid):
            running.add(comm)
    return tuple(Service(name=name, running=name[:COMM_LETTERS] in running) for name in SERVICES)


def names_in_proc(root: Path) -> list[str] | None:
    """The process ids in /proc. None if it can't be listed."""
    try:
        with os.scandir(f"{root}/proc") as entries:
            return [entry.name for entry in entries if entry.name.isdecimal()][:_MAX_PROCESSES]
    except OSError:
        return None


def _is_alive(root: Path, pid: str) -> bool:
    """Not a dead process that its parent hasn't buried."""
    fields = _stat_fields(root, pid)
    return bool(fields) and fields[0] not in {"Z", "X"}


def _stat_fields(root: Path, pid: str | int) -> list[str]:
    """The fields of /proc/<pid>/stat from the third on: the name before them may hold blanks and brackets."""
    return (read_text(f"{root}/proc/{pid}/stat") or "").rpartition(")")[2].split()


def name_processes(root: Path, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The GPUs with names, users and start times of the processes on them, as far as they can be seen from here."""
    if not any(gpu.processes for gpu in gpus) or not sees_host_processes(root):
        return gpus
    known = _Known(_users(root), SameJob(root))
    return tuple(
        msgspec.structs.replace(gpu, processes=tuple(_name(root, process, known) for process in gpu.processes or ()))
        if gpu.processes
        else gpu
        for gpu in gpus
    )


class _Known(Record, frozen=True):
    """The system's users by number, and who is of this process's job."""

    users: dict[int, str]
    same_job: SameJob


def _name(root: Path, process: GpuProcess, known: _Known) -> GpuProcess:
    """A process that has ended meanwhile keeps its number only."""
    try:
        owner = Path(f"{root}/proc/{process.pid}").stat().st_uid
    except (OSError, ValueError):
        return process
    name, started_at_s = process_facts(root, process.pid)
    return msgspec.structs.replace(
        process,
        name=process.name or name,
        user=process.user or known.users.get(owner) or f"uid {owner}",
        started_at_s=process.started_at_s if process.started_at_s is not None else started_at_s,
        ours=known.same_job.has(process.pid),
    )


def _users(root: Path) -> dict[int, str]:
    """Users of the system's own file: a name service of the network is not asked, since it may not answer."""
    return {number: name for number, (name, _) in _accounts(root).items()}


def _accounts(root: Path) -> dict[int, tuple[str, str]]:
    """User number -> name and home directory, from passwd(5); of several lines the first counts."""
    found: dict[int, tuple[str, str]] = {}
    for line in (read_text(root / "etc/passwd") or "").splitlines()[:_MAX_PASSWD_LINES]:
        fields = line.split(":")
        if len(fields) >= 6 and fields[2].isdecimal():
            found.setdefault(int(fields[2]), (fields[0], fields[5]))
    return found


def account_home(root: Path) -> Path | None:
    """The home directory of this process's account, where NCCL looks for its settings. None: it has none, or the root is another system's.

    Asks the name services of the network, which may not answer, only for users that the system's own file doesn't know.
    """
    if root != Path("/"):
        return None
    own = os.getuid()
    local = _accounts(root).get(own)
    if local is not None:
        return Path(local[1]) if local[1].startswith("/") else None
    try:
        home = pwd.getpwuid(own).pw_dir
    except KeyError:
        return None
    return Path(home) if home.startswith("/") else None
