"""Files in and out: the only reader of TOML (YAML and XML join it here), and the only writer.

Reading gives a ConfigError that names the file and the fault, never a traceback. Writing goes to a file beside the target, then
renames it, so that a reader never sees half a file and a full disk never costs the old one.
"""

import contextlib
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from preflight.errors import ConfigError, WorldError
from preflight.model import from_json

T = TypeVar("T")

MAX_FILE_BYTES = 512 * 2**20  # a report of 8192 GPUs is some 100 MB; more is a mistake, not a plan


MAX_TOML_BYTES, MAX_TOML_LINE = 128 * 2**10, 8192  # a plan file is a few lines


def readable(text: str) -> str:
    """A path or an environment variable as text that can be saved: bytes that are no UTF-8 are spelled out."""
    return os.fsencode(text).decode("utf-8", "backslashreplace")


def read_bytes(path: str | Path, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """The content of a file. Raises ConfigError if it can't be read, is no regular file, or is absurdly large."""
    source = readable(str(path))
    try:
        # O_NONBLOCK: a named pipe nobody writes to must not hold us for ever
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise ConfigError(source, f"can't be read: {_reason(error)}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ConfigError(source, "is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        try:
            # no more room than the file needs: read(n) takes n bytes of memory at once
            data = file.read(min(max_bytes, max(status.st_size, 65536)) + 1)
        except OSError as error:
            raise ConfigError(source, f"can't be read: {_reason(error)}") from error
    if len(data) > max_bytes or status.st_size > max_bytes:
        raise ConfigError(source, f"is larger than {max_bytes // 1024} KiB")
    return data


def read_toml(path: str | Path) -> dict[str, Any]:
    """A TOML file as nested dicts. Raises ConfigError with the line of the fault."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    data = read_bytes(path, MAX_TOML_BYTES)
    longest = max(map(len, data.split(b"\n")))
    if longest > MAX_TOML_LINE:  # the parser takes quadratic time for a long dotted key
        raise ConfigError(str(path), f"has a line of {longest} bytes; {MAX_TOML_LINE} are allowed")
    try:
        document: dict[str, Any] = tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), f"is not UTF-8 text (byte {error.start})") from error
    except ValueError as error:  # TOMLDecodeError, or Python's own refusal of a number of thousands of digits
        raise ConfigError(str(path), f"is not TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(str(path), "is nested too deeply") from error
    return document


def read_noun(path: str | Path, kind: type[T]) -> T:
    """A saved noun (report, snapshot, ...). Raises ConfigError with the path of the fault inside the document."""
    data = read_bytes(path)
    try:
        return from_json(data, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), f"is not a saved {kind.__name__}: {error}") from error
    except RecursionError as error:
        raise ConfigError(str(path), "is nested too deeply") from error


def write_atomically(path: str | Path, data: bytes | str, *, mode: int = 0o644) -> None:
    """Write beside the target, then rename. Raises WorldError (full disk, no permission); the old file then stays.

    What is there and is no regular file is refused: renaming over /dev/null would break the machine, and following a link in a
    folder that others can write to would let them choose what root overwrites.
    """
    target = Path(path)
    if os.path.lexists(target) and (target.is_symlink() or not target.is_file()):
        raise WorldError(f"{target}: is a link, device, pipe or folder: name a regular file")
    beside = None
    try:
        content = data.encode() if isinstance(data, str) else data
        descriptor, beside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        Path(beside).replace(target)
    except (OSError, ValueError) as error:
        if beside:
            with contextlib.suppress(OSError):
                Path(beside).unlink()
        raise WorldError(f"{target}: can't be written: {_reason(error)}") from error
    except BaseException:  # an interruption leaves nothing beside the target
        if beside:
            with contextlib.suppress(OSError):
                Path(beside).unlink()
        raise


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
