"""Real NCCL workers: every operation and its data, what NCCL says of its ways, clocks, a stopped rank survived. Several ranks share a GPU where only one is there."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.gpu.nccl_ranks import Ranks, outcomes, probe

pytestmark = [pytest.mark.gpu, pytest.mark.fabric, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    ranks = Ranks(2)
    if not ranks.gpus:
        pytest.skip("no GPU that NCCL can use")
    try:
        ranks.start()
        yield ranks
    finally:
        ranks.close()


@pytest.mark.parametrize(
    "collective", ["send_recv", "send", "all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
)
def test_two_ranks_time_an_operation_and_find_its_data_right(ranks, collective):
    found = outcomes(ranks.round(probe((0, 1), collective)))
    assert {rank: outcome.failure for rank, outcome in found.items()} == {0: None, 1: None}
    for outcome in found.values():
        assert outcome.data_correct is True
        assert outcome.members == (0, 1)
        assert min(outcome.samples.durations_s) > 0
    assert len({(len(o.samples.durations_s), o.samples.window) for o in found.values()}) == 1


def test_a_skewed_all_to_all_moves_right_data(ranks):
    found = outcomes(ranks.round(probe((0, 1), "all_to_all", split=(0.7, 0.3))))
    assert [outcome.data_correct for outcome in found.values()] == [True, True]


def test_nccl_tells_its_ways_its_version_and_the_settings_in_force(ranks):
    found = outcomes(ranks.round(probe((0, 1), "all_reduce")))
    told = [outcome.told for outcome in found.values()]
    assert all(told)
    assert {(way.sender, way.receiver) for each in told for way in each.routes} >= {(0, 1), (1, 0)}
    assert all(each.version and each.blocking is not None for each in told)
    if ranks.shared:
        assert {way.kind for each in told for way in each.routes} == {"NET"}
        assert told[0].settings["NCCL_NET"] == "Socket"


@pytest.mark.parametrize("collective", ["matmul", "host_to_device", "device_to_host"])
def test_a_gpu_alone_computes_and_copies_right_data_and_its_clocks_are_read(ranks, collective):
    flops = 2 * 4096**3 if collective == "matmul" else 0
    found = outcomes(ranks.round(probe((0,), collective, flops=flops, size_bytes=64 * 2**20)))
    assert found[0].failure is None
    assert found[0].data_correct is True
    assert found[0].around.before.sm_mhz > 0
    assert found[0].around.after.sm_mhz > 0


def test_a_member_that_never_comes_costs_its_partner_the_rendezvous_and_no_more(ranks):
    began = time.monotonic()
    found = outcomes(ranks.round(probe((0, 9), "send_recv"), timeout_s=2, deadline_s=30))
    assert found[0].failure.rank == 9
    assert time.monotonic() - began < 30
    assert outcomes(ranks.round(probe((0, 1), "send_recv")))[0].failure is None


def test_a_stopped_rank_is_named_and_survived(ranks):
    """Its partner is free in bounded time, both are replaced, and the next round works."""

    async def stop_in_the_middle():
        running = asyncio.ensure_future(ranks.begin(probe((0, 1), "send_recv", loop_s=30), timeout_s=10, deadline_s=30))
        page, child = ranks.pools[1].pages[1], ranks.pools[1].workers[1]
        while (crumb := page.read()) is None or crumb.stage != "operation":  # noqa: ASYNC110 - another process says it
            await asyncio.sleep(0.001)
        os.kill(child.pid, signal.SIGSTOP)
        return await running

    began = time.monotonic()
    found = outcomes(ranks.do(stop_in_the_middle()))
    assert time.monotonic() - began < 60
    assert (found[1].failure.kind, found[1].failure.rank) == ("no_answer", 1)
    assert "stopped (T)" in found[1].failure.text
    assert found[0].failure is not None
    again = outcomes(ranks.round(probe((0, 1), "all_reduce")))
    assert [outcome.failure for outcome in again.values()] == [None, None]
