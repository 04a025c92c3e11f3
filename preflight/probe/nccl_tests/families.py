"""Runs that can be compared: the same program, as many hosts, the same GPUs of each, the same settings, from the same folder.

A family is judged at fixed large sizes, the largest that all its runs have: never by the average in a log's summary, which depends on the range of sizes (480 GB/s at 8 GiB is 159 in
the summary of an 8 B to 16 GiB sweep on the same machine, NVIDIA dgxc-benchmarking), and at more than one of them, since a sick path may get worse with size.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from preflight.model.base import Noun, Record
from preflight.model.units import MIB
from preflight.probe.nccl_tests.run import UNNAMED, Figures, Row, Run

LEAST_BYTES = (
    64 * MIB
)  # below, latency and the choice of protocol count for more than links do (one alpha-beta line is wrong by half between 64 KiB and 64 MiB)
MAX_SIZES = 3


class Kind(Record, frozen=True):
    """What makes runs comparable. `gpus`: of each host; None: not told, as the run died early. `groups`: communicators that ran at once. `products`: of their GPUs, in order."""

    folder: str
    program: str
    num_hosts: int
    gpus: int | None
    groups: int
    dtype: str
    settings: tuple[str, ...]
    products: tuple[str, ...] = ()


class Family(Noun, frozen=True, kw_only=True):
    """Comparable runs. `sizes`: those to judge at, largest first, in bytes; empty: none is large enough, and `why` says so."""

    kind: Kind
    runs: tuple[Run, ...]
    sizes: tuple[int, ...]
    why: str = ""

    @property
    def name(self) -> str:
        """What was run, for people and as the operation of its shots: "alltoall over 2 hosts, 8 GPUs each"."""
        return name_of(self.kind)


def name_of(kind: Kind) -> str:
    """The kind in words."""
    program = "a test that its log doesn't name" if kind.program == UNNAMED else kind.program
    gpus = (
        ""
        if kind.gpus is None
        else f", {kind.gpus} GPU{'s' if kind.gpus > 1 else ''} {'each' if kind.num_hosts > 1 else ''}".rstrip()
    )
    where = "inside a node" if kind.num_hosts == 1 else f"over {kind.num_hosts} nodes"
    groups = f" in {kind.groups} groups at once" if kind.groups > 1 else ""
    settings = f" ({', '.join(kind.settings)})" if kind.settings else ""
    return f"{program} {where}{gpus}{groups}{settings}"


def figures_of(row: Row) -> tuple[str, Figures] | None:
    """The half of a row that is judged: out of place, else in place (where that alone was run)."""
    return ("out of place", row.out) if row.out else ("in place", row.inside) if row.inside else None


def figures_at(run: Run, size_bytes: int) -> Figures | None:
    """The judged figures of a run at one size; of a size that was run again, the last. None: the run has none."""
    rows = [row for row in run.rows if row.size_bytes == size_bytes]
    halves = [figures_of(row) for row in rows]
    return next((half[1] for half in reversed(halves) if half), None)


def families_of(runs: Iterable[Run]) -> tuple[list[Family], list[tuple[str, str]]]:
    """The families, by folder and kind; and runs that belong to none, with the reason."""
    known: dict[Kind, list[Run]] = {}
    early: list[Run] = []
    left_out: list[tuple[str, str]] = []
    for run in runs:
        if not run.hosts:
            left_out.append((run.source, "doesn't tell which nodes took part"))
        elif run.seats and len(run.seats) < 2:
            left_out.append(
                (run.source, "ran on a single GPU: no link is crossed (a test that was built without MPI?)")
            )
        elif run.seats and run.rows:
            known.setdefault(_kind(run), []).append(run)
        else:
            early.append(run)
    for run in early:
        known.setdefault(_nearest(run, list(known)), []).append(run)
    return [_family(kind, members) for kind, members in known.items()], left_out


def _kind(run: Run) -> Kind:
    per_host = Counter(seat.host for seat in run.seats)
    largest = max(run.rows, key=lambda row: row.size_bytes, default=None)
    return Kind(
        run.folder,
        run.program,
        len(run.hosts),
        max(per_host.values()) if per_host else None,
        run.num_groups,
        largest.dtype if largest else "",
        run.settings,
        tuple(sorted({seat.gpu for seat in run.seats if seat.gpu})),
    )


def _nearest(run: Run, kinds: Sequence[Kind]) -> Kind:
    """The only kind that a run without figures can be of; its own if there are several, or none."""
    own = _kind(run)
    fits = [
        kind
        for kind in kinds
        if kind.folder == own.folder
        and kind.num_hosts == own.num_hosts
        and (own.gpus is None or (kind.gpus, kind.groups, kind.products) == (own.gpus, own.groups, own.products))
        and own.program in {UNNAMED, kind.program}
        and kind.dtype
    ]
    return fits[0] if len(fits) == 1 else own


def _family(kind: Kind, runs: Sequence[Run]) -> Family:
    sizes = _sizes(runs)
    why = ""
    if not sizes:
        largest = max((row.size_bytes for run in runs for row in run.rows), default=None)
        why = (
            "no run has a figure"
            if largest is None
            else f"the largest size is {largest} bytes: below {LEAST_BYTES // MIB} MiB latency counts for more than links do"
        )
    return Family(kind=kind, runs=tuple(runs), sizes=sizes, why=why)


def _sizes(runs: Sequence[Run]) -> tuple[int, ...]:
    """The largest sizes that most of the runs which came to their end have, all of them if possible."""
    measured = [
        {row.size_bytes for row in run.rows if row.size_bytes >= LEAST_BYTES and figures_of(row)} for run in runs
    ]
    whole = [sizes for sizes, run in zip(measured, runs, strict=True) if run.ended and sizes] or [
        sizes for sizes in measured if sizes
    ]
    covered = Counter(size for sizes in whole for size in sizes)
    for share in (1.0, 0.9, 0.5):
        enough = [size for size, count in covered.items() if count >= share * len(whole)]
        if enough:
            return tuple(sorted(enough, reverse=True)[:MAX_SIZES])
    return tuple(size for size, _ in covered.most_common(1))


def failed_at(run: Run, size_bytes: int) -> bool:
    """Whether the run died before it came to this size. (A run that ended without the size, for want of memory, was not meant to have it.)"""
    return (
        not run.ended and figures_at(run, size_bytes) is None and all(row.size_bytes < size_bytes for row in run.rows)
    )


def folders_of(families: Iterable[Family]) -> Iterator[str]:
    """Their folders, each once."""
    yield from dict.fromkeys(family.kind.folder for family in families)
