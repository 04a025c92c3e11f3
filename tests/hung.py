"""Runs a command where one folder lies on a file system that answers nobody: FUSE without a daemon, in a mount namespace of the command's own. Needs root and /dev/fuse.

python -m tests.hung FOLDER COMMAND ...
"""

import ctypes
import os
import subprocess
import sys

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000  # sched.h, sys/mount.h


def main() -> int:
    """The command's exit code; 99 where such a file system can't be had."""
    folder, *command = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        fuse = os.open("/dev/fuse", os.O_RDWR)
    except OSError:
        return 99
    kind = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
    if (
        libc.unshare(CLONE_NEWNS)
        or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)
        or libc.mount(b"hung", folder.encode(), b"fuse", 0, kind)
    ):
        return 99
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
