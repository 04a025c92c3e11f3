"""What the child that reads NVML says, as nouns, and with what follows from it.

Fields 251 to 273 were numbered anew by driver 580 TRD2 (NVIDIA, NVML API Reference, "Known Issues"; CUDA 13.0 Update 1 came with 580.82): before, 269 to 271 were
settings of power smoothing, which are no times.
"""

import re

import msgspec

from preflight.discover.nvlink import num_nvlinks
from preflight.model import Gpu, GpuPeer, Noun, Problem

RENUMBERED = (580, 82)  # driver
RENUMBERED_NS = frozenset({"sw thermal slowdown", "hw thermal slowdown", "hw power brake slowdown"})


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
    """The reading with the numbers of NVLinks between its GPUs, which follow from the facts of both; and without what older drivers tell by the same fields."""
    if not reading.gpus:
        return reading
    by_index = {gpu.index: gpu for gpu in reading.gpus}
    gpus = tuple(_with_nvlinks(gpu, by_index) for gpu in reading.gpus)
    if _is_older(reading.driver_version):
        gpus = tuple(map(_without_renumbered, gpus))
    return msgspec.structs.replace(reading, gpus=gpus)


def _is_older(driver: str | None) -> bool:
    match = re.match(r"(\d{1,5})\.(\d{1,5})", driver or "")
    return match is not None and (int(match[1]), int(match[2])) < RENUMBERED


def _without_renumbered(gpu: Gpu) -> Gpu:
    if gpu.clocks is None or not RENUMBERED_NS & gpu.clocks.throttled_ns.keys():
        return gpu
    kept = {name: ns for name, ns in gpu.clocks.throttled_ns.items() if name not in RENUMBERED_NS}
    return msgspec.structs.replace(gpu, clocks=msgspec.structs.replace(gpu.clocks, throttled_ns=kept))


def _with_nvlinks(gpu: Gpu, by_index: dict[int, Gpu]) -> Gpu:
    peers = [
        msgspec.structs.replace(peer, num_nvlinks=_count(gpu, peer, by_index))
        if peer.num_nvlinks is None and peer.index in by_index
        else peer
        for peer in gpu.peers
    ]
    return msgspec.structs.replace(gpu, peers=tuple(peers))


def _count(gpu: Gpu, peer: GpuPeer, by_index: dict[int, Gpu]) -> int | None:
    status = peer.p2p.get("nvlink")
    over_nvlink = None if status in (None, "unknown") else status == "ok"
    gpu_ids = [each.pci_bus_id for each in by_index.values()]
    return num_nvlinks(gpu, by_index[peer.index], p2p_over_nvlink=over_nvlink, gpu_ids=gpu_ids)
