"""One GPU as it was found: identity, links, health, load. None means "could not find out", always.

A fact is None for one of three reasons, which `Gpu.why_unknown` tells apart: the product or driver doesn't have it (its name is in `unsupported`), asking
for it failed (a Problem names the field), or the source of this snapshot doesn't tell it.
"""

from typing import Literal

from preflight.model.base import Noun, Record

Ancestor = Literal["internal", "PIX", "PXB", "PHB", "NODE", "SYS"]  # nvidia-smi topo's words, closest first
PeerKind = Literal["gpu", "switch", "cpu"]
LinkState = Literal["inactive", "active", "sleep", "no traffic"]
P2pStatus = Literal["ok", "chipset", "gpu", "topology", "disabled", "not supported", "unknown"]
P2pKind = Literal["read", "write", "nvlink", "atomics", "pci"]
RecoveryAction = Literal[
    "none", "reset", "reboot", "drain p2p", "drain and reset", "IMEX domain", "bus reset", "system reboot"
]


class Problem(Noun, frozen=True, kw_only=True):
    """Something that could not be read: from which source, and why, as the source said it. `field`: the fact that is missing for it, by the name of the
    noun's field ("ecc"); None: no one field.
    """

    source: str
    text: str
    field: str | None = None

    @property
    def not_allowed(self) -> bool:
        """Whether it is only that this user or container may not read it."""
        return "permission" in self.text.lower()


class Link(Noun, frozen=True, kw_only=True):
    """One NVLink of a GPU, and what is at its other end.

    `active`: carries traffic, or sleeps and wakes by itself. `state`: in NVML's words. `speed_bytes_per_s`: the line rate that the driver reports, one direction;
    `version`: the NVLink generation, "4.0". `peer_link`: the port at the other end (NVSwitch of the A100 kind tells it). `counters`: errors and recoveries
    since the driver was loaded, by the names in `model/counters.py`; one that the product doesn't have is absent.
    """

    index: int
    active: bool | None = None
    state: LinkState | None = None
    peer_kind: PeerKind | None = None
    peer_pci_bus_id: str | None = None
    peer_link: int | None = None
    version: str | None = None
    speed_bytes_per_s: int | None = None
    counters: dict[str, int] = {}


class GpuPeer(Noun, frozen=True, kw_only=True):
    """How one GPU of a node reaches another: direct or switched NVLinks (None: unknown; 0: none), the PCIe ancestor, and what the driver says of peer access, by
    kind (absent: not asked or not told).
    """

    index: int
    num_nvlinks: int | None = None
    ancestor: Ancestor | None = None
    p2p: dict[P2pKind, P2pStatus] = {}


class PcieLink(Noun, frozen=True, kw_only=True):
    """A PCIe link as it is now and at most. `max_*`: what device and slot together allow; `device_max_generation`: what the device alone allows.

    An idle GPU lowers its generation to save power, never its width.
    """

    generation: int | None = None
    width: int | None = None
    max_generation: int | None = None
    max_width: int | None = None
    device_max_generation: int | None = None
    replays: int | None = None


class Ecc(Noun, frozen=True, kw_only=True):
    """Memory errors: volatile ones since the driver was loaded, aggregate ones over the GPU's life. `sram_threshold_exceeded`: the vendor's own mark for replacing it."""

    corrected_volatile: int | None = None
    uncorrected_volatile: int | None = None
    corrected_aggregate: int | None = None
    uncorrected_aggregate: int | None = None
    sram_threshold_exceeded: bool | None = None


class RowRemap(Noun, frozen=True, kw_only=True):
    """Rows replaced for correctable and uncorrectable errors; `pending`: bad rows are replaced at the next reset; `failed`: a row could not be replaced."""

    correctable: int
    uncorrectable: int
    pending: bool
    failed: bool


class RetiredPages(Noun, frozen=True, kw_only=True):
    """Pages retired for single-bit and double-bit errors (before Ampere); `pending`: retired at the next reboot."""

    single_bit: int | None = None
    double_bit: int | None = None
    pending: bool | None = None


class Clocks(Noun, frozen=True, kw_only=True):
    """Clocks in MHz; `application_sm_mhz`: locked by an administrator. `throttle_reasons`: why the clock is held down now, by NVML's names in lower case ("idle",
    "sw power cap", "hw slowdown", "hw thermal slowdown", ...). `throttled_ns`: how long each reason was in force since the driver was loaded.
    """

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    max_sm_mhz: int | None = None
    max_memory_mhz: int | None = None
    application_sm_mhz: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    throttled_ns: dict[str, int] = {}


class Power(Noun, frozen=True, kw_only=True):
    """Watts. `enforced_limit_w`: the lowest of all limits, those set out of band too."""

    draw_w: float | None = None
    limit_w: float | None = None
    default_limit_w: float | None = None
    enforced_limit_w: float | None = None
    max_limit_w: float | None = None


class Temperature(Noun, frozen=True, kw_only=True):
    """Degrees Celsius. `margin_c`: how far it is from being slowed down, where the product tells it (Ada and newer); may be negative."""

    gpu_c: int | None = None
    memory_c: int | None = None
    slowdown_c: int | None = None
    shutdown_c: int | None = None
    margin_c: int | None = None


class GpuProcess(Noun, frozen=True, kw_only=True):
    """A process that holds memory of a GPU; `pid` is of the host's namespace. Name, user and age are None where this process can't see it.

    `ours`: of the same job, or of the same session, as the process that looked; None: can't be told.
    """

    pid: int
    memory_bytes: int | None = None
    kind: Literal["compute", "graphics", "mps"] = "compute"
    name: str | None = None
    user: str | None = None
    started_at_s: float | None = None
    ours: bool | None = None


class Fabric(Noun, frozen=True, kw_only=True):
    """The GPU's registration in its NVLink fabric (Hopper and newer). `status`: NVML's code, 0 is success, told only if the state is "completed"; `status_text` in the driver's words.

    `cluster_uuid`: None if all zero, which is normal on one switched node. `health`: the parts of the health mask that the driver supports -> whether there is a
    fault ("degraded bandwidth", "route recovery", "route unhealthy", "access timeout recovery"). `misconfiguration`: the mask's code in words, None if none.
    `health_summary`: "healthy", "unhealthy", "limited capacity", None if not told.
    """

    state: Literal["not supported", "not started", "in progress", "completed"]
    status: int | None = None
    status_text: str | None = None
    cluster_uuid: str | None = None
    clique_id: int | None = None
    health_mask: int | None = None
    health: dict[str, bool] = {}
    misconfiguration: str | None = None
    health_summary: str | None = None


class Missing(Record, frozen=True):
    """Why a fact is None: "unsupported" (the product has none: nothing to judge), "failed" (asked, and refused), "not allowed" (a right is missing), "not told"
    (the source doesn't say); and in words.
    """

    kind: Literal["unsupported", "failed", "not allowed", "not told"]
    text: str


class Gpu(Noun, frozen=True, kw_only=True):
    """One physical GPU. One that could not be opened keeps its index and its `problems`, all else None.

    `nvlink_domain`: the GPUs that carry the same text here reach each other over NVLink. From NVML's fabric info it is
    "clusterUUID.clique"; without fabric info it is the node's name if the node's GPUs are joined; None: unknown;
    "none": this GPU reaches no other over NVLink.
    `links`: None if NVML could not say, empty if the product has no NVLink.
    `pci_bus_id` is spelled as sysfs does: lower case, 4-digit domain ("0000:1a:00.0"). `pci_upstream`: the bridges above
    it, closest first, the root complex last ("pci0000:00").
    `numa_node`: the CPUs' NUMA node next to it; `own_numa_node`: the node that its memory forms (Grace). `cpus`: those next to it, "0-47,96-143".
    `nics`: HCA or interface -> how close it is. `module_id`: its place on the baseboard. `mig_devices`: UUIDs of MIG devices.
    `unsupported`: names of fields that the product or driver doesn't have.
    """

    index: int
    uuid: str | None = None
    name: str | None = None
    pci_bus_id: str | None = None
    serial: str | None = None
    minor_number: int | None = None
    module_id: int | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    vbios_version: str | None = None
    inforom_version: str | None = None
    gsp_version: str | None = None
    numa_node: int | None = None
    own_numa_node: int | None = None
    cpus: str | None = None
    pci_upstream: tuple[str, ...] | None = None
    nics: dict[str, Ancestor] = {}
    mig_enabled: bool | None = None
    mig_pending: bool | None = None
    mig_devices: tuple[str, ...] | None = None
    ecc_enabled: bool | None = None
    ecc_pending: bool | None = None
    persistence: bool | None = None
    nvlink_domain: str | None = None
    fabric: Fabric | None = None
    links: tuple[Link, ...] | None = None
    peers: tuple[GpuPeer, ...] = ()
    pcie: PcieLink | None = None
    ecc: Ecc | None = None
    row_remap: RowRemap | None = None
    retired_pages: RetiredPages | None = None
    clocks: Clocks | None = None
    power: Power | None = None
    temperature: Temperature | None = None
    processes: tuple[GpuProcess, ...] | None = None
    recovery_action: RecoveryAction | None = None
    unsupported: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    def why_unknown(self, field: str) -> Missing:
        """Why the fact of that name ("ecc", "row_remap") is None."""
        if field in self.unsupported:
            return Missing("unsupported", "this product or driver doesn't have it")
        told = [problem for problem in self.problems if problem.field == field]
        told = told or [problem for problem in self.problems if problem.field is None]  # the GPU as a whole: it is lost
        if told:
            text = "; ".join(f"{problem.source}: {problem.text}" for problem in told)
            return Missing("not allowed" if all(problem.not_allowed for problem in told) else "failed", text)
        return Missing("not told", "not in this snapshot")

    def peer(self, index: int) -> GpuPeer | None:
        """What is known of the way to another GPU of the node."""
        return next((peer for peer in self.peers if peer.index == index), None)
