"""Which backend a run probes with, and which GPU each rank gets.

A run without GPUs must be meant: someone declares it (`backend = "gloo"` or "auto" in the plan file, or --backend). GPUs that are merely missing
are never taken for a machine that has none.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from preflight.errors import ConfigError
from preflight.model import Job, Launch, Node
from preflight.model.devices import resolve_devices


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The backend, why, and whether a run without GPUs was declared. `gpus`: node -> the UUID for each local rank, None: no GPU."""

    backend: Literal["nccl", "gloo"]
    reason: str
    cpu_declared: bool
    gpus: dict[str, tuple[str | None, ...]]


def choose_backend(
    job: Job, option: str | None, nodes: Sequence[Node], per_node: int, *, share_machine: bool
) -> Choice:
    """Decide from what was asked for and what was found. share_machine: the nodes are agents of one machine and share its GPUs.

    Raises ConfigError if NCCL is asked for and no node has a usable GPU.
    """
    asked = option or job.hardware.backend
    gpus = _assign(nodes, per_node, job.launch, share_machine=share_machine)
    found = sum(uuid is not None for node in gpus.values() for uuid in node)
    wanted = per_node * len(nodes)
    none: dict[str, tuple[str | None, ...]] = {node.name: (None,) * per_node for node in nodes}
    if asked == "gloo":
        return Choice(backend="gloo", reason="asked for", cpu_declared=True, gpus=none)
    if asked == "auto" and (found == 0 or (share_machine and found < wanted)):
        reason = f"{found} GPUs for {wanted} ranks, and the plan file or --backend says auto: CPUs are probed instead"
        return Choice(backend="gloo", reason=reason, cpu_declared=True, gpus=none)
    if found:
        return Choice(backend="nccl", reason=f"{found} GPUs for {wanted} ranks", cpu_declared=False, gpus=gpus)
    if asked == "nccl":
        raise ConfigError(
            job.source,
            "NCCL was asked for, but no node has a usable GPU",
            key="hardware.backend",
            remedy='see `preflight node` there; backend = "gloo" probes CPUs',
        )
    reason = "no node has a usable GPU; nobody declared that CPUs are meant, so this does not count as healthy"
    return Choice(backend="gloo", reason=reason, cpu_declared=False, gpus=none)


def _assign(
    nodes: Sequence[Node], per_node: int, launch: Launch, *, share_machine: bool
) -> dict[str, tuple[str | None, ...]]:
    """Usable GPUs: those that Slurm gave the job on the node, else in the order in which the job's CUDA_VISIBLE_DEVICES shows them, else in NVML's (PCI order); agents that share
    a machine take consecutive parts of its list.
    """
    assigned: dict[str, tuple[str | None, ...]] = {}
    for position, node in enumerate(nodes):
        usable = [gpu.uuid for gpu in node.gpus or () if gpu.uuid and not gpu.mig_enabled]
        first = position * per_node if share_machine else 0
        mine: list[str | None] = list(usable[first : first + per_node])
        if launch.node_gpus is not None and not share_machine:
            seen = [gpu.uuid for gpu in node.gpus or ()]
            numbers = launch.node_gpus.get(node.name, ())[:per_node]
            mine = [seen[n] if n < len(seen) and seen[n] in usable else None for n in numbers]
        elif launch.visible_devices is not None and not share_machine:
            shown = resolve_devices(launch.visible_devices, node.gpus).uuids[:per_node]
            mine = [uuid if uuid in usable else None for uuid in shown]
        assigned[node.name] = tuple(mine + [None] * (per_node - len(mine)))
    return assigned
