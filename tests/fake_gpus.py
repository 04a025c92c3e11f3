"""Descriptions of GPUs and of whole machines for FakeNvml. Figures: vendor data sheets and public outputs of nvidia-smi -q, in our own form."""

from dataclasses import dataclass, field, replace

NOT_SUPPORTED, INVALID_ARGUMENT, NO_PERMISSION, LOST, RESET_REQUIRED = 3, 2, 4, 15, 16
HIDDEN_FAR_END = "FFFFFFFF:FF:FF.0"
OLD_LINK_COUNTERS = (161, 162, 163)
NEW_LINK_COUNTERS = (*range(206, 216), 219, 221)


@dataclass(frozen=True)
class FakeLink:
    """One NVLink: active or not, and what is at its far end (0 GPU, 1 CPU, 2 switch). `state`: NVML's number where active doesn't say it.
    `counters`: field -> value; every other counter of its generation is 0.
    """

    active: bool = True
    far_kind: int = 2
    far_id: str = "00000000:C0:00.0"
    far_port: int = 0
    state: int | None = None
    counters: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class FakeProcess:
    pid: int
    memory_bytes: int | None = None
    kinds: tuple[str, ...] = ("Compute",)


@dataclass(frozen=True)
class FakeGpu:
    """One GPU. `links` None: the product has no NVLink. `fabric`: (state, status, 16 bytes of UUID, clique); `fabric_health`: (mask, summary).
    None is "not supported" everywhere. Pairs: (now, pending). `ecc_counts`: corrected and uncorrected volatile, then aggregate. `retired`: single-bit,
    double-bit, pending. `thresholds`: shutdown, slowdown; `tlimits` likewise. `pcie`: generation, width, most, most, the device's most.
    `errors`: library function -> code that this GPU answers with; "*" for all functions. `field_errors`: the same of fields.
    """

    uuid: str = "GPU-0"
    name: str = "NVIDIA H100 80GB HBM3"
    pci: str = "00000000:10:00.0"
    memory_bytes: int = 85_520_809_984
    used_bytes: int = 4 * 2**20
    reserved_bytes: int = 600 * 2**20
    links: tuple[FakeLink, ...] | None = None
    link_version: int = 6
    link_mb_per_s: int = 26562
    fabric: tuple[int, int, bytes, int] | None = None
    fabric_versions: tuple[int, ...] = (3, 2, 1)
    fabric_health: tuple[int, int] = (0x1AA, 1)
    mig: int | None = 0
    mig_pending: int | None = None
    mig_uuids: tuple[str, ...] = ()
    ecc: int | None = 1
    ecc_pending: int | None = None
    ecc_counts: tuple[int | None, ...] = (0, 0, 0, 0)
    sram_exceeded: int | None = 0
    remapped: tuple[int, int, int, int] | None = (0, 0, 0, 0)
    retired: tuple[int, int, int] | None = None
    retired_by_fields: bool = True
    recovery: int | None = 0
    serial: str | None = "1650000000001"
    module_id: int | None = 3
    inforom: str | None = "G520.0200.00.05"
    gsp: str | None = "550.54.15"
    persistence: int | None = 1
    clocks: dict[int, int] | None = field(default_factory=lambda: {1: 345, 2: 2619})
    max_clocks: dict[int, int] | None = field(default_factory=lambda: {1: 1980, 2: 2619})
    application_clock: int | None = 1980
    reasons: int | None = 1
    throttled_ns: dict[int, int] = field(default_factory=dict)
    draw_mw: int | None = 71_320
    limits_mw: tuple[int, int, int, int] | None = (700_000, 700_000, 700_000, 700_000)  # set, default, enforced, most
    temperature: int | None = 31
    memory_temperature: int | None = 40
    margin: int | None = 56
    thresholds: tuple[int, int] | None = None
    tlimits: tuple[int, int] | None = (-8, -2)
    pcie: tuple[int, int, int, int, int] | None = (5, 16, 5, 16, 5)
    replays: int | None = 0
    processes: tuple[FakeProcess, ...] = ()
    cpus: int | None = (1 << 48) - 1 | ((1 << 48) - 1) << 96
    node: int | None = 0
    own_node: int | None = None
    errors: dict[str, int] = field(default_factory=dict)
    field_errors: dict[int, int] = field(default_factory=dict)


def lost(gpu: FakeGpu) -> FakeGpu:
    """That GPU, fallen off the bus."""
    return replace(gpu, errors={"*": LOST})


def h100_sxm(count: int = 8) -> list[FakeGpu]:
    """An HGX board: 18 links of each GPU to switches, the fabric completed with a UUID of zeros."""
    return [
        FakeGpu(
            uuid=f"GPU-h100-{i}",
            pci=f"00000000:{0x10 + i:02X}:00.0",
            links=(FakeLink(),) * 18,
            fabric=(3, 0, bytes(16), 0),
            module_id=1 + (i ^ 3),
        )
        for i in range(count)
    ]


def b200_sxm(count: int = 8) -> list[FakeGpu]:
    """An HGX B200 board: NVLink 5, whose counters have other fields; old ones are refused."""
    return [
        replace(
            gpu,
            uuid=f"GPU-b200-{i}",
            name="NVIDIA B200",
            memory_bytes=192_265_846_784,
            link_version=7,
            link_mb_per_s=53125,
            limits_mw=(1_000_000,) * 4,
        )
        for i, gpu in enumerate(h100_sxm(count))
    ]


def a100_sxm(count: int = 8) -> list[FakeGpu]:
    """An HGX A100 board: 12 links to switches whose ports are told, no fabric info, thresholds in degrees, no margin."""
    return [
        FakeGpu(
            uuid=f"GPU-a100-sxm-{i}",
            name="NVIDIA A100-SXM4-80GB",
            pci=f"00000000:{0x10 + i:02X}:00.0",
            links=tuple(FakeLink(far_id=f"00000000:C{port // 2}:00.0", far_port=8 + port) for port in range(12)),
            link_version=4,
            link_mb_per_s=25000,
            sram_exceeded=None,
            recovery=None,
            limits_mw=(400_000,) * 4,
            margin=None,
            tlimits=None,
            thresholds=(92, 89),
            pcie=(4, 16, 4, 16, 4),
        )
        for i in range(count)
    ]


def a100_pcie_bridged() -> list[FakeGpu]:
    """Four PCIe cards, 12 links each, bridged in pairs 0-1 and 2-3. No fabric."""
    ids = [f"00000000:{0x20 + i:02X}:00.0" for i in range(4)]
    return [
        replace(
            gpu,
            uuid=f"GPU-a100-{i}",
            name="NVIDIA A100 80GB PCIe",
            pci=ids[i],
            links=(FakeLink(far_kind=0, far_id=ids[i ^ 1]),) * 12,
            limits_mw=(300_000,) * 4,
            module_id=0,
        )
        for i, gpu in enumerate(a100_sxm(4))
    ]


def a100_pcie_unbridged() -> list[FakeGpu]:
    """The same cards without bridges: all links exist and are inactive."""
    return [replace(gpu, links=(FakeLink(active=False),) * 12) for gpu in a100_pcie_bridged()]


def v100_sxm() -> list[FakeGpu]:
    """Two V100, joined by two links: retired pages in the place of remapped rows, no MIG, no fabric, no firmware of its own, an old driver's counters."""
    ids = [f"00000000:{0x06 + i:02X}:00.0" for i in range(2)]
    return [
        replace(
            gpu,
            uuid=f"GPU-v100-{i}",
            name="Tesla V100-SXM2-32GB",
            pci=ids[i],
            memory_bytes=34_089_730_048,
            links=(FakeLink(far_kind=0, far_id=ids[i ^ 1]),) * 2 + (FakeLink(active=False),) * 4,
            link_version=2,
            link_mb_per_s=25781,
            mig=None,
            gsp=None,
            remapped=None,
            retired=(2, 1, 1),
            limits_mw=(300_000,) * 4,
            pcie=(3, 16, 3, 16, 3),
        )
        for i, gpu in enumerate(a100_sxm(2))
    ]


def geforce(count: int = 2) -> list[FakeGpu]:
    """Consumer cards: no NVLink, no MIG, no ECC, no serial."""
    return [
        FakeGpu(
            uuid=f"GPU-rtx-{i}",
            name="NVIDIA GeForce RTX 4090",
            pci=f"00000000:{0x30 + i:02X}:00.0",
            mig=None,
            ecc=None,
            ecc_counts=(None,) * 4,
            sram_exceeded=None,
            remapped=None,
            recovery=None,
            serial=None,
            module_id=None,
            application_clock=None,
            memory_temperature=None,
            own_node=None,
            limits_mw=(450_000, 450_000, 450_000, 600_000),
        )
        for i in range(count)
    ]


def gb200_tray(uuid: bytes = bytes(range(16)), clique: int = 7) -> list[FakeGpu]:
    """Four GPUs of an NVL72: every far end hidden, the fabric's UUID and clique tell the domain. The memory of each is a NUMA node."""
    return [
        FakeGpu(
            uuid=f"GPU-gb200-{i}",
            name="NVIDIA GB200",
            pci=f"0000000{i}:01:00.0",
            links=(FakeLink(far_kind=255, far_id=HIDDEN_FAR_END),) * 18,
            link_version=7,
            link_mb_per_s=53125,
            fabric=(3, 0, uuid, clique),
            fabric_health=(0x51AA, 1),
            own_node=2 + 8 * i,
            limits_mw=(1_200_000,) * 4,
        )
        for i in range(4)
    ]


def with_mig(gpu: FakeGpu, uuids: tuple[str, ...] = ("MIG-1", "MIG-2")) -> FakeGpu:
    """That GPU in MIG mode: rows, volatile errors and links are not told."""
    return replace(
        gpu,
        mig=1,
        mig_uuids=uuids,
        remapped=None,
        ecc_counts=(None, None, *gpu.ecc_counts[2:]),
        links=None if gpu.links is None else tuple(replace(link, active=False) for link in gpu.links),
    )
