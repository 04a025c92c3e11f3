"""What discovery found: nodes with their GPUs, NVLinks, HCAs and NICs. None means "could not find out", always.

GPUs are identified by UUID; `index` is NVML's order, which may differ from CUDA's.
"""

from typing import Literal

from preflight.model.base import Noun
from preflight.model.gpu import Gpu, Problem
from preflight.model.nic import Hca, Nic
from preflight.model.surroundings import (
    ClockSync,
    GpuDirect,
    Iommu,
    KernelLog,
    Limits,
    Mask,
    OutsideVerdict,
    PciBridge,
    Platform,
    Service,
    Setting,
)


class Node(Noun, frozen=True, kw_only=True):
    """One operating-system instance with one agent.

    `gpus` is None when it could not be found out (the driver hangs, devices without a driver) and empty when there are
    none; `gpu_note` says in one line why there are none or why it is unknown. `taken_at_s` is Unix time.
    `source`: "node" was read on the node; "topo" and "nccl xml" are texts that tell how GPUs and NICs are joined and nothing of their health ("topo -mp" not
    even NVLink), "simulated" a modelled one.
    `gpus_on_bus`: PCI ids of NVIDIA GPUs; `dead_on_bus`: those of them whose configuration space reads as all ones. `device_files`: minors of /dev/nvidiaN;
    `closed_devices`: those of them that this process may not open (file permissions, or a device cgroup).
    `versions`: of software beside the driver, by name ("nccl", "ofed", ...). `confidential_compute`: whether it is on. `hcas` None: can't be read; empty: none.
    """

    name: str
    source: Literal["node", "topo", "topo -mp", "nccl xml", "simulated"] = "node"
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
    versions: dict[str, str] = {}
    confidential_compute: bool | None = None
    gpus: tuple[Gpu, ...] | None = None
    gpu_note: str | None = None
    gpus_on_bus: tuple[str, ...] | None = None
    dead_on_bus: tuple[str, ...] = ()
    device_files: tuple[int, ...] | None = None
    closed_devices: tuple[int, ...] = ()
    mask: Mask | None = None
    nics: tuple[Nic, ...] | None = None
    hcas: tuple[Hca, ...] | None = None
    pci_bridges: tuple[PciBridge, ...] | None = None
    iommu: Iommu | None = None
    gpu_direct: GpuDirect | None = None
    limits: Limits | None = None
    clock: ClockSync | None = None
    platform: Platform | None = None
    kernel_log: KernelLog | None = None
    settings: tuple[Setting, ...] | None = None
    services: tuple[Service, ...] | None = None
    verdicts: tuple[OutsideVerdict, ...] = ()
    problems: tuple[Problem, ...] = ()
    simulated: bool = False

    @property
    def tells_health(self) -> bool:
        """Whether the source can tell more than how things are joined."""
        return self.source == "node"

    @property
    def open_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that could be opened (a source that doesn't tell counts them as such); what became of the others is the business of one check, `gpus_answer`."""
        known = self.gpus or ()
        return tuple(gpu for gpu in known if gpu.uuid is not None or gpu.name is not None or not self.tells_health)

    def setting(self, name: str) -> Setting | None:
        """The effective setting of that name, None if it is not set (or settings are unknown)."""
        return next((setting for setting in self.settings or () if setting.name == name), None)


class Inventory(Noun, frozen=True, kw_only=True):
    """All nodes of a run, in node-rank order."""

    nodes: tuple[Node, ...]

    def node(self, name: str) -> Node | None:
        """The node of that name, None if discovery has none."""
        return next((node for node in self.nodes if node.name == name), None)
