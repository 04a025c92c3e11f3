"""`srun preflight run PLAN`: what each task of the step does. The first task of each node serves as its agent, that of the first node is the coordinator too, the others wait."""

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from preflight.cli.run_measure import RunOptions

if TYPE_CHECKING:
    from preflight.config import Site, SlurmSite
    from preflight.fleet.srun import Step
    from preflight.fleet.srun_agent import AgentOptions
    from preflight.model import Job

SLACK_S = 300.0  # beyond the budget: looking for agents, a lease, the end
LOOK_UP_S = 10.0


def run_in_step(options: RunOptions, step: "Step", key_file: Path | None, interface: str | None) -> int:
    """This task's part; its exit code. Only the coordinator's is ever other than 0: what keeps a node from serving is said, and the coordinator misses that node.

    srun's own code is the highest of its tasks', and with --kill-on-bad-exit the first that is not 0 has all others killed, the coordinator with its report among them.
    """
    if step.leads_step:
        return _lead(options, step, key_file, interface)
    from preflight.errors import PreflightError

    try:
        if step.leads_node:
            _serve(step, key_file, interface)
        else:
            from preflight.fleet.srun_wait import wait_for_agent

            wait_for_agent(step, options.budget_s + SLACK_S)
    except PreflightError as error:
        print(f"preflight: {step.node}: {error}", file=sys.stderr)
    return 0


def _serve(step: "Step", key_file: Path | None, interface: str | None) -> None:
    """As the agent of this node."""
    from preflight.config import read_config
    from preflight.fleet.srun_wait import gathering

    with gathering(step):
        from preflight.fleet.srun_agent import serve_step
        from preflight.fleet.srun_key import step_key

        site = read_config()
        with step_key(step, key_file, site.agent) as key:
            serve_step(step, key, _agent_options(site, interface))


def _lead(options: RunOptions, step: "Step", key_file: Path | None, interface: str | None) -> int:
    """As the coordinator, with the agent of its own node beside it."""
    from preflight.config import read_config
    from preflight.fleet.srun_key import step_key
    from preflight.fleet.srun_wait import gathering

    site = read_config()
    with gathering(step), step_key(step, key_file, site.agent) as key:
        return _coordinate(options, step, key, _agent_options(site, interface), site.slurm)


def _agent_options(site: "Site", interface: str | None) -> "AgentOptions":
    from preflight.fleet.srun_agent import AgentOptions

    def look_up(names: Sequence[str]) -> Mapping[str, str]:
        from preflight.slurm.commands import Slurm

        nodes = Slurm(site.slurm.bin_dir, LOOK_UP_S).nodes(names)
        return {name: node.address for name, node in nodes.items() if node.address}

    return AgentOptions(site=site.agent, interface=interface or site.agent.interface, look_up=look_up)


def _coordinate(
    options: RunOptions, step: "Step", key: bytes | None, agent_options: "AgentOptions", site: "SlurmSite"
) -> int:
    from preflight.fleet.srun_crew import Crew

    crew = Crew(step, key, agent_options)  # a fork: before any thread
    try:
        from preflight.cli.run_keep import run_and_keep
        from preflight.cli.run_measure import conclude, measure, prepare
        from preflight.fleet.interrupt import Interruptions
        from preflight.fleet.srun_job import binding_hint, dealing_hint

        with Interruptions() as interruptions:  # until the report is out
            prepared = prepare(options)
            prepared = prepared._replace(job=_as_placed(prepared.job, step, site))
            dealing = dealing_hint(prepared.job, step) if options.ranks is None else ""
            for hint in filter(None, (binding_hint(os.environ), dealing)):
                print(f"preflight: {hint}", file=sys.stderr)
            agents = crew.find(interruptions, options.budget_s / 3)
            left = options._replace(budget_s=max(1.0, options.budget_s - crew.elapsed_s()))
            where: dict[str, Any] = {"agents": agents, "key": crew.key, "world": crew.world}
            if options.keep is not None:
                code = run_and_keep(left, prepared, interruptions, **where)
            else:
                code = conclude(options, measure(left, prepared, interruptions, **where))
            sys.stdout.flush()
            return code
    finally:
        crew.release()


def _as_placed(job: "Job", step: "Step", site: "SlurmSite") -> "Job":
    """The job as its own srun will place it. Slurm's version counts only beside a topology, and is worth one look."""
    from preflight.errors import PreflightError
    from preflight.fleet.srun_job import job_in_step, topology_file
    from preflight.slurm.commands import Slurm

    topology, version = topology_file(site.topology, os.environ), None
    if (topology or job.launch.topology) and job.launch.slurm_version is None:
        with contextlib.suppress(PreflightError):
            version = "{}.{:02}".format(*Slurm(site.bin_dir, LOOK_UP_S).version())
    return job_in_step(job, step, os.environ, topology=topology, version=version)
