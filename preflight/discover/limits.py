"""Limits of this process, /dev/shm, and the kernel's opinion of its clock. Of the live system: a recorded tree has none of them.

Sources: getrlimit(2), statvfs(3), capabilities(7), adjtimex(2), and include/uapi/linux/{capability,timex}.h.
"""

import os
import resource
from pathlib import Path

from preflight.discover.files import read_text
from preflight.model import ClockSync, Limits
from preflight.model.surroundings import UNLIMITED

CAP_IPC_LOCK = 14  # locks memory beyond the limit
_STA_NANO = 0x2000  # the offset is in nanoseconds instead of microseconds
_MAX_ERROR_US = (
    16_000_000  # NTP_PHASE_LIMIT: the kernel counts the error up by 500 ppm until it is corrected or gets here
)


def read_limits(root: Path) -> Limits:
    """Limits of this process; for another root than "/" only its /dev/shm, if a file system of its own is mounted there."""
    size, free = _read_shm(root)
    if root != Path("/"):
        return Limits(shm_bytes=size, shm_free_bytes=free)
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return Limits(
        memlock_bytes=_limit(soft),
        memlock_hard_bytes=_limit(hard),
        privileged=_may_lock(read_text("/proc/self/status")),
        open_files=_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        shm_bytes=size,
        shm_free_bytes=free,
    )


def _limit(value: int) -> int:
    return UNLIMITED if value == resource.RLIM_INFINITY else value


def _may_lock(status: str | None) -> bool | None:
    """From the effective capabilities in /proc/self/status, a hexadecimal mask."""
    line = next((line for line in (status or "").splitlines() if line.startswith("CapEff:")), None)
    try:
        return None if line is None else bool(int(line.partition(":")[2], 16) >> CAP_IPC_LOCK & 1)
    except ValueError:
        return None


def _read_shm(root: Path) -> tuple[int | None, int | None]:
    """Size and free bytes of /dev/shm. Below another root, a folder of the same file system is a recorded one."""
    shm = root / "dev/shm"
    try:
        if root != Path("/") and shm.stat().st_dev == root.stat().st_dev:
            return None, None
        told = os.statvfs(shm)
    except (OSError, ValueError):
        return None, None
    return told.f_blocks * told.f_frsize, told.f_bavail * told.f_frsize


def read_clock() -> ClockSync:
    """The kernel's opinion of its clock, by reading only. Raises OSError if the kernel or a container's filter refuses.

    In step means that the possible error is below its ceiling: STA_UNSYNC alone is also set where the daemon leaves the hardware clock alone (chrony
    without rtcsync), which is why systemd changed its rule to this one (systemd commit bca5a0eacc).
    """
    import ctypes

    class Timex(ctypes.Structure):
        """struct timex of <sys/timex.h>; the rest is room for what follows."""

        _fields_ = (
            ("modes", ctypes.c_uint),
            ("offset", ctypes.c_long),
            ("frequency", ctypes.c_long),
            ("max_error_us", ctypes.c_long),
            ("estimated_error_us", ctypes.c_long),
            ("status", ctypes.c_int),
            ("rest", ctypes.c_long * 64),
        )

    told = Timex()  # modes 0: nothing is set
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.adjtimex(ctypes.byref(told)) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return ClockSync(
        synchronised=told.max_error_us < _MAX_ERROR_US,
        max_error_s=told.max_error_us / 1e6,
        offset_s=told.offset / (1e9 if told.status & _STA_NANO else 1e6),
    )
