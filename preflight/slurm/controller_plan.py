"""What the controller prolog measures for a job: its plan, laid out as Slurm will place its ranks on just the nodes and GPUs that it was given.

The plan is the site's file that the job names, or the site's default, or the degrees of the job's comment over a model of ours. A job that says nothing gets one group over all its GPUs: every pair, and the
whole, and no opinion on its layout.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from preflight.config import Site, SlurmSite
from preflight.errors import ConfigError, WorldError
from preflight.model import Job, Launch, ModelShape, Parallel, Rule
from preflight.model.base import Noun
from preflight.slurm.directive import Directive
from preflight.slurm.state import refuse_foreign

MOST_OF_A_PLAN = 16_384  # ranks that are measured before a job; a larger one starts unmeasured
# what only a job's own model can tell
_OF_THE_MODEL = ("memory_fit", "axis_cost", "pipeline_bubble", "straggler_cost", "plan_consistent", "master_rank")


class Wanted(Noun, frozen=True, kw_only=True):
    """What to measure. `nodes` in Slurm's order. `chosen`: where the plan comes from, for people."""

    job: Job
    nodes: tuple[str, ...]
    chosen: str


def what_to_measure(
    nodes: tuple[str, ...],
    gpus: Mapping[str, tuple[int, ...]],
    directive: Directive,
    site: Site,
    version: tuple[int, int] | None,
) -> Wanted | None:
    """The job to measure; None: it has no GPUs, and nothing says that CPUs are meant.

    `gpus`: Slurm's numbers of its GPUs by node, a node without any is missing. `version`: Slurm's, None: not known. Raises ConfigError: the plan file is missing, wrong, or for another
    number of nodes or GPUs than the job has; too many ranks.
    """
    job, chosen = _job(directive, site.slurm)
    counts = [len(gpus.get(node, ())) for node in nodes]
    on_cpus = job.hardware.backend in {"gloo", "auto"}
    if not any(counts) and not (on_cpus and job.hardware.gpus_per_node):
        return None
    most = max(counts) or job.hardware.gpus_per_node or 0
    if len(nodes) * most > MOST_OF_A_PLAN:
        raise ConfigError(chosen, f"{len(nodes)} nodes x {most} GPUs are more than the {MOST_OF_A_PLAN} ranks measured")
    planned = job.hardware.gpus_per_node
    if planned is not None and planned != most:
        raise ConfigError(
            chosen, f"{planned}, but Slurm gave the job {most} on each node", key="hardware.gpus_per_node"
        )
    given = {node: gpus[node] for node in nodes if node in gpus} or None
    launch = msgspec.structs.replace(job.launch, node_gpus=given, topology=job.launch.topology or site.slurm.topology)
    launch = _launch(launch, counts, version)
    hardware = msgspec.structs.replace(job.hardware, gpus_per_node=most)
    return Wanted(job=msgspec.structs.replace(job, launch=launch, hardware=hardware), nodes=nodes, chosen=chosen)


def _launch(launch: Launch, counts: list[int], version: tuple[int, int] | None) -> Launch:
    """How the job will be started: as its plan says, else by srun, one task for each of its GPUs."""
    if launch.launcher not in {None, "slurm"}:
        return launch
    uneven = ",".join(map(str, counts)) if len(set(counts)) > 1 else None
    return msgspec.structs.replace(
        launch,
        launcher="slurm",
        tasks_per_node=launch.tasks_per_node or uneven,
        slurm_version=launch.slurm_version or (f"{version[0]:02d}.{version[1]:02d}" if version else None),
    )


def _job(directive: Directive, site: SlurmSite) -> tuple[Job, str]:
    """The plan before it meets the job's nodes, and where it comes from. Raises ConfigError."""
    if directive.plan is not None:
        path = Path(site.plans_dir) / f"{directive.plan}.toml"
        job = _read(path)
        chosen = f"plan {directive.plan}"
    elif site.default_plan is not None and not directive.degrees:
        job = _read(Path(site.default_plan))
        chosen = f"the site's default plan {Path(site.default_plan).name}"
    else:
        degrees = ", ".join(f"{axis}={degree}" for axis, degree in directive.degrees.items())
        return _plain_job(directive.degrees), f"the degrees of the job, {degrees}" if degrees else "no plan given"
    if directive.degrees:
        parallel = msgspec.structs.replace(job.parallel, **{"dp": None, **directive.degrees})
        job = msgspec.structs.replace(job, parallel=parallel)
        chosen += " with the job's own degrees"
    return job, chosen


def _read(path: Path) -> Job:
    """A plan file that root, or the user we run as, owns. Raises ConfigError."""
    from preflight.plan.planfile import read_job

    try:
        refuse_foreign(path.stat(), str(path))
    except OSError as error:
        raise ConfigError(str(path), f"can't be read: {error.strerror or error}") from error
    except WorldError as error:
        raise ConfigError(str(path), str(error), remedy="plan files that jobs may name are the site's own") from error
    return read_job(path)


def _plain_job(degrees: Mapping[str, int]) -> Job:
    """Degrees over a model of which nothing is said but a size that makes messages large enough to tell rates: no volumes, no memory and no times are told, which only the job's own model gives."""
    ep = degrees.get("ep", 1)
    return Job(
        source="the job's comment" if degrees else "the job's nodes",
        model=ModelShape(
            parameters=70 * 10**9,
            layers=80 * degrees.get("pp", 1),
            experts=8 * ep if ep > 1 else None,
            experts_per_token=2 if ep > 1 else None,
        ),
        parallel=Parallel(**dict(degrees)),  # type: ignore[arg-type]
        rules={name: Rule(severity="off") for name in _OF_THE_MODEL},
    )
