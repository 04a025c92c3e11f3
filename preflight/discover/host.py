"""The operating system's side of a node: kernel, CPUs, memory, NUMA nodes, network interfaces and which of them the default route takes.

The kernel tells the addresses of the interfaces; psutil, whose only importer this is, tells of single processes; all else is read from procfs and sysfs below a
settable root, so that a recorded tree, or a host's tree mounted in a container, reads the same way.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from preflight.discover.files import is_folder, names_in, read_int, read_text, reason, to_int
from preflight.discover.netlink import read_addresses
from preflight.discover.pci import pci_numa_node, pci_of_path, pci_upstream
from preflight.model import Nic, Noun, Problem

# hardware types, from if_arp.h of Linux
ARPHRD_ETHER, ARPHRD_INFINIBAND, ARPHRD_LOOPBACK = 1, 32, 772
IFF_UP = 0x1  # from if.h of Linux
_UNKNOWN_SPEED = 2**31  # SPEED_UNKNOWN is -1; some kernels print it unsigned


class Host(Noun, frozen=True, kw_only=True):
    """What was read, with the units and the unknowns of Node."""

    hostname: str | None = None
    boot_id: str | None = None
    kernel: str | None = None
    cpu_model: str | None = None
    num_cpus: int | None = None
    memory_bytes: int | None = None
    numa_nodes: tuple[int, ...] | None = None
    nics: tuple[Nic, ...] | None = None
    problems: tuple[Problem, ...] = ()


def read_host(root: Path = Path("/")) -> Host:
    """Everything that can be read below that root. Addresses are those of this process's network, so only for "/"."""
    problems: list[Problem] = []
    cpuinfo = read_text(root / "proc/cpuinfo")
    meminfo = read_text(root / "proc/meminfo")
    addresses = _addresses(problems) if root == Path("/") else {}
    nics = _read_nics(root, addresses, read_default_routes(root))
    for path, content in (("/proc/cpuinfo", cpuinfo), ("/proc/meminfo", meminfo), ("/sys/class/net", nics)):
        if content is None:
            problems.append(Problem(source=path, text="can't be read"))
    cpu_model, num_cpus = parse_cpuinfo(cpuinfo or "")
    return Host(
        hostname=read_text(root / "proc/sys/kernel/hostname"),
        boot_id=read_text(root / "proc/sys/kernel/random/boot_id"),
        kernel=read_text(root / "proc/sys/kernel/osrelease"),
        cpu_model=cpu_model,
        num_cpus=num_cpus,
        memory_bytes=parse_meminfo(meminfo or ""),
        numa_nodes=_read_numa_nodes(root),
        nics=nics,
        problems=tuple(problems),
    )


def parse_cpuinfo(text: str) -> tuple[str | None, int | None]:
    """CPU model and number of logical CPUs that are on line; None for what /proc/cpuinfo doesn't say (Arm: no model)."""
    models = re.findall(r"^model name\s*:\s*(\S.*?)\s*$", text, re.MULTILINE)
    processors = re.findall(r"^processor\s*:\s*[0-9]+\s*$", text, re.MULTILINE)
    return (models[0] if models else None), (len(processors) or None)


def parse_meminfo(text: str) -> int | None:
    """Bytes of memory that the kernel manages: MemTotal, which /proc/meminfo gives in KiB though it prints kB."""
    match = re.search(r"^MemTotal:\s*([0-9]+) kB", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _read_numa_nodes(root: Path) -> tuple[int, ...] | None:
    names = names_in(root / "sys/devices/system/node") or ()
    return tuple(sorted(int(name[4:]) for name in names if re.fullmatch(r"node[0-9]+", name))) or None


def _addresses(problems: list[Problem]) -> dict[str, tuple[str, ...]]:
    """Interface -> its IPv4 and IPv6 addresses."""
    try:
        return read_addresses()
    except OSError as error:
        problems.append(Problem(source="network addresses", text=reason(error), field="nics"))
        return {}


def read_default_routes(root: Path) -> tuple[str, ...] | None:
    """The interfaces by which the system's own traffic leaves, by the smallest metric; IPv6 only where IPv4 has no default. None: can't be read.

    Below another root, process 1 shows the routes of its system; that of this process would be ours.
    """
    of_process = "self" if root == Path("/") else "1"
    texts = [_read_first(root, of_process, name) for name in ("route", "ipv6_route")]
    if texts[0] is None and texts[1] is None:
        return None
    return parse_routes(texts[0] or "") or parse_ipv6_routes(texts[1] or "")


def _read_first(root: Path, process: str, name: str) -> str | None:
    return read_text(root / "proc" / process / "net" / name) or read_text(root / "proc/net" / name)


def parse_routes(text: str) -> tuple[str, ...]:
    """Interfaces of the default route with the smallest metric in /proc/net/route: Iface Destination Gateway Flags RefCnt Use Metric Mask ..., in hexadecimal."""
    rows = [fields for line in text.splitlines()[1:] if len(fields := line.split()) >= 8]
    return _best((row[0], to_int(row[6])) for row in rows if set(row[1]) == {"0"} and set(row[7]) == {"0"})


def parse_ipv6_routes(text: str) -> tuple[str, ...]:
    """The same of /proc/net/ipv6_route: destination, prefix length, ..., metric (6th), ..., interface (last), in hexadecimal. The kernel's own entry on lo isn't one."""
    rows = [fields for line in text.splitlines() if len(fields := line.split()) >= 10]
    found = (row for row in rows if set(row[0]) == {"0"} and row[1] == "00" and row[-1] != "lo")
    return _best((row[-1], to_int(row[5], 16)) for row in found)


def _best(routes: Iterable[tuple[str, int | None]]) -> tuple[str, ...]:
    known = [(metric, name) for name, metric in routes if metric is not None]
    return tuple(dict.fromkeys(name for metric, name in known if metric == min(known)[0]))


def _read_nics(
    root: Path, addresses: Mapping[str, tuple[str, ...]], routes: tuple[str, ...] | None
) -> tuple[Nic, ...] | None:
    folder = root / "sys/class/net"
    names = names_in(folder)
    if names is None:
        return None
    # a plain file there, bonding_masters, is no interface
    return tuple(
        _read_nic(root, folder / name, addresses.get(name, ()), None if routes is None else name in routes)
        for name in names
        if is_folder(folder / name)
    )


def _read_nic(root: Path, folder: Path, addresses: tuple[str, ...], default_route: bool | None) -> Nic:
    device = folder / "device"
    on_device = os.path.lexists(device)
    bus_id = pci_of_path(Path(os.path.realpath(device))) if on_device else None
    return Nic(
        name=folder.name,
        kind=_kind(read_int(folder / "type"), on_device=on_device),
        up=_is_up(folder),
        addresses=addresses,
        mtu_bytes=read_int(folder / "mtu"),
        speed_bytes_per_s=_speed(read_int(folder / "speed")),
        pci_bus_id=bus_id,
        numa_node=pci_numa_node(root, bus_id) if bus_id else None,
        pci_upstream=pci_upstream(root, bus_id) if bus_id else None,
        default_route=default_route,
    )


def _kind(
    hardware_type: int | None, *, on_device: bool
) -> Literal["ethernet", "infiniband", "loopback", "virtual"] | None:
    if hardware_type == ARPHRD_LOOPBACK:
        return "loopback"
    if hardware_type == ARPHRD_INFINIBAND:
        return "infiniband"
    if hardware_type is None:
        return None
    if not on_device:
        return "virtual"
    return "ethernet" if hardware_type == ARPHRD_ETHER else None


def _is_up(folder: Path) -> bool | None:
    """Whether it can carry data now. Drivers that don't keep operstate (loopback) say "unknown": then flags and carrier."""
    state = read_text(folder / "operstate")
    if state is not None and state != "unknown":
        return state == "up"
    flags = read_int(folder / "flags", 16)
    if flags is None:
        return None
    return bool(flags & IFF_UP) and read_int(folder / "carrier") == 1


def _speed(megabits_per_s: int | None) -> int | None:
    """Bytes per second, one direction, from the kernel's Mbit/s: 100000 (100G Ethernet) is 12.5e9. 0 and -1: unknown."""
    if megabits_per_s is None or not 0 < megabits_per_s < _UNKNOWN_SPEED:
        return None
    return megabits_per_s * 10**6 // 8


def process_facts(root: Path, pid: int) -> tuple[str | None, float | None]:
    """Name and start (Unix time) of a process below that root's /proc; None for what can't be seen. psutil is loaded only here: an idle node's prolog does without."""
    import psutil

    before, psutil.PROCFS_PATH = psutil.PROCFS_PATH, f"{root}/proc"
    try:
        process = psutil.Process(pid)
        return process.name() or None, process.create_time()
    except (psutil.Error, OSError, ValueError, IndexError, KeyError, RuntimeError):
        return read_text(f"{root}/proc/{pid}/comm"), None  # it ended meanwhile, or its files say something odd
    finally:
        psutil.PROCFS_PATH = before
