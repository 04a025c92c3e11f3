"""One port of an RDMA device: its states, link, addresses and counters, from /sys/class/infiniband/<device>/ports/<number>.

Linux: Documentation/ABI/stable/sysfs-class-infiniband and drivers/infiniband/core/sysfs.c (the words of `state`, `phys_state` and `rate`).
"""

import re
import socket
from pathlib import Path
from typing import Literal

from preflight.discover.files import read_int, read_text, to_int
from preflight.discover.folder import Folder
from preflight.model import Gid, Port

_STATES = {
    "ACTIVE": "active",
    "ARMED": "armed",
    "INIT": "init",
    "DOWN": "down",
    "ACTIVE_DEFER": "defer",
}
_RATE = re.compile(r"^([0-9]+(?:\.[0-9]+)?) Gb/sec \(([0-9]+)X\b")
# what the driver of EFA prints for every card, whatever its speed: 4X EDR is a constant in efa_query_port() of Linux
_EFA_PLACEHOLDER = "100 Gb/sec (4X EDR)"
_NOT_COUNTERS = {"lifespan"}  # of hw_counters: how long the kernel keeps what the card said
_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
MAX_ENTRIES = 4096  # a GID table has at most 65535 entries by the specification; cards have up to 256
LinkLayer = Literal["InfiniBand", "Ethernet"]


def read_port(root: Path, device: Folder, number: int, *, is_efa: bool) -> Port:
    """Everything about that port. What can't be read is None, and noted at the device."""
    at = f"ports/{number}"
    state = _STATES.get(_word(device.text(f"{at}/state")) or "")
    if state is None:
        device.say(f"{at}: its state can't be read")
    physical = _word(device.text(f"{at}/phys_state"))
    physical = None if physical == "<unknown>" else physical
    layer = _link_layer(device.text(f"{at}/link_layer"))
    rate = device.text(f"{at}/rate")
    bytes_per_s, width = (None, None)
    if _has_link(state, physical) and not (is_efa and rate == _EFA_PLACEHOLDER):
        bytes_per_s, width = parse_rate(rate)
    gids = _read_gids(device, at, layer)
    interface = next((gid.interface for gid in gids or () if gid.interface), None) or _interface(device, number)
    is_infiniband = layer == "InfiniBand"
    return Port(
        number=number,
        state=state,
        physical_state=physical,
        rate_bytes_per_s=bytes_per_s,
        width=width,
        link_layer=layer,
        lid=device.number(f"{at}/lid", 16) if is_infiniband else None,
        sm_lid=device.number(f"{at}/sm_lid", 16) if is_infiniband else None,
        interface=interface,
        mtu_bytes=read_int(f"{root}/sys/class/net/{interface}/mtu") if interface else None,
        gids=gids,
        pkeys=_read_pkeys(device, at),
        counters={**_read_counters(device, f"{at}/counters"), **_read_counters(device, f"{at}/hw_counters")},
    )


def parse_rate(text: str | None) -> tuple[int | None, int | None]:
    """Bytes per second, one direction, and lanes, from "400 Gb/sec (4X NDR)". None for each if it is something else."""
    match = _RATE.match(text or "")
    if match is None:
        return None, None
    return round(float(match[1]) * 1e9 / 8) or None, int(match[2]) or None


def parse_gid(text: str) -> str | None:
    """An address as IPv6 text. None for an entry without one: zero, or the prefix that fills the unused entries of some cards.

    >>> parse_gid("0000:0000:0000:0000:0000:ffff:0a00:0001")
    '::ffff:10.0.0.1'
    """
    digits = text.replace(":", "")
    try:
        data = bytes.fromhex(digits)
    except ValueError:
        return None
    if len(data) != 16 or not any(data[8:]):
        return None
    return socket.inet_ntop(socket.AF_INET6, data)


def _word(text: str | None) -> str | None:
    """The word of "4: ACTIVE"."""
    return text.partition(":")[2].strip() or None if text else None


def _has_link(state: str | None, physical: str | None) -> bool:
    return state not in (None, "down") and physical in (None, "LinkUp")


def _link_layer(text: str | None) -> LinkLayer | None:
    """None also for "Unspecified", which EFA and devices in software are."""
    if text == "InfiniBand":
        return "InfiniBand"
    return "Ethernet" if text == "Ethernet" else None


def _read_gids(device: Folder, at: str, layer: LinkLayer | None) -> tuple[Gid, ...] | None:
    names = device.names(f"{at}/gids")
    if names is None:
        return None
    found = []
    for name in names[:MAX_ENTRIES]:
        text = device.optional(f"{at}/gids/{name}")
        address = parse_gid(text) if text not in (None, _NO_GID) and name.isascii() and name.isdecimal() else None
        if address is None:
            continue
        # the kernel refuses both for entries that have none, which is no failure
        kind = read_text(f"{device.path}/{at}/gid_attrs/types/{name}")
        interface = read_text(f"{device.path}/{at}/gid_attrs/ndevs/{name}")
        found.append(Gid(index=int(name), address=address, kind=_gid_kind(kind, layer), interface=interface))
    return tuple(found)


def _gid_kind(text: str | None, layer: LinkLayer | None) -> Literal["IB", "RoCE v1", "RoCE v2"] | None:
    if text == "RoCE v2":
        return "RoCE v2"
    if text == "IB/RoCE v1" and layer is not None:
        return "IB" if layer == "InfiniBand" else "RoCE v1"
    return None


def _read_pkeys(device: Folder, at: str) -> tuple[int, ...] | None:
    names = device.names(f"{at}/pkeys")
    if names is None:
        return None
    keys = [
        to_int(device.optional(f"{at}/pkeys/{name}") or "", 16) or 0 for name in names[:MAX_ENTRIES] if name.isdecimal()
    ]
    while keys and not keys[-1]:
        keys.pop()
    return tuple(keys)


def _read_counters(device: Folder, folder: str) -> dict[str, int]:
    found = {}
    for name in (device.names(folder) or ())[:MAX_ENTRIES]:
        text = device.optional(f"{folder}/{name}") if name not in _NOT_COUNTERS else None
        value = to_int(text) if text is not None else None
        if value is not None and value >= 0:  # "N/A (no PMA)" is none
            found[name] = value
    return found


def _interface(device: Folder, number: int) -> str | None:
    """The interface on the same card that belongs to the port, where no address names one (InfiniBand). None: none, or several claim it."""
    names = device.names("device/net") or ()
    claims = [name for name in names if _port_of(device, name) == number]
    return claims[0] if len(claims) == 1 else None


def _port_of(device: Folder, interface: str) -> int | None:
    """`dev_port` counts from 0; `dev_id` is its older name, which Ethernet drivers left at 0."""
    told = (
        read_int(f"{device.path}/device/net/{interface}/dev_port"),
        read_int(f"{device.path}/device/net/{interface}/dev_id", 16),
    )
    known = [value for value in told if value is not None]
    return max(known) + 1 if known else None
