"""What one nccl-tests run says of itself, whatever version printed it."""

from collections.abc import Mapping

from preflight.model.bandwidth import Collective
from preflight.model.base import Noun
from preflight.model.measurement import FailureKind

# what the programs are called (all_reduce_perf, ...), by the word that preflight uses for the operation; from nccl-tests' src/*.cu
COLLECTIVES: Mapping[str, Collective] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "sendrecv": "send_recv",
    "broadcast": "broadcast",
}
OTHERS = ("reduce", "gather", "scatter", "hypercube")  # programs for whose operations preflight has no word
UNNAMED = "unnamed"  # versions before 2.17 don't print which program they are


class Seat(Noun, frozen=True, kw_only=True):
    """A rank of a run: which GPU of which host. `group`: of a split run (NCCL_TESTS_SPLIT), else 0. `bus`, `gpu`: as printed, None if they are not."""

    rank: int
    host: str
    device: int
    group: int = 0
    bus: str | None = None
    gpu: str | None = None


class Figures(Noun, frozen=True, kw_only=True):
    """One half of a row. `busbw_bytes_per_s`: as printed, so that any version's factor holds. `num_wrong`: elements that were wrong, None: not told. `checked`: the data was verified, whatever was
    told of it (before version 2.12 the largest difference, of which only the summary says whether it was too much).
    """

    time_s: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    num_wrong: float | None = None
    checked: bool = False


class Row(Noun, frozen=True, kw_only=True):
    """The figures at one message size. `out`: out of place, `inside`: in place; None: not printed."""

    size_bytes: int
    dtype: str
    redop: str | None = None
    out: Figures | None = None
    inside: Figures | None = None

    @property
    def num_wrong(self) -> float | None:
        """Wrong elements in either half; None: nothing was checked."""
        known = [half.num_wrong for half in (self.out, self.inside) if half and half.num_wrong is not None]
        return max(known) if known else None


class Run(Noun, frozen=True, kw_only=True):
    """One test of one program, as far as its output goes.

    `source`: file (and, of several tests in one file, "FILE:LINE"). `program`: "all_reduce", or UNNAMED. `hosts_from`: what named the hosts: the list of devices, or the file's name where the
    run died before it printed one. `settings`: what makes runs incomparable (graphs, aggregation, NCCL_ALGO). `ended`: the test printed its summary. `failure`: why it
    gave no figures, or stopped giving them; None: it ended. `hints`: short words on the transport, from NCCL's debug lines.
    """

    source: str
    folder: str
    program: str
    hosts: tuple[str, ...] = ()
    hosts_from: str = "its list of devices"
    seats: tuple[Seat, ...] = ()
    rows: tuple[Row, ...] = ()
    version: str | None = None
    settings: tuple[str, ...] = ()
    ended: bool = False
    out_of_bounds: int | None = None
    failure: FailureKind | None = None
    failure_text: str = ""
    hints: tuple[str, ...] = ()

    @property
    def num_groups(self) -> int:
        """Communicators that ran at the same time."""
        return max(1, len({seat.group for seat in self.seats}))

    @property
    def num_gpus(self) -> int | None:
        """GPUs of all hosts; None: the run died before it listed them."""
        return len(self.seats) or None

    @property
    def num_wrong(self) -> float | None:
        """Wrong elements in any row, or in the summary; None: nothing was checked, or the run ended before it said so."""
        known = [row.num_wrong for row in self.rows if row.num_wrong is not None]
        checked = any(half.checked for row in self.rows for half in (row.out, row.inside) if half)
        if self.out_of_bounds is not None and (checked or self.out_of_bounds):
            known.append(float(self.out_of_bounds))
        return max(known) if known else None
