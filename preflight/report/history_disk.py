"""On what kind of file system a folder lies, as far as the history needs it: whether a write-ahead log is safe there.

A write-ahead log is shared between processes through mapped memory beside the file (`-shm`), which machines of a network file system don't share: two of them would overwrite each
other's pages without noticing (sqlite.org/wal.html: "does not work over a network filesystem"). So only kinds that are known to be local count as safe; all others, and what can't be found out, keep to the rollback journal.
"""

import re
from pathlib import Path

LOCAL = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "ramfs", "zfs", "f2fs", "bcachefs", "jfs", "overlay", "reiserfs"}
)
MOUNTS = Path("/proc/self/mountinfo")


def file_system_of(folder: Path, mounts: Path = MOUNTS) -> str | None:
    """The kind of file system that the folder lies on, such as "ext4", "nfs4" or "lustre". None: can't be found out."""
    try:
        target = folder.resolve()
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    found: tuple[int, str] | None = None
    for line in lines:
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if not separator or len(fields) < 5 or not after:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4]))
        depth = len(point.parts)
        if (point == target or point in target.parents) and (found is None or depth >= found[0]):
            found = (depth, after.split(" ")[0])  # of two mounts on one place the later one is seen
    return found[1] if found else None


def log_is_safe(folder: Path, mounts: Path = MOUNTS) -> bool:
    """Whether a write-ahead log may be used in this folder."""
    return file_system_of(folder, mounts) in LOCAL
