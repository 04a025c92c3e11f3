"""One round on a simulated fabric: what each rank's worker would report of it, and how long it takes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from preflight.fleet import api
from preflight.model import Failure, Incident, Probe, Samples
from preflight.model.bandwidth import ALONE
from preflight.model.base import Record
from preflight.probe.simulate import Fabric
from preflight.probe.simulate.groups import Exchange, durations

JOIN_S, WARM_UP = 0.3, 5  # joining a group and its first call; operations before those that are timed
WINDOWS = 3  # timed by each rank
SPREAD = 0.002  # between the windows of one probe


class Seat(Record, frozen=True):
    """Where a rank sits: its node, its end of the fabric."""

    node: str
    end: int


Seats: TypeAlias = dict[int, Seat]


def play(
    fabric: Fabric, seats: Seats, asked: Mapping[str, api.RoundRequest], number: int
) -> tuple[dict[str, api.RoundReply], float]:
    """Each node's reply to its request, and the seconds that the round takes."""
    probes = list({probe.key: probe for request in asked.values() for probe in request.probes}.values())
    request = next(iter(asked.values()))
    present = [probe for probe in probes if all(rank in seats and seats[rank].node in asked for rank in probe.ranks)]
    seconds = _seconds(fabric, seats, present, number)
    replies: dict[str, tuple[list[api.RankOutcome], list[Incident]]] = {node: ([], []) for node in asked}
    longest_s = 0.0
    for probe in probes:
        took_s = seconds.get(probe.key)
        if took_s is not None:
            outcomes, incidents = _well(probe, took_s), list[Incident]()
            longest_s = max(longest_s, JOIN_S + WARM_UP * took_s + max(probe.loop_s, WINDOWS * took_s))
        else:
            outcomes, incidents = _failed(fabric, seats, probe, request, number)
            hung = any(incident.kind == "worker_hung" for incident in incidents)
            longest_s = max(longest_s, request.deadline_s if hung else JOIN_S + request.timeout_s)
        for outcome in outcomes:
            seat = seats.get(outcome.rank)
            if seat and seat.node in replies:
                replies[seat.node][0].append(outcome)
        for incident in incidents:
            if incident.node in replies:
                replies[incident.node or ""][1].append(incident)
    done = {
        node: api.RoundReply(outcomes=tuple(outcomes), incidents=tuple(incidents))
        for node, (outcomes, incidents) in replies.items()
    }
    return done, longest_s


def _seconds(fabric: Fabric, seats: Seats, probes: Sequence[Probe], number: int) -> dict[str, float | None]:
    """Probe key -> seconds of one operation; None: it fails."""
    found: dict[str, float | None] = {}
    for op, same in _by_op(probes, alone=True).items():
        pairs = [(seats[probe.ranks[0]].end,) * 2 for probe in same]
        for probe, rate in zip(same, fabric.pairs(op, pairs, number), strict=True):
            work = probe.flops if op == "matmul" else probe.size_bytes
            found[probe.key] = work / rate if rate else None
    shared = [probe for probe in probes if probe.collective not in ALONE]
    if shared and all(probe.axis is None for probe in shared):
        for op, same in _by_op(shared, alone=False).items():
            ends = [(seats[probe.ranks[0]].end, seats[probe.ranks[1]].end) for probe in same]
            for probe, rate in zip(same, fabric.pairs(op, ends, number), strict=True):
                found[probe.key] = probe.size_bytes / rate if rate else None
        return found
    exchanges = [
        Exchange(probe.collective, tuple(seats[rank].end for rank in probe.ranks), probe.size_bytes, probe.split)
        for probe in shared
    ]
    found.update(zip((probe.key for probe in shared), durations(fabric, exchanges, number), strict=True))
    return found


def _by_op(probes: Iterable[Probe], *, alone: bool) -> dict[str, list[Probe]]:
    sorted_: dict[str, list[Probe]] = {}
    for probe in probes:
        if (probe.collective in ALONE) == alone:
            sorted_.setdefault(probe.collective, []).append(probe)
    return sorted_


def _well(probe: Probe, took_s: float) -> list[api.RankOutcome]:
    """All ranks of a group take the same time here; a rank's own windows differ by little."""
    window = max(1, round(probe.loop_s / WINDOWS / took_s))
    timed = (took_s * (1 - SPREAD), took_s, took_s * (1 + SPREAD))
    members = probe.ranks if len(probe.ranks) > 1 else ()
    return [
        api.RankOutcome(
            rank=rank,
            subject=probe.subject,
            samples=Samples(rank=rank, durations_s=timed, first_call_s=JOIN_S / 2, join_s=JOIN_S / 2, window=window),
            data_correct=True,
            members=members,
            transport="simulated",
        )
        for rank in probe.ranks
    ]


def _failed(
    fabric: Fabric, seats: Seats, probe: Probe, request: api.RoundRequest, number: int
) -> tuple[list[api.RankOutcome], list[Incident]]:
    """As real agents tell it: the agent of a rank that hung or ended names it; its partners only know that the operation didn't come through, and if the rank came at all."""
    ranks = {seats[rank].end: rank for rank in probe.ranks if rank in seats}
    kind, end = fabric.failure(tuple(ranks), number)
    guilty = ranks[end] if end is not None else None
    outcomes, incidents = [], []
    for rank in probe.ranks:
        if rank == guilty:
            hung = kind == "no_answer"
            text = (
                f"the worker of rank {rank} gave no answer in the probe {probe.subject} within {request.deadline_s:.3g} s (simulated)"
                if hung
                else f"the worker of rank {rank} ended during {probe.subject} (simulated)"
            )
            failure = Failure(kind="no_answer" if hung else "crashed", text=text, rank=rank, stage="rendezvous")
            incidents.append(
                Incident(
                    kind="worker_hung" if hung else "worker_died",
                    text=text,
                    phase="",
                    at_s=0,
                    node=seats[rank].node,
                    rank=rank,
                    probe=probe.key,
                )
            )
        elif guilty is not None:
            text = f"rank {rank}: rank {guilty} did not come to the probe {probe.subject} within {request.timeout_s:.3g} s (simulated)"
            failure = Failure(kind="timed_out", text=text, rank=guilty, stage="rendezvous")
        else:
            text = f"rank {rank}: nothing came through within {request.timeout_s:.3g} s (simulated)"
            failure = Failure(kind="timed_out", text=text, stage="first operation")
        outcomes.append(api.RankOutcome(rank=rank, subject=probe.subject, failure=failure))
    return outcomes, incidents
