"""In place of `preflight run` in a job of the scan, where many sweeps are tried: after a moment, the first task leaves a report on the job's nodes. A node that is named in the file "slow" beside the folder of jobs is blamed."""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from itertools import combinations

import msgspec

from preflight.model import Environment, Finding, Part, Report, Settings, Verdict, to_json
from preflight.model.hostlist import unfold
from tests.builders import make_evidence, make_measurement, make_plan


def main(arguments: list[str]) -> None:
    """As `preflight run PLAN --budget 60s --out DIR`; the budget is what it takes."""
    out, budget = (arguments[arguments.index(f"--{name}") + 1] for name in ("out", "budget"))
    if os.environ["SLURM_PROCID"] != "0":
        return
    nodes = tuple(unfold(os.environ["SLURM_JOB_NODELIST"]))
    time.sleep(float(budget.removesuffix("s")))
    slow = Path(out).parents[1] / "slow"
    (Path(out) / "report.tmp").write_bytes(to_json(report_of(nodes, slow.read_text().split() if slow.exists() else [])))
    (Path(out) / "report.tmp").rename(Path(out) / "report.json")


def report_of(nodes: tuple[str, ...], slow: list[str]) -> Report:
    """One rank a node, all of one leaf, all pairs measured twice."""
    plan = make_plan(tp=1, dp=len(nodes), nodes=len(nodes), gpus_per_node=1, gpu=None, backend="gloo")
    plan = msgspec.structs.replace(
        plan, placement=msgspec.structs.replace(plan.placement, nodes=nodes, leaves=("leaf1",) * len(nodes))
    )
    rates = {(a, b): 5e8 if {nodes[a], nodes[b]} & set(slow) else 1e9 for a, b in combinations(range(len(nodes)), 2)}
    blamed = [node for node in nodes if node in slow]
    return Report(
        run_id=f"run-{time.time_ns()}",
        command="run",
        started_at_s=time.time(),
        duration_s=1,
        answer="no-go" if blamed else "go",
        findings=tuple(
            Finding(
                check="slow_part",
                subject=node,
                verdict=Verdict.FAIL,
                observed="0.5 GB/s to all of 3 partners",
                expected="1.0 GB/s, as the others",
                remedy="look at its link",
                blames=Part(kind="node", name=node),
            )
            for node in blamed
        ),
        evidence=make_evidence(
            plan=plan,
            measurements=tuple(make_measurement(pair, algbw_bytes_per_s=rate) for pair, rate in [*rates.items()] * 2),
            settings=Settings(backend="gloo"),
        ),
        environment=Environment(),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
