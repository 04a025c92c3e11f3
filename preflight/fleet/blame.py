"""After a round with failures: who is missing, who is only slow, and with whom suspects are tried again, until it is clear who is at fault.

A worker that hung or died has been replaced by its agent, so trying again asks "does it happen again?". A rank that a failure names gets one trial with another, cleared
partner; one that fails that too is left out of the rest of the run. A probe whose failure names nobody is repeated, and with a smaller message if its ranks had met and then ran into the
deadline: a link at a hundredth of its speed carries that, a dead one doesn't. Ranks that only failed together keep their places: then the path between them is at fault, or
nothing is.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from preflight.fleet.rounds import UNDER_WAY
from preflight.model import Measurement, Probe
from preflight.model.tries import SMALLER
from preflight.probe.schedule import Round, pair_probe

TIMES_SMALLER = 64  # 4 MiB over gloo and 256 MiB over NCCL become 64 KiB and 4 MiB: at 1 % of the usual rate they take less than the whole did
MANY = 4  # so many ranks of a failed group are suspected at once


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What to run after failures. `suspects`: ranks that it decides about; `hosts`: nodes that should host its rendezvous, since they are what is in doubt."""

    probes: Round
    suspects: tuple[int, ...]
    hosts: tuple[str, ...] = ()


def named_rank(measurement: Measurement) -> int | None:
    """The rank that a failure points at; None: it points at none in particular."""
    assert measurement.failure is not None
    if measurement.failure.rank is not None:
        return measurement.failure.rank
    ranks = measurement.probe.ranks
    return ranks[0] if len(ranks) == 1 and measurement.failure.kind != "not_run" else None


def progressed(measurement: Measurement) -> bool:
    """Whether the ranks had met, and an operation then ran into its deadline with nobody missing: they are there, and slow."""
    failure = measurement.failure
    return failure is not None and failure.kind == "timed_out" and failure.rank is None and failure.stage in UNDER_WAY


def again(measurement: Measurement) -> Probe:
    """The same probe as a new attempt; with a smaller message if the whole one was on its way when the time was over."""
    probe, failure = measurement.probe, measurement.failure
    probe = msgspec.structs.replace(probe, attempt=probe.attempt + 1)
    return smaller(probe) if failure is not None and progressed(measurement) else probe


def smaller(probe: Probe) -> Probe:
    """The same with a message that passes a link at 1 % of its speed."""
    if probe.size_name == SMALLER:
        return probe
    whole = 4 * len(probe.ranks)  # every rank's part is a whole number of 4-byte elements
    size = max(whole, probe.size_bytes // TIMES_SMALLER // whole * whole)
    source = f"1/{TIMES_SMALLER} of {probe.size_bytes} bytes, which were not over at the deadline"
    return msgspec.structs.replace(
        probe,
        size_bytes=size,
        size_source=source,
        size_name=SMALLER,
        reason="the whole message was not over at the deadline",
    )


def trial_of(
    failed: Sequence[Measurement],
    measurements: Iterable[Measurement],
    nodes: Mapping[int, str],
    left_out: Iterable[int],
    backend: str,
) -> Trial:
    """What to run after a round's first failures: each named rank with another partner, each failure that names nobody once more."""
    out = set(left_out)
    failed = [m for m in failed if not out.intersection(m.probe.ranks)]
    suspects = tuple(dict.fromkeys(rank for m in failed if (rank := named_rank(m)) is not None))
    cleared = cleared_ranks(measurements, out)
    unnamed = [m for m in failed if named_rank(m) is None and not set(suspects).intersection(m.probe.ranks)]
    taken = {rank for m in unnamed for rank in m.probe.ranks}
    pairs = partners_of(suspects, [rank for rank in cleared if rank not in taken], failed, nodes)
    attempt = _next_attempt(measurements)
    probes = [again(m) for m in unnamed] + [_pair((rank, other), backend, attempt) for rank, other in pairs.items()]
    busy = taken | {rank for pair in pairs.items() for rank in pair}
    for m in failed:  # without another partner there is only the same
        if named_rank(m) is not None and not busy.intersection(m.probe.ranks):
            probes.append(again(m))
            busy.update(m.probe.ranks)
    hosts = tuple(dict.fromkeys(nodes[rank] for rank in suspects))
    return Trial(probes=tuple(probes), suspects=suspects, hosts=hosts)


def confirmation_of(
    failed: Sequence[Measurement],
    measurements: Iterable[Measurement],
    nodes: Mapping[int, str],
    left_out: Iterable[int],
    backend: str,
) -> Trial:
    """What to run when a failure that names nobody came a second time: its ranks, each with a cleared partner. A rank without one isn't tried."""
    out = set(left_out)
    suspects = tuple(dict.fromkeys(rank for m in failed for rank in m.probe.ranks[:MANY] if rank not in out))
    pairs = partners_of(suspects, cleared_ranks(measurements, out), failed, nodes)
    attempt = _next_attempt(measurements)
    probes = tuple(_pair((rank, other), backend, attempt) for rank, other in pairs.items())
    return Trial(probes=probes, suspects=tuple(pairs), hosts=tuple(dict.fromkeys(nodes[rank] for rank in pairs)))


def partners_of(
    suspects: Sequence[int], cleared: Sequence[int], failed: Sequence[Measurement], nodes: Mapping[int, str]
) -> dict[int, int]:
    """A cleared rank of its own for each suspect: one that wasn't in the suspect's failed probe, and rather on a node that wasn't."""
    met: dict[int, set[int]] = {}
    for m in failed:
        for rank in m.probe.ranks:
            met.setdefault(rank, set()).update(m.probe.ranks)
    free = [rank for rank in cleared if rank not in suspects]
    found = {}
    for suspect in suspects:
        before = met.get(suspect, set())
        elsewhere = {nodes[rank] for rank in before if rank != suspect} - {nodes[suspect]}
        best = next((rank for rank in free if rank not in before and nodes[rank] not in elsewhere), None)
        if best is None:
            best = next((rank for rank in free if rank not in before), None)
        if best is not None:
            found[suspect] = best
            free.remove(best)
    return found


def cleared_ranks(measurements: Iterable[Measurement], left_out: set[int]) -> list[int]:
    """Ranks whose latest probe with others worked, most recently proven first."""
    latest: dict[int, bool] = {}
    for measurement in measurements:
        if len(measurement.probe.ranks) > 1:
            for rank in measurement.probe.ranks:
                latest.pop(rank, None)
                latest[rank] = measurement.failure is None
    return [rank for rank, good in reversed(latest.items()) if good and rank not in left_out]


def _next_attempt(measurements: Iterable[Measurement]) -> int:
    return 1 + max((m.probe.attempt for m in measurements), default=0)


def _pair(pair: tuple[int, int], backend: str, attempt: int) -> Probe:
    probe = pair_probe((min(pair), max(pair)), backend, 0)
    return msgspec.structs.replace(probe, attempt=attempt, reason="to find out who is at fault")
