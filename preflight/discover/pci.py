"""PCI devices as sysfs shows them: where a device sits, and how many NVIDIA GPUs the bus has without asking a driver.

Reads /sys/bus/pci/devices/*/{vendor,class,numa_node} (Linux: Documentation/ABI/testing/sysfs-bus-pci) and the folder that
each entry links to, whose path spells the bridges from the root complex down.
"""

import re
from pathlib import Path

from preflight.discover.files import names_in, read_int

NVIDIA_VENDOR = 0x10DE  # PCI-SIG vendor list
DISPLAY_CLASS = 0x03  # PCI base class "display controller": VGA 0x0300.., 3D controller 0x0302..

_ID = re.compile(r"^([0-9a-fA-F]{1,8}):([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})\.([0-7])$")
_COMPLEX = re.compile(r"^pci[0-9a-f]{4,}:[0-9a-f]{2}$")


def pci_bus_id(text: str) -> str | None:
    """A PCI id as sysfs spells it. None if it is no id, or the one that NVML gives for "hidden".

    >>> pci_bus_id("00000000:1A:00.0")
    '0000:1a:00.0'
    """
    match = _ID.match(text.strip())
    if match is None or match[1].upper() == "FFFFFFFF":
        return None
    domain, bus, device, function = (int(part, 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def pci_of_path(path: Path) -> str | None:
    """The PCI device that a sysfs path belongs to: its last part that is a PCI id. None if it has none."""
    ids = [part for part in path.parts if _ID.match(part)]
    return ids[-1] if ids else None


def pci_upstream(root: Path, bus_id: str) -> tuple[str, ...] | None:
    """The bridges above a device, closest first, the root complex last. None if sysfs doesn't know the device."""
    link = root / "sys/bus/pci/devices" / bus_id
    try:
        parts = link.resolve(strict=True).parts
    except (OSError, RuntimeError):
        return None
    above = [part for part in parts if _ID.match(part) or _COMPLEX.match(part)]
    return tuple(reversed(above[:-1])) if above and above[-1] == bus_id and len(above) > 1 else None


def pci_numa_node(root: Path, bus_id: str) -> int | None:
    """The NUMA node next to a device. None: unknown, which the kernel spells -1."""
    number = read_int(root / "sys/bus/pci/devices" / bus_id / "numa_node")
    return number if number is not None and number >= 0 else None


def nvidia_gpus_on_bus(root: Path) -> tuple[str, ...] | None:
    """The PCI ids of display-class NVIDIA devices. None if sysfs can't tell (no such folder in this container)."""
    devices = root / "sys/bus/pci/devices"
    names = names_in(devices)
    if names is None:
        return None
    return tuple(name for name in names if _is_nvidia_gpu(devices / name))


def _is_nvidia_gpu(device: Path) -> bool:
    if read_int(device / "vendor", 16) != NVIDIA_VENDOR:
        return False
    code = read_int(device / "class", 16)
    return code is not None and code >> 16 == DISPLAY_CLASS
