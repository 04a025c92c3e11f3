"""Reading small kernel files below a settable filesystem root: what can't be read is None, or an OSError where the reason matters.

Opened without waiting (a pipe in a recorded tree has no writer) and read up to a limit. Paths are joined as text where many small files are read: a port of
an HCA has hundreds, and `Path` costs more than the kernel does.
"""

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

CHUNK_BYTES = 65536  # files below /proc/sys refuse reads of 4 MiB at once (ENOMEM)
PAGE_BYTES = 4096  # the most that a file of sysfs gives
MAX_BYTES = 8 * 2**20  # /proc/cpuinfo of 1024 CPUs is about 2 MB; nothing else here comes near

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
# a file, or the device behind it, that is not there (any more)
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO}


def read_bytes(path: Path | str, limit: int = MAX_BYTES) -> bytes:
    """The first `limit` bytes of a file. Raises OSError."""
    file = os.open(path, _FLAGS)
    try:
        return b"".join(_chunks(file, limit))
    finally:
        os.close(file)


def _chunks(file: int, limit: int) -> Iterator[bytes]:
    left = limit
    while left > 0 and (data := os.read(file, min(left, CHUNK_BYTES))):
        left -= len(data)
        yield data


def ask_text(path: Path | str) -> str:
    """The stripped content of a kernel file; may be empty. Raises OSError."""
    return read_bytes(path).decode("utf-8", errors="replace").strip()


def ask_line(path: Path | str) -> str:
    """The stripped content of a file of sysfs, or of another whose one read gives all: at most 4096 bytes. Raises OSError."""
    file = os.open(path, _FLAGS)
    try:
        return os.read(file, PAGE_BYTES).decode("utf-8", "replace").strip()
    finally:
        os.close(file)


def read_text(path: Path | str) -> str | None:
    """The stripped content of a kernel file. None: absent, not permitted, refused by the kernel, or empty."""
    try:
        return ask_text(path) or None
    except (OSError, ValueError):
        return None


def read_int(path: Path | str, base: int = 10) -> int | None:
    """The number in a kernel file; "0x..." wants base 16. None if there is no such file or no number in it."""
    text = read_text(path)
    return None if text is None else to_int(text, base)


def to_int(text: str, base: int = 10) -> int | None:
    """The number that this text is, None if it is none, or one beyond 64 bits, which the kernel doesn't have."""
    try:
        number = int(text, base)
    except ValueError:
        return None
    return number if abs(number) < 2**64 else None


def names_in(folder: Path | str) -> tuple[str, ...] | None:
    """The entries of a kernel folder, with numbers in numeric order (eth2 before eth10). None if it can't be listed."""
    try:
        return ask_names(folder)
    except (OSError, ValueError):
        return None


def ask_names(folder: Path | str) -> tuple[str, ...]:
    """As `names_in`; names that are no text are left out. Raises OSError."""
    with os.scandir(folder) as entries:
        return tuple(sorted((entry.name for entry in entries if entry.name.isprintable()), key=_natural))


def is_folder(path: Path | str) -> bool:
    """Whether there is a folder, as far as this process may look."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def is_inside(root: Path, path: Path | str) -> bool:
    """Whether a path, with all links followed, stays below that root: links of another system's tree point into this one."""
    top = os.path.realpath(root)
    return os.path.commonpath([top, os.path.realpath(path)]) == top


def is_absent(error: OSError) -> bool:
    """Whether the error only says that there is no such thing."""
    return error.errno in _ABSENT


def reason(error: OSError) -> str:
    """The error in the system's words, without path and number: "Permission denied"."""
    return error.strerror or str(error) or type(error).__name__


def _natural(name: str) -> list[tuple[int, str]]:
    if name.isascii() and name.isdecimal():
        return [(-1, ""), (int(name), ""), (-1, "")]
    return [(int(part), "") if i % 2 else (-1, part) for i, part in enumerate(re.split(r"([0-9]+)", name))]
