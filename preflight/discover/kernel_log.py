"""The kernel log: what it says of GPUs, NVSwitches and PCI links since this boot.

/dev/kmsg gives one record per read, "priority,sequence,microseconds,flags;text" (Linux: Documentation/ABI/testing/dev-kmsg); a read that lost records to the
ring buffer fails with EPIPE and goes on with the next. Where it can't be read, or below another root, the files that syslog keeps are read instead: they
hold earlier boots too, and only lines of the present one count.
"""

import errno
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from preflight.discover.files import read_text
from preflight.discover.kernel_lines import HINTS, LogLine, Parsed, parse_events
from preflight.model import KernelLog
from preflight.model.base import Record

DEADLINE_S = 2.0
RECORD_BYTES = 65536  # more than the longest record: a shorter buffer is refused (EINVAL)
MAX_KMSG_BYTES = (
    64 * 2**20
)  # ring buffers are 16 MiB at most on the machines we know; four times that ends a reading that never would
MAX_FILE_BYTES = 8 * 2**20  # of a file, from its end
FILES = ("var/log/kern.log", "var/log/messages", "var/log/syslog", "var/log/dmesg")
QUIET_S = (
    600.0  # a dmesg file whose last line is older than this may have been written at boot, and tells nothing of later
)
_FACILITIES = {0, 1}  # the kernel's own, and what root wrote into /dev/kmsg by hand; daemons have others

_ESCAPED = r"\\x([0-9a-fA-F]{2})"
_SYSLOG = r"^(?:\w{3} +\d+ [\d:]{8}|(\d{4}-\d\d-\d\dT[\d:.,]{8,18}(?:Z|[+-][\d:]{4,6})?)) \S+ (kernel: )?"
_DECODED = r"^\w+ *: *\w+ *: *"  # dmesg --decode
_BRACKET = r"^(?:<\d+>)?\[ *(?:(\d{1,12}\.\d{1,9})|[A-Z][^\]]{0,40})\] ?"
_REPEATED = r"^message repeated (\d{1,6}) times: \[ ?(.*)\]$"
_BOOT = "Linux version "
_RECORD_HINTS = tuple(hint.encode() for hint in HINTS)
_JITTER_S = 5.0  # lines of several CPUs may stand a little out of order


class _Lines(Record, frozen=True):
    """Lines of this boot; `starts_at_s` of the oldest. `dated`: whether they are known to be of this boot."""

    lines: list[LogLine]
    starts_at_s: float | None
    ends_at_s: float | None = None
    dated: bool = True
    note: str | None = None


def read_kernel_log(root: Path = Path("/"), *, deadline_s: float = DEADLINE_S) -> KernelLog:
    """The events of this boot. `events` None, and a note, if no log may be read or none is there. Never raises, and never waits longer than the deadline.

    `root`: where /var/log and /proc are found; /dev/kmsg is only read for "/".
    """
    reasons = []
    uptime_s = _uptime_s(root)
    if root == Path("/"):
        source = "/dev/kmsg"
        try:
            return _log(_read_kmsg(Path(source), deadline_s), source, uptime_s)
        except OSError as error:
            reasons.append(f"{source}: {error.strerror or error}")
    for name in FILES:
        try:
            data = _tail(root / name, _boot_time_s(root))
        except FileNotFoundError:
            continue
        except OSError as error:
            reasons.append(f"/{name}: {error.strerror or error}")
            continue
        lines = split_file(data, boot_time_s=_boot_time_s(root))
        log = _log(lines, f"/{name}", uptime_s)
        later_than_now = uptime_s is not None and (lines.ends_at_s or 0.0) > uptime_s + QUIET_S
        if log.events and (later_than_now or not lines.dated):
            reasons.append(f"/{name}: its lines can't be told from those of earlier boots")
            continue
        return log
    note = "; ".join(reasons) or "no kernel log here: neither /dev/kmsg nor a file of syslog's"
    return KernelLog(read_at_s=uptime_s, note=note)


def _log(lines: _Lines, source: str, uptime_s: float | None) -> KernelLog:
    parsed: Parsed = parse_events(lines.lines)
    notes = [lines.note] if lines.note else []
    if lines.starts_at_s is None:
        notes.append(f"since when {source} tells is not known" if lines.lines else f"{source} is empty")
    if parsed.dropped:
        notes.append(f"{parsed.dropped} more lines were left out")
    quiet = uptime_s is not None and lines.ends_at_s is not None and uptime_s - lines.ends_at_s > QUIET_S
    if quiet and source.endswith("dmesg"):
        notes.append(f"{source} ends {lines.ends_at_s:.0f} s after boot")
    return KernelLog(
        events=parsed.events,
        starts_at_s=lines.starts_at_s,
        read_at_s=uptime_s,
        driver_loaded_at_s=parsed.loaded_at_s,
        source=source,
        note="; ".join(notes) or None,
    )


def _read_kmsg(path: Path, deadline_s: float) -> _Lines:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return read_records(descriptor, deadline_s)
    finally:
        os.close(descriptor)


def read_records(descriptor: int, deadline_s: float) -> _Lines:
    """The records that a non-blocking /dev/kmsg holds now. Raises OSError if the first read is refused (a right is missing)."""
    ends = time.monotonic() + deadline_s
    lines: list[LogLine] = []
    starts_at_s: float | None = None
    total, note = 0, None
    while True:
        if total > MAX_KMSG_BYTES or time.monotonic() > ends:
            note = "the log was longer than the time for reading it: its end is missing"
            break
        try:
            record = os.read(descriptor, RECORD_BYTES)
        except BlockingIOError:
            break
        except OSError as error:
            if (
                error.errno == errno.EPIPE
            ):  # records were overwritten meanwhile: the next read gives the oldest that is left
                total += 1
                continue
            if total == 0:
                raise
            note = f"reading it ended early: {error.strerror or error}"
            break
        if not record:
            break
        total += len(record)
        if starts_at_s is None or any(hint in record for hint in _RECORD_HINTS):
            starts_at_s = _take(record, lines, starts_at_s)
    return _Lines(lines, starts_at_s, lines[-1].at_s if lines else None, note=note)


def _take(record: bytes, lines: list[LogLine], starts_at_s: float | None) -> float | None:
    """Append the record's lines; gives when the log starts: 0 where the very first record is still there."""
    prefix, _, rest = record.partition(b";")
    fields = prefix.split(b",")
    try:
        priority, sequence, at_s = int(fields[0]), int(fields[1]), int(fields[2]) / 1e6
    except (IndexError, ValueError):
        return starts_at_s
    if starts_at_s is None:
        starts_at_s = 0.0 if sequence == 0 else at_s
    if priority >> 3 in _FACILITIES:
        text = rest.split(b"\n", 1)[0].decode("utf-8", "replace")
        if "\\x" in text:
            text = re.sub(_ESCAPED, lambda match: chr(int(match[1], 16)), text)
        lines.extend(LogLine(at_s, part) for part in text.split("\n"))
    return starts_at_s


def split_file(data: bytes, *, boot_time_s: float | None = None) -> _Lines:
    """The kernel's lines of the last boot in a file of syslog's or in dmesg's output. `boot_time_s`: Unix time of this boot, to date lines that carry the date only."""
    lines: list[LogLine] = []
    starts_at_s: float | None = None
    previous: float | None = None
    dated = False
    for at_s, text in _kernel_lines(data, boot_time_s):
        if at_s is not None and at_s < 0:
            continue  # dated before this boot
        begins = text.startswith(_BOOT)
        if begins or (at_s is not None and previous is not None and at_s < previous - _JITTER_S):
            lines, starts_at_s, dated, previous = [], (0.0 if begins else at_s), True, None
        if at_s is not None:
            starts_at_s = at_s if starts_at_s is None else starts_at_s
            previous, dated = at_s, True
        repeated = re.match(_REPEATED, text)
        said = re.sub(_BRACKET, "", repeated[2]) if repeated else text
        lines.append(LogLine(at_s, said, int(repeated[1]) if repeated else 1))
    return _Lines(lines, starts_at_s, previous, dated)


def _kernel_lines(data: bytes, boot_time_s: float | None) -> Iterator[tuple[float | None, str]]:
    for raw in filter(None, data.split(b"\n")):
        text = raw[:4096].decode("utf-8", "replace")
        at_s = None
        if match := re.match(_SYSLOG, text):
            if match[2] is None:
                continue  # a daemon's line, whatever it quotes
            at_s = _since_boot_s(match[1], boot_time_s)
            text = text[match.end() :]
        elif match := re.match(_DECODED, text):
            text = text[match.end() :]
        if match := re.match(_BRACKET, text):
            at_s = float(match[1]) if match[1] else at_s
            text = text[match.end() :]
        yield at_s, text


def _since_boot_s(date: str | None, boot_time_s: float | None) -> float | None:
    if date is None or boot_time_s is None:
        return None
    from datetime import datetime

    try:
        when = datetime.fromisoformat(date.replace("Z", "+00:00").replace(",", "."))
        return when.timestamp() - boot_time_s if when.tzinfo else None
    except (ValueError, OverflowError):
        return None


def _tail(path: Path, boot_time_s: float | None) -> bytes:
    """The end of a file. Raises OSError: absent, not permitted, no regular file, or not written to since this boot."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "no regular file")
        if boot_time_s is not None and status.st_mtime < boot_time_s:
            raise OSError(errno.ESTALE, "not written to since this boot")
        if status.st_size <= MAX_FILE_BYTES:
            return file.read(MAX_FILE_BYTES)
        file.seek(-MAX_FILE_BYTES, os.SEEK_END)
        return file.read(MAX_FILE_BYTES).partition(b"\n")[2]


def _uptime_s(root: Path) -> float | None:
    try:
        return float((read_text(root / "proc/uptime") or "").split()[0])
    except (ValueError, IndexError):
        return None


def _boot_time_s(root: Path) -> float | None:
    """Unix time of this boot, from /proc/stat."""
    match = re.search(r"^btime (\d{1,12})$", read_text(root / "proc/stat") or "", re.MULTILINE)
    return float(match[1]) if match else None
