"""`--keep`: the job by which all nodes of an over-provisioned allocation are measured, before it is known which of them the real one gets."""

import msgspec

from preflight.errors import UsageError
from preflight.model import Job, Parallel


def job_for_all(job: Job, num_nodes: int) -> Job:
    """The same model with more data parallelism, so that every node takes part and each tensor-parallel group is measured where it would be; nothing else of the layout can be kept.

    Launcher and hosts are left out: what is measured says something of nodes, not of the order of ranks.
    """
    per_node, tp = job.hardware.gpus_per_node, job.parallel.tp
    inside = tp if per_node is not None and per_node % tp == 0 else 1
    training = msgspec.structs.replace(
        job.training, global_batch_size=None, micro_batches=job.training.micro_batches or 1
    )
    hardware = msgspec.structs.replace(job.hardware, nodes=None if per_node is None else num_nodes)
    launch = msgspec.structs.replace(
        type(job.launch)(), topology=job.launch.topology, visible_devices=job.launch.visible_devices
    )
    return msgspec.structs.replace(
        job, parallel=Parallel(tp=inside), training=training, hardware=hardware, launch=launch
    )


def job_of_kept(job: Job, nodes: tuple[str, ...]) -> Job:
    """The job on the nodes that were kept, in this order. Raises UsageError: it is for another number of nodes, or for nodes that a file names."""
    if job.hardware.nodes not in (None, len(nodes)):
        raise UsageError(
            f"--keep {len(nodes)}, but {job.source} is for {job.hardware.nodes} nodes: give --keep {job.hardware.nodes}"
        )
    launch = job.launch
    if launch.hostfile is not None:
        raise UsageError(f"--keep: {job.source} names a hostfile, which says where each rank goes: leave hostfile out")
    if launch.hosts is not None or launch.tasks_per_node is not None:
        launch = msgspec.structs.replace(launch, hosts=None, tasks_per_node=None)
    return msgspec.structs.replace(job, launch=launch)


def block_of(job: Job) -> int:
    """How many nodes belong into one NVLink domain: as many as a group of tp times cp spans. 1: each node is enough, or it isn't known."""
    per_node = job.hardware.gpus_per_node
    inner = job.parallel.tp * job.parallel.cp
    return 1 if per_node is None or inner <= per_node else -(-inner // per_node)
