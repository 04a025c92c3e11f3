"""What surrounds the GPUs of a node: the operating system's limits, PCI setup, kernel log, settings, and what other tools said. None: could not find out."""

from typing import Literal

from preflight.model.base import Noun

UNLIMITED = 2**64 - 1  # RLIM_INFINITY of Linux


class Limits(Noun, frozen=True, kw_only=True):
    """Limits of this process, which a job step inherits or not: soft and hard locked memory (UNLIMITED), open files; and /dev/shm's size and free bytes.

    `privileged`: it may lock memory beyond the limit (root).
    """

    memlock_bytes: int | None = None
    memlock_hard_bytes: int | None = None
    privileged: bool | None = None
    open_files: int | None = None
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None


class ClockSync(Noun, frozen=True, kw_only=True):
    """The kernel's own opinion of its clock (adjtimex): kept in step or not, and the error that it takes as possible, in seconds."""

    synchronised: bool | None = None
    max_error_s: float | None = None
    offset_s: float | None = None


class Platform(Noun, frozen=True, kw_only=True):
    """What this system runs in. `virtual_machine` and `container`: None unknown, "none" known to be none, else the kind ("kvm", "docker", ...). `machine`: vendor and product of the board."""

    virtual_machine: str | None = None
    container: str | None = None
    machine: str | None = None


class PciBridge(Noun, frozen=True, kw_only=True):
    """A PCI bridge above a GPU or HCA. `acs_control`: the ACS control register, None if the bridge has none or it may not be read (`acs_readable` False)."""

    bus_id: str
    acs_readable: bool
    acs_control: int | None = None


class Iommu(Noun, frozen=True, kw_only=True):
    """`mode`: "off", "passthrough" (devices see physical addresses) or "translated"; `source`: the file or parameter that tells it."""

    mode: Literal["off", "passthrough", "translated"] | None = None
    source: str | None = None


class GpuDirect(Noun, frozen=True, kw_only=True):
    """How an HCA may reach GPU memory. `peermem`: nvidia_peermem (or the older nv_peer_mem) is loaded: its name, "none" if neither. `memory_peers`: clients registered
    with the RDMA stack, from /sys/kernel/mm/memory_peers, None if that folder is absent. `open_driver`: the open kernel modules, which dmabuf needs. `dmabuf`: whether kernel and driver offer it.
    """

    peermem: str | None = None
    memory_peers: tuple[str, ...] | None = None
    open_driver: bool | None = None
    dmabuf: bool | None = None


class KernelEvent(Noun, frozen=True, kw_only=True):
    """One line of the kernel log about a GPU, NVSwitch or PCI link. `at_s`: seconds since boot. `code`: of Xid and SXid. `subcode`: of Xids 144 to 150.
    `severity`: the words in the line ("Fatal", "Nonfatal"), None if it has none. `port`: of an SXid, the switch port. `pid`, `process`: whose work was under way.
    `count`: how often such a line came, equal ones folded into the first; `last_at_s`: the last of them, None if it came once.
    """

    kind: Literal["xid", "sxid", "fell off", "aer", "driver"]
    at_s: float | None = None
    code: int | None = None
    subcode: str | None = None
    severity: str | None = None
    pci_bus_id: str | None = None
    port: int | None = None
    pid: int | None = None
    process: str | None = None
    text: str = ""
    count: int = 1
    last_at_s: float | None = None


class KernelLog(Noun, frozen=True, kw_only=True):
    """The events of the kernel's log. `events` None: may not be read, `note` says why; with events, `note` says what the log leaves out.

    `starts_at_s`: seconds since boot of the oldest line that is still there (0: from boot on). `read_at_s`: seconds since boot when it was read, so that ages can be told.
    `driver_loaded_at_s`: when the NVIDIA driver was loaded last, which starts GPUs and switches anew; None: the log doesn't tell.
    """

    events: tuple[KernelEvent, ...] | None = None
    starts_at_s: float | None = None
    read_at_s: float | None = None
    driver_loaded_at_s: float | None = None
    source: str | None = None
    note: str | None = None


class Setting(Noun, frozen=True, kw_only=True):
    """Something that steers NCCL or CUDA, and where the value comes from ("environment", a file). `overrides`: the places that gave another value and lost, "origin=value"."""

    name: str
    value: str
    origin: str
    overrides: tuple[str, ...] = ()
    file_problem: str | None = None  # of a value that names a file: why that file can't be used


class Service(Noun, frozen=True, kw_only=True):
    """A daemon that GPUs need ("nv-fabricmanager", "nvidia-imex", "nvidia-persistenced", "nvlsm"), and whether it runs. None: processes can't be seen here."""

    name: str
    running: bool | None = None


class Mask(Noun, frozen=True, kw_only=True):
    """The devices that this process or job was given. `variables`: those that were set, as they were (CUDA_VISIBLE_DEVICES, SLURM_JOB_GPUS, ...).

    `gpu_uuids`: what they resolve to, in the order of CUDA, None where not determined; None as a whole: no mask, all GPUs. `physical`: their numbers on the machine
    where known (cgroups and containers renumber). `problems`: what is wrong with the mask; `doubts`: why a device isn't determined, though the mask may be right.
    """

    variables: dict[str, str] = {}
    gpu_uuids: tuple[str | None, ...] | None = None
    physical: tuple[int | None, ...] = ()
    problems: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


class OutsideVerdict(Noun, frozen=True, kw_only=True):
    """What another tool said: `origin` ("dcgmi diag", a file's or plug-in's name), the name of its test, of what, and its verdict in our words."""

    origin: str
    name: str
    verdict: Literal["FAIL", "UNKNOWN", "WARN", "PASS", "SKIP"]
    text: str = ""
    gpu: str | None = None  # index, PCI id or UUID, as the tool spelled it
