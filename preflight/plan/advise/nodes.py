"""Another order of the same nodes: a file or a list for the launcher. Where the framework refuses another order of axes, as Megatron does for most
mixtures of experts, this is what brings the right groups together.
"""

from collections.abc import Iterator

import msgspec

from preflight.model import Change, Job
from preflight.plan.advise.blocks import WIDE_AXES, arrange
from preflight.plan.advise.files import deepspeed_hostfile, host_list, mpi_rankfile, slurm_hostfile
from preflight.plan.advise.flags import static_rendezvous
from preflight.plan.advise.situation import Situation, block_placement
from preflight.plan.advise.trial import Candidate, with_launch

COST = 4


def node_orders(situation: Situation) -> Iterator[Candidate]:
    """Orders of the nodes that keep the layout's blocks together, one per choice of what else to keep near."""
    if not situation.names_known or not situation.even or len(situation.nodes) < 2:
        return
    labels = {kind: situation.labels(kind) for kind in ("domain", "leaf", "rack")}
    seen: set[tuple[str, ...]] = set()
    for wide in ((), *WIDE_AXES):
        order = arrange(
            situation.plan.groups,
            situation.per_node,
            domains=labels["domain"],
            leaves=labels["leaf"],
            racks=labels["rack"],
            wide=wide,
        )
        if order is None:
            continue
        nodes = tuple(situation.nodes[index] for index in order)
        if nodes not in seen:
            seen.add(nodes)
            yield reorder(situation, nodes)


def reorder(situation: Situation, nodes: tuple[str, ...], *, job: Job | None = None, title: str = "") -> Candidate:
    """The candidate that puts ranks on these nodes in this order, written as the launcher wants it."""
    launcher, per_node = situation.job.launch.launcher, situation.per_node
    job = job or situation.job
    title = title or "put the nodes in an order that keeps the groups together"
    if launcher in {"torchrun", "kubernetes"}:
        candidate = static_rendezvous(situation._replace(job=job), nodes, cost=COST)
        change = msgspec.structs.replace(candidate.change, kind="node_order", title=title)
        return candidate._replace(change=change)
    keys: dict[str, str | None] = {}
    filename = content = None
    if launcher == "slurm":
        filename, content = "hosts.txt", slurm_hostfile(nodes, per_node)
        paste = f"SLURM_HOSTFILE={filename} srun --distribution=arbitrary"
        keys = {"launch.distribution": '"arbitrary"', "launch.hostfile": f'"{filename}"'}
        if job.launch.segment is not None:  # Slurm takes only one of both
            keys["launch.segment"] = None
        job = with_launch(job, distribution="arbitrary", hostfile=filename, segment=None)
    elif launcher == "deepspeed":
        filename, content = "hostfile", deepspeed_hostfile(nodes, per_node)
        paste = f"deepspeed --hostfile={filename}"
        keys = {"launch.hostfile": f'"{filename}"'}
        job = with_launch(job, hostfile=filename)
    elif launcher == "mpi":
        filename, content = "rankfile.txt", mpi_rankfile(nodes, per_node)
        paste = f"mpirun --rankfile {filename}"
        keys = {"launch.hostfile": f'"{filename}"'}
        title += "; its slots are CPU cores, so put the cores near each GPU there if ranks are bound"
        job = with_launch(job, distribution=None, hostfile=filename)
    else:
        paste = host_list(nodes)
        keys = {"launch.hosts": f'"{paste}"'}
        job = with_launch(job, hosts=nodes)
    change = Change(kind="node_order", title=title, paste=paste, filename=filename, content=content, keys=keys)
    placement = block_placement(nodes, per_node, method=f"as in {filename or 'launch.hosts'}", uuids=situation.uuids)
    return Candidate(COST, change, job, nodes, placement=placement)
