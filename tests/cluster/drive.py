"""Drives agents through rounds of pairs as the coordinator does, from inside the head's namespace: a task as JSON on standard input, figures as JSON on standard output.

The task: {"agents": [[name, host, port]], "key": hexadecimal, "rounds": [[[a, b, collective]]]}; rank = the agent's number. The figures: {"rounds": [{"wall_s", "pairs": [...]}]}, each pair
with its busbw (None: it failed), what its operations took (`raw_s`: the longer of its two ranks, first operation, warm-up and windows) and what joining took.
"""

import asyncio
import json
import sys
import time
from typing import Any

import msgspec

from preflight.fleet import api
from preflight.fleet.local import Address
from preflight.fleet.rounds import RoundRunner
from preflight.fleet.world import over_http
from preflight.model.measurement import Measurement, Samples, median
from preflight.probe.schedule import pair_probe
from preflight.probe.timing import WARM_UP

RUN_ID = "drive"


def raw_s(samples: Samples) -> float:
    """What the rank's operations took: the first, those that warmed up (timed as a whole by nobody: at the median's rate), and all windows."""
    each = samples.durations_s
    return (samples.first_call_s or 0.0) + WARM_UP * median(each) + samples.window * sum(each)


def told(m: Measurement) -> dict[str, object]:
    return {
        "ranks": m.probe.ranks,
        "op": m.probe.collective,
        "bytes_per_s": m.busbw_bytes_per_s,
        "failure": m.failure.text if m.failure else None,
        "raw_s": max(map(raw_s, m.samples), default=None),
        "join_s": max((s.join_s or 0.0 for s in m.samples), default=None),
        "right": m.data_correct,
    }


async def main(task: dict[str, Any]) -> None:
    key = bytes.fromhex(task["key"])
    agents = [Address(name=name, host=host, port=port) for name, host, port in task["agents"]]
    async with over_http(key) as factory:
        clients = {agent.name: factory(agent) for agent in agents}
        nodes = {rank: agent.name for rank, agent in enumerate(agents)}
        starts = [
            clients[name].call(
                "/v1/start",
                api.StartRequest(run_id=RUN_ID, workers=(api.WorkerSpec(rank=rank, gpu=None),), deadline_s=200.0),
                api.StartReply,
                210.0,
            )
            for rank, name in nodes.items()
        ]
        replies = await asyncio.gather(*starts)
        assert all(reply.ready for reply in replies), replies
        runner, figures = RoundRunner(RUN_ID, "gloo", nodes, clients), []
        try:
            for number, pairs in enumerate(task["rounds"]):
                probes = tuple(
                    msgspec.structs.replace(pair_probe((a, b), "gloo", number), collective=op) for a, b, op in pairs
                )
                began = time.monotonic()
                result = await runner.run(probes, 60.0)
                figures.append({"wall_s": time.monotonic() - began, "pairs": [told(m) for m in result.measurements]})
        finally:
            end = api.EndRequest(run_id=RUN_ID)
            await asyncio.gather(*(client.call("/v1/end", end, api.EndReply, 10.0) for client in clients.values()))
    print(json.dumps({"rounds": figures}))


if __name__ == "__main__":
    asyncio.run(main(json.load(sys.stdin)))
