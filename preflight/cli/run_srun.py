"""`srun preflight run PLAN`: what each task of the step does. The first task of each node serves as its agent, that of the first node is the coordinator too, the others wait."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.cli.run_measure import RunOptions

if TYPE_CHECKING:
    from preflight.config import AgentSite
    from preflight.fleet.srun import Step
    from preflight.fleet.srun_agent import AgentOptions
    from preflight.model import Job

SLACK_S = 300.0  # beyond the budget: looking for agents, a lease, the end
LOOK_UP_S = 10.0


def run_in_step(options: RunOptions, step: "Step", key_file: Path | None, interface: str | None) -> int:
    """This task's part; its exit code. Those of tasks other than the coordinator are 0 when the run ended as it should, whatever it said: srun's own code is the highest of its tasks', and

    with --kill-on-bad-exit the first other one would have the coordinator killed.
    """
    if not step.leads_node:
        from preflight.fleet.srun_wait import wait_for_agent

        return 0 if wait_for_agent(step, options.budget_s + SLACK_S) else 3
    from preflight.config import read_config
    from preflight.fleet.srun_key import step_key
    from preflight.fleet.srun_wait import gathering

    site = read_config()
    with gathering(step), step_key(step, key_file, site.agent) as key:
        from preflight.fleet.srun_agent import serve_step

        agent_options = _agent_options(site.agent, interface, site.slurm.bin_dir)
        if not step.leads_step:
            return serve_step(step, key, agent_options)
        return _coordinate(options, step, key, agent_options)


def _agent_options(site: "AgentSite", interface: str | None, bin_dir: str | None) -> "AgentOptions":
    from preflight.fleet.srun_agent import AgentOptions

    def look_up(names: Sequence[str]) -> Mapping[str, str]:
        from preflight.slurm.commands import Slurm

        nodes = Slurm(bin_dir, LOOK_UP_S).nodes(names)
        return {name: node.address for name, node in nodes.items() if node.address}

    return AgentOptions(site=site, interface=interface or site.interface, look_up=look_up)


def _coordinate(options: RunOptions, step: "Step", key: bytes | None, agent_options: "AgentOptions") -> int:
    from preflight.fleet.srun_crew import Crew

    crew = Crew(step, key, agent_options)  # a fork: before any thread
    try:
        from preflight.cli.run_keep import run_and_keep
        from preflight.cli.run_measure import conclude, measure, prepare
        from preflight.fleet.interrupt import Interruptions

        with Interruptions() as interruptions:  # until the report is out
            prepared = prepare(options)
            prepared = prepared._replace(job=job_in_step(prepared.job, step, os.environ))
            hint = binding_hint(os.environ)
            if hint:
                print(f"preflight: {hint}", file=sys.stderr)
            agents = crew.find(interruptions, options.budget_s / 3)
            left = options._replace(budget_s=max(1.0, options.budget_s - crew.elapsed_s()))
            if options.keep is not None:
                code = run_and_keep(left, prepared, interruptions, agents, key=crew.key, world=crew.world)
            else:
                report = measure(left, prepared, interruptions, agents=agents, key=crew.key, world=crew.world)
                code = conclude(options, report)
            sys.stdout.flush()
            return code
    finally:
        crew.release()


def job_in_step(job: "Job", step: "Step", environ: Mapping[str, str]) -> "Job":
    """The job as its own srun will place it: on the nodes of the allocation in their order, dealt by [launch] or --distribution; else as this step was asked to be dealt, since it was started by
    the same script; else by Slurm's default. A plan file that names another launcher is left as it is.
    """
    import msgspec

    launch = job.launch
    if launch.launcher not in (None, "slurm"):
        return job
    method, hostfile = launch.distribution, launch.hostfile
    if method is None and hostfile is None and step.distribution is not None:
        method = step.distribution
        if method.startswith("arbitrary"):
            hostfile = environ.get("SLURM_HOSTFILE") or None
            method = method if hostfile else None
    hosts = launch.hosts if set(launch.hosts or ()) == set(step.nodes) else None
    launch = msgspec.structs.replace(
        launch, launcher="slurm", distribution=method, hostfile=hostfile, hosts=hosts or step.nodes
    )
    return msgspec.structs.replace(job, launch=launch)


def binding_hint(environ: Mapping[str, str]) -> str:
    """What to say where the agent of this node sees the GPUs of its own task only; empty where it sees all of the step's, or that can't be told."""
    from preflight.model.job_gpus import GPUS_ON_NODE, STEP_GPUS, parse_numbers

    seen = parse_numbers(environ.get(STEP_GPUS, ""))
    given = environ.get(GPUS_ON_NODE, "")
    tasks = parse_numbers(environ.get("SLURM_GTIDS", ""))
    if not seen or not tasks or len(tasks) < 2 or not (given.isascii() and given.isdigit() and len(given) <= 4):
        return ""
    if len(seen) >= int(given):
        return ""
    return (
        f"each task of this step is bound to GPUs of its own, and the agent of a node sees {len(seen)} of the step's {given}: "
        "start the step with --gpu-bind=none, or with one task per node and --gres=gpu:N"
    )
