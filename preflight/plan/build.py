"""From a job to its plan: who sits where, who talks to whom, what it will need."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from preflight.errors import ConfigError
from preflight.model import Job, Placement, Plan, Topology
from preflight.model.hostlist import fold
from preflight.plan.estimate import make_estimate
from preflight.plan.fingerprint import fingerprint
from preflight.plan.footprint import add_topology, find_footprints
from preflight.plan.layout import MAX_WORLD_SIZE, lay_out
from preflight.plan.placement import launch_gpus_per_node, launch_hosts, predict_placement
from preflight.plan.profiles import find_profile
from preflight.plan.regular import regular_footprints


def build_plan(
    job: Job,
    *,
    node_names: Sequence[str] | None = None,
    gpus_per_node: int | None = None,
    gpu_uuids: Mapping[str, Sequence[str | None]] | None = None,
    topology: Topology | None = None,
    placement: Placement | None = None,
) -> Plan:
    """Lay a job out. The arguments are what was discovered, None if nothing was; `[hardware]` and `[launch]` fill in what is missing.

    `node_names` in the order of the allocation; `gpus_per_node` counts the ranks that each node gets; `gpu_uuids`: node name -> UUIDs
    by local rank; `topology`: domains, leaves and racks; `placement`: measured, in place of a predicted one. Raises ConfigError where the plan
    file contradicts itself or what was discovered.
    """
    hardware = job.hardware
    if placement is None:
        placement = _predicted(job, node_names, gpus_per_node, gpu_uuids, topology)
    elif placement.source == "measured":
        _refuse_other_size(job, placement)
    placement = add_topology(placement, topology, hardware.nodes_per_nvlink_domain, gpu=hardware.gpu)
    world_size, num_nodes = len(placement.node_ranks), len(placement.nodes)
    per_node = max(placement.ranks_per_node)
    layout = lay_out(job, nodes=num_nodes, gpus_per_node=per_node, world_size=world_size)
    footprints = regular_footprints(placement, layout.patterns)
    rest = {axis: groups for axis, groups in layout.groups.items() if axis not in footprints}
    footprints |= find_footprints(placement, rest)
    plan = Plan(
        job=job,
        world_size=world_size,
        degrees=layout.degrees,
        order=layout.order,
        groups=layout.groups,
        composites=layout.composites,
        placement=placement,
        footprints=footprints,
        estimate=make_estimate(
            job,
            layout.degrees,
            gpu_memory_bytes=gpu_memory(job),
            world_size=world_size,
            num_nodes=num_nodes,
            profile=find_profile(hardware.gpu) if hardware.gpu else None,
            footprints=footprints,
        ),
    )
    return msgspec.structs.replace(plan, fingerprint=fingerprint(plan))


def _refuse_other_size(job: Job, placement: Placement) -> None:
    """Raise ConfigError if the plan file is for another number of ranks than were found. (How many nodes they are is for the ranks to say.)"""
    nodes, per_node, found = job.hardware.nodes, job.hardware.gpus_per_node, len(placement.node_ranks)
    uneven = job.launch.tasks_per_node is not None or job.launch.hostfile is not None
    if nodes is not None and per_node is not None and not uneven and nodes * per_node != found:
        raise ConfigError(
            job.source,
            f"{nodes} nodes x {per_node} GPUs = {nodes * per_node} ranks, but {found} ranks said where they are",
            key="hardware",
            remedy="correct nodes and gpus_per_node or leave them out, or start as many ranks as were planned",
        )


def _predicted(
    job: Job,
    node_names: Sequence[str] | None,
    gpus_per_node: int | None,
    gpu_uuids: Mapping[str, Sequence[str | None]] | None,
    topology: Topology | None,
) -> Placement:
    source, hardware = job.source, job.hardware
    given = launch_hosts(job) if node_names is None else node_names
    if job.launch.hosts is not None and set(job.launch.hosts) == set(given or ()):
        given = job.launch.hosts  # the same nodes, in the order of the allocation
    if hardware.gpus_per_node is None and gpus_per_node is None:
        gpus_per_node = launch_gpus_per_node(job)
    if given is not None and len(set(given)) < len(given):
        name = Counter(given).most_common(1)[0][0]
        raise ConfigError(source, f"two nodes call themselves {name!r}", remedy="give every node a name of its own")
    nodes = _agreed(source, "nodes", hardware.nodes, None if given is None else len(given), given or ())
    per_node = _agreed(source, "gpus_per_node", hardware.gpus_per_node, gpus_per_node, " per node")
    if nodes * per_node > MAX_WORLD_SIZE:
        shown = f"{nodes} nodes x {per_node} GPUs = {nodes * per_node} ranks"
        raise ConfigError(source, f"{shown} is more than {MAX_WORLD_SIZE}, the most we lay out", key="hardware")
    names = [f"node{i}" for i in range(nodes)] if given is None else given
    return predict_placement(
        job,
        node_names=names,
        gpus_per_node=per_node,
        gpu_uuids=gpu_uuids,
        topology=topology,
        names_known=given is not None,
    )


def gpu_memory(job: Job) -> int | None:
    """Bytes of one GPU as the plan file gives them, or its GPU's profile. None: not said, or the GPU is none we know."""
    if job.hardware.gpu_memory_bytes is not None or job.hardware.gpu is None:
        return job.hardware.gpu_memory_bytes
    profile = find_profile(job.hardware.gpu)
    if profile is None or profile.gpu_memory_bytes is None:
        return None
    return int(profile.gpu_memory_bytes.value)


def _agreed(source: str, key: str, claimed: int | None, found: int | None, which: str | Sequence[str]) -> int:
    """What the plan file claims and what was found, if they agree or only one is there. Raises ConfigError otherwise.

    `which`: what to add to the number that was found, or the nodes' names.
    """
    if claimed is None and found is None:
        raise ConfigError(
            source,
            "is missing, and nothing was discovered that tells it",
            key=f"hardware.{key}",
            remedy=f"write {key} = ... under [hardware] of the plan file, or give `preflight plan` --{key.replace('_', '-')}",
        )
    if claimed is not None and found is not None and claimed != found:
        raise ConfigError(
            source,
            f"{claimed}, but {found} found{_shown(which)}",
            key=f"hardware.{key}",
            remedy=f"correct it or leave it out, or run on {claimed}",
        )
    result = claimed if found is None else found
    assert result is not None
    if result < 1:
        raise ConfigError(source, f"{result} found{_shown(which)}, at least 1 is needed", key=f"hardware.{key}")
    return result


def _shown(which: str | Sequence[str]) -> str:
    """For a message only: to fold a hundred thousand names takes longer than all the rest of a plan."""
    return which if isinstance(which, str) else f" ({fold(which)[:200]})" if which else ""
