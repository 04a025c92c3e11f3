"""Which HCA is whose: how close HCAs and GPUs are over PCIe, and what follows for the rails. Derived, never assumed: NIC3 need not belong to GPU 3.

A GPU that is joined to its CPU by NVLink-C2C (Grace) reaches the HCAs of that CPU through it, by design: there, those of its NUMA node are its own, and SYS, which nvidia-smi
prints for all of them (https://github.com/sgl-project/sglang/issues/11208), says nothing.

Four signals tell an HCA that carries the traffic of a GPU from one for storage or management: its NUMA node, the PCIe switch that it shares with a GPU, its link
layer, and the default route (https://github.com/NVIDIA/NVSentinel/pull/1221; leaving out any one of them gets some platform wrong).
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec

from preflight.model.base import Noun, Record
from preflight.model.gpu import Ancestor, Gpu
from preflight.model.inventory import Node
from preflight.model.nic import Hca, Nic

ANCESTORS: tuple[Ancestor, ...] = ("internal", "PIX", "PXB", "PHB", "NODE", "SYS")  # closest first
OWN: tuple[Ancestor, ...] = ("internal", "PIX", "PXB")  # no host bridge between: data need not pass the CPU
_GRACE = re.compile(r"\bG[BH]\d00\b")  # GH200, GB200, GB300

Device: TypeAlias = Hca | Nic


class Rails(Noun, frozen=True, kw_only=True):
    """Which HCAs carry the traffic of which GPU (NICs, where a node has no HCA), by name.

    `own`: GPU index -> the closest ones, all behind its PCIe switches (with Grace, on its CPU); several for two ports or two cards of one GPU; the same name under several GPUs is
    shared by them. `not_rails`: HCA -> why it is nobody's. `without`: GPUs that are known to have none so close. `unknown_gpus`, `unknown_hcas`: those about which too
    little is known to say either.
    """

    own: dict[int, tuple[str, ...]] = {}
    not_rails: dict[str, str] = {}
    without: tuple[int, ...] = ()
    unknown_gpus: tuple[int, ...] = ()
    unknown_hcas: tuple[str, ...] = ()

    def sharers(self, name: str) -> tuple[int, ...]:
        """The GPUs whose own it is."""
        return tuple(index for index, names in self.own.items() if name in names)


def pci_relation(
    above: Sequence[str] | None, other: Sequence[str] | None, *, switch_bridges: int = 2
) -> Ancestor | None:
    """How close two PCI devices are, by the bridges above each (Gpu.pci_upstream). None: they share none, or it is unknown.

    In sysfs a switch is two bridges (its port to the device, its port to the CPU), so a bridge that is at most second above both is one switch: PIX. Example:
    (down1, up, port, pci0000:00) and (down2, up, port, pci0000:00) share `up`: PIX. `switch_bridges`: how many bridges of the lists are one switch.
    """
    above, other = above or (), other or ()
    shared = next((bridge for bridge in above if bridge in other), None)
    if shared is None:
        return None
    if shared == above[-1]:
        return "PHB"
    return "PIX" if max(above.index(shared), other.index(shared)) < switch_bridges else "PXB"


def nic_affinity(gpu: Gpu, device: Device, numa_nodes: tuple[int, ...] | None) -> Ancestor | None:
    """How close an HCA or NIC is to a GPU, from the bridges above both and their NUMA nodes; None: unknown. `numa_nodes`: of the machine."""
    relation = pci_relation(gpu.pci_upstream, device.pci_upstream)
    if relation is not None or not gpu.pci_upstream or not device.pci_upstream:
        return relation
    if numa_nodes is not None and len(numa_nodes) == 1:
        return "NODE"
    if gpu.numa_node is None or device.numa_node is None:
        return None
    return "NODE" if gpu.numa_node == device.numa_node else "SYS"


def fabric_devices(hcas: Sequence[Hca] | None, nics: Sequence[Nic] | None) -> tuple[Device, ...]:
    """What can carry the traffic of a GPU: the HCAs; where there is none, the interfaces that sit on a PCI bus."""
    return tuple(hcas) if hcas else tuple(nic for nic in nics or () if nic.pci_bus_id is not None)


def fill_nics(
    gpus: Sequence[Gpu], hcas: Sequence[Hca] | None, nics: Sequence[Nic] | None, numa_nodes: tuple[int, ...] | None
) -> tuple[Gpu, ...]:
    """The GPUs with `nics` filled from PCI places; an HCA or NIC whose distance is unknown is left out."""
    devices = fabric_devices(hcas, nics)

    def near(gpu: Gpu) -> dict[str, Ancestor]:
        told = {device.name: nic_affinity(gpu, device, numa_nodes) for device in devices}
        return {name: relation for name, relation in told.items() if relation is not None}

    return tuple(msgspec.structs.replace(gpu, nics=near(gpu)) for gpu in gpus)


def relation_of(node: Node, gpu: Gpu, device: Device) -> Ancestor | None:
    """How close an HCA or NIC is to a GPU: as the source said it, else from PCI places."""
    return gpu.nics.get(device.name) or nic_affinity(gpu, device, node.numa_nodes)


def rails(node: Node) -> Rails:
    """The rails of a node, as far as its source tells."""
    gpus, devices = node.gpus or (), fabric_devices(node.hcas, node.nics)
    if not devices:
        indices = tuple(gpu.index for gpu in gpus)
        return Rails(unknown_gpus=indices) if node.hcas is None else Rails(without=indices)
    near = {gpu.index: _Near(_own_words(gpu), _relations(node, gpu, devices)) for gpu in gpus}
    excluded = _excluded(node, devices, near)
    own = {gpu.index: _closest(near[gpu.index], excluded) for gpu in gpus}
    # where HCAs can't be read, interfaces stand in for them, and there may be more
    undecided = tuple(
        index for index in own if not own[index] and (node.hcas is None or len(near[index].told) < len(devices))
    )
    left = [device.name for device in devices if not any(device.name in names for names in own.values())]
    reasons = {name: excluded.get(name) or _why_nobodys(name, near) for name in left}
    return Rails(
        own={index: names for index, names in own.items() if names},
        not_rails={name: reason for name, reason in reasons.items() if reason},
        without=tuple(index for index in own if not own[index] and index not in undecided),
        unknown_gpus=undecided,
        unknown_hcas=tuple(name for name, reason in reasons.items() if not reason),
    )


class _Near(Record, frozen=True):
    """How close HCAs are to one GPU, in the order of the node's HCAs, as far as told; and the words that make one its own."""

    words: tuple[Ancestor, ...]
    told: dict[str, Ancestor]

    def has(self, name: str) -> bool:
        """Whether that HCA is close enough to be its own."""
        return self.told.get(name) in self.words


Near: TypeAlias = dict[int, _Near]  # by GPU index


def on_grace(gpu: Gpu) -> bool:
    """Whether NVLink-C2C joins it to its CPU: its memory is a NUMA node of the system, or its product is known to be such."""
    return gpu.own_numa_node is not None or (gpu.name is not None and _GRACE.search(gpu.name) is not None)


def _own_words(gpu: Gpu) -> tuple[Ancestor, ...]:
    return (*OWN, "PHB", "NODE") if on_grace(gpu) else OWN


def _relations(node: Node, gpu: Gpu, devices: Sequence[Device]) -> dict[str, Ancestor]:
    told = {device.name: relation_of(node, gpu, device) for device in devices}
    if on_grace(gpu) and all(relation in ("SYS", None) for relation in told.values()):
        return {}
    return {name: relation for name, relation in told.items() if relation is not None}


def _closest(near: _Near, excluded: dict[str, str]) -> tuple[str, ...]:
    """The HCAs of one GPU: those that are close enough, and of them the closest."""
    left = {name: relation for name, relation in near.told.items() if near.has(name) and name not in excluded}
    best = min(left.values(), key=ANCESTORS.index, default=None)
    return tuple(name for name, relation in left.items() if relation == best)


def _why_nobodys(name: str, near: Near) -> str | None:
    """Why an HCA is no GPU's own. None: too little is known."""
    told = {index: gpu.told[name] for index, gpu in near.items() if name in gpu.told}
    if len(told) < len(near):
        return None
    close = [index for index in told if near[index].has(name)]
    if close:
        return f"{told[close[0]]} to GPU {close[0]}, which has a closer one"
    best = min(told.values(), key=ANCESTORS.index, default=None)
    return f"{best} to every GPU" if len(set(told.values())) == 1 else f"behind no GPU's PCIe switches: {best} at best"


class _Signal(Record, frozen=True):
    """A property by which HCAs of one node are told apart. `value` None: unknown, which is held against nobody. `preferred`: what wins at equal coverage, if anything does."""

    value: Callable[[Node, Device], str | None]
    reason: str  # of an HCA that is told apart: "{value}", where the rails are "{main}"
    preferred: str | None = None


def _excluded(node: Node, devices: Sequence[Device], near: Near) -> dict[str, str]:
    """HCAs that carry no GPU's traffic although they may sit close to one -> why."""
    excluded: dict[str, str] = {}
    for signal in SIGNALS:
        values = {device.name: signal.value(node, device) for device in devices if device.name not in excluded}
        main = _main(values, near, signal.preferred)
        if main is not None:
            told_apart = {name: value for name, value in values.items() if value not in (None, main)}
            excluded |= {name: signal.reason.format(value=value, main=main) for name, value in told_apart.items()}
    return excluded | _system_traffic(node, devices, near, excluded)


def _main(values: dict[str, str | None], near: Near, preferred: str | None) -> str | None:
    """The value of the HCAs that sit close to the most GPUs. None: no single one."""
    cover = {
        value: sum(any(values.get(name) == value and gpu.has(name) for name in gpu.told) for gpu in near.values())
        for value in dict.fromkeys(values.values())
        if value is not None
    }
    most = max(cover.values(), default=0)
    best = [value for value, gpus in cover.items() if gpus == most]
    if not most:
        return None
    return best[0] if len(best) == 1 else preferred if preferred in best else None


def _system_traffic(node: Node, devices: Sequence[Device], near: Near, excluded: dict[str, str]) -> dict[str, str]:
    """HCAs under the default route, if every GPU next to them has another one as close, or if they are slower than the others."""
    rates = {device.name: _rate(device) for device in devices}
    left = [device for device in devices if device.name not in excluded]
    carriers = [device.name for device in left if _carries_default_route(node, device)]
    found = {}
    for name in carriers:
        others = [device.name for device in left if device.name not in carriers]
        gpus = [gpu for gpu in near.values() if gpu.has(name)]
        spare = all(any(map(gpu.has, others)) for gpu in gpus)
        fastest = max((rates[other] or 0 for other in others), default=0)
        slower = rates[name] is not None and (rates[name] or 0) < fastest
        if others and gpus and (spare or slower):
            found[name] = "carries the default route" + (", and is slower than the others" if slower else "")
    return found


def _carries_default_route(node: Node, device: Device) -> bool:
    interfaces = {device.name} if isinstance(device, Nic) else {port.interface for port in device.ports or ()}
    return any(
        nic.default_route and (nic.name in interfaces or (nic.pci_bus_id == device.pci_bus_id and nic.pci_bus_id))
        for nic in node.nics or ()
    )


def _rate(device: Device) -> int | None:
    if isinstance(device, Nic):
        return device.speed_bytes_per_s
    return max(
        (port.rate_bytes_per_s for port in device.ports or () if port.rate_bytes_per_s is not None), default=None
    )


def _link_layer(_node: Node, device: Device) -> str | None:
    if isinstance(device, Nic):
        return {"infiniband": "InfiniBand", "ethernet": "Ethernet"}.get(device.kind or "")
    return _only(port.link_layer for port in device.ports or ())


def _only(values: Iterable[str | None]) -> str | None:
    known = {value for value in values if value is not None}
    return known.pop() if len(known) == 1 else None


def _bonding(_node: Node, device: Device) -> str:
    """The mlx5 driver calls the RDMA device of a bond mlx5_bond_0."""
    interfaces = [port.interface or "" for port in device.ports or ()] if isinstance(device, Hca) else []
    return "bonded" if any("bond" in name for name in (device.name, *interfaces)) else "not bonded"


def _share(_node: Node, device: Device) -> str | None:
    virtual = device.is_virtual_function if isinstance(device, Hca) else None
    return None if virtual is None else "a virtual function" if virtual else "a card"


SIGNALS = (
    _Signal(_link_layer, "{value}, where the HCAs of the GPUs are {main}"),
    _Signal(_bonding, "{value}, where the HCAs of the GPUs are {main}"),
    _Signal(_share, "{value}, where the HCAs of the GPUs are {main}", preferred="a card"),
)
