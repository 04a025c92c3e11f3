"""How the cost of a run grows with the number of nodes: plan, schedule, judge and report over four sizes, with the fitted exponent; and the complete run of 2,048 nodes on the simulated fabric.

Time is that of the processor, of whole processes (schedule: in this one), so that other work on the machine counts little. Pairs are left aside: a run measures five rounds of them whatever
its size, and so a number that grows with the nodes.
"""

import json
import math
import os
import subprocess
import sys
import time
from typing import NamedTuple

import pytest

from preflight.fleet.cluster_file import read_cluster
from preflight.model import Ends
from preflight.probe.schedule import first_rounds

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]
SIZES = (64, 128, 256, 512)
TIMES = 20  # a schedule takes milliseconds
MAX_EXPONENT = 1.2
MAX_CPU_S, MAX_BYTES, MAX_FILE_BYTES, MAX_JUDGE_S = 60.0, 1e9, 50e6, 10.0  # the limits of the issue for 2,048 nodes
PLAN = """
[model]
parameters = "405B"
layers = 128
hidden_size = 16384
[parallel]
framework = "megatron"
tp = 8
pp = 4
sequence_parallel = true
[training]
micro_batches = 64
micro_batch_size = 1
seq_length = 8192
"""
CLUSTER = """
[cluster]
nodes = {nodes}
leaves = {leaves}
gpu = "H100-80GB"
[noise]
transient_rate = 0.002
[[faults]]
kind = "gpu"
gpus = ["{gpu}:2"]
depth = 0.3
[[faults]]
kind = "node"
hosts = "{node}"
depth = 0.35
[[faults]]
kind = "hang"
gpus = ["{hung}:1"]
"""


class Cost(NamedTuple):
    cpu_s: float
    peak_bytes: int
    code: int


def cost_of(*arguments, output=os.devnull) -> Cost:
    """Of `preflight` with these arguments, as a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with open(output, "wb") as file:  # noqa: PTH123 - /dev/null too
        process = subprocess.Popen(
            [sys.executable, "-m", "preflight", *map(str, arguments)], stdout=file, env=environment
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)  # it has been waited for
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, process.returncode)


def files_of(nodes, folder):
    """A cluster with faults, and a plan for it."""
    names = [f"n{number:0{len(str(nodes - 1))}}" for number in (7, 3, 5)]
    cluster, plan = folder / f"cluster{nodes}.toml", folder / f"plan{nodes}.toml"
    cluster.write_text(
        CLUSTER.format(nodes=nodes, leaves=max(2, nodes // 32), gpu=names[0], node=names[1], hung=names[2])
    )
    plan.write_text(f'{PLAN}[hardware]\nnodes = {nodes}\ngpus_per_node = 8\ngpu = "H100-80GB"\n')
    return cluster, plan


def exponent(sizes, costs) -> float:
    """The slope of log cost over log size, by least squares."""
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def scheduled_s(cluster) -> float:
    """Seconds of this process for the first rounds between the nodes."""
    numbers = range(cluster.num_ends)
    ends = Ends(
        nodes=cluster.nodes,
        node=tuple(number // 8 for number in numbers),
        slot=tuple(number % 8 for number in numbers),
        leaves=cluster.leaves,
    )
    began = time.process_time()
    for seed in range(TIMES):
        first_rounds(ends, seed=seed)
    return (time.process_time() - began) / TIMES


def run_file(folder):
    """The report that a run left in its folder, packed or not."""
    return next(path for name in ("report.json", "report.json.gz") if (path := folder / name).exists())


def test_what_each_step_costs_grows_no_faster_than_nearly_with_the_nodes(tmp_path):
    steps = {"plan": [], "schedule": [], "simulate": [], "judge": [], "report": []}
    for nodes in SIZES:
        cluster, plan = files_of(nodes, tmp_path)
        out = tmp_path / f"run{nodes}"
        steps["plan"].append(cost_of("plan", plan, "--format", "json").cpu_s)
        steps["schedule"].append(scheduled_s(read_cluster(cluster)))
        simulated = cost_of("simulate", cluster, plan, "--out", out)
        assert simulated.code == 10
        steps["simulate"].append(simulated.cpu_s)
        steps["judge"].append(cost_of("judge", run_file(out)).cpu_s)
        steps["report"].append(cost_of("report", out).cpu_s)
    print(f"\n{'CPU s':10}" + "".join(f"{nodes:>9}" for nodes in SIZES) + "  nodes; exponent")
    fitted = {step: exponent(SIZES, costs) for step, costs in steps.items()}
    for step, costs in steps.items():
        print(f"{step:10}" + "".join(f"{cost:9.2f}" for cost in costs) + f"  {fitted[step]:.2f}")
    assert {step: value for step, value in fitted.items() if value > MAX_EXPONENT} == {}


def test_the_complete_run_of_2048_nodes(tmp_path):
    cluster, plan = files_of(2048, tmp_path)
    simulated = cost_of("simulate", cluster, plan, "--out", tmp_path / "run")
    report = run_file(tmp_path / "run")
    size = report.stat().st_size
    judged = cost_of("judge", report)
    figures = {
        "run, CPU s": (simulated.cpu_s, MAX_CPU_S),
        "run, peak bytes": (simulated.peak_bytes, MAX_BYTES),
        "report, bytes": (size, MAX_FILE_BYTES),
        "judge, CPU s": (judged.cpu_s, MAX_JUDGE_S),
    }
    print("\n2,048 nodes of eight GPUs, simulated\n" + json.dumps(figures, indent=1))
    assert (simulated.code, judged.code) == (10, 10)
    assert {name: value for name, (value, most) in figures.items() if value > most} == {}
