"""Families -> the nouns that every run of preflight has: ends (whole nodes), shots, probes and measurements."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from preflight.model.bandwidth import Collective
from preflight.model.hostlist import fold, natural_key
from preflight.model.localisation import Ends, Shots
from preflight.model.measurement import Failure, Measurement, Probe, Samples
from preflight.model.units import GIB, MIB
from preflight.probe.nccl_tests.families import LEAST_BYTES, Family, failed_at, figures_at
from preflight.probe.nccl_tests.run import COLLECTIVES, UNNAMED, Figures, Run

# factors of nccl-tests' src/reduce.cu, gather.cu, scatter.cu and hypercube.cu: 1, and (n-1)/n
_SAME_FACTOR: Mapping[str, Collective] = {
    "reduce": "broadcast",
    "gather": "all_gather",
    "scatter": "all_gather",
    "hypercube": "all_gather",
}


def show_size(size_bytes: int) -> str:
    """As nccl-tests' options spell sizes, in binary units: 4294967296 -> "4 GiB"."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:g} {name}"
    return f"{size_bytes} B"


def ends_of_logs(families: Sequence[Family], leaf_of: Callable[[str], str | None] | None = None) -> Ends:
    """One end per node that took part in any run, in natural order."""
    nodes = tuple(sorted({host for family in families for run in family.runs for host in run.hosts}, key=natural_key))
    leaves = tuple(leaf_of(node) or leaf_of(node.partition(".")[0]) for node in nodes) if leaf_of else ()
    return Ends(
        nodes=nodes,
        node=tuple(range(len(nodes))),
        slot=(0,) * len(nodes),
        leaves=leaves if any(leaves) else None,
        whole_nodes=True,
    )


class Book:
    """What names measurements over all families. Ranks: nodes in the order of `ends`, on each as many as any run used, by device."""

    def __init__(self, ends: Ends, families: Sequence[Family]) -> None:
        self._place = {node: number for number, node in enumerate(ends.nodes)}
        seats = [seat for family in families for run in family.runs for seat in run.seats]
        self._each = 2 + max((seat.device for seat in seats), default=0)
        seen: Counter[str] = Counter()
        self._repeat: dict[str, int] = {}
        for family in families:
            for run in family.runs:
                name = f"{subject_of(run)} {family.name}"
                self._repeat[run.source] = seen[name]
                seen[name] += 1

    def ranks(self, family: Family, run: Run) -> tuple[int, ...]:
        """The ranks of a run's first communicator, in its order; those of the whole family where it died before it listed any."""
        first = min((seat.group for seat in run.seats), default=0)
        seats = [(seat.host, seat.device) for seat in run.seats if seat.group == first]
        each = family.kind.gpus or (1 if len(run.hosts) > 1 else 2)
        seats = seats or [(host, device) for host in run.hosts for device in range(each)]
        return tuple(dict.fromkeys(self._place[host] * self._each + device for host, device in seats))

    def probe(self, family: Family, run: Run, size_bytes: int) -> Probe:
        """What the run measured at this size."""
        ranks = self.ranks(family, run)
        # without an axis it is a pair; reports show pairs of two ranks as a matrix of ranks, which these are not
        pair = len(run.hosts) == 2 and len(ranks) > 2
        return Probe(
            subject=subject_of(run),
            axis=None if pair else "nodes" if len(run.hosts) > 1 else "node",
            collective=_collective(run, family.kind.program),
            ranks=ranks,
            size_bytes=size_bytes,
            size_source=_source(run, family.kind.program),
            size_name=f"({family.name} at {show_size(size_bytes)})",
            mode="together" if run.num_groups > 1 else "alone",
            repeat=self._repeat[run.source],
        )

    def measurements(self, family: Family) -> Iterator[Measurement]:
        """One for each run and judged size, and for each other size at which data was wrong. A run that died gives one without samples as well.

        nccl-tests tells one time per size: the mean of its iterations, averaged over ranks (its option -a), so that there is one duration, of the first rank.
        """
        for run in family.runs:
            wrong = [row.size_bytes for row in run.rows if row.num_wrong]
            for size_bytes in dict.fromkeys((*family.sizes, *wrong)):
                figures = figures_at(run, size_bytes)
                if figures:
                    yield self._measured(family, run, size_bytes, figures)
            if run.failure:
                size_bytes = next((size for size in family.sizes if failed_at(run, size)), LEAST_BYTES)
                yield Measurement(
                    probe=msgspec.structs.replace(
                        self.probe(family, run, size_bytes), size_name=f"({family.name}, died)"
                    ),
                    failure=Failure(
                        kind=run.failure, text=f"{run.failure_text} ({run.source})", stage=_stage(family, run)
                    ),
                )

    def _measured(self, family: Family, run: Run, size_bytes: int, figures: Figures) -> Measurement:
        probe = self.probe(family, run, size_bytes)
        rows = [row for row in run.rows if row.size_bytes == size_bytes]
        wrong = next((row.num_wrong for row in rows if row.num_wrong), run.num_wrong)
        return Measurement(
            probe=probe,
            samples=(Samples(rank=probe.ranks[0], durations_s=(figures.time_s,)),),
            data_correct=None if wrong is None else not wrong,
            transport=f"NCCL: {', '.join(run.hints)}" if run.hints else None,
        )


def shots_of(family: Family, size_bytes: int, ends: Ends, book: Book) -> Shots | None:
    """The runs of a family over one or two nodes, at one size; None: it has none. An end with itself: inside a node."""
    place = {node: number for number, node in enumerate(ends.nodes)}
    found = []
    for number, run in enumerate(family.runs):
        figures = figures_at(run, size_bytes)
        if len(run.hosts) > 2 or (figures is None and not failed_at(run, size_bytes)):
            continue
        rate = figures.busbw_bytes_per_s if figures else None
        failure = "" if figures else (run.failure or "error")
        key = book.probe(family, run, size_bytes).key
        found.append((place[run.hosts[0]], place[run.hosts[-1]], rate, failure, number, key))
    if not found:
        return None
    a, b, rates, failures, rounds, keys = zip(*found, strict=True)
    op = f"{family.name} at {show_size(size_bytes)}"
    return Shots(a=a, b=b, op=(op,) * len(a), bytes_per_s=rates, failure=failures, round=rounds, key=keys)


def subject_of(run: Run) -> str:
    """The nodes of a run: "node001-node002", "node001", "node[001-016]"."""
    return "-".join(run.hosts) if len(run.hosts) == 2 else fold(run.hosts)


def _stage(family: Family, run: Run) -> str:
    """How far a run got that died."""
    if not run.seats:
        return "before it listed its devices"
    if not run.rows:
        return "before its first size"
    if family.sizes and figures_at(run, family.sizes[0]):
        return "after its last size"
    return f"after {show_size(max(row.size_bytes for row in run.rows))}"


def _program(run: Run, likely: str) -> str:
    """The program of a run; of one that died before it said so, that of its family."""
    return likely if run.program == UNNAMED and not run.rows else run.program


def _collective(run: Run, likely: str) -> Collective:
    """preflight's word for the operation; for one that it has no word for, one with the same factor busbw / algbw."""
    program = _program(run, likely)
    known = COLLECTIVES.get(program) or _SAME_FACTOR.get(program)
    if known:
        return known
    largest = max((row.out for row in run.rows if row.out), key=lambda half: half.time_s, default=None)
    factor = largest.busbw_bytes_per_s / largest.algbw_bytes_per_s if largest and largest.algbw_bytes_per_s else 1.0
    return "broadcast" if abs(factor - 1) < 0.01 else "all_gather" if factor < 1 else "all_reduce"


def _source(run: Run, likely: str) -> str:
    program = _program(run, likely)
    if program in COLLECTIVES:
        return f"{program}_perf of nccl-tests, {run.source}"
    named = "a test that its log doesn't name" if program == UNNAMED else f"{program}_perf of nccl-tests"
    return f"{named}, kept as a collective with the same factor, {run.source}"
