"""What a request may say: a probe that can't be meant is refused before any worker hears of it."""

import msgspec
import pytest

from preflight.fleet.api import MAX_REQUEST_BYTES, RoundRequest
from preflight.model import from_json
from preflight.probe.messages import MAX_PACKET_BYTES, Task

ROUND = {
    "run_id": "r",
    "prefix": "r/1",
    "backend": "nccl",
    "store_address": "10.0.0.1",
    "store_port": 1,
    "num_tasks": 2,
}
PAIR = {
    "subject": "pair 0-1",
    "axis": None,
    "collective": "send",
    "ranks": [0, 1],
    "size_bytes": 10,
    "size_source": "a test",
}


def request(**fields):
    body = {**ROUND, "timeout_s": 1.0, "deadline_s": 1.0, "probes": [{**PAIR, **fields}]}
    return from_json(msgspec.json.encode(body), RoundRequest)


def test_a_pair_is_taken():
    assert request().probes[0].ranks == (0, 1)


@pytest.mark.parametrize(
    "fields",
    [
        *({name: "x" * 4000} for name in ("subject", "axis", "size_source", "size_name", "reason")),
        *({name: number} for name in ("repeat", "attempt") for number in (-1, 2**20, 2**70)),
        *({"ranks": ranks} for ranks in ([], [0], [0, 0], [-1, 0], [0, 2**20], [0, 1, 2])),
        *({"size_bytes": number} for number in (0, -1, 2**33, 2**70, "48GB", 1.5)),
        *({"loop_s": number} for number in (-1, 61, 1e308, "1s", None)),
        *({"flops": number} for number in (1, -1, 2**70)),
        {"collective": "matmul", "ranks": [0]},
        {"collective": "matmul", "ranks": [0], "flops": 2**60},
        {"collective": "all_to_all", "split": [1.0]},
        {"collective": "all_to_all", "split": [2.0, -1.0]},
        {"collective": "all_to_all", "split": [0.0, 0.0]},
        {"split": [0.5, 0.5]},
        {"collective": "all_reduce", "ranks": list(range(20_000))},
    ],
)
def test_a_probe_that_cannot_be_meant_is_refused(fields):
    with pytest.raises(msgspec.DecodeError):
        request(**fields)


def test_the_longest_texts_that_are_taken_fit_into_the_packet_that_a_worker_gets():
    longest = request(
        collective="all_to_all", ranks=list(range(2**20 - 1024, 2**20)), split=[1 / 1024] * 1024, reason="\x01" * 1900
    )
    task = Task(
        number=2**40,
        probe=longest.probes[0],
        backend="nccl",
        store_address="f" * 64,
        store_port=65535,
        prefix="p" * 253,
        timeout_s=1.0,
        address="f" * 64,
        num_tasks=2**20,
        align=True,
        first_s=1.0,
        floor_s=1.0,
        stop_s=1.0,
    )
    assert len(msgspec.json.encode(task)) < MAX_PACKET_BYTES < MAX_REQUEST_BYTES
