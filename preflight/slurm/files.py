"""Writes a file whole: without a name first, then linked into place, so that not even kill -9 leaves half a file behind; where the file system can't do that, beside the target.

(preflight/formats.py does it with the library's tempfile, which costs a prolog 30 ms.) Imports nothing that may be missing.
"""

import contextlib
import os

PARTIAL = ".preflight-new."  # begins the name of a file that is not whole yet, for an instant


def write_whole(folder_fd: int, name: str, data: bytes, mode: int, *, durable: bool = False) -> None:
    """The file in that folder, replaced in one step. `durable`: wait until it, and its name, are on the disk. Raises OSError; then the old file stays, and nothing is left beside it."""
    partial = f"{PARTIAL}{os.getpid()}.{name}"
    here = f"/proc/self/fd/{folder_fd}"
    try:
        fd = os.open(here, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError:  # NFS, and overlays of old kernels
        fd, linked = (
            os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder_fd),
            True,
        )
    else:
        linked = False
    try:
        try:
            _write_all(fd, data)
            os.fchmod(fd, mode)
            if durable:
                os.fsync(fd)
            if not linked:
                os.link(f"/proc/self/fd/{fd}", partial, dst_dir_fd=folder_fd, follow_symlinks=True)
        finally:
            os.close(fd)
        os.rename(partial, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
        if durable:
            os.fsync(folder_fd)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial, dir_fd=folder_fd)
        raise


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
