"""PCI configuration space: dead devices, access control (ACS) of the bridges above GPUs and HCAs, and the read requests of HCAs.

/sys/bus/pci/devices/*/config holds 4096 bytes of a PCI Express device and 256 of others; who lacks CAP_SYS_ADMIN reads the first 64 (Linux:
drivers/pci/pci-sysfs.c). Offsets and bits: PCI Express Base Specification, by the names of include/uapi/linux/pci_regs.h. What is read is not trusted: every
offset is checked, and each list of capabilities is followed at most once around.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from preflight.discover.files import is_absent, read_bytes, read_text, reason
from preflight.discover.pci import pci_folder
from preflight.model import PciBridge, Problem
from preflight.model.base import Record

CONFIG_BYTES = 4096  # PCI_CFG_SPACE_EXP_SIZE
_HEADER_BYTES, _CONVENTIONAL_BYTES = 64, 256  # PCI_STD_HEADER_SIZEOF, PCI_CFG_SPACE_SIZE
_STATUS, _HAS_CAPABILITIES, _FIRST_CAPABILITY = 0x06, 0x10, 0x34  # PCI_STATUS, PCI_STATUS_CAP_LIST, PCI_CAPABILITY_LIST
_PCI_EXPRESS, _DEVICE_CONTROL = 0x10, 0x08  # PCI_CAP_ID_EXP, PCI_EXP_DEVCTL
_FIRST_EXTENDED = 0x100
_ACS, _ACS_CONTROL = 0x000D, 0x06  # PCI_EXT_CAP_ID_ACS, PCI_ACS_CTRL
NOT_ALLOWED = "no permission: only root may read more than the first 64 bytes"


class BusReading(Record, frozen=True):
    """What the configuration spaces of some devices say. `bridges` is None if none of them could be looked for."""

    dead: tuple[str, ...]
    bridges: tuple[PciBridge, ...] | None
    problems: tuple[Problem, ...]


def is_dead(config: bytes) -> bool:
    """Whether the device answers nothing: all ones, which lspci shows as "rev ff". A header that is cut short is no answer either way."""
    return len(config) >= _HEADER_BYTES and set(config[:_HEADER_BYTES]) == {0xFF}


def capabilities(config: bytes) -> Iterator[tuple[int, int]]:
    """(id, offset) of each capability in the first 256 bytes that is there to read."""
    if is_dead(config) or len(config) < _HEADER_BYTES or not config[_STATUS] & _HAS_CAPABILITIES:
        return
    seen: set[int] = set()
    at = config[_FIRST_CAPABILITY] & ~3
    while _HEADER_BYTES <= at <= min(len(config), _CONVENTIONAL_BYTES) - 2 and at not in seen:
        seen.add(at)
        yield config[at], at
        at = config[at + 1] & ~3


def extended_capabilities(config: bytes) -> Iterator[tuple[int, int]]:
    """(id, offset) of each extended capability."""
    seen: set[int] = set()
    at = _FIRST_EXTENDED
    while _FIRST_EXTENDED <= at <= len(config) - 4 and at not in seen:
        seen.add(at)
        header = int.from_bytes(config[at : at + 4], "little")
        if header in (0, 0xFFFFFFFF):
            return
        yield header & 0xFFFF, at
        at = (header >> 20) & ~3


def acs_control(config: bytes) -> int | None:
    """The ACS control register. None: the device has none, or it isn't in these bytes (`is_complete`)."""
    return next((_word(config, at + _ACS_CONTROL) for kind, at in extended_capabilities(config) if kind == _ACS), None)


def max_read_request_bytes(config: bytes) -> int | None:
    """Max_Read_Request_Size: 128 bytes, doubled by bits 12 to 14 of the device control register. None: no PCI Express device, not in these bytes, or a reserved code."""
    control = next(
        (_word(config, at + _DEVICE_CONTROL) for kind, at in capabilities(config) if kind == _PCI_EXPRESS), None
    )
    code = None if control is None else control >> 12 & 7
    return None if code is None or code > 5 else 128 << code


def is_complete(config: bytes) -> bool:
    """Whether these bytes hold all that the device has: 4096 of a PCI Express device, 256 of another, 64 of one without capabilities."""
    if len(config) < _HEADER_BYTES or is_dead(config):
        return False
    if not config[_STATUS] & _HAS_CAPABILITIES or len(config) >= CONFIG_BYTES:
        return True
    return len(config) >= _CONVENTIONAL_BYTES and all(kind != _PCI_EXPRESS for kind, _ in capabilities(config))


def _word(config: bytes, at: int) -> int | None:
    return int.from_bytes(config[at : at + 2], "little") if at + 2 <= len(config) else None


def read_bus(root: Path, gpus: Iterable[str] | None, bridges: Iterable[str] | None) -> BusReading:
    """Which of these GPUs are dead, and the ACS registers of these bridges. None for either: could not be found out."""
    problems: list[Problem] = []
    dead = tuple(bus_id for bus_id in gpus or () if _is_dead_device(root, bus_id, problems))
    if bridges is None:
        return BusReading(dead, None, tuple(problems))
    unread: dict[str, list[str]] = {}
    read = tuple(_read_bridge(root, bus_id, problems, unread) for bus_id in sorted(set(bridges)))
    # one line for all that failed alike: a node has dozens of bridges
    for text, ids in unread.items():
        named = f"{', '.join(ids[:4])}{' ...' * (len(ids) > 4)}: {text}"
        problems.append(Problem(source="PCI configuration space", text=named, field="pci_bridges"))
    return BusReading(dead, read, tuple(problems))


def read_config(root: Path, bus_id: str, problems: list[Problem], field: str) -> bytes | None:
    """The configuration space as far as this process may read it. None: not at all, with a Problem about `field`, unless there is none."""
    path = f"{pci_folder(root, bus_id)}/config"
    try:
        return read_bytes(path, CONFIG_BYTES)
    except OSError as error:
        if not is_absent(error):
            problems.append(Problem(source=f"/sys/bus/pci/devices/{bus_id}/config", text=reason(error), field=field))
        return None


def _is_dead_device(root: Path, bus_id: str, problems: list[Problem]) -> bool:
    config = read_config(root, bus_id, problems, "dead_on_bus")
    # a device without power reads the same; the kernel wakes it for the read, but a driver may forbid that
    return config is not None and is_dead(config) and read_text(f"{pci_folder(root, bus_id)}/power_state") != "D3cold"


def _read_bridge(root: Path, bus_id: str, problems: list[Problem], unread: dict[str, list[str]]) -> PciBridge:
    config = read_config(root, bus_id, problems, "pci_bridges")
    control = acs_control(config) if config is not None else None
    readable = config is not None and (control is not None or is_complete(config))
    if not readable:
        unread.setdefault(why_incomplete(config), []).append(bus_id)
    return PciBridge(bus_id=bus_id, acs_readable=readable, acs_control=control)


def why_incomplete(config: bytes | None) -> str:
    """Why not all of a configuration space is there to read, in words."""
    if config is None or len(config) < _HEADER_BYTES:
        return "not in sysfs"
    if is_dead(config):
        return "the device answers nothing (all ones)"
    return NOT_ALLOWED if len(config) == _HEADER_BYTES else "the extended part can't be reached on this system"
