"""Single lines of nccl-tests output: rank lines, table headers, rows, ends and errors, in the forms of versions 2.0 to 2.19.

Forms from NVIDIA/nccl-tests src/util.cu and src/common.cu, and from outputs in its issues 5, 82, 214, 234, 252, 280, 306 and NVIDIA/nccl issues 583, 644. Rows are read by the table header above
them, else as the four-column halves that all versions share.
"""

import re
from collections.abc import Sequence

from preflight.model.base import Record
from preflight.model.measurement import FailureKind
from preflight.probe.nccl_tests.run import Figures, Row, Seat

MAX_LINE = 1024  # the longest line that a test prints has some 300 letters
GIGA = 1e9  # nccl-tests prints GB/s as 10^9 bytes per second
MICRO = 1e-6

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# mpirun --tag-output, --output tag; srun --label
_LABEL = re.compile(r"^\s*(?:\[\d+(?:,\s?\d+)?\](?:<std(?:out|err|diag)>:?|:)\s?|\d{1,7}:\s)")
_RANK = re.compile(
    r"Rank\s+(\d{1,7})\s+(?:Group\s+(\d{1,7})\s+)?(?:Pid\s+\d+\s+)?on\s+(\S{1,255})\s+device\s+(\d{1,4})\s+\[([^\]]{0,64})\]\s*(.*)$"
)
_DTYPE = r"u?int(?:8|32|64)?|u?char|half|float(?:16|32|64)?|double|bfloat16|bf16|f(?:p)?8_?e\dm\d(?:fn)?(?:uz)?|float8_?e\dm\d"
_ROW = re.compile(rf"(?:^|[\s:>|])(\d{{1,15}})\s+(\d{{1,15}})\s+({_DTYPE})\s+(\S.*)$")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?$|N/A$|-?nan$|-?inf$", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z]{1,16}$")
_GLUED = re.compile(r"(N/A|-?\d{1,12})(?=[A-DF-Za-df-z\[_][^\s:]*:)")  # "-1node3:81033:81062"
_TYPES = ("int", "float", "half", "double", "char", "bf", "f8", "fp8")
MAX_COLUMNS = 40


class Header(Record, frozen=True):
    """Columns of a table: `half` in each half, of which `names` are the words; `fixed`: those before the halves."""

    fixed: tuple[str, ...]
    half: tuple[str, ...]


DEFAULT = Header(("size", "count", "type", "redop", "root"), ("time", "algbw", "busbw", "wrong"))


def cleaned(line: str) -> str:
    """The line without colours, launchers' labels and control letters."""
    text = line[:MAX_LINE]
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    text = _LABEL.sub("", text)
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else " " for letter in text)
    return text.rstrip()


def read_seat(line: str) -> Seat | None:
    """The rank that a line tells of; None: it tells of none."""
    found = _RANK.search(line) if "device" in line else None
    if not found:
        return None
    rank, group, host, device, bus, gpu = found.groups()
    return Seat(
        rank=int(rank),
        group=int(group or 0),
        host=host,
        device=int(device),
        bus=bus.strip() or None,
        gpu=gpu.strip()[:80] or None,
    )


def read_header(line: str) -> Header | None:
    """The columns that a line names; None: it is no table header."""
    if "algbw" not in line:
        return None
    words = line.replace("#wrong", "wrong").replace("#", " ").split()
    starts = [place for place, word in enumerate(words) if word in {"time", "cputime"}]
    if (
        not starts
        or len(words) > MAX_COLUMNS
        or not {"type", "busbw"} <= set(words)
        or words[0] not in {"size", "bytes"}
    ):
        return None
    end = starts[1] if len(starts) > 1 else len(words)
    return Header(tuple(words[: starts[0]]), tuple(words[starts[0] : end]))


def begin_of_row(line: str) -> str | None:
    """Size, count and type, with the figures that follow them; None: no row begins here. The rest may come lines later, when NCCL printed something in between (nccl-tests issue 139)."""
    found = _row_in(line)
    if not found:
        return None
    words, numbers = _tail(found[4])
    return " ".join([found[1], found[2], found[3], *words, *numbers])


def rest_of_row(line: str) -> str | None:
    """The figures that a line consists of, as the rest of a row; None: it begins with something else, or has less than one half's three."""
    words, numbers = _tail(line)
    return " ".join(numbers) if not words and len(numbers) >= 3 else None


def read_row(line: str, header: Header) -> Row | None:
    """A row of the table; None: it is none, or not a whole one, or its columns contradict one another."""
    found = _row_in(line)
    if not found:
        return None
    size_bytes, dtype = int(found[1]), found[3]
    words, numbers = _tail(found[4])
    width = len(header.half)
    for count in (2, 1):
        root = len(numbers) - count * width
        if root not in {0, 1} or size_bytes <= 0:
            continue
        halves = [
            _figures(numbers[root + width * half : root + width * (half + 1)], header.half, size_bytes)
            for half in range(count)
        ]
        if not any(halves):
            continue
        # a single half is the one in place: the other is left blank (nccl-tests src/util.cu)
        out, inside = (halves[0], halves[1]) if count == 2 else (None, halves[0])
        redop = words[0] if words and words[0] != "none" else None
        return Row(size_bytes=size_bytes, dtype=dtype, redop=redop, out=out, inside=inside)
    return None


def _row_in(line: str) -> re.Match[str] | None:
    return _ROW.search(line) if any(kind in line for kind in _TYPES) else None


def _tail(text: str) -> tuple[list[str], list[str]]:
    """The words (operation, root) and then the figures behind the type. A date, or a line of NCCL's that got in between, ends them."""
    tokens = text.split()
    words: list[str] = []
    while tokens and not _NUMBER.match(tokens[0]) and len(words) < 2 and _WORD.match(tokens[0]):
        words.append(tokens.pop(0))
    numbers: list[str] = []
    for token in tokens:
        glued = None if _NUMBER.match(token) else _GLUED.match(token)
        if glued or _NUMBER.match(token):
            numbers.append(glued[1] if glued else token)
        if glued or not _NUMBER.match(token):
            break
    return words, numbers


def _figures(half: Sequence[str], names: Sequence[str], size_bytes: int) -> Figures | None:
    values = dict(zip(names, half, strict=False))
    time_us = _number(values.get("time", values.get("cputime")))
    algbw, busbw = _number(values.get("algbw")), _number(values.get("busbw"))
    if time_us is None or algbw is None or busbw is None or time_us <= 0 or algbw < 0 or busbw < 0:
        return None
    if not _agree(size_bytes / (time_us * MICRO) / GIGA, algbw):
        return None
    # "error", "res": the largest difference, of which rounding is a part; only the summary tells whether it was too much
    wrong, error = _number(values.get("wrong")), _number(values.get("error", values.get("res")))
    if wrong is not None and (wrong < 0 or wrong != int(wrong)):
        return None
    return Figures(
        time_s=time_us * MICRO,
        algbw_bytes_per_s=algbw * GIGA,
        busbw_bytes_per_s=busbw * GIGA,
        num_wrong=wrong,
        checked=wrong is not None or error is not None,
    )


def _agree(derived: float, printed: float) -> bool:
    """True: size / time is the printed algbw, within what its digits leave out (the smallest columns have two digits behind the point)."""
    return abs(derived - printed) <= 0.02 * max(derived, printed) + 0.011


def _number(text: str | None) -> float | None:
    if text is None or text.upper() == "N/A":
        return None
    value = float(text)
    return value if value == value and abs(value) != float("inf") else None  # noqa: PLR0124 - nan


# (pattern, kind), the most telling first
_FAILURES: tuple[tuple[re.Pattern[str], FailureKind], ...] = (
    (
        re.compile(
            r"DUE TO TIME LIMIT|\btest timeout\b|timed out|watchdog.*timeout|Terminated due to timeout", re.IGNORECASE
        ),
        "timed_out",
    ),
    (
        re.compile(
            r"Test (?:NCCL|CUDA) failure|NCCL failure|Cuda failure|Test failure|ncclRemoteError|ncclSystemError|ncclInternalError|unhandled (?:system|cuda) error",
            re.IGNORECASE,
        ),
        "crashed",
    ),
    (
        re.compile(
            r"segmentation fault|\bbus error\b|core dumped|caught signal|signal:? (?:aborted|killed|segmentation)|exited on signal|oom.?kill|out of memory",
            re.IGNORECASE,
        ),
        "crashed",
    ),
    (
        re.compile(
            r"slurmstepd: error|srun: error|CANCELLED AT|MPI_ABORT was invoked|Primary job\s+terminated|ORTE (?:has lost|was unable)|PRTE has lost|mpirun (?:noticed|detected)|mpiexec.*(?:error|failed)|prterun (?:noticed|detected)|\bKilled\b"
        ),
        "crashed",
    ),
    (re.compile(r"\bNCCL WARN\b"), "error"),
)


_WORDS = (
    "fault",
    "fail",
    "error",
    "warn",
    "time",
    "signal",
    "core dumped",
    "killed",
    "cancelled",
    "abort",
    "terminated",
    "memory",
    "detected",
    "noticed",
    "lost",
    "unable",
    "oom",
)


def read_failure(line: str) -> tuple[int, FailureKind] | None:
    """How telling (0 most) and of which kind an error in a line is; None: it has none."""
    lower = line.lower()
    if not any(word in lower for word in _WORDS):
        return None
    return next(((place, kind) for place, (pattern, kind) in enumerate(_FAILURES) if pattern.search(line)), None)
