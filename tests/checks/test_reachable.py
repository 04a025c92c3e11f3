"""reachable names who did not answer, over runs that repeat and confirm as the coordinator does."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.fleet.backend import Choice
from preflight.fleet.probing import Probing
from preflight.fleet.rounds import RoundResult
from preflight.fleet.state import RunState
from preflight.fleet.task import Request
from preflight.fleet.world import World as RunWorld
from preflight.model import Evidence, Failure, Finding, Incident, Measurement, Plan, Probe, Verdict
from preflight.probe.schedule import Round, full_schedule, pair_probe
from preflight_checks.reachable import CHECK
from tests.builders import make_measurement, make_plan
from tests.fleet.agendas import Rounds, nothing_asked

# a probe and how often its subject ran before -> what its ranks saw; None: it worked
World = Callable[[Probe, int], Failure | None]


class Run:
    """The coordinator's own rounds, repetitions and trials over a world that answers as told."""

    def __init__(
        self,
        plan: Plan,
        world: World,
        hung: Callable[[Probe], set[int]] = lambda _: set(),
        seconds: Callable[[Probe], float] = lambda _: 0.1,
    ) -> None:
        self.plan, self.world, self.hung, self.seconds = plan, world, hung, seconds
        request = Request(run_id="r", job=plan.job, agents=(), key=b"", budget_s=1e9)
        self.state = RunState(request, lambda *_: None, asyncio.Event(), RunWorld())
        self.state.plan = plan
        self.state.choice = Choice(backend="gloo", reason="test", cpu_declared=True, gpus={})
        probing = Probing(self.state, Rounds(full_schedule(plan, "gloo")), nothing_asked)
        probing.runner = self  # type: ignore[assignment]
        self.host_trouble: Counter[str] = Counter()
        asyncio.run(probing.run())
        self.measurements, self.incidents = self.state.measurements, self.state.incidents
        self.left_out = set(self.state.left_out)

    def longest_s(self, probes: Round) -> float:
        return 1.0

    async def run(self, probes: Round, deadline_s: float, hosts=()) -> RoundResult:
        answers = [self.answer(probe, self.ran(probe)) for probe in probes]
        incidents = [i for m in answers for i in self.seen_by_agents(m)]
        return RoundResult(measurements=tuple(answers), incidents=tuple(incidents))

    def ran(self, probe: Probe) -> int:
        return len([m for m in self.state.measurements if m.probe.subject == probe.subject])

    def answer(self, probe: Probe, ran: int) -> Measurement:
        failure = self.world(probe, ran)
        if failure:
            return Measurement(probe=probe, failure=failure)
        rate = probe.size_bytes / self.seconds(probe)
        good = make_measurement(probe.ranks, algbw_bytes_per_s=rate, size_bytes=probe.size_bytes)
        return msgspec.structs.replace(good, probe=probe)

    def seen_by_agents(self, m: Measurement) -> Iterator[Incident]:
        if m.failure and m.failure.kind in {"no_answer", "crashed"}:
            for rank in self.hung(m.probe) or {m.failure.rank}:
                yield incident(rank, "worker_hung" if m.failure.kind == "no_answer" else "worker_died", m.probe.key)

    def judged(self, *more: Incident) -> dict[str, Finding]:
        return judged(self.plan, self.measurements, (*self.incidents, *more))


def judged(plan: Plan, measurements, incidents=()) -> dict[str, Finding]:
    evidence = Evidence(plan=plan, measurements=tuple(measurements), incidents=tuple(incidents))
    found = list(CHECK.judge(evidence))
    assert len({f.subject for f in found}) == len(found)
    return {f.subject: f for f in found}


def incident(rank: int | None, kind: str, probe: str | None = None, node: str = "node0") -> Incident:
    return Incident(kind=kind, text=f"{kind} of {rank}", phase="probing", at_s=1, node=node, rank=rank, probe=probe)


def plan_of(nodes: int = 2, per_node: int = 4) -> Plan:
    return make_plan(tp=per_node, dp=nodes, nodes=nodes, gpus_per_node=per_node, gpu=None)


def no_answer(rank: int) -> Failure:
    return Failure(kind="no_answer", text=f"rank {rank} gave no answer", rank=rank)


def missing(rank: int) -> Failure:
    return Failure(kind="timed_out", text=f"rank {rank} did not come to the rendezvous", rank=rank)


REFUSED = Failure(kind="error", text="connection refused")


def bad(found: dict[str, Finding]) -> dict[str, Verdict]:
    return {subject: f.verdict for subject, f in found.items() if f.verdict is not Verdict.PASS}


def test_a_run_in_which_all_works_passes_in_one_finding():
    found = Run(plan_of(), lambda *_: None).judged()
    assert list(found) == ["ranks"]
    assert found["ranks"].observed == "8 of 8 ranks on 2 nodes answered every time"


@settings(max_examples=40, deadline=None)
@given(
    rank=st.integers(0, 15),
    nodes=st.integers(2, 4),
    answer=st.sampled_from([no_answer, missing]),
    start=st.integers(0, 1),
)
def test_a_rank_that_never_answers_again_is_named_and_nobody_else(rank, nodes, answer, start):
    """From the beginning, or from the second time a probe is run."""
    rank %= 4 * nodes
    run = Run(plan_of(nodes), lambda p, ran: answer(rank) if rank in p.ranks and (ran >= start) else None)
    assert bad(run.judged()) == {f"rank {rank}": Verdict.FAIL}
    assert run.judged()[f"rank {rank}"].blames.name == f"rank {rank} on node{rank // 4}"
    assert run.left_out == {rank}


@settings(max_examples=40, deadline=None)
@given(data=st.data(), answer=st.sampled_from([no_answer, missing]))
def test_a_rank_that_did_not_answer_once_and_recovered_is_never_a_failure(data, answer):
    plan = plan_of()
    probes = [p for probes in full_schedule(plan, "gloo") for p in probes]
    victim = data.draw(st.sampled_from(probes))
    rank = data.draw(st.sampled_from(victim.ranks))
    run = Run(plan, lambda p, _: answer(rank) if p.key == victim.key else None)
    expected = Verdict.UNKNOWN if answer is no_answer else Verdict.WARN
    assert bad(run.judged()) == {f"rank {rank}": expected}
    assert run.judged()[f"rank {rank}"].blames is None


@settings(max_examples=40, deadline=None)
@given(data=st.data(), failure=st.sampled_from([REFUSED, no_answer, missing]))
def test_a_pair_that_only_fails_with_itself_is_blamed_as_the_pair(data, failure):
    """Whomever the failure names: both ranks work with others. A group of just these two can't be blamed on anything."""
    pair = tuple(sorted(data.draw(st.sampled_from(list(combinations(range(8), 2))))))
    said = failure if isinstance(failure, Failure) else failure(data.draw(st.sampled_from(pair)))
    found = Run(plan_of(), lambda p, _: said if p.ranks == pair else None).judged()
    groups = {f"dp{pair[0]}": Verdict.UNKNOWN} if pair[1] - pair[0] == 4 else {}
    assert bad(found) == {f"pair {pair[0]}-{pair[1]}": Verdict.FAIL, **groups}
    assert found[f"pair {pair[0]}-{pair[1]}"].blames.kind == "link"


def test_two_ranks_that_hang_together_once_and_both_recover_are_unknown_each():
    key = pair_probe((1, 5), "gloo", 0).key
    run = Run(plan_of(), lambda p, _: no_answer(1) if p.key == key else None, hung=lambda _: {1, 5})
    assert bad(run.judged()) == {"rank 1": Verdict.UNKNOWN, "rank 5": Verdict.UNKNOWN}


def test_of_two_ranks_that_hung_together_the_one_that_goes_on_hanging_explains_both():
    """The first failure names rank 1, because it comes first; its agent saw rank 1 hang, the other goes on seeing rank 5 hang."""
    first = pair_probe((1, 5), "gloo", 0).key
    before: list[str] = []

    def world(p: Probe, _: int) -> Failure | None:
        before.append(p.key)
        if p.key == first:
            return no_answer(1)
        return no_answer(5) if 5 in p.ranks and first in before else None

    found = Run(plan_of(), world, hung=lambda p: {1, 5} if p.key == first else {5}).judged()
    assert bad(found) == {"rank 5": Verdict.FAIL}
    assert found["ranks"].observed.startswith("6 of 8")


def test_a_partner_whose_timeout_names_the_rank_that_hung_is_not_blamed():
    """Rank 6 hung before it came: its partners could only say that it did not come."""
    found = Run(plan_of(), lambda p, _: missing(6) if 6 in p.ranks else None).judged(incident(6, "worker_hung"))
    assert bad(found) == {"rank 6": Verdict.FAIL}


def test_a_rank_whose_worker_could_not_be_replaced_is_named_and_its_partners_that_then_did_not_run_are_not():
    plan = plan_of()
    run = Run(plan, lambda p, _: Failure(kind="crashed", text="killed by SIGSEGV", rank=3) if 3 in p.ranks else None)
    run.measurements += [
        Measurement(probe=pair_probe((a, 3), "gloo", 1), failure=Failure(kind="not_run", text="no worker", rank=3))
        for a in range(3)
    ]
    found = run.judged(incident(3, "worker_not_started"))
    assert bad(found) == {"rank 3": Verdict.FAIL}
    assert "did not start" in found["rank 3"].observed


def test_a_rank_that_was_replaced_in_vain_after_good_measurements_is_not_called_recovered():
    plan = plan_of()
    good = Run(plan, lambda *_: None).measurements
    found = judged(plan, good, [incident(3, "worker_died", good[-1].probe.key), incident(3, "worker_not_started")])
    assert bad(found) == {"rank 3": Verdict.FAIL}


@pytest.mark.parametrize("failure", [REFUSED, missing(5)])
def test_two_nodes_that_do_not_reach_each_other_blame_no_rank(failure):
    """All pairs inside work, all between fail: the ranks that the failures name are victims of the route."""

    def world(p: Probe, _: int) -> Failure | None:
        crosses = len({rank // 4 for rank in p.ranks}) > 1
        named = max(p.ranks) if failure.rank else None
        return msgspec.structs.replace(failure, rank=named) if crosses else None

    found = Run(plan_of(), world).judged()
    assert not [f for f in found.values() if f.blames and f.blames.kind in {"rank", "node"}]
    assert {f.verdict for s, f in found.items() if s != "ranks"} & {Verdict.FAIL, Verdict.UNKNOWN}


def test_a_group_that_fails_while_its_pairs_work_is_unknown_and_blames_nobody():
    found = Run(plan_of(), lambda p, _: REFUSED if p.subject == "tp1" else None).judged()
    assert bad(found) == {"tp1": Verdict.UNKNOWN}
    assert found["tp1"].blames is None


def test_a_failure_after_which_nothing_was_tried_is_unknown():
    plan = plan_of()
    good = Run(plan, lambda *_: None).measurements
    last = Measurement(probe=pair_probe((1, 5), "gloo", 2), failure=REFUSED)
    assert bad(judged(plan, [*good, last])) == {"pair 1-5": Verdict.UNKNOWN}
    last = Measurement(probe=pair_probe((1, 5), "gloo", 2), failure=missing(5))
    assert bad(judged(plan, [*good, last])) == {"rank 5": Verdict.UNKNOWN}


def test_in_a_world_of_two_ranks_a_failing_pair_blames_neither():
    plan = plan_of(2, 1)
    for failure in (REFUSED, missing(1), no_answer(0)):
        found = Run(plan, lambda *_, f=failure: f).judged()
        assert {f.verdict for f in found.values()} == {Verdict.UNKNOWN}
        assert {f.blames for f in found.values()} == {None}


def test_a_lost_agent_is_blamed_as_its_node_and_its_partners_are_not():
    run = Run(plan_of(3), lambda p, _: no_answer(5) if {4, 5, 6, 7} & {*p.ranks} else None)
    found = run.judged(incident(None, "agent_lost", node="node1"))
    assert bad(found) == {"node1": Verdict.FAIL}
    assert "ranks 4-7" in found["node1"].observed
    assert found["ranks"].observed.startswith("8 of 12 ranks on 2 nodes")


def test_a_lost_store_and_a_spent_budget_blame_nobody():
    plan = plan_of()
    good = Run(plan, lambda *_: None).measurements
    ended = Measurement(probe=pair_probe((0, 1), "gloo", 2), failure=Failure(kind="not_run", text="the budget ended"))
    found = judged(plan, [*good, ended], [incident(None, "store_lost"), incident(5, "budget_ended", node="node1")])
    assert bad(found) == {"node0": Verdict.UNKNOWN, "node1": Verdict.UNKNOWN}
    assert {f.blames for f in found.values()} == {None}
    assert found["ranks"].observed.startswith("8 of 8")


def test_a_rank_that_the_budget_never_reached_is_unknown():
    plan = plan_of()
    measured = [m for m in Run(plan, lambda *_: None).measurements if 7 not in m.probe.ranks]
    assert bad(judged(plan, measured)) == {"rank 7": Verdict.UNKNOWN}


def test_a_process_that_cannot_be_ended_is_told_though_no_rank_is_known():
    plan = plan_of()
    good = Run(plan, lambda *_: None).measurements
    found = judged(plan, good, [incident(None, "worker_unkillable", node="node1")])
    assert bad(found) == {"node1": Verdict.UNKNOWN}


@pytest.mark.parametrize("by_rank", [False, True])
def test_where_no_node_starts_a_worker_the_environment_is_named(by_rank):
    plan = plan_of()
    incidents = [
        incident(rank.rank if by_rank else None, "worker_not_started", node=rank.node)
        for rank in plan.placement.ranks
        if by_rank or rank.local_rank == 0
    ]
    found = judged(plan, [], incidents)
    assert bad(found) == {"workers": Verdict.UNKNOWN}
    assert found["workers"].blames.kind == "environment"


def test_where_workers_are_merely_late_on_all_nodes_more_time_is_the_remedy():
    late = [
        msgspec.structs.replace(
            incident(None, "worker_not_started", node=node), text="importing torch took more than 18.2 s"
        )
        for node in ("node0", "node1")
    ]
    assert "larger --budget" in judged(plan_of(), [], late)["workers"].remedy


def test_where_no_node_that_answers_starts_a_worker_only_the_lost_node_is_blamed():
    found = judged(plan_of(), [], [incident(None, "worker_not_started"), incident(None, "agent_lost", node="node1")])
    assert bad(found) == {"workers": Verdict.UNKNOWN, "node1": Verdict.FAIL}


def test_a_node_of_which_no_worker_starts_is_one_finding():
    plan = plan_of()
    good = [m for m in Run(plan, lambda *_: None).measurements if max(m.probe.ranks) < 4]
    found = judged(plan, good, [incident(rank, "worker_not_started", node="node1") for rank in range(4, 8)])
    assert bad(found) == {"node1": Verdict.FAIL}
    assert found["node1"].blames.kind == "node"


def test_one_rank_that_does_not_start_is_named_and_not_its_node():
    plan = plan_of()
    good = [m for m in Run(plan, lambda *_: None).measurements if 6 not in m.probe.ranks]
    found = judged(plan, good, [incident(6, "worker_not_started", node="node1")])
    assert bad(found) == {"rank 6": Verdict.FAIL}
    assert found["rank 6"].blames.kind == "rank"


LATE = Failure(kind="timed_out", text="timed out", stage="first operation")


def late_if_whole(slow: Callable[[Probe], bool]) -> World:
    """Where it is slow, whole messages are not over at the deadline."""
    return lambda p, _: LATE if slow(p) and p.size_name != "smaller" else None


def crossing(a: int, b: int) -> Callable[[Probe], bool]:
    return lambda p: {a, b} <= set(p.ranks)


def test_a_pair_at_a_hundredth_of_its_speed_is_slow_and_not_dead():
    run = Run(plan_of(3), late_if_whole(crossing(1, 5)), seconds=lambda p: 0.3 if crossing(1, 5)(p) else 0.005)
    found = run.judged()
    assert run.left_out == set()
    assert bad(found)["pair 1-5"] is Verdict.FAIL
    assert "slow, not dead" in found["pair 1-5"].observed
    assert "MB/s" in found["pair 1-5"].observed
    assert found["pair 1-5"].blames.kind == "link"
    assert {subject for subject, verdict in bad(found).items() if verdict is Verdict.FAIL} == {"pair 1-5"}


def test_a_slow_pair_costs_its_long_wait_once_and_is_measured_with_a_smaller_message_from_then_on():
    run = Run(plan_of(3), late_if_whole(crossing(1, 5)), seconds=lambda p: 0.3 if crossing(1, 5)(p) else 0.005)
    ours = [m for m in run.measurements if m.probe.subject == "pair 1-5"]
    assert [m.failure is not None for m in ours] == [True] + [False] * (len(ours) - 1)
    assert len(ours) > 2


def test_a_node_with_a_slow_way_out_blames_no_rank_and_no_pair():
    def slow(p: Probe) -> bool:
        return any(rank // 4 == 1 for rank in p.ranks) and len({rank // 4 for rank in p.ranks}) > 1

    run = Run(plan_of(3), late_if_whole(slow), seconds=lambda p: 0.3 if slow(p) else 0.005)
    found = run.judged()
    assert run.left_out == set()
    assert Verdict.FAIL not in bad(found).values()
    assert found["pairs"].verdict is Verdict.UNKNOWN
    assert "slow, not dead" in found["pairs"].observed


def test_a_message_that_was_late_once_is_only_worth_a_look():
    first = "pair 1-5"
    run = Run(plan_of(3), lambda p, ran: LATE if p.subject == first and ran == 0 else None, seconds=lambda _: 0.005)
    assert bad(run.judged()) == {"pair 1-5": Verdict.WARN}


def test_a_rank_that_fails_twice_in_what_it_does_alone_does_not_answer():
    plan = plan_of()
    alone = Probe(
        subject="gpu 3", axis=None, collective="matmul", ranks=(3,), size_bytes=2**20, size_source="test", flops=1
    )
    again = msgspec.structs.replace(alone, attempt=1)
    good = Run(plan, lambda *_: None).measurements
    hung = [Measurement(probe=p, failure=no_answer(3)) for p in (alone, again)]
    found = judged(plan, [*good, *hung])
    assert bad(found) == {"rank 3": Verdict.FAIL}
    assert "does not answer" in found["rank 3"].observed
    assert bad(judged(plan, [*good, *hung[:1]])) == {"rank 3": Verdict.UNKNOWN}


def test_the_partner_with_whom_a_silent_rank_was_tried_is_not_told_of():
    """What the partner's side of the trial says is that the partner is missing, since it can't be reached there."""
    plan = plan_of(3)
    missed: list[str] = []

    def world(p: Probe, _: int) -> Failure | None:
        if 5 not in p.ranks:
            return None
        missed.append(p.key)
        return missing(5) if len(missed) != 2 else missing(next(rank for rank in p.ranks if rank != 5))

    run = Run(plan, world)
    found = run.judged(incident(5, "worker_hung", missed[1], node="node1"))
    assert bad(found) == {"rank 5": Verdict.FAIL}
    assert run.left_out == {5}


def test_an_agent_that_is_there_and_unable_is_unknown_and_blames_no_node():
    found = Run(plan_of(), lambda *_: None).judged(incident(None, "agent_error", node="node1"))
    assert bad(found) == {"node1": Verdict.UNKNOWN}
    assert found["node1"].blames is None
