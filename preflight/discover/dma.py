"""What stands between a device and memory: the IOMMU, and how an HCA may reach GPU memory.

Sources: Linux, Documentation/ABI/testing/sysfs-kernel-iommu_groups (`type` of a group: "DMA" and "DMA-FQ" translate, "identity" doesn't) and
Documentation/admin-guide/kernel-parameters.txt (iommu=, intel_iommu=, amd_iommu=, iommu.passthrough=). Peer memory: NCCL looks for
/sys/kernel/mm/memory_peers/nv_mem*/version and /sys/module/nvidia_peermem (NVIDIA/nccl issues 475 and 988). dmabuf: open kernel modules (NVIDIA/nccl pull
request 682), and Linux 5.12, the first whose RDMA stack takes it (aws/aws-ofi-nccl pull request 618).
"""

import re
from collections.abc import Iterable
from pathlib import Path

from preflight.discover.files import names_in, read_text
from preflight.discover.pci import pci_folder
from preflight.model import GpuDirect, Iommu

PEERMEM = ("nvidia_peermem", "nv_peer_mem")
DMABUF_KERNEL = (5, 12)
MAX_GROUPS = 64  # where no device is asked about; all groups of a machine are normally alike
_OFF = ("iommu=off",)  # intel_iommu=off and amd_iommu=off say nothing of the other maker's units
_PASSTHROUGH = ("iommu=pt", "iommu.passthrough=1", "iommu.passthrough=y", "iommu.passthrough=on")
_TRANSLATED = ("iommu=nopt", "iommu.passthrough=0", "iommu.passthrough=n", "iommu.passthrough=off")
# kernels whose makers carry newer RDMA code under an old number
_BACKPORTS = re.compile(r"\.(el|amzn|elrepo)|cos|tlinux|oe|uek")


def read_iommu(root: Path, devices: Iterable[str]) -> Iommu:
    """How the IOMMU treats these PCI devices, or all where there are none. One that translates outweighs others that don't."""
    asked = tuple(devices)
    types = _types_of_devices(root, asked) if asked else _types_of_groups(root)
    for path, kind in types:
        if kind.startswith("DMA"):
            return Iommu(mode="translated", source=f"{path}: {kind}")
    for path, kind in types:
        if kind == "identity":
            return Iommu(mode="passthrough", source=f"{path}: {kind}")
    return _without_groups(root)


def _types_of_devices(root: Path, devices: Iterable[str]) -> list[tuple[str, str]]:
    read = ((bus_id, read_text(f"{pci_folder(root, bus_id)}/iommu_group/type")) for bus_id in devices)
    return [(f"/sys/bus/pci/devices/{bus_id}/iommu_group/type", kind) for bus_id, kind in read if kind]


def _types_of_groups(root: Path) -> list[tuple[str, str]]:
    folder = "sys/kernel/iommu_groups"
    names = (names_in(root / folder) or ())[:MAX_GROUPS]
    read = ((name, read_text(f"{root}/{folder}/{name}/type")) for name in names)
    return [(f"/{folder}/{name}/type", kind) for name, kind in read if kind]


def _without_groups(root: Path) -> Iommu:
    """No group tells, or no group of those devices: there is no IOMMU in use, or this kernel or container doesn't show it; then its command line may."""
    units = names_in(root / "sys/class/iommu")
    if units == () and not names_in(root / "sys/kernel/iommu_groups"):
        return Iommu(mode="off", source="/sys/class/iommu: none")
    words = (read_text(root / "proc/cmdline") or "").split()
    given = [word for word in words if word in (*_OFF, *_PASSTHROUGH, *_TRANSLATED)]
    if not given:
        return Iommu()
    last = given[-1]
    source = f"/proc/cmdline: {last}"
    if last in _OFF:
        return Iommu(mode="off", source=source)
    return Iommu(mode="passthrough" if last in _PASSTHROUGH else "translated", source=source)


def read_gpu_direct(root: Path, kernel: str | None) -> GpuDirect:
    """How an HCA may reach GPU memory. `kernel`: the release, "6.8.0-45-generic"."""
    open_driver = _is_open_driver(read_text(root / "proc/driver/nvidia/version"))
    return GpuDirect(
        peermem=_peermem(root),
        memory_peers=names_in(root / "sys/kernel/mm/memory_peers"),
        open_driver=open_driver,
        dmabuf=offers_dmabuf(kernel, open_driver=open_driver),
    )


def _peermem(root: Path) -> str | None:
    listed = read_text(root / "proc/modules")
    shown = names_in(root / "sys/module")
    if listed is None and not shown:
        return None
    loaded = {line.partition(" ")[0] for line in (listed or "").splitlines()} | set(shown or ())
    return next((name for name in PEERMEM if name in loaded), "none")


def _is_open_driver(version: str | None) -> bool | None:
    """From "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64 ..."; the other kind says "NVIDIA UNIX x86_64 Kernel Module"."""
    if version is None or "Kernel Module" not in version:
        return None
    return "Open Kernel Module" in version


def offers_dmabuf(kernel: str | None, *, open_driver: bool | None) -> bool | None:
    """Whether kernel and driver offer GPU memory as dmabuf. None: the driver's kind or the kernel is unknown, or its maker may have added it to an older one."""
    match = re.match(r"([0-9]+)\.([0-9]+)", kernel or "")
    if open_driver is False:
        return False
    if match is None or kernel is None:
        return None
    if (int(match[1]), int(match[2])) >= DMABUF_KERNEL:
        return open_driver
    return None if _BACKPORTS.search(kernel) else False
