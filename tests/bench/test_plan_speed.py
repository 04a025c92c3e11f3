"""How fast a plan of 131,072 ranks is laid out and judged, as a ratio within one run: a whole cold process beside Megatron-Core's RankGenerator.

The process starts Python, reads the plan file, makes every kind of group that Megatron-Core creates, places the ranks, runs the checks and writes all of it
as JSON. Of the peer only the groups are timed: not its start, not the import of torch and megatron (seconds), no output. Beside the time of the clock,
which counts, the time of the processor is shown: both use one core without waiting, so on a machine with nothing else to do the two ratios agree.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

import pytest

from tests.plan.megatron_peer import Peer, digest, questions

pytestmark = [pytest.mark.bench, pytest.mark.fabric, pytest.mark.megatron]

# a mixture of experts with context parallelism has all fourteen kinds of group
PLAN = """
[model]
parameters = "405B"
layers = 128
hidden_size = 16384
experts = 64
[parallel]
framework = "megatron"
tp = 8
cp = 2
pp = 16
ep = 8
etp = 2
sequence_parallel = true
[training]
micro_batches = 64
micro_batch_size = 1
seq_length = 8192
[hardware]
nodes = 16384
gpus_per_node = 8
gpu = "H100-80GB"
"""
ROUNDS, AT_LEAST = 7, 20


class Run(NamedTuple):
    seconds: float
    cpu_s: float
    output: bytes


@pytest.fixture
def plan(tmp_path):
    """Runs `preflight plan` on the plan as a process of its own: what it took, and what it printed. Bytecode is cached, as after any installation."""
    path = tmp_path / "job.toml"
    path.write_text(PLAN)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(tmp_path / "bytecode")
    output = tmp_path / "plan.json"

    def run():
        command = [sys.executable, "-m", "preflight", "plan", str(path), "--format", "json"]
        with output.open("wb") as file:
            began, cpu_began = time.perf_counter(), cpu_of_children_s()
            subprocess.run(command, stdout=file, env=environment, check=True)
            return Run(time.perf_counter() - began, cpu_of_children_s() - cpu_began, output.read_bytes())

    return run


def cpu_of_children_s() -> float:
    """Of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_cold_plan_of_131072_ranks_is_much_faster_than_the_rank_generator_and_has_the_same_groups(
    plan, record_property
):
    document = json.loads(plan().output)
    assert document["world_size"] == 131_072
    every = {**document["groups"], **document["composite_groups"]}
    ours, theirs = [], []
    with Peer() as peer:
        question = questions(document["degrees"], document["order"].split("-"))
        answer = peer.ask(question)  # and warm
        assert {name: digest(groups) for name, groups in every.items()} == answer["groups"]
        assert len(every) == 14
        for _ in range(ROUNDS):  # alternating, so that a busy moment hits both
            ours.append(plan())
            theirs.append(peer.ask(question))
    cpu = statistics.median(b["cpu_s"] / a.cpu_s for a, b in zip(ours, theirs, strict=True))
    clock = statistics.median(b["seconds"] / a.seconds for a, b in zip(ours, theirs, strict=True))
    record_property("ratio", clock)
    print(
        f"\npreflight plan, 131,072 ranks, cold: {statistics.median(run.seconds for run in ours):.2f} s; RankGenerator, the same groups:"
        f" {statistics.median(one['seconds'] for one in theirs):.2f} s; {clock:.1f} times, {cpu:.1f} by time of the processor (medians of {ROUNDS} pairs)"
    )
    assert clock >= AT_LEAST
