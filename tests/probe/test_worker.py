"""Real workers over gloo: what they measure, whom they name when somebody does not come, and what a lost rendezvous costs."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from itertools import count

import msgspec
import pytest

from preflight.fleet.api import RankOutcome, RoundRequest, StartRequest, StoreReply, WorkerSpec
from preflight.fleet.workers import Pool
from preflight.model import Collective, Probe
from tests.builders import make_probe

pytestmark = [pytest.mark.fabric, pytest.mark.timeout(120)]

NOBODY = 9  # a rank that no agent carries


class Agent:
    """One agent's pool of four workers, and an event loop that lives as long."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.numbers = count()
        self.pool = Pool("node0", "127.0.0.1", None)

    def do(self, work):
        return self.loop.run_until_complete(work)

    def start(self) -> None:
        workers = tuple(WorkerSpec(rank=rank) for rank in range(4))
        reply = self.do(self.pool.start(StartRequest(run_id="run", workers=workers, deadline_s=60)))
        assert reply.ready == (0, 1, 2, 3), reply.incidents

    def close(self) -> None:
        assert self.do(self.pool.stop()) == ()
        self.loop.close()

    def store(self) -> StoreReply:
        return self.do(self.pool.host_store(20))

    def request(self, store: StoreReply, probes: tuple[Probe, ...], timeout_s: float) -> RoundRequest:
        return RoundRequest(
            run_id="run",
            prefix=f"round {next(self.numbers)}",
            backend="gloo",
            probes=probes,
            store_address=store.address,
            store_port=store.port,
            num_tasks=sum(len(probe.ranks) for probe in probes),
            timeout_s=timeout_s,
            deadline_s=timeout_s + 20,
        )

    def round(self, *probes: Probe, timeout_s: float = 10) -> dict[int, RankOutcome]:
        reply = self.do(self.pool.run_round(self.request(self.store(), probes, timeout_s)))
        assert reply.incidents == ()
        return {outcome.rank: outcome for outcome in reply.outcomes}


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    agent = Agent()
    try:
        agent.start()
        yield agent
    finally:
        agent.close()


def asked(ranks: tuple[int, ...], collective: Collective = "all_reduce", subject: str | None = None) -> Probe:
    probe = make_probe(ranks, collective=collective, size_bytes=3 * 2**16, subject=subject)
    return msgspec.structs.replace(probe, loop_s=0.02)


def client(store: StoreReply, prefix: str):
    """What the test itself sees of a round's rendezvous."""
    import torch.distributed as dist

    tcp = dist.TCPStore(
        store.address, store.port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=10)
    )
    return dist.PrefixStore(prefix, tcp)


@pytest.mark.parametrize("collective", ["all_reduce", "all_to_all", "send_recv"])
@pytest.mark.parametrize("ranks", [(0, 1), (1, 2, 3), (0, 1, 2, 3), (3, 1)], ids=str)
def test_every_rank_times_the_same_windows_and_finds_the_data_right(agent, collective, ranks):
    outcomes = agent.round(asked(ranks, collective))
    assert set(outcomes) == set(ranks)
    for rank, outcome in outcomes.items():
        assert outcome.failure is None
        assert outcome.data_correct is True
        assert outcome.members == ranks
        assert outcome.transport == "gloo over 127.0.0.1"
        assert outcome.samples.rank == rank
        assert outcome.samples.first_call_s > 0
        assert outcome.samples.join_s > 0
        assert min(outcome.samples.durations_s) > 0
    assert len({(len(o.samples.durations_s), o.samples.window) for o in outcomes.values()}) == 1
    assert len(outcomes[ranks[0]].samples.durations_s) >= 3


def test_two_pairs_of_one_round_do_not_mix(agent):
    outcomes = agent.round(asked((0, 1), "send_recv"), asked((2, 3), "send_recv"))
    assert {rank: outcome.members for rank, outcome in outcomes.items()} == {
        0: (0, 1),
        1: (0, 1),
        2: (2, 3),
        3: (2, 3),
    }
    assert all(outcome.data_correct for outcome in outcomes.values())


def test_a_rank_that_never_comes_is_named_by_all_others_and_costs_only_its_own_probe(agent):
    outcomes = agent.round(asked((0, NOBODY, 1)), asked((2, 3), "send_recv"), timeout_s=1.5)
    for rank in (0, 1):
        assert outcomes[rank].failure.kind == "timed_out"
        assert outcomes[rank].failure.rank == NOBODY
        assert "did not come" in outcomes[rank].failure.text
        assert outcomes[rank].samples is None
    for rank in (2, 3):
        assert outcomes[rank].failure is None
        assert outcomes[rank].data_correct is True


def test_a_worker_works_on_after_a_failed_probe(agent):
    agent.round(asked((0, NOBODY)), timeout_s=0.5)
    assert agent.round(asked((0, 1)))[0].data_correct is True


def test_a_communicator_of_other_ranks_than_planned_is_refused_by_all(agent):
    """Ranks 0 and 2 were each told that they meet somebody else, who even checked in; they meet one another."""
    store = agent.store()
    request = agent.request(store, (asked((0, NOBODY), subject="tp0"), asked((NOBODY + 1, 2), subject="tp0")), 5)
    for absent in (NOBODY, NOBODY + 1):
        client(store, request.prefix).set(f"here/tp0/{absent}", "1")
    reply = agent.do(agent.pool.run_round(request))
    planned = {0: (0, NOBODY), 2: (NOBODY + 1, 2)}
    assert {outcome.rank for outcome in reply.outcomes} == {0, 2}
    for outcome in reply.outcomes:
        assert outcome.failure.kind == "error"
        assert outcome.failure.rank is None
        assert outcome.failure.text == f"the communicator holds ranks (0, 2), planned were {planned[outcome.rank]}"
        assert outcome.samples is None


def test_a_rendezvous_that_is_lost_while_ranks_wait_names_none_of_them(agent):
    async def lose(request: RoundRequest):
        running = asyncio.ensure_future(agent.pool.run_round(request))
        for rank in (0, 1):  # both are there, and wait for NOBODY
            key = f"here/pair 0-1/{rank}"
            await asyncio.to_thread(seen.wait, [key], timedelta(seconds=20))
        await agent.pool.end_store()
        return await running

    store = agent.store()
    request = agent.request(store, (asked((0, 1, NOBODY)),), 15)
    seen = client(store, request.prefix)
    reply = agent.do(lose(request))
    for outcome in reply.outcomes:
        assert outcome.failure is not None
        assert outcome.failure.kind == "error"
        assert outcome.failure.rank is None


def test_a_rank_whose_worker_ended_before_is_told_of_and_gets_another(agent):
    child = agent.pool.workers.pop(3)
    try:
        reply = agent.do(agent.pool.run_round(agent.request(agent.store(), (asked((2, 3)),), 1)))
    finally:
        agent.do(child.kill())
    outcomes = {outcome.rank: outcome for outcome in reply.outcomes}
    assert (outcomes[3].failure.kind, outcomes[3].failure.rank) == ("crashed", 3)
    assert outcomes[2].failure.rank == 3
    assert agent.round(asked((2, 3)))[3].data_correct is True  # it was replaced


def test_an_outcome_without_a_failure_has_everything(agent):
    """What merging relies on: either a failure, or samples and members."""
    for outcome in agent.round(asked((0, 1), "send_recv"), asked((2, NOBODY)), timeout_s=1).values():
        assert (outcome.failure is None) == (outcome.samples is not None) == bool(outcome.members)
