"""Every rank answers, and reaches its partners.

A rank that fails with two different partners, and not only across one route, does not answer; so does one that fails twice in what it does alone. One that failed, and worked after its
worker was replaced, is UNKNOWN: something stopped it, and a job would have hung there. Two ranks that fail with each other and work with others point at the path between them. Ranks that
met, and whose message was not over at the deadline, are slow and not dead: a smaller message tells how slow. A partner of a rank that doesn't answer is never blamed for what it waited for.
"""

from collections.abc import Iterable, Iterator, Sequence

from preflight.model import Check, Evidence, Finding, Incident, Measurement, Part, Verdict, tries
from preflight.model.failing_pairs import Explained, explained, shared
from preflight.model.hostlist import fold_numbers
from preflight.model.plan import Rank
from preflight.model.rank_stories import ENDED, Story, does_not_answer, idle_nodes, stories_of, was_late

MOST_PAIRS, MOST_SHOWN, MOST_EVIDENCE = 3, 6, 40  # more pairs than these are not each a link of its own
LIMITS = {"slow_message_s": 1.0}  # ours: what takes longer is called slow, if it was not over at the deadline before
_NAMED = {
    "worker_hung": "hung",
    "worker_died": "ended",
    "worker_not_started": "did not start",
    "worker_unkillable": "could not be killed",
}
# what the kernel says when a limit of the user or the cgroup is reached, which is no fault of a rank
_LIMITS = (
    "can't start new thread",
    "Resource temporarily unavailable",
    "Cannot allocate memory",
    "Too many open files",
)


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each lost node, each rank with a history, each pair that only fails together; one for all the rest."""
    assert evidence.plan is not None
    assert evidence.measurements is not None
    ranks = evidence.plan.placement.ranks
    lost = {i.node: i for i in reversed(evidence.incidents) if i.node and i.kind == "agent_lost"}
    idle = {node: i for node, i in idle_nodes(evidence.incidents, ranks) if node not in lost}
    nowhere = not any(m.samples for m in evidence.measurements)
    if idle and nowhere and all(rank.node in idle or rank.node in lost for rank in ranks):
        yield _environment(tuple(idle.values()))
    else:
        yield from (_lost_node(node, incident, ranks, idle=True) for node, incident in idle.items())
    yield from (_lost_node(node, incident, ranks, idle=False) for node, incident in lost.items())
    busy = {
        i.node for i in evidence.incidents if i.kind in {"agent_busy", "agent_refused", "agent_late", "agent_error"}
    }
    judged = {rank.rank for rank in ranks if rank.node in lost or rank.node in idle or rank.node in busy}
    stories = stories_of([rank for rank in ranks if rank.rank not in judged], evidence, ranks)
    persisting = {
        subject for subject, tried in tries.by_subject(evidence.measurements).items() if tries.persists(tried)
    }
    for story in stories:
        finding = _rank(story, persisting, ranks)
        if finding is not None:
            judged.add(story.rank.rank)
            yield finding
    yield from _paths(evidence, judged, ranks, evidence.limits("reachable", LIMITS))
    yield from _others(evidence.incidents)
    good = [story.rank for story in stories if story.rank.rank not in judged and not story.troubles]
    if good:
        yield Finding(
            check="reachable",
            subject="ranks",
            verdict=Verdict.PASS,
            observed=f"{len(good)} of {len(ranks)} ranks on {len({r.node for r in good})} nodes answered every time",
            expected="every rank answers and reaches its partners",
        )


def _environment(incidents: tuple[Incident, ...]) -> Finding:
    """No node could start a worker: that is no fault of any of them."""
    late = all(was_late(incident.text) for incident in incidents)
    return Finding(
        check="reachable",
        subject="workers",
        verdict=Verdict.UNKNOWN,
        observed=f"no worker could be started on any of {len(incidents)} nodes: {incidents[0].text}",
        expected="a worker for every rank",
        remedy="run again with a larger --budget; torch imports slowly from a busy file system or machine"
        if late
        else "mend the environment that the workers run in",
        blames=Part(kind="environment", name="the workers' environment", confidence="likely"),
    )


def _lost_node(node: str, incident: Incident, ranks: tuple[Rank, ...], *, idle: bool) -> Finding:
    """A node whose workers were merely not ready in time may be busy, or its file system cold: nothing is said against it."""
    mine = fold_numbers(rank.rank for rank in ranks if rank.node == node)
    cause = "it could start no worker" if idle else "is it up, does the agent run there, is its port open"
    late = idle and was_late(incident.text)
    again = f"run again, with a larger --budget; if it is {node} again, look at its load and file system"
    return Finding(
        check="reachable",
        subject=node,
        verdict=Verdict.UNKNOWN if late else Verdict.FAIL,
        observed=f"ranks {mine}: {incident.text} ({incident.phase}, {incident.at_s:.1f} s after the start)",
        expected="the node's agent answers, and starts its workers",
        remedy=again if late else f"look at {node}: {cause}; leave it out until then",
        blames=None if late else Part(kind="node", name=node, confidence="likely"),
    )


def _rank(story: Story, persisting: set[str], placed: Sequence[Rank]) -> Finding | None:
    rank, mine, bad = story.rank, story.incidents, [story.own[i] for i in story.troubles]
    if not mine and not bad:
        return None if any(m.samples for m in story.own) else _unseen(story)
    started = not any(i.kind == "worker_not_started" for i in mine)
    subjects = {m.probe.subject for m in bad}
    if started and story.recovered and len(story.partners) == 1 and subjects <= persisting:
        return None  # it fails with the same partners only: that is what to look at
    texts = "; ".join(dict.fromkeys([i.text for i in mine] or [m.failure.text for m in bad if m.failure]))
    short = not started and any(words in texts for words in _LIMITS)
    silent = does_not_answer(story, placed)
    late = not started and any(i.kind in ENDED for i in mine) and was_late(texts)
    certain = (not started and not short and not late) or silent
    often = f" {len(bad)} times" if len(bad) > 1 else " once"
    when = f" ({mine[0].phase}, {mine[0].at_s:.1f} s after the start)" if mine else ""
    with_whom = f", with {len(story.partners)} different partners" if len(story.partners) > 1 else ""
    happened = ", ".join(dict.fromkeys(_NAMED.get(i.kind, i.kind) for i in mine)) or "did not come"
    happened = f"does not answer: it {happened}" if silent else happened
    told = f"rank {rank.rank} on {rank.node} {happened}{often}{when}{with_whom}"
    verdict, blames = Verdict.UNKNOWN, None
    if certain:
        verdict = Verdict.FAIL
        blames = Part(kind="rank", name=f"rank {rank.rank} on {rank.node}", confidence="likely")
        remedy = f"leave {rank.node} out, and look at its local rank {rank.local_rank}"
    elif short:
        blames = Part(kind="environment", name=f"the limits of {rank.node}", confidence="likely")
        remedy = "raise the limit (ulimit -u, -n, -v, or the cgroup's), or run fewer workers"
    elif late:
        remedy = f"run again; why its worker ended, and why starting another takes so long, stands in the log of the agent of {rank.node}"
    elif story.recovered and started:
        harmless = not bad and all(i.probe is None for i in mine)
        told += ", and no result of it is missing" if harmless else ", then worked again"
        verdict = Verdict.UNKNOWN if (mine and not harmless) or subjects & persisting else Verdict.WARN
        remedy = "run again; if it happens again on this node, leave the node out"
    elif len(story.partners) > 1:
        remedy = "it failed across one route only, which may be what is at fault: run again with a third node"
    else:
        remedy = "run again: there was no other partner to try it with"
    return Finding(
        check="reachable",
        subject=f"rank {rank.rank}",
        verdict=verdict,
        observed=f"{told}: {texts}",
        expected="every rank answers and reaches its partners",
        remedy=remedy,
        blames=blames,
        evidence=tuple(m.probe.key for m in bad),
    )


def _unseen(story: Story) -> Finding:
    why = next((m.failure.text for m in story.own if m.failure), "no probe of it was run")
    return Finding(
        check="reachable",
        subject=f"rank {story.rank.rank}",
        verdict=Verdict.UNKNOWN,
        observed=f"rank {story.rank.rank} on {story.rank.node} was never measured: {why}",
        expected="every rank answers and reaches its partners",
        remedy="give a larger --budget, or run again; a rank alone has no partner to measure with",
    )


def _paths(evidence: Evidence, judged: set[int], placed: Sequence[Rank], limits: dict[str, float]) -> Iterator[Finding]:
    """Pairs and groups that failed, or were too slow for their message, and blame none of their ranks. Many pairs are no fault of each: one finding."""
    measurements = evidence.measurements or ()
    worked = tries.at_work(measurements)
    pairs: list[Finding] = []
    for subject, tried in tries.by_subject(measurements).items():
        ranks = tried[0].probe.ranks
        if len(ranks) > 1 and any(m.failure for m in tried) and not judged.intersection(ranks):
            proven = all(tries.works_elsewhere(rank, ranks, worked, placed) for rank in ranks)
            finding = _path(subject, tried, limits["slow_message_s"], proven=proven)
            if tried[0].probe.axis is None and finding.verdict is not Verdict.WARN:
                pairs.append(finding)
            else:
                yield finding
    if len(pairs) <= MOST_PAIRS:
        yield from pairs
    else:
        tried_of = tries.by_subject(measurements)
        found = shared([tried_of[finding.subject] for finding in pairs], worked, placed)
        yield _many(pairs, explained(found, len(pairs), evidence))


def _path(subject: str, tried: Sequence[Measurement], slow_message_s: float, *, proven: bool) -> Finding:
    failures = [m.failure for m in tried if m.failure]
    slow = tries.slow_after(tried, slow_message_s)
    bad = len(slow) > 1 or (not slow and tries.persists(tried))
    blamed = bad and proven and tried[0].probe.axis is None
    remedy = "it worked when it was repeated: run again if it matters"
    if bad:
        remedy = "look at the route between its ranks (firewall, interface, cable)"
        if tried[0].probe.axis is not None:
            remedy = "look at its pairs that fail, or else at what only a group needs: several HCAs at once (NCCL_IB_HCA), ways between unlike slots (NCCL_CROSS_NIC)"
        remedy = f"its ranks work with others: {remedy}" if proven else f"run again, and {remedy}"
    elif tried[-1].failure or slow:
        remedy = "run again: there was no chance to repeat it"
    observed = f"{subject} failed {len(failures)} of {len(tried)} times: {failures[-1].text}"
    expected = "every pair and group that is asked for can be joined"
    return Finding(
        check="reachable",
        subject=subject,
        verdict=Verdict.FAIL if blamed else Verdict.UNKNOWN if slow or tried[-1].failure else Verdict.WARN,
        observed=tries.how_slow(subject, tried, slow) if slow else observed,
        expected="a message of this size within the deadline" if slow else expected,
        remedy=remedy,
        blames=Part(kind="link", name=subject, confidence="likely") if blamed else None,
        evidence=tuple(m.probe.key for m in tried if m.failure or m in slow),
    )


def _many(pairs: Sequence[Finding], why: Explained | None) -> Finding:
    """So many pairs that what they share is at fault, and no link of two ranks. `why`: what that is; None: not known."""
    names = [finding.subject for finding in pairs]
    shown = ", ".join(names[:MOST_SHOWN]) + (f" and {len(names) - MOST_SHOWN} more" if names[MOST_SHOWN:] else "")
    blames = why.blames if why else None
    return Finding(
        check="reachable",
        subject=blames.name if blames else "pairs",
        verdict=Verdict.FAIL if blames else Verdict.UNKNOWN,
        observed=f"{len(names)} pairs fail or are too slow for their message ({shown}): {pairs[0].observed}{f'; {why.text}' if why else ''}",
        expected="every pair that is asked for can be joined, and carries its message within the deadline",
        remedy=why.remedy
        if why
        else "look at what these pairs share, a node, a rail, a route between two sets of nodes: slow_part names it if the run saw enough",
        blames=blames,
        evidence=tuple(key for finding in pairs for key in finding.evidence)[:MOST_EVIDENCE],
    )


# incident -> (what it means, what was expected, what to do)
_OF_NO_RANK = {
    "store_lost": (
        "the rendezvous of a round could not be hosted",
        "a node can host the rendezvous of a round",
        "run again; if it happens again, look at the agent's log on that node",
    ),
    "agent_busy": (
        "the agent works for another run, so nothing was measured there",
        "an agent that is free",
        "run again when the other run has ended",
    ),
    "agent_late": (
        "an answer did not come in time, and yet the agent is there",
        "an answer in time",
        "run again: a node under heavy load does this, or a coordinator that was itself stopped for a while",
    ),
    "agent_error": (
        "the agent is there and could not do what it was asked to",
        "an agent that can do it",
        "look at the agent's log on that node; a version other than the coordinator's does this",
    ),
    "agent_refused": (
        "the agent was not asked, or does not take our credential",
        "an agent that knows us, under the name that it calls itself",
        "shared key: give --key-file the key that the agent has. munge: munged must run on both nodes, with one key and the same time. --hosts takes name=address:port",
    ),
    "budget_ended": (
        "the budget ended while an answer was due",
        "time enough for every answer",
        "give a larger --budget",
    ),
    "worker_unkillable": (
        "a process can't be ended",
        "every process can be ended",
        "look at the kernel's log on that node",
    ),
}


def _others(incidents: Iterable[Incident]) -> Iterator[Finding]:
    """What keeps us from knowing, and says nothing bad of any rank."""
    for incident in incidents:
        if incident.kind in _OF_NO_RANK and (incident.kind != "worker_unkillable" or incident.rank is None):
            meaning, expected, remedy = _OF_NO_RANK[incident.kind]
            yield Finding(
                check="reachable",
                subject=incident.node or "run",
                verdict=Verdict.UNKNOWN,
                observed=f"{meaning}: {incident.text}",
                expected=expected,
                remedy=remedy,
            )


CHECK = Check(
    name="reachable",
    claim="Every rank answers, and reaches its partners.",
    why="A rank that hangs or can't be reached stops the whole job, silently, until a timeout of many minutes.",
    source="our own rendezvous and first operations of every pair",
    remedy="look at the rank's node; where only one route fails, at firewalls, interfaces and the cable",
    uses=("plan", "measurements"),
    judge=judge,
    limits=LIMITS,
)
