"""Whether what was measured against a node was seen more than once: a single slow or failed probe drains nothing (pure).

The coordinator repeats what the localiser asks for; here it is looked up that it did, in the run's own measurements.
"""

from collections.abc import Iterator, Sequence

from preflight.model import Evidence, Finding, Measurement
from preflight.model.measurement import median

SLOWER = 0.08  # than the median of like probes that don't touch the part: healthy clusters stay within 4 % (checks/preflight_checks/slow_part.py)
SHOWN = 4  # probes that the log names
TIMES = 2


def repeated(finding: Finding, node: str, evidence: Evidence) -> str | None:
    """The probes that showed it again, in words; None: it was seen once, or nobody can tell how often.

    Two probes of one rank are never in one round. So a rank with two bad ones was bad at two times, which two ranks of a node with one each need not have been.
    """
    suspects = _suspects(finding, node, evidence)
    named = {m.probe.key: m for m in evidence.measurements or ()}
    kinds = {_kind(named[key], evidence) for key in finding.evidence if key in named}
    told = [m for m in evidence.measurements or () if _kind(m, evidence) in kinds]
    peers = [m for m in told if not suspects.intersection(m.probe.ranks)]
    for rank in sorted(suspects):
        mine = [m for m in told if rank in m.probe.ranks]
        bad = [m.probe.key for m in mine if is_bad(m, [peer for peer in peers if _alike(peer, m, evidence)])]
        if len(bad) >= TIMES:
            more = f" and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
            return f"{finding.check} on {node}: {len(bad)} of {len(mine)} probes of rank {rank}: {', '.join(bad[:SHOWN])}{more}"
    return None


def is_bad(m: Measurement, peers: Sequence[Measurement]) -> bool:
    """Whether the probe failed, gave wrong data, or was slower than its peers. Without a peer that gave a figure no rate is bad."""
    if m.failure is not None:
        return m.failure.kind != "not_run"
    if m.data_correct is False:
        return True
    rates = [peer.busbw_bytes_per_s for peer in peers if peer.busbw_bytes_per_s is not None]
    return bool(rates) and m.busbw_bytes_per_s is not None and m.busbw_bytes_per_s < (1 - SLOWER) * median(rates)


def _suspects(finding: Finding, node: str, evidence: Evidence) -> set[int]:
    """The ranks that the part is on the way of: those of the node that all of the finding's probes share, else all of the node."""
    placed = evidence.plan.placement.ranks if evidence.plan is not None else ()
    here = {rank.rank for rank in placed if rank.node == node}
    of_finding = set(finding.evidence)
    shared = [set(m.probe.ranks) & here for m in evidence.measurements or () if m.probe.key in of_finding]
    return (set.intersection(*shared) if shared else set()) or here


def _kind(m: Measurement, evidence: Evidence) -> tuple[str, str | None, int]:
    """What makes two probes comparable, whatever their size: collective, axis, and how many nodes they cross."""
    return m.probe.collective, m.probe.axis, min(2, len(set(_nodes(m, evidence))))


def _alike(peer: Measurement, m: Measurement, evidence: Evidence) -> bool:
    same = (peer.probe.size_bytes, peer.probe.mode, len(peer.probe.ranks)) == (
        m.probe.size_bytes,
        m.probe.mode,
        len(m.probe.ranks),
    )
    return same and _kind(peer, evidence) == _kind(m, evidence)


def _nodes(m: Measurement, evidence: Evidence) -> Iterator[int]:
    if evidence.plan is not None:
        placed = evidence.plan.placement.node_ranks
        yield from (placed[rank] for rank in m.probe.ranks if rank < len(placed))
