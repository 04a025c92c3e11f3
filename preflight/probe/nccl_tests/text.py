"""Text output of nccl-tests -> its runs: one file may hold several tests, other programs' lines in between, and an end that is missing."""

import re
from collections.abc import Iterator

from preflight.model.measurement import FailureKind
from preflight.probe.nccl_tests.lines import (
    DEFAULT,
    begin_of_row,
    cleaned,
    read_failure,
    read_header,
    read_row,
    read_seat,
    rest_of_row,
)
from preflight.probe.nccl_tests.run import COLLECTIVES, OTHERS, UNNAMED, Row, Run, Seat

MAX_RUNS, MAX_SEATS, MAX_ROWS, MAX_HINTS = 100_000, 65536, 4096, 4  # runs: all pairs of 400 nodes
MIXED = "several tests wrote here at once, each with a rank 0 of its own (built without MPI?): whose rows are whose can't be told"
MAX_LINES_BETWEEN = 4096  # of NCCL's, between the halves of a row

_PROGRAMS = "|".join((*COLLECTIVES, *OTHERS))
_STARTING = re.compile(rf"Collective test starting:\s*({_PROGRAMS})(?:_perf)?\b")
_NAMED = re.compile(rf"(?<![A-Za-z])({_PROGRAMS})_perf\b")
_VERSION = re.compile(r"nccl-tests version (\S{1,32})")
_CONFIG = re.compile(r"\bnThreads?:? \d+ nGpus:? \d+ .*minBytes")
_ENDED = re.compile(r"Avg bus bandwidth\s*:|Collective test concluded")
_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d{1,12})")
_ALGORITHM = re.compile(
    r"\b(NCCL_(?:ALGO|PROTO|P2P_DISABLE|SHM_DISABLE|NVLS_ENABLE|IB_DISABLE)) set by environment to (\S{1,40})"
)
_HINTS = (
    (re.compile(r"via NET/Socket/|Using network Socket"), "NET/Socket"),
    (re.compile(r"via NET/\S+.*GDRDMA"), "NET with GDRDMA"),
    (re.compile(r"via NET/(?!Socket)(?!.*GDRDMA)"), "NET without GDRDMA"),
    (re.compile(r"via SHM"), "SHM"),
    (re.compile(r"NVLS multicast support is available"), "NVLS"),
)


def read_text(text: str, *, source: str, folder: str) -> list[Run]:
    """The runs of a file, in their order; empty: nothing in it comes from nccl-tests. No more than MAX_RUNS + 1, which callers refuse. Never raises for content."""
    reader = _Reader(source, folder)
    for number, line in enumerate(text.split("\n"), 1):
        reader.take(cleaned(line), number)
        if len(reader.parts) > MAX_RUNS:
            break
    return list(reader.finish())


class _Part:
    """One run while it is read."""

    def __init__(self, line: int, program: str | None) -> None:
        self.line = line
        self.program = program
        self.version: str | None = None
        self.seats: dict[tuple[int, int], Seat] = {}
        self.rows: list[Row] = []
        self.settings: dict[str, None] = {}
        self.hints: dict[str, None] = {}
        self.header = DEFAULT
        self.tabled = self.configured = self.ended = False
        self.bounds: int | None = None
        self.failure: tuple[int, FailureKind, str] | None = None

    @property
    def real(self) -> bool:
        """Something of it was printed by a test."""
        return bool(self.configured or self.seats or self.rows or self.tabled or self.ended)


class _Reader:
    def __init__(self, source: str, folder: str) -> None:
        self.source, self.folder = source, folder
        self.parts = [_Part(1, None)]
        self.command: str | None = None  # the program that a command line named last
        self.pending: str | None = None  # the begin of a row
        self.waited = 0

    def take(self, line: str, number: int) -> None:
        """One line more."""
        part = self.parts[-1]
        if "NCCL INFO" in line and begin_of_row(line) is None:
            self._debug(line, part)
            return
        if self._starts(line, part, number):
            return
        seat = read_seat(line)
        if seat:
            if (part.rows or part.ended) or (seat.group, seat.rank) in part.seats:
                part = self._next(number)
            if len(part.seats) < MAX_SEATS:
                part.seats[seat.group, seat.rank] = seat
            return
        header = read_header(line)
        if header:
            part.header, part.tabled = header, True
        elif not self._row(line, part):
            self._other(line, part)

    def _starts(self, line: str, part: _Part, number: int) -> bool:
        """Whether the line belongs to the preface of a test."""
        if "_perf" not in line and "nThread" not in line and "nccl-tests" not in line and "Collective" not in line:
            return False
        version, starting, config = _VERSION.search(line), _STARTING.search(line), _CONFIG.search(line)
        if not (version or starting or config):
            named = _NAMED.search(line)
            if named and not part.ended and part.program is None:
                self.command = named[1]
            return False
        if part.rows or part.ended or (part.seats and not starting):
            part = self._next(number)
        if version:
            part.version = version[1]
        if starting:
            part.program = starting[1]
        if config:
            part.settings.update(dict.fromkeys(_settings(line)))
        part.configured = True
        return True

    def _next(self, number: int) -> _Part:
        self.parts.append(_Part(number, None))
        self.pending = None
        return self.parts[-1]

    def _row(self, line: str, part: _Part) -> bool:
        row, begin = read_row(line, part.header), begin_of_row(line)
        if not row and not begin and self.pending:
            rest = rest_of_row(line)
            self.waited += 1
            if rest:
                self.pending += f" {rest}"
                row = read_row(self.pending, part.header)
                begin = None if row else self.pending
        if row and len(part.rows) < MAX_ROWS:
            part.rows.append(row)
        if row or self.waited > MAX_LINES_BETWEEN:
            self.pending, self.waited = None, 0
        elif begin:
            self.pending = begin
        return bool(row or begin)

    def _debug(self, line: str, part: _Part) -> None:
        """A line of NCCL_DEBUG=INFO: what it says of the transport, and of settings."""
        self.waited += 1 if self.pending else 0
        setting = _ALGORITHM.search(line) if "set by environment" in line else None
        if setting:
            part.settings[f"{setting[1]}={setting[2]}"] = None
        if len(part.hints) < MAX_HINTS and ("via" in line or "network" in line or "NVLS" in line):
            part.hints.update({hint: None for pattern, hint in _HINTS if pattern.search(line)})

    def _other(self, line: str, part: _Part) -> None:
        bounds = _BOUNDS.search(line) if "Out of bounds" in line else None
        if bounds:
            part.bounds, part.tabled = int(bounds[1]), True
        if _ENDED.search(line):
            part.ended = True
        named = _NAMED.search(line) if "_perf" in line else None
        if named:
            self.command = named[1]
        failure = read_failure(line)
        if failure and (part.failure is None or failure[0] < part.failure[0]):
            part.failure = (*failure, line.strip()[:200])

    def finish(self) -> Iterator[Run]:
        """What was read, as runs. A file that holds nothing but errors of a test is a run without figures."""
        real = [part for part in self.parts if part.real]
        if not real:
            real = [part for part in self.parts if part.failure and (self.command or "Test NCCL" in part.failure[2])]
        for part in _unmixed(real):
            yield _run(part, self.source if len(real) == 1 else f"{self.source}:{part.line}", self.folder, self.command)


def _unmixed(parts: list[_Part]) -> list[_Part]:
    """Tests that ran at the same time and wrote into one file lose their rows: nobody can tell whose they are.

    Programs that were built without MPI do that: each process is a rank 0, and prints a table of its own (NVIDIA/nccl-tests issues 27 and 182). One that listed its devices, and has
    neither rows nor an error, waits for its rows; sizes that come twice in the next table are these.
    """
    waiting: list[_Part] = []
    for part in parts:
        sizes = [row.size_bytes for row in part.rows]
        if part.seats and not part.rows and not part.ended and part.failure is None:
            waiting.append(part)
        elif sizes:
            if waiting and len(set(sizes)) < len(sizes):
                for mixed in (*waiting, part):
                    mixed.rows, mixed.ended, mixed.bounds, mixed.failure = [], False, None, (0, "error", MIXED)
            waiting = []
    return parts


def _settings(line: str) -> list[str]:
    """What of the configuration makes runs incomparable. Iterations and sizes don't."""
    found = re.findall(r"(agg iters|graph|unalign):\s*(\d{1,9})", line)
    return [f"{name}: {value}" for name, value in found if not (name == "agg iters" and value == "1") and value != "0"]


def _run(part: _Part, source: str, folder: str, command: str | None) -> Run:
    kind: FailureKind | None = None
    text = ""
    if not part.ended:
        _, kind, text = part.failure or (0, "error", "the output ends before the test does")
    seats = tuple(part.seats[key] for key in sorted(part.seats))
    return Run(
        source=source,
        folder=folder,
        program=part.program or command or _guessed(part.rows, len(seats)),
        hosts=tuple(dict.fromkeys(seat.host for seat in seats)),
        seats=seats,
        rows=tuple(part.rows),
        version=part.version,
        settings=tuple(part.settings),
        ended=part.ended,
        out_of_bounds=part.bounds,
        failure=kind,
        failure_text=text,
        hints=tuple(part.hints),
    )


def _guessed(rows: list[Row], num_gpus: int) -> str:
    """The program by its factor busbw / algbw, 2(n-1)/n with a reduction being all_reduce's alone; UNNAMED: others share theirs."""
    largest = max((row for row in rows if row.out), key=lambda row: row.size_bytes, default=None)
    if largest is None or largest.out is None or num_gpus < 3 or largest.out.algbw_bytes_per_s < 1e9:
        return UNNAMED
    factor = largest.out.busbw_bytes_per_s / largest.out.algbw_bytes_per_s
    is_all_reduce = largest.redop and abs(factor - 2 * (num_gpus - 1) / num_gpus) < 0.02
    return "all_reduce" if is_all_reduce else UNNAMED
