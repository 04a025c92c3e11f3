"""RDMA devices as sysfs shows them: InfiniBand, RoCE and EFA.

Reads /sys/class/infiniband/* (Linux: Documentation/ABI/stable/sysfs-class-infiniband; gid_attrs: .../testing/sysfs-class-infiniband) without asking a library or
a device file, so that a container without verbs, or a device that fails half-way, still tells the rest. A port of a RoCE card has hundreds of address entries:
their files are read one by one, since entries that were taken away leave holes.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from preflight.discover.files import ask_names, is_absent, names_in, reason
from preflight.discover.folder import Folder
from preflight.discover.ib_port import read_port
from preflight.discover.pci import is_virtual_function, pci_driver, pci_numa_node, pci_of_path, pci_upstream, pcie_link
from preflight.discover.pci_config import is_complete, max_read_request_bytes, read_config, why_incomplete
from preflight.model import Hca, Port, Problem
from preflight.model.base import Record

CLASS = "sys/class/infiniband"
MAX_PORTS = 64  # InfiniBand switches have more, but no HCA
_MAX_READ = "max_read_request_bytes"
_NO_GUID = "0000:0000:0000:0000"


class HcaReading(Record, frozen=True):
    """The RDMA devices, and what could not be read of them. `hcas` empty: sysfs is there and has none; None: can't be listed."""

    hcas: tuple[Hca, ...] | None = None
    problems: tuple[Problem, ...] = ()


def read_hcas(root: Path) -> HcaReading:
    """All RDMA devices below that root. Doesn't raise for what one of them does."""
    try:
        names = ask_names(root / CLASS)
    except OSError as error:
        if is_absent(error) and names_in(root / "sys/class"):
            return HcaReading(())
        return HcaReading(None, (Problem(source=f"/{CLASS}", text=reason(error), field="hcas"),))
    readings = [read_hca(root, name) for name in names]
    return together(readings)


def together(readings: Sequence[HcaReading]) -> HcaReading:
    """The readings of single devices as one; what all may not be read for one reason is one Problem."""
    hcas = tuple(hca for reading in readings for hca in reading.hcas or ())
    told = [problem for reading in readings for problem in reading.problems]
    alike: dict[str, list[str]] = {}
    foldable = [problem for problem in told if problem.field == _MAX_READ and problem.source.startswith(f"/{CLASS}/")]
    for problem in foldable:
        alike.setdefault(problem.text, []).append(problem.source.rpartition("/")[2])
    folded = (
        Problem(source="PCI configuration space", text=f"{', '.join(names)}: {text}", field=_MAX_READ)
        for text, names in alike.items()
    )
    return HcaReading(hcas, (*(problem for problem in told if problem not in foldable), *folded))


def read_hca(root: Path, name: str) -> HcaReading:
    """One device. Doesn't raise."""
    problems: list[Problem] = []
    try:
        hca = _read_hca(root, name, problems)
    except (OSError, ValueError) as error:
        return unanswered(name, f"can't be read: {error}")
    return HcaReading((hca,), tuple(problems))


def unanswered(name: str, why: str) -> HcaReading:
    """A device of which only the name is known."""
    return HcaReading((Hca(name=name),), (Problem(source=f"/{CLASS}/{name}", text=why, field="hcas"),))


def _read_hca(root: Path, name: str, problems: list[Problem]) -> Hca:
    facts = Folder(f"{root}/{CLASS}/{name}", f"/{CLASS}/{name}", "hcas", problems)
    place = _place(root, facts, problems)
    is_efa = place.get("driver") == "efa"
    ports = _read_ports(root, facts, is_efa=is_efa)
    guid, card = facts.text("node_guid"), facts.text("sys_image_guid")
    hca = Hca(
        name=name,
        firmware_version=facts.text("fw_ver"),
        board_id=facts.text("board_id"),
        node_guid=None if guid == _NO_GUID else guid,
        card_guid=None if card == _NO_GUID else card,
        ports=ports,
        **place,
    )
    try:
        Path(facts.path).stat()
    except OSError as error:
        facts.say("the device is listed, but not there (any more)" if is_absent(error) else reason(error))
        return Hca(name=name)
    if ports is None:
        facts.say("its ports can't be listed")
    return hca


def _place(root: Path, facts: Folder, problems: list[Problem]) -> dict[str, Any]:
    """What the PCI device behind it tells; nothing for devices in software."""
    bus_id = pci_of_path(Path(os.path.realpath(f"{facts.path}/device")))
    if bus_id is None:
        return {}
    upstream = pci_upstream(root, bus_id)
    config = read_config(root, bus_id, problems, _MAX_READ)
    max_read = max_read_request_bytes(config) if config is not None else None
    if config is not None and max_read is None and not is_complete(config):
        problems.append(Problem(source=facts.shown, text=why_incomplete(config), field=_MAX_READ))
    return {
        "driver": pci_driver(root, bus_id),
        "pci_bus_id": bus_id,
        "numa_node": pci_numa_node(root, bus_id),
        "pci_upstream": upstream,
        "pcie": pcie_link(root, bus_id, upstream),
        "is_virtual_function": is_virtual_function(root, bus_id),
        "max_read_request_bytes": max_read,
    }


def _read_ports(root: Path, facts: Folder, *, is_efa: bool) -> tuple[Port, ...] | None:
    names = facts.names("ports")
    if names is None:
        return None
    numbers = [int(name) for name in names if name.isascii() and name.isdecimal()][:MAX_PORTS]
    return tuple(read_port(root, facts, number, is_efa=is_efa) for number in numbers)
