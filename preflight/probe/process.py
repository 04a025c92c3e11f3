"""What zygote and workers need of Linux: dying with their parent, dropping root."""

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15


def name_process(name: str) -> None:
    """What `ps -o comm` and `top` show; the kernel keeps 15 letters."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to kill this process when its parent ends; leave at once if it already has.

    The signal fires when the parent's *thread* that started us ends, so parents start processes from their main thread. Dropping root clears
    it, so call this afterwards.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(0)


def pid_namespace() -> str | None:
    """The namespace in which this process's id counts, as the kernel names it. None: /proc doesn't tell."""
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - pathlib is not worth its import here
    except OSError:
        return None


def drop_privileges(uid: int | None, gid: int | None) -> None:
    """Become an unprivileged user for good. Does nothing if uid is None."""
    if uid is None:
        return
    os.setgroups([])
    os.setresgid(gid or uid, gid or uid, gid or uid)
    os.setresuid(uid, uid, uid)
