"""What NVML says of this node's GPUs. The only importer of pynvml, and only while reading: no handle is held afterwards.

A call may hang for ever in the kernel or kill the process, so this runs in a child (nvml_child.py, run by nvml_run.py).
Each question is asked of each GPU by itself: one that is lost costs its own facts, never those of the others. "Not
supported" leaves the fact None; every other error is kept as a problem of that GPU.
"""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import msgspec

from preflight.discover.nvlink import num_nvlinks, num_switch_links
from preflight.discover.nvml_device import GONE, Device, describe, text_or_none
from preflight.discover.nvml_links import read_links
from preflight.discover.pci import pci_bus_id
from preflight.model import Ancestor, Gpu, GpuPeer, Noun, Problem

MAX_GPUS = 256  # four times what a node can hold today; more is a library that lies

# nvml.h, nvmlGpuTopologyLevel_t; the words are those of `nvidia-smi topo`
ANCESTORS: dict[int, Ancestor] = {0: "internal", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
P2P_NVLINK, P2P_OK = 2, 0  # nvml.h, nvmlGpuP2PCapsIndex_t and nvmlGpuP2PStatus_t
LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED, VERSIONS_DIFFER = 12, 9, 18  # nvml.h, nvmlReturn_t
FABRIC_NOT_STARTED, FABRIC_IN_PROGRESS, FABRIC_COMPLETED = 1, 2, 3  # nvml.h, NVML_GPU_FABRIC_STATE_*


class NvmlReading(Noun, frozen=True, kw_only=True):
    """One reading. `gpus` None: could not be read, `note` says why in one line. `no_driver`: the library or the kernel
    module is missing, which is no fault on a node without GPUs. `undecided`: indices of GPUs whose NVLink fabric is not set
    up, so that their domain is unknown whatever their links say.
    """

    driver_version: str | None = None
    cuda_version: str | None = None
    nvml_version: str | None = None
    gpus: tuple[Gpu, ...] | None = None
    note: str | None = None
    no_driver: bool = False
    undecided: tuple[int, ...] = ()
    problems: tuple[Problem, ...] = ()


def read_gpus() -> NvmlReading:
    """Everything that the Gpu noun has, from NVML, which is shut down afterwards. Doesn't raise for what NVML says."""
    try:
        import pynvml
    except (ImportError, OSError) as error:
        return _unread(f"the NVML binding (nvidia-ml-py) can't be imported: {error}")
    try:
        pynvml.nvmlInitWithFlags(pynvml.NVML_INIT_FLAG_NO_GPUS)
    except pynvml.NVMLError as error:
        return _failed_start(pynvml, error)
    try:
        return _read_all(pynvml)
    except pynvml.NVMLError as error:
        return _unread(f"NVML can't count the GPUs: {describe(pynvml, error)[1]}")
    finally:
        _shut_down(pynvml)


def _unread(why: str, *, no_driver: bool = False) -> NvmlReading:
    problems = () if no_driver else (Problem(source="NVML", text=why),)
    return NvmlReading(note=why, no_driver=no_driver, problems=problems)


def _failed_start(nvml: ModuleType, error: Exception) -> NvmlReading:
    code, text = describe(nvml, error)
    if code in (LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED):
        return _unread(text, no_driver=True)
    if code == VERSIONS_DIFFER:
        text += " (the driver was updated under a running kernel module: reload it or reboot)"
    return _unread(f"NVML can't start: {text}")


def _shut_down(nvml: ModuleType) -> None:
    try:
        nvml.nvmlShutdown()
    except nvml.NVMLError:
        return  # the process ends next, and its handles with it


def _read_all(nvml: ModuleType) -> NvmlReading:
    system = Device(nvml, None)
    count = nvml.nvmlDeviceGetCount()
    if count > MAX_GPUS:
        return _unread(f"NVML counts {count} GPUs, which no node has")
    devices = [_open(nvml, index) for index in range(count)]
    read = [_read_gpu(device, index) for index, device in enumerate(devices)]
    return NvmlReading(
        driver_version=text_or_none(system.ask("nvmlSystemGetDriverVersion")),
        cuda_version=_cuda_version(system.ask("nvmlSystemGetCudaDriverVersion_v2")),
        nvml_version=text_or_none(system.ask("nvmlSystemGetNVMLVersion")),
        gpus=tuple(_with_peers(devices, [gpu for gpu, _ in read])),
        undecided=tuple(gpu.index for gpu, undecided in read if undecided),
        problems=tuple(system.problems),
    )


def _open(nvml: ModuleType, index: int) -> Device:
    """A handle attaches the GPU to the driver: this is where a broken one fails."""
    opener = Device(nvml, None)
    handle = opener.ask("nvmlDeviceGetHandleByIndex", index, quiet=())
    device = Device(nvml, handle)
    device.problems += opener.problems
    device.gone = handle is None
    return device


def _read_gpu(device: Device, index: int) -> tuple[Gpu, bool]:
    """One GPU without its peers and problems, and whether its NVLink fabric is still undecided."""
    pci = device.ask("nvmlDeviceGetPciInfo_v3")
    memory = device.ask("nvmlDeviceGetMemoryInfo")
    domain, undecided = _read_fabric(device)
    gpu = Gpu(
        index=index,
        uuid=text_or_none(device.ask("nvmlDeviceGetUUID")),
        name=text_or_none(device.ask("nvmlDeviceGetName")),
        pci_bus_id=pci_bus_id(text_or_none(pci.busId) or "") if pci is not None else None,
        serial=text_or_none(device.ask("nvmlDeviceGetSerial")),
        minor_number=device.ask("nvmlDeviceGetMinorNumber"),
        memory_bytes=int(memory.total) or None if memory is not None else None,
        vbios_version=text_or_none(device.ask("nvmlDeviceGetVbiosVersion")),
        mig_enabled=_first_as_bool(device.ask("nvmlDeviceGetMigMode")),
        ecc_enabled=_first_as_bool(device.ask("nvmlDeviceGetEccMode")),
        nvlink_domain=domain,
        links=read_links(device),
    )
    return gpu, undecided


def _first_as_bool(modes: list[int] | None) -> bool | None:
    """[current, pending] -> current."""
    return None if modes is None else bool(modes[0])


def _cuda_version(number: int | None) -> str | None:
    """12040 -> "12.4": 1000 x major + 10 x minor (cuda.h, CUDA_VERSION)."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def _read_fabric(device: Device) -> tuple[str | None, bool]:
    """The fabric's name for this GPU's NVLink domain, "clusterUUID.clique", and whether the fabric is undecided.

    Hopper and newer. Asked in the newest form first: old drivers refuse newer ones. A completed fabric with a UUID of
    zeros is one switched node: it has no name of its own.
    """
    fabric = _ask_fabric(device)
    if fabric is None or fabric.state not in (FABRIC_NOT_STARTED, FABRIC_IN_PROGRESS, FABRIC_COMPLETED):
        return None, False
    if fabric.state != FABRIC_COMPLETED:
        step = "not started" if fabric.state == FABRIC_NOT_STARTED else "in progress"
        device.problems.append(
            Problem(source="NVLink fabric", text=f"registration {step}: is the fabric manager running?")
        )
        return None, True
    if fabric.status != 0:
        device.problems.append(Problem(source="NVLink fabric", text=f"registration failed, NVML code {fabric.status}"))
        return None, True
    uuid = bytes(fabric.clusterUuid)
    return (f"{_spell_uuid(uuid)}.{fabric.cliqueId}", False) if any(uuid) else (None, False)


def _spell_uuid(uuid: bytes) -> str:
    digits = uuid.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _ask_fabric(device: Device) -> Any:
    import ctypes

    for structure, function in (
        ("c_nvmlGpuFabricInfo_v3_t", "nvmlDeviceGetGpuFabricInfoV"),
        ("c_nvmlGpuFabricInfo_v2_t", "nvmlDeviceGetGpuFabricInfoV"),
        ("c_nvmlGpuFabricInfo_t", "nvmlDeviceGetGpuFabricInfo"),
    ):
        kind = getattr(device.nvml, structure, None)
        if kind is None:  # a binding older than that form
            continue
        info = kind()
        if device.ask(function, ctypes.byref(info)) is not None:
            return info
    return None


def _with_peers(devices: list[Device], gpus: list[Gpu]) -> Iterator[Gpu]:
    for gpu in gpus:
        peers = tuple(_read_peer(devices, gpu, peer) for peer in gpus if peer is not gpu)
        yield msgspec.structs.replace(gpu, peers=peers, problems=tuple(devices[gpu.index].problems))


def _read_peer(devices: list[Device], gpu: Gpu, peer: Gpu) -> GpuPeer:
    device, other = devices[gpu.index], devices[peer.index]
    if device.gone or other.gone:
        return GpuPeer(index=peer.index, num_nvlinks=num_nvlinks(gpu, peer, p2p_over_nvlink=None))
    level, code = device.try_ask("nvmlDeviceGetTopologyCommonAncestor", other.handle)
    # an error may be the other GPU's fault, and is then among its own problems: none is noted here
    device.gone = device.gone or code in GONE
    p2p_over_nvlink = None
    if num_switch_links(gpu) and num_switch_links(peer):
        status, _ = device.try_ask("nvmlDeviceGetP2PStatus", other.handle, P2P_NVLINK)
        p2p_over_nvlink = None if status is None else status == P2P_OK
    return GpuPeer(
        index=peer.index,
        num_nvlinks=num_nvlinks(gpu, peer, p2p_over_nvlink=p2p_over_nvlink),
        ancestor=None if level is None else ANCESTORS.get(level),
    )
