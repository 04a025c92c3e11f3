"""What a round's outcomes say together: the most telling failure, data that somebody verified, and a budget that blames nobody."""

import asyncio

import msgspec
import pytest

from preflight.errors import AgentBusy, AnswerLate, NoAnswer, TransportError
from preflight.fleet import api
from preflight.fleet.rounds import RoundResult, RoundRunner, cut_short, merge, only_slow, timeout_s
from preflight.model import Failure, Incident, Measurement, Samples
from preflight.probe.schedule import alone_probe
from tests.builders import make_probe

NODES = {0: "node0", 1: "node0", 2: "node1", 3: "node1"}
PAIR = make_probe((0, 2))


def outcome(rank: int, *, probe=PAIR, failure: Failure | None = None, **changes) -> api.RankOutcome:
    """A rank that measured well, or failed."""
    if failure is not None:
        return api.RankOutcome(rank=rank, subject=probe.subject, failure=failure)
    facts = {
        "samples": Samples(rank=rank, durations_s=(0.1,)),
        "data_correct": True,
        "members": probe.ranks,
        "transport": "gloo over lo",
    }
    return api.RankOutcome(rank=rank, subject=probe.subject, **{**facts, **changes})


def merged(*outcomes: api.RankOutcome, probe=PAIR, lost: dict[str, TransportError] | None = None) -> Measurement:
    return merge(probe, {(o.rank, o.subject): o for o in outcomes}, NODES, lost or {})


def test_outcomes_of_all_ranks_make_one_measurement_in_the_order_of_the_probe():
    measurement = merged(outcome(2), outcome(0))
    assert measurement.failure is None
    assert [samples.rank for samples in measurement.samples] == [0, 2]
    assert measurement.data_correct is True
    assert measurement.members == (0, 2)
    assert measurement.transport == "gloo over lo"


@pytest.mark.parametrize(
    ("seen", "together"),
    [((True, True), True), ((True, False), False), ((None, False), False), ((True, None), None), ((None, None), None)],
)
def test_data_is_correct_only_if_every_rank_verified_it_and_wrong_if_one_says_so(seen, together):
    assert merged(outcome(0, data_correct=seen[0]), outcome(2, data_correct=seen[1])).data_correct is together


def test_a_failure_that_points_at_a_rank_is_kept_before_one_that_points_at_nobody():
    late = Failure(kind="timed_out", text="timed out")
    dead = Failure(kind="crashed", text="killed by SIGKILL", rank=2)
    for first, second in ((late, dead), (dead, late)):
        assert merged(outcome(0, failure=first), outcome(2, failure=second)).failure == dead


def test_a_worker_that_gave_no_answer_tells_more_than_the_peer_that_waited_for_it():
    waited = Failure(kind="timed_out", text="rank 2 did not come", rank=2)
    silent = Failure(kind="no_answer", text="stopped (T)", rank=2)
    assert merged(outcome(0, failure=waited), outcome(2, failure=silent)).failure == silent


def test_a_failed_probe_has_no_samples_even_if_one_rank_timed_it():
    measurement = merged(outcome(0), outcome(2, failure=Failure(kind="error", text="x")))
    assert measurement.samples == ()
    assert measurement.data_correct is None


def test_a_lost_agent_takes_the_blame_for_its_ranks():
    waited = Failure(kind="timed_out", text="rank 2 did not come", rank=2)
    failure = merged(outcome(0, failure=waited), lost={"node1": NoAnswer("no sign of life")}).failure
    assert (failure.kind, failure.rank) == ("no_answer", 2)
    assert "rank 2 sits on node1, whose agent was lost: no sign of life" in failure.text


def test_a_rank_that_nobody_asked_has_not_run():
    failure = merged(outcome(0)).failure
    assert (failure.kind, failure.rank) == ("not_run", 2)


def test_an_outcome_of_another_probe_does_not_count():
    other = make_probe((0, 3))
    assert merged(outcome(0, probe=other), outcome(2)).failure.kind == "not_run"


@pytest.mark.parametrize("kind", ["no_answer", "timed_out"])
def test_a_round_that_the_budget_cut_short_blames_nobody_for_silence(kind):
    silent = Measurement(probe=PAIR, failure=Failure(kind=kind, text="x", rank=2))
    hung = Incident(kind="worker_hung", text="rank 2 was silent", phase="", at_s=0, rank=2)
    result = cut_short(RoundResult(measurements=(silent,), incidents=(hung,)))
    assert result.measurements[0].failure == Failure(kind="not_run", text="the budget ended during this probe")
    assert result.incidents[0].kind == "budget_ended"


@pytest.mark.parametrize("kind", ["crashed", "wrong_data", "error"])
def test_a_round_that_the_budget_cut_short_keeps_what_went_wrong_for_certain(kind):
    failed = Measurement(probe=PAIR, failure=Failure(kind=kind, text="x", rank=2))
    died = Incident(kind="worker_died", text="x", phase="", at_s=0, rank=2)
    result = RoundResult(measurements=(failed, Measurement(probe=make_probe((1, 3)))), incidents=(died,))
    assert cut_short(result) == result


def test_many_ranks_get_more_time_to_meet_within_bounds():
    few, many = (make_probe((0, 1)),), (make_probe(tuple(range(1000))),)
    for backend in ("gloo", "nccl"):
        assert timeout_s(backend, few) < timeout_s(backend, many) <= timeout_s(backend, few) + 25


def test_ranks_that_measure_alone_wait_for_no_rendezvous_however_many_they_are():
    """Else one GPU that hangs in its matrix product holds up a large run for a minute and a half."""
    alone = [alone_probe(rank, "matmul", "nccl") for rank in range(256)]
    assert timeout_s("nccl", tuple(alone)) == timeout_s("nccl", tuple(alone[:1]))


class Agents:
    """Agents that answer as told, in the place of their clients: a reply, or an error to raise."""

    def __init__(self, **answers: dict[str, object]) -> None:
        self.asked: list[tuple[str, str]] = []
        self.clients = {node: Said(self, node, told) for node, told in answers.items()}


class Said:
    """One of them. It shows no sign of life beside its answers."""

    where = "127.0.0.1:9"
    session = None

    def __init__(self, agents: Agents, node: str, told: dict[str, object]) -> None:
        self.agents, self.node, self.told = agents, node, told

    alive = False

    async def is_there(self) -> bool:
        return self.alive

    async def call_watched(self, path, request, kind, deadline_s):
        return await self.call(path, request, kind, deadline_s)

    async def call(self, path, request, kind, deadline_s):
        self.agents.asked.append((self.node, path))
        answer = self.told[path]
        if isinstance(answer, Exception):
            raise answer
        return answer


STORE = api.StoreReply(address="127.0.0.1", port=9)
GONE = NoAnswer("no answer")


def healthy(*ranks: int) -> dict[str, object]:
    return {
        "/v1/store": STORE,
        "/v1/round": api.RoundReply(outcomes=tuple(outcome(rank) for rank in ranks)),
        "/v1/end": api.EndReply(),
    }


def run(agents: Agents, alive: bool = False) -> RoundResult:
    runner = RoundRunner("r", "gloo", NODES, agents.clients)
    for client in agents.clients.values():
        client.alive = alive
    return asyncio.run(runner.run((PAIR,), 30))


def test_a_round_asks_each_node_once_and_ends_its_rendezvous():
    agents = Agents(node0=healthy(0), node1=healthy(2))
    result = run(agents)
    assert result.measurements[0].samples
    assert result.incidents == ()
    assert agents.asked == [
        ("node0", "/v1/store"),
        ("node0", "/v1/round"),
        ("node1", "/v1/round"),
        ("node0", "/v1/end"),
    ]


def test_a_node_that_is_lost_in_a_round_is_named_and_costs_its_pair():
    agents = Agents(node0=healthy(0), node1={"/v1/round": GONE})
    result = run(agents)
    assert result.lost_nodes == ("node1",)
    assert [(i.kind, i.node) for i in result.incidents] == [("agent_lost", "node1")]
    assert result.measurements[0].failure.rank == 2


def test_the_next_node_hosts_the_rendezvous_when_the_first_can_not():
    agents = Agents(node0={**healthy(0), "/v1/store": GONE}, node1=healthy(2))
    result = run(agents, alive=True)
    assert result.measurements[0].samples
    assert result.lost_nodes == ()
    assert [(i.kind, i.node) for i in result.incidents] == [("store_lost", "node0")]
    assert agents.asked[-1] == ("node1", "/v1/end")


def test_without_any_rendezvous_nothing_ran_and_no_rank_is_blamed():
    agents = Agents(node0={"/v1/store": GONE}, node1={"/v1/store": GONE})
    result = run(agents, alive=True)
    assert result.measurements[0].failure == Failure(kind="not_run", text="no agent could host the rendezvous")
    assert {i.kind for i in result.incidents} == {"store_lost"}


def test_an_agent_that_is_there_and_whose_answer_came_too_late_is_not_lost_and_no_rank_is_blamed():
    agents = Agents(node0=healthy(0), node1={"/v1/round": AnswerLate("no answer within 23 s; yet it is there")})
    result = run(agents, alive=True)
    assert result.lost_nodes == ()
    assert result.incidents == ()
    assert (result.measurements[0].failure.kind, result.measurements[0].failure.rank) == ("timed_out", None)


def test_an_agent_that_works_for_another_run_is_busy_not_lost():
    agents = Agents(node0=healthy(0), node1={"/v1/round": AgentBusy("works for run x")})
    assert [i.kind for i in run(agents).incidents] == ["agent_busy"]


def test_an_agent_that_is_there_and_can_not_do_what_it_is_asked_to_says_nothing_of_its_node():
    agents = Agents(node0=healthy(0), node1={"/v1/round": TransportError("the agent failed: KeyError")})
    result = run(agents, alive=True)
    assert [(i.kind, i.node) for i in result.incidents] == [("agent_error", "node1")]
    assert result.lost_nodes == ("node1",)
    assert (result.measurements[0].failure.kind, result.measurements[0].failure.rank) == ("not_run", 2)


def test_a_round_whose_ranks_each_measure_alone_needs_no_rendezvous():
    alone = tuple(make_probe((rank,), collective="host_to_device", subject=f"gpu {rank}") for rank in (0, 2))
    answers = {
        node: {"/v1/round": api.RoundReply(outcomes=(outcome(rank, probe=probe),))}
        for node, rank, probe in (("node0", 0, alone[0]), ("node1", 2, alone[1]))
    }
    agents = Agents(**answers)
    result = asyncio.run(RoundRunner("r", "gloo", NODES, agents.clients).run(alone, 30))
    assert all(m.samples for m in result.measurements)
    assert agents.asked == [("node0", "/v1/round"), ("node1", "/v1/round")]


def test_each_node_is_sent_the_probes_that_it_takes_part_in_and_how_many_ranks_there_are():
    agents = Agents(node0=healthy(0, 1), node1=healthy(2))
    probes = (make_probe((0, 2)), make_probe((1, 3)))
    nodes = {0: "node0", 1: "node1", 2: "node1", 3: "node2"}
    agents.clients["node2"] = agents.clients["node1"]
    sent = {}

    class Watched:
        def __init__(self, name, client):
            self.name, self.client = name, client

        async def call_watched(self, path, request, kind, deadline_s):
            if path == "/v1/round":
                sent[self.name] = ([probe.subject for probe in request.probes], request.num_tasks)
            return await self.client.call(path, request, kind, deadline_s)

        call, is_there = call_watched, None

    clients = {name: Watched(name, client) for name, client in agents.clients.items()}
    asyncio.run(RoundRunner("r", "gloo", nodes, clients).run(probes, 30))
    assert sent == {
        "node0": (["pair 0-2"], 4),
        "node1": (["pair 0-2", "pair 1-3"], 4),
        "node2": (["pair 1-3"], 4),
    }


def test_a_node_whose_rendezvous_was_missed_before_hosts_only_when_asked_to():
    agents = Agents(node0=healthy(0), node1=healthy(2))
    runner = RoundRunner("r", "gloo", NODES, agents.clients)
    runner.host_trouble["node0"] += 1
    assert asyncio.run(runner.run((PAIR,), 30)).host == "node1"
    assert asyncio.run(runner.run((PAIR,), 30, ("node0",))).host == "node0"


def at_work(rank: int, stage: str = "first operation") -> Failure:
    return Failure(kind="no_answer", text=f"rank {rank} gave no answer", rank=rank, stage=stage)


def test_a_probe_whose_ranks_were_all_at_work_at_the_deadline_is_slow_and_points_at_none_of_them():
    measurement = merged(outcome(0, failure=at_work(0)), outcome(2, failure=at_work(2)))
    assert (measurement.failure.kind, measurement.failure.rank) == ("timed_out", None)
    assert measurement.failure.stage == "first operation"
    hung = [
        Incident(kind="worker_hung", text="x", phase="", at_s=0, rank=rank, probe=key)
        for rank, key in ((0, PAIR.key), (1, "another"))
    ]
    assert [i.kind for i in only_slow(hung, [measurement])] == ["worker_slow", "worker_hung"]


@pytest.mark.parametrize(
    "other", [Failure(kind="timed_out", text="x", stage="first operation"), at_work(2, "rendezvous"), None]
)
def test_a_rank_that_alone_gave_no_answer_is_the_one_that_hung(other):
    assert merged(outcome(0, failure=at_work(0)), outcome(2, failure=other)).failure.rank == 0


def test_a_rank_that_hung_in_what_it_does_alone_is_not_merely_slow():
    alone = make_probe((0,), collective="matmul", subject="gpu 0")
    assert merged(outcome(0, probe=alone, failure=at_work(0)), probe=alone).failure.rank == 0


def test_a_connection_that_the_other_side_closed_when_its_time_was_over_tells_less_than_the_time_out():
    late = Failure(kind="timed_out", text="waited in vain", stage="first operation")
    closed = Failure(kind="error", text="RuntimeError: Connection closed by peer [10.0.0.2]", stage="first operation")
    for first, second in ((late, closed), (closed, late)):
        assert merged(outcome(0, failure=first), outcome(2, failure=second)).failure == late
    broken = Failure(kind="error", text="CUDA error: an illegal memory access was encountered")
    assert merged(outcome(0, failure=late), outcome(2, failure=broken)).failure == broken


@pytest.mark.parametrize("state", ["is stopped (T)", "is in uninterruptible sleep (D)"])
@pytest.mark.parametrize("stopped", [0, 2])
def test_a_rank_whose_process_stands_still_is_not_slow_but_hung_and_its_partner_only_waited_for_it(stopped, state):
    waiting = 2 - stopped
    still = msgspec.structs.replace(at_work(stopped), text=f"rank {stopped} gave no answer and {state}")
    failures = {stopped: still, waiting: at_work(waiting)}
    measurement = merged(*(outcome(rank, failure=failures[rank]) for rank in (0, 2)))
    assert (measurement.failure.kind, measurement.failure.rank) == ("no_answer", stopped)
    told = [
        Incident(kind="worker_hung", text=failures[rank].text, phase="", at_s=0, rank=rank, probe=PAIR.key)
        for rank in (stopped, waiting)
    ]
    assert [i.kind for i in only_slow(told, [measurement])] == ["worker_hung", "worker_slow"]
