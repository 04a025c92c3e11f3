"""PCI devices as sysfs shows them: where a device sits, its link and driver, and how many NVIDIA GPUs the bus has without asking a driver.

Reads /sys/bus/pci/devices/* (Linux: Documentation/ABI/testing/sysfs-bus-pci) and the folder that each entry links to, whose path spells the bridges
from the root complex down.
"""

import os
import re
from pathlib import Path

from preflight.discover.files import names_in, read_int, read_text
from preflight.model import PcieLink

NVIDIA_VENDOR = 0x10DE  # PCI-SIG vendor list
MELLANOX_VENDOR = 0x15B3
DISPLAY_CLASS = 0x03  # PCI base class "display controller": VGA 0x0300.., 3D controller 0x0302..

# virtual functions of ConnectX-4 to ConnectX-6 and of all later ones, of BlueField and BlueField-2 on: a guest sees no `physfn`, so the device id must tell.
# Source: the device table of Linux, drivers/net/ethernet/mellanox/mlx5/core/main.c
_MELLANOX_VIRTUAL = {0x1014, 0x1016, 0x1018, 0x101A, 0x101C, 0x101E, 0xA2D3}
# GT/s -> PCIe generation; PCI Express Base Specification, as printed by pci_speed_string() of Linux
_GENERATIONS = {
    "2.5": 1,
    "5": 2,
    "5.0": 2,
    "8": 3,
    "8.0": 3,
    "16": 4,
    "16.0": 4,
    "32": 5,
    "32.0": 5,
    "64": 6,
    "64.0": 6,
}
# drivers that hold a device for a virtual machine (Linux: Documentation/driver-api/vfio.rst; Xen's pciback): it is not this system's to use
_GIVEN_AWAY = {"vfio-pci", "pci-stub", "pciback", "xen-pciback"}
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


def pci_folder(root: Path, bus_id: str) -> str:
    """Where sysfs tells of a device."""
    return f"{root}/sys/bus/pci/devices/{bus_id}"


def is_bridge_id(text: str) -> bool:
    """Whether an entry of `pci_upstream` is a bridge rather than a root complex."""
    return _ID.match(text) is not None


def pci_of_path(path: Path) -> str | None:
    """The PCI device that a sysfs path belongs to: its last part that is a PCI id. None if it has none."""
    ids = [part for part in path.parts if _ID.match(part)]
    return ids[-1] if ids else None


def pci_upstream(root: Path, bus_id: str) -> tuple[str, ...] | None:
    """The bridges above a device, closest first, the root complex last. None if sysfs doesn't know the device."""
    link = root / "sys/bus/pci/devices" / bus_id
    try:
        parts = link.resolve(strict=True).parts
    except (OSError, RuntimeError, ValueError):
        return None
    above = [part for part in parts if _ID.match(part) or _COMPLEX.match(part)]
    return tuple(reversed(above[:-1])) if above and above[-1] == bus_id and len(above) > 1 else None


def pci_numa_node(root: Path, bus_id: str) -> int | None:
    """The NUMA node next to a device. None: unknown, which the kernel spells -1."""
    number = read_int(f"{pci_folder(root, bus_id)}/numa_node")
    return number if number is not None and number >= 0 else None


def pci_cpus(root: Path, bus_id: str) -> str | None:
    """The CPUs next to a device, "0-47,96-143"."""
    return read_text(f"{pci_folder(root, bus_id)}/local_cpulist")


def pci_driver(root: Path, bus_id: str) -> str | None:
    """The kernel module that drives a device, "mlx5_core". None: unknown or none."""
    try:
        name = Path(pci_folder(root, bus_id), "driver").readlink().name
    except (OSError, ValueError):
        return None
    return name if name.isprintable() else None


def is_virtual_function(root: Path, bus_id: str) -> bool | None:
    """Whether a device is a share of a card. None: sysfs can't tell, as in a virtual machine that was given one."""
    folder = pci_folder(root, bus_id)
    if os.path.lexists(f"{folder}/physfn"):
        return True
    if os.path.lexists(f"{folder}/sriov_totalvfs"):
        return False
    vendor, device = (read_int(f"{folder}/{file}", 16) for file in ("vendor", "device"))
    return None if vendor != MELLANOX_VENDOR or device is None else device in _MELLANOX_VIRTUAL


def pcie_link(root: Path, bus_id: str, upstream: tuple[str, ...] | None) -> PcieLink | None:
    """A device's PCIe link. None if sysfs tells nothing of it (conventional PCI, virtual devices).

    At most: the lesser of what the device and the port above it can do. Without a port in sight (a virtual machine) what the slot can do is unknown, unless
    the device runs at its own best.
    """
    device = _speeds(pci_folder(root, bus_id))
    if not any(device.values()):
        return None
    above = upstream[0] if upstream and is_bridge_id(upstream[0]) else None
    port = _speeds(pci_folder(root, above)) if above else {}
    return PcieLink(
        generation=device["generation"],
        width=device["width"],
        max_generation=_lesser(device["max_generation"], port.get("max_generation"), device["generation"]),
        max_width=_lesser(device["max_width"], port.get("max_width"), device["width"]),
        device_max_generation=device["max_generation"],
    )


def slot_width(root: Path, upstream: tuple[str, ...] | None) -> int | None:
    """The lanes that the port above a device can do at most. None: not in sight, as in a virtual machine."""
    above = upstream[0] if upstream and is_bridge_id(upstream[0]) else None
    return _real_width(read_int(f"{pci_folder(root, above)}/max_link_width")) if above else None


def _speeds(folder: str) -> dict[str, int | None]:
    return {
        "generation": parse_speed(read_text(f"{folder}/current_link_speed")),
        "width": _real_width(read_int(f"{folder}/current_link_width")),
        "max_generation": parse_speed(read_text(f"{folder}/max_link_speed")),
        "max_width": _real_width(read_int(f"{folder}/max_link_width")),
    }


def _real_width(width: int | None) -> int | None:
    """0 and 255 are what a device without a link, and a virtual function, print."""
    return width if width is not None and 0 < width <= 32 else None


def parse_speed(text: str | None) -> int | None:
    """The PCIe generation of "16.0 GT/s PCIe". None for "Unknown" and speeds that are none."""
    return _GENERATIONS.get(text.partition(" GT/s")[0]) if text else None


def _lesser(device: int | None, port: int | None, now: int | None) -> int | None:
    if device is None:
        return None
    if port is not None:
        return min(device, port)
    return device if device == now else None


def nvidia_gpus_on_bus(root: Path) -> tuple[str, ...] | None:
    """The PCI ids of display-class NVIDIA devices, without those that are held for virtual machines. None if sysfs can't tell: no such folder in this container, or GPUs that come by way of Windows (WSL)."""
    folder = f"{root}/sys/bus/pci/devices"
    names = names_in(folder)
    if names is None or os.path.lexists(f"{root}/dev/dxg"):
        return None
    found = (name for name in names if _is_nvidia_gpu(f"{folder}/{name}"))
    return tuple(name for name in found if pci_driver(root, name) not in _GIVEN_AWAY)


def _is_nvidia_gpu(device: str) -> bool:
    if read_int(f"{device}/vendor", 16) != NVIDIA_VENDOR:
        return False
    code = read_int(f"{device}/class", 16)
    return code is not None and code >> 16 == DISPLAY_CLASS
