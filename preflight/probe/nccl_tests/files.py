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
from preflight.probe.nccl_tests.text import MAX_RUNS, read_text

MAX_FILES = 50_000  # all pairs of 300 nodes
MAX_DEPTH = 8
MAX_FILE_BYTES = 64 * 2**20  # NCCL_DEBUG=INFO of 1,000 ranks has some 10 MB
MAX_TOTAL_BYTES = 2**30

_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz", b"BZh": "bzip2", b"PK\x03\x04": "zip"}
_CONTROL = bytes(sorted({*range(32), 127} - set(b"\t\n\r\f\b\x1b")))
_ZEROS = re.compile(rb"\0+")
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
    seen: set[tuple[int, int]] = (
        set()
    )  # files, whatever they are called: a run that counts twice would look like a repetition
    num_files = total_bytes = 0
    for path in paths:
        for file in _files(Path(path), skipped):
            num_files += 1
            if num_files > MAX_FILES:
                raise ConfigError(
                    readable(str(path)), f"has more than {MAX_FILES} files", remedy="give one family of logs at a time"
                )
            data = _content(file, seen)
            if isinstance(data, str):
                skipped.append((readable(str(file)), data))
                continue
            total_bytes += len(data)
            if total_bytes > MAX_TOTAL_BYTES:
                raise ConfigError(readable(str(path)), f"has more than {MAX_TOTAL_BYTES // 2**30} GiB of files")
            found = _read(data, file, twice)
            if isinstance(found, list):
                _add(runs, found, file)
            else:
                skipped.append((readable(str(file)), found))
    kept: list[Run] = []
    for run in runs:
        if (run.folder, run.source.rpartition("/")[2]) in twice:
            skipped.append((run.source, "the same run as in a text log"))
        else:
            kept.append(run)
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


def _add(runs: list[Run], found: list[Run], file: Path) -> None:
    """Raises ConfigError if it would be too many."""
    if len(runs) + len(found) > MAX_RUNS:
        raise ConfigError(readable(str(file)), f"is beyond {MAX_RUNS} runs", remedy="give fewer logs at a time")
    runs += found


def _content(file: Path, seen: set[tuple[int, int]]) -> bytes | str:
    """What is in a file, or why it is left out. `seen`: device and number of those that were read."""
    try:
        status = file.stat()
        data = read_bytes(file, MAX_FILE_BYTES)
    except ConfigError as error:
        return error.problem
    except OSError as error:
        return f"can't be read: {error.strerror}"
    if (status.st_dev, status.st_ino) in seen:
        return "is there under another name, or given twice"
    seen.add((status.st_dev, status.st_ino))
    return data


def _read(data: bytes, file: Path, twice: set[tuple[str, str]]) -> list[Run] | str:
    """The runs of one file, or why it has none."""
    if not data:
        return "is empty"
    packed = next((name for magic, name in _PACKED.items() if data.startswith(magic)), None)
    if packed:
        return f"is packed with {packed}: unpack it first"
    utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    if not utf16 and _is_binary(data.lstrip(b"\0")[:65536]):
        return "is no text"
    if not utf16:
        data = _ZEROS.sub(b"\n", data)
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


def _is_binary(head: bytes) -> bool:
    """Zeros alone are what a file system leaves where a machine went down while it wrote: the text around them counts. Programs and core dumps have other control bytes too."""
    if b"\0" not in head:
        return not head
    rest = head.replace(b"\0", b"")
    return len(rest.translate(None, _CONTROL)) < 0.99 * len(rest)
