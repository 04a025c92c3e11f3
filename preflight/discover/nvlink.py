"""NVLink without NVML: how many links join two GPUs, and which GPUs form one NVLink domain. Pure functions on nouns.

Links that end at a switch never name the GPU behind it (and a hidden switch has no PCI id at all), so matching the PCI
ids of link ends finds nothing on NVSwitch machines: there, the number of links and the driver's word on the pair count.
"""

from collections.abc import Collection, Iterable, Sequence

from preflight.model import Gpu, Link


def num_nvlinks(
    gpu: Gpu, peer: Gpu, *, p2p_over_nvlink: bool | None, gpu_ids: Collection[str | None] = ()
) -> int | None:
    """How many NVLinks `gpu` has towards `peer`: the number in nvidia-smi's "NV18". 0: none, None: unknown.

    Direct links name the peer, so they are counted. Through switches it is the smaller number of active switch links,
    provided that the driver calls the pair NVLink-capable (`p2p_over_nvlink`; None: it didn't say).
    Example: 18 and 17 active switch links, pair capable: 17. `gpu_ids`: PCI ids of the node's GPUs: a far end that is none of them, and of which the driver doesn't say what it
    is, may be a switch.
    """
    if _surely_none(gpu) or _surely_none(peer):
        return 0
    if gpu.links is None:
        return None
    direct = sum(bool(link.active) and link.peer_pci_bus_id == peer.pci_bus_id for link in gpu.links)
    if direct and peer.pci_bus_id is not None:
        return direct
    switched = num_switch_links(gpu), num_switch_links(peer)
    if all(switched):
        return None if p2p_over_nvlink is None else min(switched) * p2p_over_nvlink
    if peer.links is None or not all(_end_known(link, gpu_ids) for link in gpu.links):
        return None
    # the way through a switch has another end, which may be unknown
    return 0 if not switched[0] or all(_end_known(link, gpu_ids) for link in peer.links) else None


def _end_known(link: Link, gpu_ids: Collection[str | None]) -> bool:
    if link.active is False or link.peer_kind in ("switch", "cpu"):
        return True
    return link.peer_pci_bus_id is not None and (link.peer_kind == "gpu" or link.peer_pci_bus_id in gpu_ids)


def num_switch_links(gpu: Gpu) -> int:
    """Active links that end at a switch."""
    return sum(bool(link.active) and link.peer_kind == "switch" for link in gpu.links or ())


def _surely_none(gpu: Gpu) -> bool:
    """No NVLink in the product, or all of them known to be inactive (a PCIe card without a bridge)."""
    return gpu.links is not None and all(link.active is False for link in gpu.links)


def nvlink_domains(node: str, gpus: Sequence[Gpu], *, undecided: Iterable[int] = ()) -> dict[int, str | None]:
    """GPU index -> NVLink domain, as Gpu.nvlink_domain defines it.

    A domain that the fabric named stands. Otherwise GPUs that are joined, directly or by way of others, form one: the
    node's name, or "node:gpu0", "node:gpu2" (each with its lowest index) where the node has several.
    `undecided`: indices whose fabric is still being set up: unknown, whatever their links say.
    """
    waiting = set(undecided)
    domains: dict[int, str | None] = {gpu.index: gpu.nvlink_domain for gpu in gpus}
    open_gpus = [gpu for gpu in gpus if gpu.nvlink_domain is None and gpu.index not in waiting]
    islands = _islands(open_gpus)
    for island in islands:
        name = node if len(islands) == 1 else f"{node}:gpu{min(island)}"
        domains.update(dict.fromkeys(island, name))
    joined = set().union(*islands)
    for gpu in open_gpus:
        if gpu.index not in joined and (_surely_none(gpu) or _surely_alone(gpu, len(gpus))):
            domains[gpu.index] = "none"
    return domains


def _islands(gpus: Sequence[Gpu]) -> list[set[int]]:
    """Sets of two or more GPUs joined by NVLink, by lowest index."""
    islands: list[set[int]] = []
    members = {gpu.index for gpu in gpus}
    for gpu in gpus:
        linked = {gpu.index} | {peer.index for peer in gpu.peers if peer.num_nvlinks and peer.index in members}
        touching = [island for island in islands if island & linked]
        islands = [island for island in islands if island not in touching]
        islands.append(linked.union(*touching))
    return sorted((island for island in islands if len(island) > 1), key=min)


def _surely_alone(gpu: Gpu, num_gpus: int) -> bool:
    """Every other GPU of the node is known to be out of reach over NVLink; a GPU without a peer is told by its links."""
    reaches = [peer.num_nvlinks for peer in gpu.peers]
    return num_gpus > 1 and len(reaches) == num_gpus - 1 and all(number == 0 for number in reaches)
