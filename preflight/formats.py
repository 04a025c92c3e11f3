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


def read_bytes(path: str | Path) -> bytes:
    """The content of a file. Raises ConfigError if it can't be read, is no regular file, or is absurdly large."""
    source = str(path)
    try:
        # O_NONBLOCK: a named pipe nobody writes to must not hold us for ever
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise ConfigError(source, f"can't be read: {_reason(error)}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ConfigError(source, "is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        try:
            data = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise ConfigError(source, f"can't be read: {_reason(error)}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(source, f"is larger than {MAX_FILE_BYTES // 2**20} MiB")
    return data


def read_toml(path: str | Path) -> dict[str, Any]:
    """A TOML file as nested dicts. Raises ConfigError with the line of the fault."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    data = read_bytes(path)
    try:
        document: dict[str, Any] = tomllib.loads(data.decode("utf-8"))
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
    """Write beside the target, then rename. Raises WorldError (full disk, no permission); the old file then stays."""
    target = Path(path)
    content = data.encode() if isinstance(data, str) else data
    beside = None
    try:
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


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
