"""What discovery found: nodes with their GPUs, NVLinks and NICs. None means "could not find out", always.

GPUs are identified by UUID; `index` is NVML's order, which may differ from CUDA's.
"""

from typing import Literal

from preflight.model.base import Noun

Ancestor = Literal["internal", "PIX", "PXB", "PHB", "NODE", "SYS"]  # nvidia-smi topo's words, closest first
PeerKind = Literal["gpu", "switch", "cpu"]


class Problem(Noun, frozen=True, kw_only=True):
    """Something that could not be read: from which source, and why, as the source said it."""

    source: str
    text: str


class Link(Noun, frozen=True, kw_only=True):
    """One NVLink of a GPU, and what is at its other end.

    `speed_bytes_per_s` is the line rate that the driver reports, one direction; `version` the NVLink generation, "4.0".
    """

    index: int
    active: bool | None = None
    peer_kind: PeerKind | None = None
    peer_pci_bus_id: str | None = None
    version: str | None = None
    speed_bytes_per_s: int | None = None


class GpuPeer(Noun, frozen=True, kw_only=True):
    """How one GPU of a node reaches another: direct or switched NVLinks (None: unknown; 0: none), and the PCIe ancestor."""

    index: int
    num_nvlinks: int | None = None
    ancestor: Ancestor | None = None


class Gpu(Noun, frozen=True, kw_only=True):
    """One physical GPU. One that could not be opened keeps its index and its `problems`, all else None.

    `nvlink_domain`: the GPUs that carry the same text here reach each other over NVLink. From NVML's fabric info it is
    "clusterUUID.clique"; without fabric info it is the node's name if the node's GPUs are joined; None: unknown;
    "none": this GPU reaches no other over NVLink.
    `links`: None if NVML could not say, empty if the product has no NVLink.
    `pci_bus_id` is spelled as sysfs does: lower case, 4-digit domain ("0000:1a:00.0"). `pci_upstream`: the bridges above
    it, closest first, the root complex last ("pci0000:00").
    """

    index: int
    uuid: str | None = None
    name: str | None = None
    pci_bus_id: str | None = None
    serial: str | None = None
    minor_number: int | None = None
    memory_bytes: int | None = None
    vbios_version: str | None = None
    numa_node: int | None = None
    pci_upstream: tuple[str, ...] | None = None
    mig_enabled: bool | None = None
    ecc_enabled: bool | None = None
    nvlink_domain: str | None = None
    links: tuple[Link, ...] | None = None
    peers: tuple[GpuPeer, ...] = ()
    problems: tuple[Problem, ...] = ()


class Nic(Noun, frozen=True, kw_only=True):
    """A network interface. `speed_bytes_per_s` is None where the kernel doesn't know (loopback, virtual, down).

    `pci_upstream` as for a GPU; None for an interface that sits on no PCI bus.
    """

    name: str
    kind: Literal["ethernet", "infiniband", "loopback", "virtual"] | None = None
    up: bool | None = None
    addresses: tuple[str, ...] = ()
    mtu_bytes: int | None = None
    speed_bytes_per_s: int | None = None
    pci_bus_id: str | None = None
    numa_node: int | None = None
    pci_upstream: tuple[str, ...] | None = None


class Node(Noun, frozen=True, kw_only=True):
    """One operating-system instance with one agent.

    `gpus` is None when it could not be found out (the driver hangs, devices without a driver) and empty when there are
    none; `gpu_note` says in one line why there are none or why it is unknown. `taken_at_s` is Unix time.
    """

    name: str
    hostname: str | None = None
    boot_id: str | None = None
    taken_at_s: float | None = None
    kernel: str | None = None
    cpu_model: str | None = None
    num_cpus: int | None = None
    memory_bytes: int | None = None
    numa_nodes: tuple[int, ...] | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    nvml_version: str | None = None
    gpus: tuple[Gpu, ...] | None = None
    gpu_note: str | None = None
    nics: tuple[Nic, ...] | None = None
    problems: tuple[Problem, ...] = ()
    simulated: bool = False


class Inventory(Noun, frozen=True, kw_only=True):
    """All nodes of a run, in node-rank order."""

    nodes: tuple[Node, ...]

    def node(self, name: str) -> Node | None:
        """The node of that name, None if discovery has none."""
        return next((node for node in self.nodes if node.name == name), None)
