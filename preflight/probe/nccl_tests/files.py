"""Files and folders -> the runs in them, and what was left out and why. Nothing here runs or follows anything: files are read, within limits."""

import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from preflight.errors import ConfigError
from preflight.formats import parse_json, read_bytes, readable
from preflight.model.base import Record
from preflight.probe.nccl_tests.document import is_document, read_document
from preflight.probe.nccl_tests.hosts import with_hosts
from preflight.probe.nccl_tests.run import Run
from preflight.probe.nccl_tests.text import read_text

MAX_FILES = 50_000  # all pairs of 300 nodes
MAX_DEPTH = 8
MAX_FILE_BYTES = 64 * 2**20  # NCCL_DEBUG=INFO of 1,000 ranks has some 10 MB
MAX_TOTAL_BYTES = 2**30

_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz", b"BZh": "bzip2", b"PK\x03\x04": "zip"}
_WRITES = re.compile(r"# Writing JSON output to (\S{1,4096})")


class Logs(Record, frozen=True):
    """`runs` in the order of the files; `skipped`: (file, why it tells nothing); `num_files`: all that were looked at."""

    runs: tuple[Run, ...]
    skipped: tuple[tuple[str, str], ...]
    num_files: int


def read_logs(paths: Sequence[str | Path]) -> Logs:
    """All runs in these files and folders, with the hosts that took part where it can be told.

    Raises ConfigError: a path that can't be read, too many files, or not one run in all of them.
    """
    runs: list[Run] = []
    skipped: list[tuple[str, str]] = []
    twice: set[tuple[str, str]] = set()  # (folder, name) of JSON files whose runs are in a text log too
    num_files = total_bytes = 0
    for path in paths:
        for file in _files(Path(path), skipped):
            num_files += 1
            if num_files > MAX_FILES:
                raise ConfigError(
                    readable(str(path)), f"has more than {MAX_FILES} files", remedy="give one family of logs at a time"
                )
            try:
                data = read_bytes(file, MAX_FILE_BYTES)
            except ConfigError as error:
                skipped.append((error.source, error.problem))
                continue
            total_bytes += len(data)
            if total_bytes > MAX_TOTAL_BYTES:
                raise ConfigError(readable(str(path)), f"has more than {MAX_TOTAL_BYTES // 2**30} GiB of files")
            found = _read(data, file, twice)
            runs += found if isinstance(found, list) else []
            if not isinstance(found, list):
                skipped.append((readable(str(file)), found))
    kept = [run for run in runs if (run.folder, run.source.rpartition("/")[2]) not in twice]
    skipped += [(run.source, "the same run as in a text log") for run in runs if run not in kept]
    if not kept:
        source = readable(", ".join(map(str, paths)))
        why = "; ".join(dict.fromkeys(reason for _, reason in skipped[:3]))
        raise ConfigError(
            source,
            f"has no output of nccl-tests ({num_files} files{': ' + why if why else ''})",
            remedy="give the folder in which the output of all_reduce_perf, alltoall_perf, ... was saved",
        )
    return Logs(tuple(with_hosts(kept)), tuple(skipped), num_files)


def _files(path: Path, skipped: list[tuple[str, str]], depth: int = 0) -> Iterator[Path]:
    """The regular files below a path, in natural order. Links inside a folder are not followed: a link to the latest run would count it twice."""
    source = readable(str(path))
    try:
        status = path.stat() if depth == 0 else path.lstat()
        is_folder = stat.S_ISDIR(status.st_mode)
        names = sorted(entry.name for entry in path.iterdir()) if is_folder else []
    except (OSError, ValueError) as error:
        problem = f"can't be read: {getattr(error, 'strerror', None) or error}"
        if depth == 0:
            raise ConfigError(source, problem) from error
        skipped.append((source, problem))
        return
    if not is_folder:
        if stat.S_ISREG(status.st_mode):
            yield path
        elif depth == 0:
            raise ConfigError(source, "is neither a folder nor a regular file")
        else:
            skipped.append(
                (
                    source,
                    "is no regular file"
                    if not stat.S_ISLNK(status.st_mode)
                    else "is a link, and links are not followed",
                )
            )
        return
    if depth >= MAX_DEPTH:
        skipped.append((source, f"lies more than {MAX_DEPTH} folders deep"))
        return
    for name in names:
        yield from _files(path / name, skipped, depth + 1)


def _read(data: bytes, file: Path, twice: set[tuple[str, str]]) -> list[Run] | str:
    """The runs of one file, or why it has none."""
    if not data:
        return "is empty"
    packed = next((name for magic, name in _PACKED.items() if data.startswith(magic)), None)
    if packed:
        return f"is packed with {packed}: unpack it first"
    utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    if not utf16 and b"\0" in data[:65536]:
        return "is no text"
    text = data.decode("utf-16" if utf16 else "utf-8-sig", errors="replace")
    source, folder = readable(str(file)), readable(str(file.parent))
    if text.lstrip().startswith("{"):
        try:
            document = parse_json(data, source)
        except (ConfigError, msgspec.DecodeError):
            return (
                "is JSON that was cut short, or is none" if '"nccl_version"' in text else "is no output of nccl-tests"
            )
        return (
            [read_document(document, source=source, folder=folder)]
            if is_document(document)
            else "is no output of nccl-tests"
        )
    for name in _WRITES.findall(text):
        twice.add((folder, name.rpartition("/")[2]))
    return read_text(text, source=source, folder=folder) or "is no output of nccl-tests"
