"""What the child that reads NVML says, as nouns: PCI ids as sysfs spells them, and the numbers of NVLinks between pairs."""

from collections.abc import Sequence

import msgspec

from preflight.discover.nvlink import num_nvlinks
from preflight.discover.pci import pci_bus_id
from preflight.model import Gpu, GpuPeer, Link, Noun, Problem


class NvmlReading(Noun, frozen=True, kw_only=True):
    """One reading. `gpus` None: could not be read, `note` says why in one line. `no_driver`: the library or the kernel
    module is missing, which is no fault on a node without GPUs. `undecided`: indices of GPUs whose NVLink fabric is not set
    up, so that their domain is unknown whatever their links say. `confidential_compute`: None: not told, or not supported.
    """

    driver_version: str | None = None
    cuda_version: str | None = None
    nvml_version: str | None = None
    confidential_compute: bool | None = None
    gpus: tuple[Gpu, ...] | None = None
    note: str | None = None
    no_driver: bool = False
    undecided: tuple[int, ...] = ()
    problems: tuple[Problem, ...] = ()


def decode(answer: bytes) -> NvmlReading:
    """The reading in a child's answer. Raises msgspec.DecodeError, UnicodeDecodeError or RecursionError for what is none."""
    return complete(msgspec.json.decode(answer, type=NvmlReading))


def complete(reading: NvmlReading) -> NvmlReading:
    """The reading with what needs no driver: spellings, and what follows from several GPUs' facts."""
    if not reading.gpus:
        return reading
    spelled = [_spelled(gpu) for gpu in reading.gpus]
    by_index = {gpu.index: gpu for gpu in spelled}
    gpus = tuple(_with_nvlinks(gpu, by_index) for gpu in spelled)
    return msgspec.structs.replace(reading, gpus=gpus)


def _spelled(gpu: Gpu) -> Gpu:
    spellings: dict[str | None, str | None] = {}
    bus_id = pci_bus_id(gpu.pci_bus_id) if gpu.pci_bus_id is not None else None
    links = None if gpu.links is None else tuple(_spelled_link(link, spellings) for link in gpu.links)
    return msgspec.structs.replace(gpu, pci_bus_id=bus_id, links=links)


def _spelled_link(link: Link, spellings: dict[str | None, str | None]) -> Link:
    """`spellings`: those already worked out; all links of a GPU end at a few devices."""
    told = link.peer_pci_bus_id
    if told is None:
        return link
    if told not in spellings:
        spellings[told] = pci_bus_id(told)
    bus_id = spellings[told]
    return msgspec.structs.replace(link, peer_pci_bus_id=bus_id, peer_link=link.peer_link if bus_id else None)


def _with_nvlinks(gpu: Gpu, by_index: dict[int, Gpu]) -> Gpu:
    peers: Sequence[GpuPeer] = [
        msgspec.structs.replace(peer, num_nvlinks=_count(gpu, peer, by_index))
        if peer.num_nvlinks is None and peer.index in by_index
        else peer
        for peer in gpu.peers
    ]
    return msgspec.structs.replace(gpu, peers=tuple(peers))


def _count(gpu: Gpu, peer: GpuPeer, by_index: dict[int, Gpu]) -> int | None:
    status = peer.p2p.get("nvlink")
    over_nvlink = None if status in (None, "unknown") else status == "ok"
    return num_nvlinks(gpu, by_index[peer.index], p2p_over_nvlink=over_nvlink)
