"""What the nodes' own settings and modules say of a rate that is low everywhere (pure). Only what surely costs bandwidth is named.

Sources: NCCL user guide, "Environment Variables"; NVIDIA/nccl-tests issue 228 (NCCL_P2P_DISABLE=1 left over: 24 in place of 220 GB/s on healthy NVLink); NVIDIA/nccl issue 1676 (GPUDirect RDMA off after an image
upgrade: 10 in place of 180 GB/s on every pair of nodes).
"""

from collections.abc import Callable, Iterable

from preflight.model.crossing import shortened
from preflight.model.hostlist import fold
from preflight.model.inventory import Node
from preflight.model.nccl_lists import read_number

PEERS = {"nv_mem", "nv_mem_nc"}  # what a peer-memory module registers as
TAKES_PEERMEM = (2, 23, 4)  # NCCL from here on takes nvidia_peermem without its entry in /sys/kernel/mm/memory_peers


def _on(value: str) -> bool:
    return bool(read_number(value))


def _least(value: str) -> bool:
    return value.strip().upper() in {"LOC", "0"}


INSIDE: dict[str, tuple[Callable[[str], bool], str]] = {
    "NCCL_P2P_DISABLE": (_on, "direct access between GPUs is off"),
    "NCCL_P2P_LEVEL": (_least, "direct access between GPUs is off"),
}
ACROSS: dict[str, tuple[Callable[[str], bool], str]] = {
    "NCCL_IB_DISABLE": (_on, "InfiniBand and RoCE are off"),
    "NCCL_NET": (lambda value: value.casefold() == "socket", "traffic goes through TCP sockets"),
    "NCCL_NET_GDR_LEVEL": (_least, "HCAs don't reach GPU memory directly"),
}


def slow_causes(nodes: Iterable[Node], *, across: bool) -> tuple[str, ...]:
    """In words, each with the nodes that have it: "NCCL_P2P_DISABLE=1 from environment: direct access between GPUs is off (node0)". `across`: of traffic between nodes. Empty: nothing known."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        for name, (is_cause, means) in (ACROSS if across else INSIDE).items():
            setting = node.setting(name)
            if setting is not None and setting.value and is_cause(setting.value):
                found.setdefault(f"{name}={setting.value} from {setting.origin}: {means}", []).append(node.name)
        if across and _no_gpu_direct(node):
            found.setdefault("GPUDirect RDMA is not active: HCAs don't reach GPU memory directly", []).append(node.name)
    return tuple(f"{cause} ({shortened(fold(names))})" for cause, names in found.items())


def _no_gpu_direct(node: Node) -> bool:
    """Surely not: neither dmabuf nor a module that this NCCL takes."""
    direct = node.gpu_direct
    if direct is None or direct.dmabuf is not False or direct.peermem is None or not node.hcas:
        return False
    if all(hca.driver == "efa" for hca in node.hcas) or PEERS & set(direct.memory_peers or ()):
        return False
    if direct.peermem == "none":
        return True
    version = tuple(int(part) for part in node.versions.get("nccl", "").split(".")[:3] if part.isdigit())
    return direct.peermem == "nvidia_peermem" and len(version) == 3 and version < TAKES_PEERMEM
