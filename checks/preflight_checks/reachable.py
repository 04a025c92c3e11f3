"""Every rank answers, and reaches its partners.

A rank that fails again with another partner is at fault. One that failed once, and worked after its worker was replaced, is UNKNOWN: something stopped it, and
a job would have hung there. Two ranks that only fail with each other point at the path between them.
"""

from collections.abc import Iterable, Iterator

from preflight.model import Check, Evidence, Finding, Incident, Measurement, Part, Verdict
from preflight.model.hostlist import fold_numbers
from preflight.model.plan import Rank

_NAMED = {
    "worker_hung": "hung",
    "worker_died": "ended",
    "worker_not_started": "did not start",
    "worker_unkillable": "could not be killed",
}


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each lost node, each rank with a history, each pair that only fails together; one for all the rest."""
    assert evidence.plan is not None
    assert evidence.measurements is not None
    ranks = evidence.plan.placement.ranks
    lost = {i.node: i for i in evidence.incidents if i.node and (i.kind == "agent_lost" or _started_none(i))}
    everywhere = all(rank.node in lost and _started_none(lost[rank.node]) for rank in ranks)
    if everywhere:
        yield _environment(tuple(lost.values()))
    else:
        yield from (_lost_node(node, incident, ranks) for node, incident in lost.items())
    judged = {rank.rank for rank in ranks if rank.node in lost}
    for rank in ranks:
        if rank.rank in judged:
            continue
        finding = _rank(rank, evidence.incidents, evidence.measurements)
        if finding is not None:
            judged.add(rank.rank)
            yield finding
    pairs = tuple(_paths(evidence.measurements, judged))
    yield from pairs
    for incident in evidence.incidents:
        if incident.kind == "store_lost":
            yield Finding(
                check="reachable",
                subject=incident.node or "rendezvous",
                verdict=Verdict.UNKNOWN,
                observed=f"the rendezvous of a round could not be hosted: {incident.text}",
                expected="a node can host the rendezvous of a round",
                remedy="look at the agent's log on that node",
            )
    good = [rank for rank in ranks if rank.rank not in judged]
    if good:
        nodes = {rank.node for rank in good}
        yield Finding(
            check="reachable",
            subject="ranks",
            verdict=Verdict.PASS,
            observed=f"{len(good)} of {len(ranks)} ranks on {len(nodes)} nodes answered every time",
            expected="every rank answers and reaches its partners",
        )


def _started_none(incident: Incident) -> bool:
    return incident.kind == "worker_not_started" and incident.rank is None


def _environment(incidents: tuple[Incident, ...]) -> Finding:
    """No node could start a worker: that is no fault of any of them."""
    return Finding(
        check="reachable",
        subject="workers",
        verdict=Verdict.UNKNOWN,
        observed=f"no worker could be started on any of {len(incidents)} nodes: {incidents[0].text}",
        expected="a worker for every rank",
        remedy="mend the environment that the workers run in",
        blames=Part(kind="environment", name="the workers' environment", confidence="likely"),
    )


def _lost_node(node: str, incident: Incident, ranks: tuple[Rank, ...]) -> Finding:
    mine = fold_numbers(rank.rank for rank in ranks if rank.node == node)
    return Finding(
        check="reachable",
        subject=node,
        verdict=Verdict.FAIL,
        observed=f"ranks {mine}: {incident.text} ({incident.phase}, {incident.at_s:.1f} s after the start)",
        expected="the node's agent answers, and starts its workers",
        remedy=f"look at {node}: "
        + (
            "it could start no worker, others could"
            if _started_none(incident)
            else "is it up, does the agent run there, is its port open"
        )
        + "; leave it out until then",
        blames=Part(kind="node", name=node, confidence="likely"),
    )


def _rank(rank: Rank, incidents: Iterable[Incident], measurements: Iterable[Measurement]) -> Finding | None:
    mine = [incident for incident in incidents if incident.rank == rank.rank]
    own = [m for m in measurements if rank.rank in m.probe.ranks]
    bad = [m for m in own if m.failure and m.failure.kind != "not_run" and m.failure.rank == rank.rank]
    partners = {other for m in bad for other in m.probe.ranks if other != rank.rank}
    if not mine and not bad:
        return None if any(m.samples for m in own) else _unseen(rank, own)
    # what came after the last sign of trouble decides: measurements stand in the order in which they were made
    last_bad = max((i for i, m in enumerate(own) if m in bad), default=-1)
    recovered = any(m.samples for m in own[last_bad + 1 :])
    texts = "; ".join(dict.fromkeys([i.text for i in mine] or [m.failure.text for m in bad if m.failure]))
    started = not any(i.kind == "worker_not_started" for i in mine)
    certain = not started or (not recovered and len(bad) > 1)
    when = f" ({mine[0].phase}, {mine[0].at_s:.1f} s after the start)" if mine else ""
    happened = ", ".join(dict.fromkeys(_NAMED.get(i.kind, i.kind) for i in mine)) or "did not come"
    if recovered and started:
        return Finding(
            check="reachable",
            subject=f"rank {rank.rank}",
            verdict=Verdict.UNKNOWN if mine else Verdict.WARN,
            observed=f"rank {rank.rank} on {rank.node} {happened} once{when}, then worked when it was repeated: {texts}",
            expected="every rank answers every time",
            remedy="run again; if it happens again on this node, leave the node out",
            evidence=tuple(m.probe.key for m in bad),
        )
    again = f", with {len(partners)} different partners" if len(partners) > 1 else ""
    return Finding(
        check="reachable",
        subject=f"rank {rank.rank}",
        verdict=Verdict.FAIL if certain else Verdict.UNKNOWN,
        observed=f"rank {rank.rank} on {rank.node} {happened}{when}{again}: {texts}",
        expected="every rank answers and reaches its partners",
        remedy=f"leave {rank.node} out, and look at its local rank {rank.local_rank}"
        if certain
        else "run again: there was no chance to repeat it",
        blames=Part(kind="rank", name=f"rank {rank.rank} on {rank.node}", confidence="likely") if certain else None,
        evidence=tuple(m.probe.key for m in bad),
    )


def _unseen(rank: Rank, own: list[Measurement]) -> Finding:
    why = next((m.failure.text for m in own if m.failure), "no probe of it was run")
    return Finding(
        check="reachable",
        subject=f"rank {rank.rank}",
        verdict=Verdict.UNKNOWN,
        observed=f"rank {rank.rank} on {rank.node} was never measured: {why}",
        expected="every rank answers and reaches its partners",
        remedy="give a larger --budget, or run again",
    )


def _paths(measurements: Iterable[Measurement], judged: set[int]) -> Iterator[Finding]:
    """Pairs and groups that failed and blame none of their ranks."""
    by_subject: dict[str, list[Measurement]] = {}
    for m in measurements:
        kind = m.failure.kind if m.failure else None
        if kind != "not_run" and not judged.intersection(m.probe.ranks):
            by_subject.setdefault(m.probe.subject, []).append(m)
    for subject, tries in by_subject.items():
        failures = [m.failure for m in tries if m.failure]
        if not failures:
            continue
        persists = tries[-1].failure is not None and len(failures) > 1
        pair = tries[0].probe.axis is None
        yield Finding(
            check="reachable",
            subject=subject,
            verdict=(Verdict.FAIL if pair else Verdict.UNKNOWN) if persists else Verdict.WARN,
            observed=f"{subject} failed {len(failures)} of {len(tries)} times: {failures[-1].text}",
            expected="every pair and group that is asked for can be joined",
            remedy="its ranks work with others: look at the route between them (firewall, interface, cable)"
            if persists
            else "it worked when it was repeated: run again if it matters",
            blames=Part(kind="link", name=subject, confidence="likely") if persists and pair else None,
            evidence=tuple(m.probe.key for m in tries if m.failure),
        )


CHECK = Check(
    name="reachable",
    claim="Every rank answers, and reaches its partners.",
    why="A rank that hangs or can't be reached stops the whole job, silently, until a timeout of many minutes.",
    uses=("plan", "measurements"),
    judge=judge,
)
