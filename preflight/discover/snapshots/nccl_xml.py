"""NCCL's topology as XML (NCCL_TOPO_DUMP_FILE) -> a node: the PCI tree, NVLinks, HCAs with their speeds; nothing of their health, and only the GPUs of one communicator.

<system><cpu numaid affinity host_hash>, in it <pci busid class link_speed link_width> nested as the switches are, in those <gpu dev sm rank gdr> with <nvlink target count
tclass> and <nic> with <net name port speed>. Seen in https://github.com/NVIDIA/nccl/issues/507, 671, 1182, 1505 and https://github.com/NVIDIA/nccl-tests/issues/256:
one <pci class="0x060400"> is a whole switch (sysfs has two bridges); host bridges are not shown, so two devices of one <cpu> that share no switch are NODE, the farther of the two
relations that are possible. numaid -1: unknown. `speed` is in Mbit/s. A link's target is a GPU, a switch (class 0x068000), or an id of -1 or all F where the driver doesn't show the switch.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from preflight.discover.nvlink import num_nvlinks, nvlink_domains
from preflight.discover.pci import pci_bus_id
from preflight.model import Ancestor, Gpu, GpuPeer, Hca, Link, Nic, Node, PcieLink, Port, Problem
from preflight.model.gpu import PeerKind
from preflight.model.hostlist import fold_numbers
from preflight.model.rails import pci_relation
from preflight.model.units import MEGA

SOURCE = "nccl xml"
MAX_LINKS = 64  # of one GPU
MAX_DEVICES = 256  # GPUs, and ports, of one file
MAX_CPUS = 8192
SWITCH, OLD_IBM_BRIDGE = "0x0680", "0x068001"  # PCI class "other bridge"; with the NVLinks of POWER CPUs
# PCI-SIG, class codes of network controllers
LAYERS = {"0x0207": "InfiniBand", "0x0200": "Ethernet"}
# PCIe: transfers per second and lane of each generation
GENERATIONS = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}
SOCKET_DEFAULT = 10000  # Mbit/s, what NCCL writes for an interface whose speed it doesn't know


class _Found(NamedTuple):
    """A <gpu> or <net>, where it is: the <cpu>, and the <pci> elements around it, closest first (its own function the first of them)."""

    element: Any
    cpu: Any
    pcis: tuple[Any, ...]

    @property
    def bus_id(self) -> str | None:
        return pci_bus_id(self.pcis[0].get("busid", "")) if self.pcis else None

    @property
    def numa_node(self) -> int | None:
        number = _integer(self.cpu.get("numaid"))
        return number if number is not None and number >= 0 else None

    @property
    def upstream(self) -> tuple[str, ...] | None:
        """The switches above, closest first, and the CPU in place of the root complex."""
        switches = [pci_bus_id(pci.get("busid", "")) or "?" for pci in self.pcis[1:]]
        return (*switches, f"numa{self.cpu.get('numaid', '')[:8]}") if self.pcis else None


def read_nccl_xml(root: Any, name: str, product: str | None) -> Node | None:
    """The node that a topology tells of; None: it is no topology of NCCL's. Of several hosts (a rack that NVLink joins) the one that wrote the file, which has the lowest rank."""
    if root.tag != "system":
        return None
    found = [found for cpu in root if cpu.tag == "cpu" for found in _walk(cpu, cpu, ())][:MAX_DEVICES]
    hosts = {item.cpu.get("host_hash") for item in found}
    graphics = sorted((item for item in found if item.element.tag == "gpu"), key=_rank)
    if not graphics:
        return None
    host = graphics[0].cpu.get("host_hash")
    graphics = [item for item in graphics if item.cpu.get("host_hash") == host]
    nets = [item for item in found if item.element.tag == "net" and item.cpu.get("host_hash") == host]
    indices, problem = _indices(graphics)
    gpus = tuple(
        _gpu(index, item, product)
        for index, item in sorted(zip(indices, graphics, strict=True), key=lambda pair: pair[0])
    )
    places = dict(zip(indices, graphics, strict=True))
    hcas, nics = _hcas(nets), _nics(nets)
    closeness = {item.element.get("name", "?"): item for item in nets}
    gpus = tuple(
        msgspec.structs.replace(
            gpu,
            peers=tuple(_peer(gpu, peer, places) for peer in gpus if peer.index != gpu.index),
            nics=_nearness(places[gpu.index], closeness),
        )
        for gpu in gpus
    )
    domains = nvlink_domains(name, gpus)
    problems = [problem] if problem else []
    if len(hosts) > 1:
        problems.append(
            Problem(source=SOURCE, text=f"the file holds {len(hosts)} hosts; the one with the lowest rank is read")
        )
    return Node(
        name=name,
        source="nccl xml",
        gpus=tuple(msgspec.structs.replace(gpu, nvlink_domain=domains[gpu.index]) for gpu in _hidden_ends(gpus)),
        nics=nics,
        hcas=hcas,
        problems=tuple(problems),
    )


def _walk(element: Any, cpu: Any, pcis: tuple[Any, ...]) -> Iterator[_Found]:
    for child in element:
        if child.tag == "pci":
            yield from _walk(child, cpu, (child, *pcis))
        elif child.tag == "nic":
            yield from _walk(child, cpu, pcis)
        elif child.tag in {"gpu", "net"}:
            yield _Found(child, cpu, pcis)


def _rank(item: _Found) -> int:
    rank = _integer(item.element.get("rank"))
    return 2**31 if rank is None or rank < 0 else rank


def _indices(graphics: Sequence[_Found]) -> tuple[list[int], Problem | None]:
    """NVML's number of each GPU (`dev`); numbered in the file's order, and said so, where that is not one number each."""
    told = [_integer(item.element.get("dev")) for item in graphics]
    given = [index for index in told if index is not None and 0 <= index < MAX_DEVICES]
    if len(set(given)) == len(told):
        return given, None
    text = "the GPUs have no number each (dev); they are counted in the order of the file"
    return list(range(len(graphics))), Problem(source=SOURCE, text=text, field="index")


def _gpu(index: int, item: _Found, product: str | None) -> Gpu:
    links = _links(item.element)
    return Gpu(
        index=index,
        name=product,
        pci_bus_id=item.bus_id,
        pci_upstream=item.upstream,
        numa_node=item.numa_node,
        cpus=_cpu_list(item.cpu.get("affinity")),
        links=links or None,  # without any, the product may have none, or all may be down
        pcie=_pcie(item),
    )


def _links(gpu: Any) -> tuple[Link, ...]:
    """The active links that the driver lets peers use: NCCL writes no others. They have no numbers there, so they are counted."""
    ends: list[tuple[PeerKind, str | None]] = []
    for nvlink in gpu:
        if nvlink.tag == "nvlink":
            count = _integer(nvlink.get("count")) or 0
            ends += [_far_end(nvlink)] * max(0, min(count, MAX_LINKS - len(ends)))
    return tuple(
        Link(index=i, active=True, peer_kind=kind, peer_pci_bus_id=bus_id) for i, (kind, bus_id) in enumerate(ends)
    )


def _far_end(nvlink: Any) -> tuple[PeerKind, str | None]:
    code = nvlink.get("tclass", "").lower()
    kind: PeerKind = "cpu" if code == OLD_IBM_BRIDGE else "gpu" if code.startswith("0x03") else "switch"
    return kind, pci_bus_id(nvlink.get("target", ""))


def _hidden_ends(gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The GPUs, with a problem at those whose links end at nothing that the driver names, where it names the ends of others'. If it hides all, that is how virtual machines are."""
    hidden = {gpu.index for gpu in gpus if gpu.links and all(link.peer_pci_bus_id is None for link in gpu.links)}
    shown = {gpu.index for gpu in gpus if gpu.links} - hidden
    text = "the driver didn't name the far ends of its NVLinks, though it did for other GPUs of this node"
    problem = Problem(source=SOURCE, text=text, field="links")
    return tuple(
        msgspec.structs.replace(gpu, problems=(*gpu.problems, problem)) if shown and gpu.index in hidden else gpu
        for gpu in gpus
    )


def _peer(gpu: Gpu, peer: Gpu, places: dict[int, _Found]) -> GpuPeer:
    """Without any link of one of the two, the dump says that there is none between them."""
    none = not gpu.links or not peer.links
    return GpuPeer(
        index=peer.index,
        num_nvlinks=0 if none else num_nvlinks(gpu, peer, p2p_over_nvlink=True),
        ancestor=_relation(places[gpu.index], places[peer.index]),
    )


def _nearness(gpu: _Found, nets: dict[str, _Found]) -> dict[str, Ancestor]:
    told = {name: _relation(gpu, net) for name, net in nets.items()}
    return {name: relation for name, relation in told.items() if relation is not None}


def _relation(one: _Found, other: _Found) -> Ancestor | None:
    """How close two devices are; None: they share no switch, and their CPUs' NUMA nodes are unknown."""
    if not one.pcis or not other.pcis:
        return None
    relation = pci_relation(one.upstream, other.upstream, switch_bridges=1)
    if relation in ("PIX", "PXB"):
        return relation
    if one.numa_node is None or other.numa_node is None:
        return None
    return "NODE" if one.numa_node == other.numa_node else "SYS"


def _hcas(nets: Sequence[_Found]) -> tuple[Hca, ...] | None:
    """The RDMA devices: those with a port number; NCCL's own sockets have 0. None: it used none, which says nothing about what is there."""
    ports: dict[str, list[_Found]] = {}
    for net in nets:
        if (_integer(net.element.get("port")) or 0) > 0:
            ports.setdefault(net.element.get("name", "?"), []).append(net)
    return tuple(_hca(name, found) for name, found in ports.items()) or None


def _hca(name: str, found: Sequence[_Found]) -> Hca:
    place = found[0]
    layer: Any = LAYERS.get(place.pcis[0].get("class", "")[:6].lower()) if place.pcis else None
    return Hca(
        name=name,
        pci_bus_id=place.bus_id,
        pci_upstream=place.upstream,
        numa_node=place.numa_node,
        pcie=_pcie(place),
        ports=tuple(
            Port(number=_integer(net.element.get("port")) or 0, rate_bytes_per_s=_speed(net.element), link_layer=layer)
            for net in found
        ),
    )


def _nics(nets: Sequence[_Found]) -> tuple[Nic, ...] | None:
    sockets = [net for net in nets if _integer(net.element.get("port")) == 0]
    return (
        tuple(
            Nic(
                name=net.element.get("name", "?"),
                pci_bus_id=net.bus_id,
                pci_upstream=net.upstream,
                numa_node=net.numa_node,
                speed_bytes_per_s=_speed(net.element) if _integer(net.element.get("speed")) != SOCKET_DEFAULT else None,
            )
            for net in sockets
        )
        or None
    )


def _speed(net: Any) -> int | None:
    speed = _integer(net.get("speed"))
    return int(speed * MEGA) // 8 if speed is not None and speed > 0 else None


def _pcie(item: _Found) -> PcieLink | None:
    """What device and slot together allow: NCCL writes the lower of the two maxima, not what the link has now."""
    if not item.pcis:
        return None
    speed, width = item.pcis[0].get("link_speed", ""), _integer(item.pcis[0].get("link_width"))
    generation = GENERATIONS.get(speed.split(" ")[0].removesuffix(".0")) if "GT/s" in speed else None
    width = width if width and width > 0 else None
    return PcieLink(max_generation=generation, max_width=width) if generation or width else None


def _cpu_list(mask: str | None) -> str | None:
    """A kernel's CPU mask as a list: "00000000,0000000f" -> "0-3". None: no mask, or an empty one."""
    digits = (mask or "").replace(",", "")
    if not digits or len(digits) > MAX_CPUS // 4 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
        return None
    number = int(digits, 16)
    return fold_numbers(cpu for cpu in range(number.bit_length()) if number >> cpu & 1) if number else None


def _integer(text: str | None) -> int | None:
    if text is None or len(text) > 12:
        return None
    try:
        return int(text)
    except ValueError:
        return None
