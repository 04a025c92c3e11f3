"""From a job to its plan: who sits where, who talks to whom, what it will need."""

from collections.abc import Mapping, Sequence

from preflight.errors import ConfigError
from preflight.model import Job, Plan
from preflight.model.hostlist import fold
from preflight.plan.estimate import make_estimate
from preflight.plan.layout import all_groups, axis_order, resolve_degrees
from preflight.plan.placement import predict_placement
from preflight.plan.profiles import find_profile


def build_plan(
    job: Job,
    *,
    node_names: Sequence[str] | None = None,
    gpus_per_node: int | None = None,
    gpu_uuids: Mapping[str, Sequence[str | None]] | None = None,
) -> Plan:
    """Lay a job out. The arguments are what was discovered, None if nothing was; `[hardware]` fills in what is missing.

    `node_names` in node-rank order; `gpus_per_node` counts the ranks that each node gets; `gpu_uuids`: node name -> UUIDs
    by local rank. Raises ConfigError where the plan file contradicts itself or what was discovered.
    """
    source, hardware = job.source, job.hardware
    seen: set[str] = set()
    for name in node_names or ():
        if name in seen:
            raise ConfigError(source, f"two nodes call themselves {name!r}", remedy="give every node a name of its own")
        seen.add(name)
    found_nodes = None if node_names is None else len(node_names)
    which = "" if not node_names else f" ({fold(node_names)})"
    nodes = _agreed(source, "nodes", hardware.nodes, found_nodes, which)
    per_node = _agreed(source, "gpus_per_node", hardware.gpus_per_node, gpus_per_node, " per node")
    degrees = resolve_degrees(job, nodes=nodes, gpus_per_node=per_node)
    order = axis_order(job, degrees)
    return Plan(
        job=job,
        world_size=nodes * per_node,
        degrees=degrees,
        order=order,
        groups=all_groups(degrees, order),
        placement=predict_placement(nodes * per_node, node_names, per_node, gpu_uuids),
        estimate=make_estimate(job, degrees, gpu_memory_bytes=gpu_memory(job)),
    )


def gpu_memory(job: Job) -> int | None:
    """Bytes of one GPU as the plan file gives them, or its GPU's profile. None: not said, or the GPU is none we know."""
    if job.hardware.gpu_memory_bytes is not None or job.hardware.gpu is None:
        return job.hardware.gpu_memory_bytes
    profile = find_profile(job.hardware.gpu)
    if profile is None or profile.gpu_memory_bytes is None:
        return None
    return int(profile.gpu_memory_bytes.value)


def _agreed(source: str, key: str, claimed: int | None, found: int | None, which: str) -> int:
    """What the plan file claims and what was found, if they agree or only one is there. Raises ConfigError otherwise."""
    if claimed is None and found is None:
        raise ConfigError(
            source,
            "is missing, and nothing was discovered that tells it",
            key=f"hardware.{key}",
            remedy=f"write {key} = ... under [hardware]",
        )
    if claimed is not None and found is not None and claimed != found:
        raise ConfigError(
            source,
            f"{claimed}, but {found} found{which}",
            key=f"hardware.{key}",
            remedy=f"correct it or leave it out, or run on {claimed}",
        )
    result = claimed if found is None else found
    assert result is not None
    if result < 1:
        raise ConfigError(source, f"{result} found{which}, at least 1 is needed", key=f"hardware.{key}")
    return result
