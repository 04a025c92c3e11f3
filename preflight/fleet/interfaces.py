"""Which address an agent listens on, where a person or the site named an interface, or nothing. Never a guess among several."""

import ipaddress
import os
import socket

from preflight.discover.netlink import read_addresses
from preflight.errors import UsageError


def address_of(interface: str) -> str:
    """The one address of an interface: its only IPv4 address; if it has none, its only IPv6 address beyond the link. Raises UsageError."""
    try:
        found = read_addresses()
    except OSError as error:
        raise UsageError(f"the addresses of {interface!r:.40} can't be read: {error.strerror or error}") from error
    if interface not in found:
        known = ", ".join(sorted(found)) or "none has an address"
        raise UsageError(f"there is no interface {interface!r:.40} with an address here (known: {known})")
    return only_address(found[interface], f"interface {interface}")


def only_address(addresses: tuple[str, ...], owner: str) -> str:
    """As `address_of`, of addresses that are known. Raises UsageError, and names them, if there are several, or only ones that end at the link."""
    parsed = [ipaddress.ip_address(text.partition("%")[0]) for text in addresses]
    for version in (4, 6):
        usable = [str(ip) for ip in parsed if ip.version == version and not ip.is_link_local]
        if len(usable) > 1:
            raise UsageError(
                f"{owner} has several addresses, {', '.join(usable)}: give the one that is meant, --address"
            )
        if usable:
            return usable[0]
    raise UsageError(
        f"{owner} has no address that other nodes reach ({', '.join(addresses) or 'none'}): give --address"
    )


def own_address() -> str:
    """The address that this node's host name stands for, beyond loopback. Raises UsageError if that is none, or several."""
    name = os.uname().nodename
    try:
        infos = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(
            f"the host name {name} stands for no address ({error.strerror}): give --interface or --address"
        ) from error
    found = dict.fromkeys(str(info[4][0]).partition("%")[0] for info in infos)
    usable = tuple(text for text in found if not ipaddress.ip_address(text).is_loopback)
    if not usable:
        raise UsageError(f"the host name {name} stands for {', '.join(found)} alone: give --interface or --address")
    return only_address(usable, f"the host name {name}")
