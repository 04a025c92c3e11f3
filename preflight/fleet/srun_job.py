"""Under srun: the job of the plan file as its own srun will place it, and what the step's variables say of the GPUs that an agent sees."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from preflight.errors import ConfigError
from preflight.fleet.srun import Step
from preflight.model import Job
from preflight.model.job_gpus import GPUS_ON_NODE, STEP_GPUS, parse_numbers

# of a site's own file, of slurm.conf's folder, and where slurmd keeps what the controller sent (slurm.conf(5), "configless")
FOLDERS = ("/etc/slurm", "/run/slurm/conf")
FILES = ("topology.yaml", "topology.conf")  # since 25.05 the former goes before the latter


def job_in_step(job: Job, step: Step, environ: Mapping[str, str], *, topology: str | None, version: str | None) -> Job:
    """On the nodes of the allocation in their order, dealt by [launch] or --distribution; else as this step was asked to be dealt, since the same script started it; else by Slurm's default.

    `topology`: the site's topology file, for a plan file that names none. `version`: Slurm's, None: not known. A plan file that names another launcher keeps its ways.
    """
    launch = job.launch
    if launch.topology is None and topology is not None:
        launch = msgspec.structs.replace(launch, topology=topology)
    if launch.launcher not in (None, "slurm"):
        return msgspec.structs.replace(job, launch=launch)
    method, hostfile = launch.distribution, launch.hostfile
    if method is None and hostfile is None and step.distribution is not None:
        method = step.distribution
        if method.startswith("arbitrary"):
            hostfile = environ.get("SLURM_HOSTFILE") or None
            method = method if hostfile else None
    hosts = launch.hosts if set(launch.hosts or ()) == set(step.nodes) else step.nodes
    launch = msgspec.structs.replace(
        launch,
        launcher="slurm",
        distribution=method,
        hostfile=hostfile,
        hosts=hosts,
        slurm_version=launch.slurm_version or version,
    )
    return msgspec.structs.replace(job, launch=launch)


def dealing_hint(job: Job, step: Step) -> str:
    """What to say where neither the plan file nor this step tells how the job's own srun deals its ranks, and that matters; empty elsewhere."""
    launch = job.launch
    told = launch.distribution or launch.hostfile or launch.launcher not in (None, "slurm")
    if told or not step.deals_nothing or job.hardware.gpus_per_node == 1:
        return ""
    return (
        "one task per node doesn't show how the job's own srun deals its ranks, and Slurm's default is taken: "
        "if it has a --distribution, give that to preflight run too, or start this with all the flags of the job's srun"
    )


def topology_file(configured: str | None, environ: Mapping[str, str]) -> str | None:
    """The topology file of the site: as configured, which must be right then; else Slurm's own if it is there and can be read. None: nobody tells."""
    if configured is not None:
        return configured
    named = environ.get("SLURM_CONF", "")
    folders = [*([str(Path(named).parent)] if named.startswith("/") else []), *FOLDERS]
    found = (Path(folder, name) for folder in folders for name in FILES)
    path = next((path for path in found if os.access(path, os.R_OK)), None)
    if path is None:
        return None
    from preflight.discover.topology_files import read_topology

    try:
        known = read_topology(path)
    except ConfigError:
        return None
    return str(path) if known.switches or known.blocks or known.node_domains else None


def binding_hint(environ: Mapping[str, str]) -> str:
    """What to say where the agent of this node sees the GPUs of its own task only; empty where it sees all of the step's, or that can't be told."""
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
