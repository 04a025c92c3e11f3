"""Reading small kernel files below a settable filesystem root: what can't be read is None, never an exception."""

import re
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

CHUNK_BYTES = 65536  # files below /proc/sys refuse reads of 4 MiB at once (ENOMEM)
MAX_BYTES = 8 * 2**20  # /proc/cpuinfo of 1024 CPUs is about 2 MB; nothing else here comes near


def read_text(path: Path) -> str | None:
    """The stripped content of a kernel file. None: absent, not permitted, refused by the kernel, or empty."""
    try:
        with path.open("rb", buffering=0) as file:
            data = b"".join(_chunks(file))
    except (OSError, ValueError):
        return None
    return data.decode("utf-8", errors="replace").strip() or None


def _chunks(file: FileIO) -> Iterator[bytes]:
    total = 0
    while total < MAX_BYTES and (data := file.read(CHUNK_BYTES)):
        total += len(data)
        yield data


def read_int(path: Path, base: int = 10) -> int | None:
    """The number in a kernel file; "0x..." wants base 16. None if there is no such file or no number in it."""
    text = read_text(path)
    if text is None:
        return None
    try:
        return int(text, base)
    except ValueError:
        return None


def names_in(folder: Path) -> tuple[str, ...] | None:
    """The entries of a kernel folder, with numbers in numeric order (eth2 before eth10). None if it can't be listed."""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except (OSError, ValueError):
        return None
    return tuple(sorted(names, key=_natural))


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]
