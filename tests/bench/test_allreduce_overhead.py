"""What our timing of an all_reduce adds to a bare torch loop: the same operation at the same sizes, interleaved in one run, medians of both."""

import socket
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.bench, pytest.mark.fabric]

ROOT = Path(__file__).parents[2]
MAX_RATIO = 1.15
ROUNDS = 15

# one rank: our operation, timed as workers time it, and torch's own call in a loop, in turn
RANK = """
import statistics, sys, time
from datetime import timedelta
sys.path.insert(0, sys.argv[4])
import torch, torch.distributed as dist
from preflight.probe.backends import GlooGroup
from preflight.probe.breadcrumbs import Trail
from preflight.probe.collectives import OPERATIONS
from preflight.probe.messages import Task
from preflight.probe.timing import Patience, time_operation
from preflight.model import Probe

rank, port, rounds = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False, timeout=timedelta(seconds=60))
def task(size):
    probe = Probe(subject=f"tp{size}", axis="tp", collective="all_reduce", ranks=(0, 1), size_bytes=size, size_source="bench")
    return Task(number=1, probe=probe, backend="gloo", store_address="127.0.0.1", store_port=port, prefix="x", timeout_s=30, address="127.0.0.1",
                num_tasks=2, align=False, first_s=30, floor_s=30, stop_s=time.monotonic() + 600)
dist.init_process_group("gloo", store=dist.PrefixStore("bare", store), rank=rank, world_size=2)
for size in (2**20, 2**21, 2**22):
    group = GlooGroup(dist.PrefixStore(f"ours{size}", store), task(size), rank)
    operation = OPERATIONS["all_reduce"](group, size // 4)
    bare = torch.ones(size // 4, dtype=torch.float32)
    ours, theirs = [], []
    trail, patience = Trail(None, rank), Patience(first_s=30, floor_s=30, stop_s=time.monotonic() + 600)
    for _ in range(rounds):
        timed = time_operation(group, operation, 0.1, patience, trail)
        ours.append(statistics.median(timed.durations_s))
        seconds = []
        for _ in range(10):
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(timed.window):
                dist.all_reduce(bare)
            seconds.append((time.perf_counter() - begin) / timed.window)
        theirs.append(statistics.median(seconds))
    if rank == 0:
        ratio = statistics.median(one / other for one, other in zip(ours, theirs))  # both meet a busy moment
        print(size, statistics.median(ours), statistics.median(theirs), ratio, flush=True)
dist.barrier()
"""


def test_all_reduce_takes_at_most_15_percent_longer_than_a_bare_torch_loop(record_property):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", RANK]
    ranks = [
        subprocess.Popen([*command, str(rank), str(port), str(ROUNDS), str(ROOT)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        told = [rank.communicate(timeout=240)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0]
    ratios = {}
    for line in told[0].splitlines():
        size, ours_s, bare_s, ratio = line.split()
        ratios[int(size)] = float(ratio)
        print(
            f"all_reduce of {int(size) // 2**20} MiB over 2 ranks: {1e3 * float(ours_s):.2f} ms, bare torch {1e3 * float(bare_s):.2f} ms, ratio {ratios[int(size)]:.2f}"
        )
    record_property("ratios", ratios)
    assert len(ratios) == 3
    assert statistics.median(ratios.values()) <= MAX_RATIO
