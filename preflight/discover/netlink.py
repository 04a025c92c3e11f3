"""The addresses of this process's network interfaces, from the kernel by rtnetlink: one question, one answer, no library.

Sources: rtnetlink(7) and linux/rtnetlink.h, linux/if_addr.h of Linux for message types, layouts and attributes.
"""

import socket
import struct
from collections.abc import Iterator

_GETADDR, _NEWADDR, _ERROR, _DONE = 22, 20, 2, 3  # RTM_GETADDR, RTM_NEWADDR, NLMSG_ERROR, NLMSG_DONE
_REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ADDRESS, _LOCAL = 1, 2  # IFA_ADDRESS, IFA_LOCAL: the latter is ours where a link has two ends
_HEADER, _IFADDR, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBBBI"), struct.Struct("=HH")
_BUFFER_BYTES = 65536  # the kernel fills at most 32 KiB at a time
_LIMIT_S = 2.0  # the kernel answers at once


def read_addresses() -> dict[str, tuple[str, ...]]:
    """Interface -> its IPv4 and IPv6 addresses, link-local ones with "%interface". Raises OSError (TimeoutError is one)."""
    found: dict[str, list[str]] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.settimeout(_LIMIT_S)
        netlink.send(_HEADER.pack(_HEADER.size + _IFADDR.size, _GETADDR, _REQUEST_DUMP, 1, 0) + bytes(_IFADDR.size))
        done = False
        while not done:
            done = _add(netlink.recv(_BUFFER_BYTES), found)
    return {name: tuple(addresses) for name, addresses in found.items()}


def _add(data: bytes, found: dict[str, list[str]]) -> bool:
    """Take the addresses out of one piece of the answer; whether it is the last."""
    for kind, message in messages(data):
        if kind in (_ERROR, _DONE):
            return True
        told = parse_address(message) if kind == _NEWADDR else None
        if told is not None:
            index, address = told
            name = socket.if_indextoname(index)
            link_local = address.lower().startswith("fe80:")
            found.setdefault(name, []).append(f"{address}%{name}" if link_local else address)
    return not data


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(type, content) of each netlink message; stops at one that is cut off."""
    at = 0
    while at + _HEADER.size <= len(data):
        size, kind, *_ = _HEADER.unpack_from(data, at)
        if size < _HEADER.size or at + size > len(data):
            return
        yield kind, data[at + _HEADER.size : at + size]
        at += (size + 3) & ~3


def parse_address(message: bytes) -> tuple[int, str] | None:
    """(interface index, address) of an RTM_NEWADDR message. None: another family, or none in it."""
    if len(message) < _IFADDR.size:
        return None
    family, _, _, _, index = _IFADDR.unpack_from(message)
    attributes = dict(_attributes(message[_IFADDR.size :]))
    raw = attributes.get(_LOCAL, attributes.get(_ADDRESS))
    length = {socket.AF_INET: 4, socket.AF_INET6: 16}.get(family)
    if raw is None or len(raw) != length:
        return None
    return index, socket.inet_ntop(family, raw)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        size, kind = _ATTRIBUTE.unpack_from(data, at)
        if size < _ATTRIBUTE.size:
            return
        yield kind, data[at + _ATTRIBUTE.size : at + size]
        at += (size + 3) & ~3
