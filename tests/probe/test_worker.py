"""Real workers over gloo: what they measure, whom they name when somebody does not come, and what a lost rendezvous costs."""

import asyncio
import os
import signal
import time
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


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"])
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


def test_a_one_way_send_is_timed_by_both_and_verified_by_its_receiver(agent):
    outcomes = agent.round(asked((2, 0), "send"))
    assert {rank: outcome.data_correct for rank, outcome in outcomes.items()} == {0: True, 2: True}
    assert all(len(outcome.samples.durations_s) >= 3 for outcome in outcomes.values())


def test_a_skewed_all_to_all_moves_what_its_split_says(agent):
    probe = msgspec.structs.replace(asked((0, 1, 2), "all_to_all", subject="ep0"), split=(0.6, 0.3, 0.1))
    assert {outcome.data_correct for outcome in agent.round(probe).values()} == {True}


def test_what_a_rank_does_alone_needs_no_rendezvous(agent):
    probes = [
        msgspec.structs.replace(asked((rank,), op, subject=f"gpu {rank}"), flops=2 * 128**3 if op == "matmul" else 0)
        for rank, op in enumerate(("matmul", "host_to_device", "device_to_host"))
    ]
    request = RoundRequest(
        run_id="run", prefix="alone", backend="gloo", probes=tuple(probes), store_address="", store_port=0,
        num_tasks=3, timeout_s=5, deadline_s=20,
    )  # fmt: skip
    reply = agent.do(agent.pool.run_round(request))
    assert reply.incidents == ()
    for outcome in reply.outcomes:
        assert outcome.failure is None
        assert outcome.data_correct is True
        assert outcome.members == (outcome.rank,)
        assert outcome.samples.join_s is None
        assert outcome.transport == "host memory of this machine, no GPU"
        assert outcome.told is None


async def _stop_in(agent: Agent, rank: int, stage: str, request: RoundRequest):
    """SIGSTOP to a rank's worker as soon as it says that it is in that stage; the round's reply."""
    running = asyncio.ensure_future(agent.pool.run_round(request))
    page, child = agent.pool.pages[rank], agent.pool.workers[rank]
    while (crumb := page.read()) is None or crumb.stage != stage:  # noqa: ASYNC110 - another process says it
        await asyncio.sleep(0.001)
    os.kill(child.pid, signal.SIGSTOP)
    return await running


def test_a_hang_is_located_by_the_crumbs_that_its_worker_left(agent):
    probe = msgspec.structs.replace(asked((0, 1), "send_recv"), loop_s=30)
    request = msgspec.structs.replace(agent.request(agent.store(), (probe,), 1.5), deadline_s=5)
    reply = agent.do(_stop_in(agent, 1, "operation", request))
    outcomes = {outcome.rank: outcome for outcome in reply.outcomes}
    hung = outcomes[1].failure
    assert (hung.kind, hung.rank) == ("no_answer", 1)
    assert "rank 1 hung in " in hung.text
    assert "of pair 0-1 (send_recv with rank 0)" in hung.text
    assert "stopped (T)" in hung.text
    assert hung.stage in {"operation", "agreement", "verification"}
    [incident] = reply.incidents
    assert (incident.kind, incident.rank, incident.text) == ("worker_hung", 1, hung.text)
    assert (outcomes[0].failure.kind, outcomes[0].failure.rank) == ("timed_out", None)
    assert "rank 0 waited in vain in " in outcomes[0].failure.text
    assert agent.round(asked((0, 1)))[1].data_correct is True


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGKILL, "worker_died"), (signal.SIGSTOP, "worker_hung")])
def test_a_worker_that_ends_or_hangs_in_teardown_is_replaced_and_its_next_probe_works(agent, number, kind):
    """Its results were in: the probe keeps them, and the next one is given to another worker."""
    from preflight.probe.breadcrumbs import Page, Trail

    child, page = agent.pool.workers[2], Page()
    trail = Trail(page.descriptor, 2)
    trail.task = agent.pool.tasks
    trail.at("teardown")
    agent.pool.pages[2].close()
    agent.pool.pages[2] = page
    os.kill(child.pid, number)
    reply = agent.do(agent.pool.run_round(agent.request(agent.store(), (asked((2, 3)),), 12)))
    assert [outcome.failure for outcome in reply.outcomes] == [None, None]
    [incident] = reply.incidents
    assert (incident.kind, incident.rank, incident.probe) == (kind, 2, None)
    assert "after its results were in" in incident.text
    assert agent.pool.workers[2].pid != child.pid


def test_a_rendezvous_that_hangs_is_no_fault_of_the_rank_that_waits_for_it(agent):
    store = agent.store()
    os.kill(agent.pool.store.pid, signal.SIGSTOP)
    request = msgspec.structs.replace(agent.request(store, (asked((0, 1)),), 1), deadline_s=3)
    began = time.monotonic()
    reply = agent.do(agent.pool.run_round(request))
    assert time.monotonic() - began < 20
    assert {incident.kind for incident in reply.incidents} == {"store_lost"}, reply.incidents
    assert {outcome.failure.rank for outcome in reply.outcomes} == {None}
    assert agent.round(asked((0, 1)))[1].data_correct is True
