"""Clocks around a round: read by a child, before it and for a GPU alone after it; a driver that hangs is asked once."""

import asyncio
import json
import sys

from preflight.fleet.clocks import Around, ClockReader
from tests.builders import make_probe

GPUS = {0: "GPU-a", 1: "GPU-b", 2: None}
READING = json.dumps(
    {"gpus": [{"index": 0, "uuid": "GPU-a", "clocks": {"sm_mhz": 1980, "throttle_reasons": ["sw power cap"]}}]}
)


def reader(code: str) -> ClockReader:
    return ClockReader([sys.executable, "-c", code])


def around(read: ClockReader, **probes):
    async def work():
        return await Around(read, GPUS, probes["jobs"]).of_ranks()

    return asyncio.run(work())


def test_a_pair_is_read_once_and_a_gpu_alone_before_and_after():
    read = reader(f"print('''{READING}''')")
    found = around(read, jobs={0: make_probe((0, 1)), 1: make_probe((0, 1))})
    assert set(found) == {0}
    assert (found[0].before.sm_mhz, found[0].after) == (1980, None)
    found = around(read, jobs={0: make_probe((0,), subject="gpu 0", collective="matmul")})
    assert found[0].after.throttle_reasons == ("sw power cap",)


def test_ranks_without_gpus_ask_nothing():
    assert around(reader("raise SystemExit(1)"), jobs={2: make_probe((2, 3))}) == {}


def test_a_reader_that_fails_is_not_asked_again(tmp_path):
    log = tmp_path / "asked"
    read = reader(f"open({str(log)!r}, 'a').write('x'); raise SystemExit(3)")
    jobs = {0: make_probe((0,), subject="gpu 0", collective="matmul")}
    assert around(read, jobs=jobs) == {}
    assert around(read, jobs=jobs) == {}
    assert log.read_text() == "x"
