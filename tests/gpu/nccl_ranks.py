"""Real NCCL ranks for tests: one GPU each where there are enough, else several on one GPU, which NCCL then takes for GPUs of different hosts.

NCCL refuses two ranks of a communicator on one GPU of one host, and tells hosts apart by NCCL_HOSTID; from 2.30 on NCCL_MULTI_RANK_GPU_ENABLE allows them. So ranks that share a GPU get both, and
talk over sockets of the loopback interface. Each is forked from a zygote of its own, since the variables have to be there before NCCL is used.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import msgspec

from preflight.discover.node import discover_node
from preflight.fleet.api import RankOutcome, RoundReply, RoundRequest, StartRequest, WorkerSpec
from preflight.fleet.workers import Pool
from preflight.model import Probe

_numbers = count()


def usable_gpus() -> list[str]:
    """UUIDs of the GPUs that NCCL can use here."""
    return [gpu.uuid for gpu in discover_node().gpus or () if gpu.uuid and not gpu.mig_enabled]


class Ranks:
    """Ranks 0 to n - 1, one pool each."""

    def __init__(self, number: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.gpus = usable_gpus()
        self.shared = len(self.gpus) < number
        self.pools = [Pool(f"node{rank}", "127.0.0.1", None) for rank in range(number)]

    def do(self, work):
        return self.loop.run_until_complete(work)

    def start(self) -> None:
        for rank, pool in enumerate(self.pools):
            with self._variables(rank):
                request = StartRequest(
                    run_id="run", workers=(WorkerSpec(rank=rank, gpu=self.gpus[rank % len(self.gpus)]),), deadline_s=120
                )
                reply = self.do(pool.start(request))
            assert reply.ready == (rank,), reply.incidents

    @contextmanager
    def _variables(self, rank: int) -> Iterator[None]:
        """A zygote inherits the environment that it is started in."""
        mine = {
            "NCCL_HOSTID": f"preflight-{rank}",
            "NCCL_MULTI_RANK_GPU_ENABLE": "1",
            "NCCL_NET": "Socket",
            "NCCL_SOCKET_IFNAME": "lo",
        }
        before = dict(os.environ)
        os.environ.update(mine if self.shared else {})
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)

    def close(self) -> None:
        for pool in self.pools:
            assert self.do(pool.stop()) == ()
        self.loop.close()

    def round(self, *probes: Probe, timeout_s: float = 60, deadline_s: float = 120) -> list[RoundReply]:
        """One round over all pools."""
        return self.do(self.begin(*probes, timeout_s=timeout_s, deadline_s=deadline_s))

    async def begin(self, *probes: Probe, timeout_s: float = 60, deadline_s: float = 120) -> list[RoundReply]:
        store = await self.pools[0].host_store(30)
        request = RoundRequest(
            run_id="run",
            prefix=f"round{next(_numbers)}",
            backend="nccl",
            probes=probes,
            store_address=store.address,
            store_port=store.port,
            num_tasks=sum(len(probe.ranks) for probe in probes),
            timeout_s=timeout_s,
            deadline_s=deadline_s,
        )
        return list(await asyncio.gather(*(pool.run_round(request) for pool in self.pools)))


def outcomes(replies: list[RoundReply]) -> dict[int, RankOutcome]:
    """Rank -> what it saw."""
    return {outcome.rank: outcome for reply in replies for outcome in reply.outcomes}


def probe(ranks: tuple[int, ...], collective: str, **changes) -> Probe:
    """A probe of 8 MiB."""
    facts = {
        "size_bytes": 8 * 2**20,
        "size_source": "test",
        "loop_s": 0.1,
        "subject": f"{collective} {ranks}",
        "axis": None,
    }
    return msgspec.convert({"ranks": ranks, "collective": collective, **facts, **changes}, Probe)
