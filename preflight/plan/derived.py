"""The whole placement of a job from what its launcher tells one process; for a job that can't, or does not yet, talk to its other ranks."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from preflight.errors import ConfigError
from preflight.model import Job, Launch, Placement, Topology
from preflight.model.hostlist import unfold
from preflight.plan.launchers.seats import MAX_RANKS, parse_counts
from preflight.plan.placement import launch_gpus_per_node, launch_hosts, predict_placement

SOURCE = "environment"
_UNSET = "unset what another launcher left behind, or start the job as it is meant to be started"


class Seat(NamedTuple):
    """What this process knows of itself. `local_rank` None: its launcher doesn't say. `names`: what its node is called, by kernel and scheduler."""

    rank: int
    world_size: int
    local_rank: int | None
    names: tuple[str, ...]


def derive_placement(job: Job, environ: Mapping[str, str], seat: Seat, topology: Topology | None = None) -> Placement:
    """The placement of all ranks of this job, with this process where it says it is.

    In a Slurm step (SLURM_PROCID is the rank): from SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE and SLURM_DISTRIBUTION, whatever [launch] says. Under torchrun: from
    GROUP_RANK and LOCAL_WORLD_SIZE, which number the nodes but don't name them. Else what [launch] and [hardware] of the plan file predict. Raises ConfigError
    where the variables contradict each other, this process is elsewhere, or nothing tells the nodes.
    """
    if seat.world_size > MAX_RANKS:
        problem = f"{seat.world_size} ranks are more than {MAX_RANKS}, the most we lay out"
        raise ConfigError(SOURCE, problem, remedy=_UNSET)
    in_step = environ.get("SLURM_PROCID") == str(seat.rank) and "SLURM_STEP_NODELIST" in environ
    if in_step:
        placement = _from_slurm(job, environ, topology)
    elif environ.get("GROUP_RANK") and environ.get("LOCAL_WORLD_SIZE"):
        placement = _from_torchrun(environ, seat)
    else:
        placement = _from_plan(job, seat, topology)
    if len(placement.node_ranks) != seat.world_size:
        problem = f"{len(placement.node_ranks)} ranks by {placement.method}, but the launcher says {seat.world_size}"
        raise ConfigError(job.source, problem, remedy="correct the plan file's [hardware] or [launch], or the launch")
    _refuse_elsewhere(job, placement, seat, named=in_step or bool(launch_hosts(job)))
    return placement


def _from_slurm(job: Job, environ: Mapping[str, str], topology: Topology | None) -> Placement:
    counts_text = environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    try:
        hosts = unfold(environ["SLURM_STEP_NODELIST"])
        counts = parse_counts(counts_text)
    except ValueError as error:
        problem = f"can't be read: {error}"
        raise ConfigError(SOURCE, problem, key="SLURM_STEP_NODELIST or SLURM_STEP_TASKS_PER_NODE") from error
    host, times = Counter(hosts).most_common(1)[0]
    if times > 1:
        raise ConfigError(SOURCE, f"{host[:60]!r} is there {times} times", key="SLURM_STEP_NODELIST", remedy=_UNSET)
    method = environ.get("SLURM_DISTRIBUTION") or job.launch.distribution
    if method is not None and method.split(":")[0] == "plane" and environ.get("SLURM_DIST_PLANESIZE"):
        method = f"plane={environ['SLURM_DIST_PLANESIZE']}"
    arbitrary = method is not None and method.startswith("arbitrary")
    launch = Launch(
        launcher="slurm",
        hosts=tuple(hosts),
        distribution=method,
        tasks_per_node=counts_text,
        hostfile=(environ.get("SLURM_HOSTFILE") or job.launch.hostfile) if arbitrary else None,
        slurm_version=job.launch.slurm_version,
    )
    step = msgspec.structs.replace(job, launch=launch)
    return predict_placement(step, node_names=hosts, gpus_per_node=max(counts), topology=topology)


def _from_torchrun(environ: Mapping[str, str], seat: Seat) -> Placement:
    """Ranks are a running sum over the nodes in group-rank order: rank = GROUP_RANK x LOCAL_WORLD_SIZE + LOCAL_RANK if all nodes start as many."""
    group, per_node = _number(environ, "GROUP_RANK"), _number(environ, "LOCAL_WORLD_SIZE")
    nodes, rest = divmod(seat.world_size, max(per_node, 1))
    if rest or group * per_node + (seat.local_rank or 0) != seat.rank:
        shown = f"GROUP_RANK {group} x LOCAL_WORLD_SIZE {per_node} + LOCAL_RANK {seat.local_rank} is not RANK {seat.rank} of {seat.world_size}"
        problem = f"{shown}: nodes start unequal numbers of workers, and one process can't know the others' numbers"
        remedy = "call it after torch.distributed.init_process_group, or start as many workers on every node"
        raise ConfigError(SOURCE, problem, remedy=remedy)
    names = [f"node{number}" for number in range(nodes)]
    if 0 <= group < nodes:
        names[group] = seat.names[0]
    return Placement(
        source="predicted",
        method="torchrun: consecutive ranks fill a node",
        nodes=tuple(names),
        node_ranks=tuple(node for node in range(nodes) for _ in range(per_node)),
        local_ranks=tuple(range(per_node)) * nodes,
    )


def _from_plan(job: Job, seat: Seat, topology: Topology | None) -> Placement:
    per_node = job.hardware.gpus_per_node or launch_gpus_per_node(job)
    if per_node is None:
        raise ConfigError(
            job.source,
            "is missing, and the launcher doesn't tell this process how many ranks a node has",
            key="hardware.gpus_per_node",
            remedy="write it, or call assert_placement after torch.distributed.init_process_group",
        )
    hosts = launch_hosts(job)
    nodes = len(hosts) if hosts else job.hardware.nodes or -(-seat.world_size // per_node)
    names = hosts or [f"node{number}" for number in range(nodes)]
    return predict_placement(
        job, node_names=names, gpus_per_node=per_node, topology=topology, names_known=hosts is not None
    )


def _refuse_elsewhere(job: Job, placement: Placement, seat: Seat, *, named: bool) -> None:
    """Raise ConfigError if this process is not where the placement has its rank."""
    node = placement.nodes[placement.node_ranks[seat.rank]]
    local = placement.local_ranks[seat.rank]
    here = {name for full in seat.names for name in (full, full.partition(".")[0])}
    if named and node not in here and node.partition(".")[0] not in here:
        problem = f"rank {seat.rank} runs on {seat.names[0]}, but belongs on {node} by {placement.method}"
        raise ConfigError(job.source, problem, remedy=_UNSET)
    if seat.local_rank not in (None, local):
        problem = f"rank {seat.rank} has local rank {seat.local_rank}, but {local} by {placement.method}"
        raise ConfigError(job.source, problem, remedy=_UNSET)


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name].strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ConfigError(SOURCE, f"{text[:40]!r} is no number from 0 on", key=name, remedy=_UNSET)
    return int(text)
