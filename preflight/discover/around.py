"""What surrounds the GPUs of a node, read without asking their driver: host, PCI bus, HCAs, limits, processes, versions, log and settings.

Each source is asked under a limit of time, and costs its own facts only where it fails.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from preflight.discover.dma import read_gpu_direct, read_iommu
from preflight.discover.files import is_folder
from preflight.discover.gathering import Gathering
from preflight.discover.hca_run import HcaRun
from preflight.discover.host import Host, read_host
from preflight.discover.infiniband import HcaReading, read_hcas
from preflight.discover.kernel_log import read_kernel_log
from preflight.discover.limits import read_clock, read_limits
from preflight.discover.pci import is_bridge_id, nvidia_gpus_on_bus, pci_upstream
from preflight.discover.pci_config import BusReading, read_bus
from preflight.discover.platform_kind import read_platform
from preflight.discover.processes import account_home, read_services
from preflight.discover.settings import read_settings
from preflight.discover.versions import closed_device_files, read_device_files, read_versions
from preflight.model import Hca, Problem
from preflight.model.base import Record


class Around(Record, frozen=True):
    """`on_bus`: PCI ids of NVIDIA GPUs, None if sysfs can't tell. `driver_folder`: /proc tells of an NVIDIA driver. `facts`: the other fields of Node, by name."""

    host: Host
    on_bus: tuple[str, ...] | None
    driver_folder: bool
    hcas: tuple[Hca, ...] | None
    facts: dict[str, Any]
    problems: tuple[Problem, ...]


def read_around(root: Path, environ: Mapping[str, str], gathering: Gathering, hca_run: HcaRun) -> Around:
    """Everything below that root; `environ`: of this process; `hca_run`: the reading of HCAs that was started. What can't be read is None, and a Problem. Never raises."""
    ask = gathering.ask
    host = ask("host", None, lambda: read_host(root), Host())
    on_bus = ask("/sys/bus/pci/devices", "gpus_on_bus", lambda: nvidia_gpus_on_bus(root), None)
    driver_folder = ask("/proc/driver/nvidia", None, lambda: is_folder(root / "proc/driver/nvidia"), otherwise=False)
    told = hca_run.result(gathering.left_s / 2)
    hcas, hca_problems = told or ask("/sys/class/infiniband", "hcas", lambda: read_hcas(root), HcaReading())
    bus = ask(
        "PCI configuration space",
        "pci_bridges",
        lambda: read_bus(root, on_bus, _bridges(root, on_bus, hcas)),
        BusReading((), None, ()),
    )
    devices = [*(on_bus or ()), *(hca.pci_bus_id for hca in hcas or () if hca.pci_bus_id)]
    has_gpus = on_bus != () or driver_folder
    home = ask("account", "settings", lambda: account_home(root), None)
    facts: dict[str, Any] = {
        "gpus_on_bus": on_bus,
        "dead_on_bus": bus.dead,
        "pci_bridges": bus.bridges,
        "hcas": hcas,
        "nics": host.nics,
        "iommu": ask("IOMMU", "iommu", lambda: read_iommu(root, devices), None),
        "gpu_direct": ask("GPUDirect RDMA", "gpu_direct", lambda: read_gpu_direct(root, host.kernel), None),
        "limits": ask("limits", "limits", lambda: read_limits(root), None),
        "clock": ask("adjtimex", "clock", read_clock, None) if root == Path("/") else None,
        "platform": ask("platform", "platform", lambda: read_platform(root, environ), None),
        "services": ask("/proc", "services", lambda: read_services(root), None) if has_gpus else (),
        "versions": ask("versions", "versions", lambda: read_versions(root, environ), dict[str, str]()),
        "device_files": ask("/dev", "device_files", lambda: read_device_files(root), None),
        "closed_devices": ask("/dev", "device_files", lambda: closed_device_files(root), tuple[int, ...]()),
        "settings": ask("settings", "settings", lambda: read_settings(environ, root=root, home=home), None),
        "kernel_log": ask("kernel log", "kernel_log", lambda: read_kernel_log(root), None),
    }
    return Around(host, on_bus, driver_folder, hcas, facts, (*host.problems, *hca_problems, *bus.problems))


def _bridges(root: Path, on_bus: Iterable[str] | None, hcas: Iterable[Hca] | None) -> tuple[str, ...] | None:
    """The bridges above GPUs and HCAs, which traffic between them may pass. Without a GPU there is no such traffic."""
    if on_bus is None:
        return None
    above = [pci_upstream(root, bus_id) or () for bus_id in on_bus]
    if above:
        above += [hca.pci_upstream or () for hca in hcas or ()]
    return tuple(dict.fromkeys(bridge for bridges in above for bridge in bridges if is_bridge_id(bridge)))
