"""One round: its probes run at the same time on disjoint ranks, through the agents of those ranks.

An agent that gives no sign of life is noticed before its call's deadline: while a call is under way it is asked for /healthz.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from preflight.errors import AnswerLate, NoAnswer, TransportError
from preflight.fleet import api
from preflight.fleet.hangs import stands_still
from preflight.fleet.replies import kind_of, lost_kind
from preflight.fleet.world import Client
from preflight.model import Failure, Incident, Measurement, Probe
from preflight.probe.schedule import Round, seconds_of

# how long a rank waits for its peers, and for one operation: gloo on a busy small machine needs 2 s at most, NCCL's first call on many GPUs 5 s
TIMEOUT_S = {"gloo": 4.0, "nccl": 15.0}
CUT_S = 4.0  # the same without a replacement: in a round that the budget cuts short nobody needs it
NO_STORE = api.StoreReply(address="", port=0)  # of a round whose ranks each measure alone
REPLACE_S = 11.0  # after the deadline the agent kills and reaps (3 s) and replaces (6 s) what hung


# stages in which all ranks have met and data was under way; before them a late rank may just as well be missing
UNDER_WAY = {"first operation", "warm-up", "operation", "agreement", "verification"}


class RoundResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a round gave: one measurement for each probe, what went wrong, the nodes whose agents were lost, and the node that hosted the rendezvous ("": none)."""

    measurements: tuple[Measurement, ...]
    incidents: tuple[Incident, ...] = ()
    lost_nodes: tuple[str, ...] = ()
    host: str = ""


class RoundRunner:
    """Runs rounds for one run. `nodes`: rank -> node; `clients`: node -> agent, of the nodes that are still there."""

    def __init__(
        self,
        run_id: str,
        backend: str,
        nodes: Mapping[int, str],
        clients: Mapping[str, Client],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.run_id = run_id
        self.clock = clock
        self.backend = backend
        self.nodes = nodes
        self.clients = clients
        self.count = 0
        self.host_trouble: Counter[str] = Counter()  # node -> rendezvous there that ranks missed, and came to elsewhere

    def longest_s(self, probes: Round) -> float:
        """How long a round may take in which something hangs: check-in, alignment and one operation each run into the timeout."""
        return 2 * timeout_s(self.backend, probes) + seconds_of(probes) + 2

    async def run(self, probes: Round, deadline_s: float, hosts: Sequence[str] = ()) -> RoundResult:
        """Run one round within deadline_s. Raises nothing: what fails is in the result. `hosts`: nodes that shall host the rendezvous, if they can."""
        self.count += 1
        began = self.clock()
        cut = deadline_s < self.longest_s(probes)
        deadline_s = min(deadline_s, self.longest_s(probes))
        by_node = self._by_node(probes)
        lost: dict[str, TransportError] = {}
        host, store, incidents = "", NO_STORE, list[Incident]()
        if any(len(probe.ranks) > 1 for probe in probes):
            first = [node for node in hosts if node in by_node]
            order = dict.fromkeys(first + sorted(by_node, key=lambda node: self.host_trouble[node]))
            host, hosted, incidents = await self._host_store(tuple(order), deadline_s, lost)
            if hosted is None:
                failure = Failure(kind="not_run", text="no agent could host the rendezvous")
                return _nothing(probes, failure, incidents, lost)
            store = hosted
        request = api.RoundRequest(
            run_id=self.run_id,
            prefix=f"{self.run_id}/{self.count}",
            backend=self.backend,
            probes=(),
            store_address=store.address,
            store_port=store.port,
            num_tasks=sum(len(probe.ranks) for probe in probes),
            timeout_s=min(timeout_s(self.backend, probes), max(1.0, deadline_s / 2)),
            deadline_s=max(1.0, deadline_s - (self.clock() - began)),
            replace=not cut,
        )
        late: dict[str, TransportError] = {}
        replies = await asyncio.gather(
            *(
                self._ask(node, msgspec.structs.replace(request, probes=tuple(mine)), lost, late)
                for node, mine in by_node.items()
                if node not in lost
            )
        )
        with contextlib.suppress(TransportError):
            if host and host not in lost:
                end = api.EndRequest(run_id=self.run_id, store_only=True)
                await self.clients[host].call("/v1/end", end, api.EndReply, 5.0)
        outcomes = {(o.rank, o.subject): o for reply in replies if reply for o in reply.outcomes}
        incidents += [incident for reply in replies if reply for incident in reply.incidents]
        measured = tuple(merge(probe, outcomes, self.nodes, lost, late) for probe in probes)
        incidents = only_slow(incidents, measured)
        return RoundResult(
            measurements=measured, incidents=tuple(incidents + _lost(lost)), lost_nodes=tuple(lost), host=host
        )

    def _by_node(self, probes: Round) -> dict[str, list[Probe]]:
        """The probes that each node takes part in, of the nodes that are there: a message to one of thousands doesn't carry the others' probes."""
        mine: dict[str, list[Probe]] = {}
        for probe in probes:
            for node in dict.fromkeys(self.nodes[rank] for rank in probe.ranks):
                if node in self.clients:
                    mine.setdefault(node, []).append(probe)
        return mine

    async def _host_store(
        self, nodes: Sequence[str], deadline_s: float, lost: dict[str, TransportError]
    ) -> tuple[str, api.StoreReply | None, list[Incident]]:
        """Let the first node that can host the rendezvous; a node whose agent doesn't answer is lost. Ends soon after the deadline."""
        incidents: list[Incident] = []
        began = self.clock()
        for node in nodes:
            left_s = deadline_s - (self.clock() - began)
            if left_s <= 0:
                break
            request = api.StoreRequest(run_id=self.run_id, deadline_s=min(10.0, left_s))
            client = self.clients[node]
            try:
                store = await client.call_watched("/v1/store", request, api.StoreReply, request.deadline_s + 5)
            except TransportError as error:
                if isinstance(error, AnswerLate) or await client.is_there():
                    incidents.append(Incident(kind="store_lost", text=str(error), phase="", at_s=0, node=node))
                else:
                    lost[node] = error
            else:
                return node, store, incidents
        return "", None, incidents + _lost(lost)

    async def _ask(
        self, node: str, request: api.RoundRequest, lost: dict[str, TransportError], late: dict[str, TransportError]
    ) -> api.RoundReply | None:
        extra_s = REPLACE_S if request.replace else CUT_S
        try:
            return await self.clients[node].call_watched(
                "/v1/round", request, api.RoundReply, request.deadline_s + extra_s
            )
        except AnswerLate as error:
            late[node] = error
        except TransportError as error:
            lost[node] = error
        return None


def cut_short(result: RoundResult) -> RoundResult:
    """A round that had less time than a hang needs to show: who gave no answer in it is not blamed, the budget is."""
    text = "the budget ended during this probe"
    ended = Failure(kind="not_run", text=text)
    measurements = tuple(
        msgspec.structs.replace(m, failure=ended) if m.failure and m.failure.kind in {"no_answer", "timed_out"} else m
        for m in result.measurements
    )
    incidents = tuple(
        msgspec.structs.replace(i, kind="budget_ended", text=f"{text}: {i.text}") if i.kind == "worker_hung" else i
        for i in result.incidents
    )
    return msgspec.structs.replace(result, measurements=measurements, incidents=incidents)


def timeout_s(backend: str, probes: Round) -> float:
    """How long a rank waits for its peers. Where names don't resolve, torch's store takes 5 to 10 s for 32 to 128 clients that come at once (measured); ranks that measure alone don't come to it."""
    return TIMEOUT_S[backend] + min(25.0, 0.25 * sum(len(probe.ranks) for probe in probes if len(probe.ranks) > 1))


def merge(
    probe: Probe,
    outcomes: Mapping[tuple[int, str], api.RankOutcome],
    nodes: Mapping[int, str],
    lost: Mapping[str, TransportError],
    late: Mapping[str, object] = MappingProxyType({}),
) -> Measurement:
    """One measurement from what the ranks saw. If one failed, the failure that points at a rank says most."""
    seen = [outcomes[(rank, probe.subject)] for rank in probe.ranks if (rank, probe.subject) in outcomes]
    failures = [outcome.failure for outcome in seen if outcome.failure]
    for rank in probe.ranks:
        error = lost.get(nodes[rank])
        if isinstance(error, NoAnswer):
            text = f"rank {rank} sits on {nodes[rank]}, whose agent was lost: {error}"
            failures.insert(0, Failure(kind="no_answer", text=text, rank=rank))
        elif error is not None:  # the node is there: what it could not do says nothing of its hardware
            text = f"rank {rank} sits on {nodes[rank]}, whose agent can't take part: {error}"
            failures.insert(0, Failure(kind="not_run", text=text, rank=rank))
        elif nodes[rank] in late:  # says nothing of the rank: the probe is repeated
            failures.append(Failure(kind="timed_out", text=f"{late[nodes[rank]]}"))
        elif (rank, probe.subject) not in outcomes:
            failures.append(Failure(kind="not_run", text=f"rank {rank} was not asked", rank=rank))
    if failures:
        failure = all_at_work(probe, failures) or min(failures, key=_vagueness)
        return Measurement(probe=probe, failure=failure)
    verified = [outcome.data_correct for outcome in seen]
    return Measurement(
        probe=probe,
        samples=tuple(outcome.samples for outcome in seen if outcome.samples),
        data_correct=None if None in verified and False not in verified else False not in verified,
        members=seen[0].members,
        transport=seen[0].transport,
        transports=tuple(outcome.told for outcome in seen if outcome.told),
        gpus=tuple(outcome.around for outcome in seen if outcome.around),
    )


def all_at_work(probe: Probe, failures: Sequence[Failure]) -> Failure | None:
    """That no rank is missing where all of them gave no answer because the operation that they had begun together was not over: it is slow. None: it isn't so."""
    waited = [failure for failure in failures if failure.kind == "no_answer" and failure.stage in UNDER_WAY]
    if len(probe.ranks) < 2 or {failure.rank for failure in waited} != set(probe.ranks):
        return None
    if any(stands_still(failure.text) for failure in waited):
        return None  # the others only wait for it
    text = f"all {len(probe.ranks)} ranks were still at work in {probe.subject} at the deadline: {waited[0].text}"
    return Failure(kind="timed_out", text=text[:1000], stage=waited[0].stage)


def only_slow(incidents: Sequence[Incident], measured: Sequence[Measurement]) -> list[Incident]:
    """The incidents, without a blame on workers that were all at work in a probe that was merely slow, or that waited there for one whose process stands still."""
    failed = {m.probe.key: m.failure for m in measured if m.failure}

    def waited(incident: Incident) -> bool:
        failure = failed.get(incident.probe or "")
        if incident.kind != "worker_hung" or failure is None or failure.stage not in UNDER_WAY:
            return False
        if failure.kind == "timed_out":
            return True
        return failure.rank != incident.rank and stands_still(failure.text) and not stands_still(incident.text)

    return [msgspec.structs.replace(i, kind="worker_slow") if waited(i) else i for i in incidents]


_CLOSED = ("closed by peer", "connection reset", "broken pipe")
_MOST_TELLING = ("no_answer", "crashed", "wrong_data", "error", "timed_out", "not_run")


def _vagueness(failure: Failure) -> tuple[bool, float, bool]:
    """A connection that the other side closed follows from what the other side tells; a process that stands still is why its partners gave no answer."""
    followed = failure.kind == "error" and any(words in failure.text.lower() for words in _CLOSED)
    tells = _MOST_TELLING.index("timed_out") + 0.5 if followed else _MOST_TELLING.index(failure.kind)
    return failure.rank is None, tells, not stands_still(failure.text)


def _lost(lost: Mapping[str, TransportError]) -> list[Incident]:
    return [
        Incident(kind=kind_of(error, lost_kind(error)), text=str(error), phase="", at_s=0, node=node)
        for node, error in lost.items()
    ]


def _nothing(
    probes: Round, failure: Failure, incidents: list[Incident], lost: Mapping[str, TransportError]
) -> RoundResult:
    measurements = tuple(Measurement(probe=probe, failure=failure) for probe in probes)
    return RoundResult(measurements=measurements, incidents=tuple(incidents), lost_nodes=tuple(lost))
