"""Under srun: where the nodes of a step are. By name as the resolver knows them; a node whose name stands for nothing beyond its own loopback is looked up with Slurm.

An agent listens on the address of its node that the others reach; never on all of them. On many systems a node's own name stands for 127.0.1.1 there, and for its address elsewhere.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Mapping, Sequence

from preflight.errors import PreflightError, WorldError
from preflight.fleet.srun import Step
from preflight.fleet.threads import in_daemon_thread

RESOLVE_S = 12.0  # the resolver's own defaults are two tries of 5 s (resolv.conf(5))
LOOK_UP_S = 15.0  # longer than C's deadline for one command
AT_ONCE = 32
LookUp = Callable[[Sequence[str]], Mapping[str, str]]  # Slurm's NodeAddr of these nodes; may raise PreflightError


async def addresses_of(names: Sequence[str], look_up: LookUp) -> dict[str, tuple[str, ...]]:
    """Name -> its addresses, in the resolver's order; those that stand for none, or for loopback alone, as Slurm knows them. Empty: nobody knows."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> tuple[str, ...]:
        async with gate:
            return await _resolved(name)

    found = dict(zip(names, await asyncio.gather(*map(one, names)), strict=True))
    unknown = [name for name, addresses in found.items() if all(map(is_loopback, addresses))]
    told = await _looked_up(unknown, look_up) if unknown else {}
    for name, address in told.items():
        found[name] = tuple(dict.fromkeys((*await _resolved(address), *found[name])))
    return found


async def own_address(step: Step, look_up: LookUp) -> str:
    """The address of this node on which its agent listens. Raises WorldError."""
    mine = [address for address in (await addresses_of([step.node], look_up))[step.node] if is_here(address)]
    far = [address for address in mine if not is_loopback(address)]
    if far:
        return far[0]
    others = [node for node in step.nodes if node != step.node]
    theirs = [a for each in (await addresses_of(others[:1], look_up)).values() for a in each]
    if not others or (theirs and all(map(is_loopback, theirs))):  # one machine plays all nodes
        return (mine or ["127.0.0.1"])[0]
    towards = [*theirs, *([step.launched_from] if step.launched_from else [])]
    routed = next((a for a in map(_source_towards, towards) if a is not None and not is_loopback(a)), None)
    if routed is None:
        raise WorldError(
            f"the name {step.node} stands for no address of this node that others reach ({', '.join(mine) or 'none'}), and Slurm knows none: "
            "give --interface NAME"
        )
    return routed


async def _resolved(name: str) -> tuple[str, ...]:
    def work() -> list[str]:
        return [str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]

    try:
        found = await asyncio.wait_for(in_daemon_thread(work), RESOLVE_S)
    except (OSError, UnicodeError, asyncio.TimeoutError):
        return ()
    return tuple(dict.fromkeys(address for address in found if "%" not in address))


async def _looked_up(names: Sequence[str], look_up: LookUp) -> Mapping[str, str]:
    try:
        return await asyncio.wait_for(in_daemon_thread(lambda: look_up(names)), LOOK_UP_S)
    except (PreflightError, OSError, asyncio.TimeoutError):
        return {}


def is_loopback(address: str) -> bool:
    """Whether it never leaves its machine."""
    return ipaddress.ip_address(address).is_loopback


def is_here(address: str) -> bool:
    """Whether this node has the address: what can be bound is here."""
    with _datagram(address) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


def _source_towards(address: str) -> str | None:
    """The own address from which packets to another one would go out; nothing is sent. None: there is no way."""
    try:
        with _datagram(address) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return None


def _datagram(address: str) -> socket.socket:
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    return socket.socket(family, socket.SOCK_DGRAM)
