"""Where ranks will sit, predicted before the job starts, by the rules of its launcher."""

from collections.abc import Mapping, Sequence

from preflight.errors import ConfigError
from preflight.model import Job, Placement, Topology
from preflight.model.hostlist import natural_key
from preflight.plan.launchers.seats import MAX_RANKS, Seats, deal, node_counts, parse_counts

# key of [launch] -> the launchers that it is a fact of
_BELONGS: dict[str, tuple[str, ...]] = {
    "distribution": ("slurm", "mpi"),
    "hostfile": ("slurm", "deepspeed", "mpi"),
    "rendezvous": ("torchrun", "kubernetes"),
}


def predict_placement(
    job: Job,
    *,
    node_names: Sequence[str],
    gpus_per_node: int,
    gpu_uuids: Mapping[str, Sequence[str | None]] | None = None,
    topology: Topology | None = None,
    names_known: bool = True,
) -> Placement:
    """The placement that the job's launcher (`[launch]`) will make on these nodes.

    `node_names`: in the order in which the allocation lists them (for Kubernetes: the pods by completion index). `gpus_per_node`: ranks that each node gets,
    unless the launcher says otherwise, and never more. `gpu_uuids`: node name -> UUIDs by local rank, as far as known. `topology`: for Slurm's topology order
    and segments. `names_known` False: the names are made up, so an order by name can't be known. Nodes that get no rank are left out, and `method` says so.

    Without a launcher: block placement, what every launcher with one starter per node does: rank = node_rank x gpus_per_node + local_rank; with 8 GPUs
    per node, rank 13 is local rank 5 of the second node. Raises ConfigError, naming file, line or key, where the launcher would refuse.
    """
    most = len(node_names) * gpus_per_node
    if most > MAX_RANKS:
        problem = f"{len(node_names)} nodes x {gpus_per_node} GPUs = {most} ranks is more than {MAX_RANKS}, the most we lay out"
        raise ConfigError(job.source, problem, key="hardware")
    seats = _seat(job, node_names, gpus_per_node, topology, names_known=names_known)
    uuids = None
    if gpu_uuids:
        known = [gpu_uuids.get(name, ()) for name in seats.nodes]
        uuids = tuple(
            known[node][local] if local < len(known[node]) else None
            for node, local in zip(seats.node_ranks, seats.local_ranks, strict=True)
        )
    return Placement(
        source="predicted",
        method=seats.method,
        doubt=seats.doubt,
        nodes=seats.nodes,
        node_ranks=seats.node_ranks,
        local_ranks=seats.local_ranks,
        gpu_uuids=uuids if uuids and any(uuids) else None,
    )


def launch_hosts(job: Job) -> tuple[str, ...] | None:
    """The nodes that `[launch]` names, in order: `hosts`, else those of the launcher's file; None: it names none. Raises ConfigError.

    Slurm's file and MPI's rankfile tell who takes part but not the order of the node list: names are put in natural order (n2 before n10), as Slurm does.
    """
    launch = job.launch
    if launch.hosts is not None or launch.hostfile is None:
        return launch.hosts
    from preflight.plan.launchers import (
        deepspeed,
        mpi,
        slurm,
    )  # late, here and below: a plan needs one launcher at most

    if launch.launcher == "deepspeed":
        return tuple(deepspeed.read_hostfile(launch.hostfile))
    if launch.launcher == "slurm":
        return tuple(sorted({host for _, host in slurm.read_hostfile(launch.hostfile)}, key=natural_key))
    if launch.launcher == "mpi":
        hosts = {host for _, host in mpi.read_rankfile(launch.hostfile)}
        return None if any(host.startswith("+") for host in hosts) else tuple(sorted(hosts, key=natural_key))
    return None


def launch_gpus_per_node(job: Job) -> int | None:
    """The most ranks that `[launch]` puts on a node; None: it doesn't say. For where nothing else tells the GPUs of a node. Raises ConfigError."""
    launch = job.launch
    if launch.tasks_per_node is not None:
        try:
            return max(parse_counts(launch.tasks_per_node))
        except ValueError as error:
            raise ConfigError(job.source, str(error), key="launch.tasks_per_node") from None
    if launch.launcher == "deepspeed" and launch.hostfile is not None:
        from preflight.plan.launchers import deepspeed

        return max(count for _, count in deepspeed.read_hostfile(launch.hostfile).values())
    return None


def _seat(job: Job, names: Sequence[str], gpus_per_node: int, topology: Topology | None, *, names_known: bool) -> Seats:
    launcher = job.launch.launcher
    for key, launchers in _BELONGS.items():
        if getattr(job.launch, key) is not None and launcher not in launchers:
            given = "without a launcher" if launcher is None else f"with launcher {launcher}"
            remedy = f"write launcher = {' or '.join(map(repr, launchers))} under [launch], or leave {key} out"
            raise ConfigError(job.source, f"means nothing {given}", key=f"launch.{key}", remedy=remedy)
    if launcher is None:
        counts = node_counts(job, names, gpus_per_node)
        return Seats("block", tuple(names), *deal(counts, max(counts)))
    from preflight.plan.launchers import deepspeed, kubernetes, mpi, slurm, torchrun

    if launcher == "slurm":
        return slurm.seat(job, names, gpus_per_node, topology)
    if launcher == "torchrun":
        return torchrun.seat(job, names, gpus_per_node, names_known=names_known)
    if launcher == "deepspeed":
        return deepspeed.seat(job, names, gpus_per_node)
    if launcher == "mpi":
        return mpi.seat(job, names, gpus_per_node)
    return kubernetes.seat(job, names, gpus_per_node, names_known=names_known)
