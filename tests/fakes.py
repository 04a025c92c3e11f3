"""FakeNvml: a Python object in the place of the NVML library, behind the real binding, made from a description.

The binding's own wrappers, structures and error classes run unchanged; only the calls into the library end here. Each call
is a function of ctypes arguments that gives an NVML return code, as the library's is.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pynvml

NOT_SUPPORTED, INVALID_ARGUMENT, LOST = 3, 2, 15
HIDDEN_FAR_END = "FFFFFFFF:FF:FF.0"


@dataclass(frozen=True)
class FakeLink:
    """One NVLink: active or not, and what is at its far end (0 GPU, 1 CPU, 2 switch)."""

    active: bool = True
    far_kind: int = 2
    far_id: str = "00000000:C0:00.0"


@dataclass(frozen=True)
class FakeGpu:
    """One GPU. `links` None: the product has no NVLink. `fabric`: (state, status, 16 bytes of UUID, clique).
    `errors`: library function -> code that this GPU answers with; "*" for all functions.
    """

    uuid: str = "GPU-0"
    name: str = "NVIDIA H100 80GB HBM3"
    pci: str = "00000000:10:00.0"
    memory_bytes: int = 85_520_809_984
    links: tuple[FakeLink, ...] | None = None
    link_version: int = 6
    link_mb_per_s: int = 26562
    fabric: tuple[int, int, bytes, int] | None = None
    fabric_versions: tuple[int, ...] = (3, 2, 1)
    mig: int | None = 0
    ecc: int | None = 1
    serial: str | None = "1650000000001"
    errors: dict[str, int] = field(default_factory=dict)


def lost(gpu: FakeGpu) -> FakeGpu:
    """That GPU, fallen off the bus."""
    return replace(gpu, errors={"*": LOST})


def h100_sxm(count: int = 8) -> list[FakeGpu]:
    """An HGX board: 18 links of each GPU to switches, the fabric completed with a UUID of zeros."""
    return [
        FakeGpu(
            uuid=f"GPU-h100-{i}",
            pci=f"00000000:{0x10 + i:02X}:00.0",
            links=(FakeLink(),) * 18,
            fabric=(3, 0, bytes(16), 0),
        )
        for i in range(count)
    ]


def a100_pcie_bridged() -> list[FakeGpu]:
    """Four PCIe cards, 12 links each, bridged in pairs 0-1 and 2-3. No fabric."""
    ids = [f"00000000:{0x20 + i:02X}:00.0" for i in range(4)]
    return [
        FakeGpu(
            uuid=f"GPU-a100-{i}",
            name="NVIDIA A100 80GB PCIe",
            pci=ids[i],
            links=(FakeLink(far_kind=0, far_id=ids[i ^ 1]),) * 12,
            link_version=4,
            link_mb_per_s=25000,
        )
        for i in range(4)
    ]


def a100_pcie_unbridged() -> list[FakeGpu]:
    """The same cards without bridges: all links exist and are inactive."""
    return [replace(gpu, links=(FakeLink(active=False),) * 12) for gpu in a100_pcie_bridged()]


def geforce(count: int = 2) -> list[FakeGpu]:
    """Consumer cards: no NVLink, no MIG, no ECC, no serial."""
    return [
        FakeGpu(
            uuid=f"GPU-rtx-{i}",
            name="NVIDIA GeForce RTX 4090",
            pci=f"00000000:{0x30 + i:02X}:00.0",
            mig=None,
            ecc=None,
            serial=None,
        )
        for i in range(count)
    ]


def gb200_tray(uuid: bytes = bytes(range(16)), clique: int = 7) -> list[FakeGpu]:
    """Four GPUs of an NVL72: every far end hidden, the fabric's UUID and clique tell the domain."""
    return [
        FakeGpu(
            uuid=f"GPU-gb200-{i}",
            name="NVIDIA GB200",
            pci=f"0000000{i}:01:00.0",
            links=(FakeLink(far_kind=255, far_id=HIDDEN_FAR_END),) * 18,
            link_version=7,
            link_mb_per_s=53125,
            fabric=(3, 0, uuid, clique),
        )
        for i in range(4)
    ]


class FakeNvml:
    """The library. `start`: code of initialising. `missing`: functions that this version doesn't have. `p2p_nvlink`:
    the driver's word on every pair. `ancestor`: the PCIe level of every pair..
    """

    def __init__(
        self,
        gpus: Sequence[FakeGpu] = (),
        *,
        start: int = 0,
        missing: Sequence[str] = (),
        p2p_nvlink: int = 0,
        ancestor: int = 50,
        count: int | None = None,
    ) -> None:
        self.gpus = list(gpus)
        self.start = start
        self.missing = set(missing)
        self.p2p_nvlink = p2p_nvlink
        self.ancestor = ancestor
        self.count = len(self.gpus) if count is None else count
        self.initialised = 0
        self.calls: list[str] = []

    def install(self, monkeypatch: Any) -> "FakeNvml":
        """Put it behind the binding until the test ends."""
        monkeypatch.setattr(pynvml, "nvmlLib", self)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return self

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml") or name in self.missing:
            raise AttributeError(name)
        if name in _SYSTEM:
            return self._counted(name, lambda *arguments: _SYSTEM[name](self, *arguments))
        if name in _DEVICE:
            return self._counted(name, lambda handle, *arguments: self._of_gpu(name, handle, arguments))
        raise AttributeError(name)

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        # a function, not a method: the binding sets `restype` on it
        def function(*arguments: Any) -> Any:
            self.calls.append(name)
            return call(*arguments)

        return function

    def _of_gpu(self, name: str, handle: Any, arguments: tuple[Any, ...]) -> int:
        gpu = self.gpus[index_of(handle)]
        code = gpu.errors.get(name, gpu.errors.get("*", 0))
        return code or _DEVICE[name](self, gpu, *arguments)


def index_of(handle: Any) -> int:
    """Handles are 1, 2, ...: the library's are opaque addresses."""
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0) - 1


def number(argument: Any) -> int:
    return int(getattr(argument, "value", argument))


def give(argument: Any, value: Any) -> int:
    """Write through a byref() argument or into a string buffer; a value of None: not supported."""
    if value is None:
        return NOT_SUPPORTED
    if hasattr(argument, "_obj"):
        argument._obj.value = value
    else:
        argument.value = value.encode()
    return 0


def _handle(nvml: FakeNvml, index: Any, out: Any) -> int:
    gpu = nvml.gpus[number(index)]
    if "nvmlDeviceGetHandleByIndex_v2" in gpu.errors:
        return gpu.errors["nvmlDeviceGetHandleByIndex_v2"]
    ctypes.cast(ctypes.pointer(out._obj), ctypes.POINTER(ctypes.c_void_p))[0] = number(index) + 1
    return 0


def _start(nvml: FakeNvml, *_: Any) -> int:
    nvml.initialised += nvml.start == 0
    return nvml.start


def _stop(nvml: FakeNvml) -> int:
    nvml.initialised -= 1
    return 0


_WORDS = {
    2: b"Invalid Argument",
    3: b"Not Supported",
    15: b"GPU is lost",
    16: b"GPU requires reset",
    999: b"Unknown Error",
}

_SYSTEM: dict[str, Callable[..., Any]] = {
    "nvmlInitWithFlags": _start,
    "nvmlShutdown": _stop,
    "nvmlErrorString": lambda _, code: _WORDS.get(number(code), b"error"),
    "nvmlSystemGetDriverVersion": lambda _, out, size: give(out, "550.54.15"),
    "nvmlSystemGetNVMLVersion": lambda _, out, size: give(out, "12.550.54.15"),
    "nvmlSystemGetCudaDriverVersion_v2": lambda _, out: give(out, 12040),
    "nvmlDeviceGetCount_v2": lambda nvml, out: give(out, nvml.count),
    "nvmlDeviceGetHandleByIndex_v2": _handle,
}


def _pci(nvml: FakeNvml, gpu: FakeGpu, out: Any) -> int:
    out._obj.busId = gpu.pci.encode()
    return 0


def _memory(nvml: FakeNvml, gpu: FakeGpu, out: Any) -> int:
    out._obj.total = gpu.memory_bytes
    return 0


def _modes(current: int | None, out: Any, pending: Any) -> int:
    give(pending, current)
    return give(out, current)


def _link(gpu: FakeGpu, index: Any) -> FakeLink | int:
    if gpu.links is None:
        return NOT_SUPPORTED
    return gpu.links[number(index)] if number(index) < len(gpu.links) else INVALID_ARGUMENT


def _link_state(nvml: FakeNvml, gpu: FakeGpu, index: Any, out: Any) -> int:
    link = _link(gpu, index)
    return link if isinstance(link, int) else give(out, int(link.active))


def _link_version(nvml: FakeNvml, gpu: FakeGpu, index: Any, out: Any) -> int:
    link = _link(gpu, index)
    return link if isinstance(link, int) else give(out, gpu.link_version)


def _far_id(nvml: FakeNvml, gpu: FakeGpu, index: Any, out: Any) -> int:
    link = _link(gpu, index)
    if isinstance(link, int):
        return link
    out._obj.busId = link.far_id.encode()
    return 0


def _far_kind(nvml: FakeNvml, gpu: FakeGpu, index: Any, out: Any) -> int:
    link = _link(gpu, index)
    return link if isinstance(link, int) else give(out, link.far_kind)


def _field_values(nvml: FakeNvml, gpu: FakeGpu, count: Any, out: Any) -> int:
    for entry in out._obj:
        link = _link(gpu, entry.scopeId)
        if gpu.links is not None and entry.fieldId == 91:
            entry.valueType, entry.value.uiVal, entry.nvmlReturn = 1, len(gpu.links), 0
        elif isinstance(link, int) or entry.fieldId not in (164, 165, 166):
            # the value beside an error is left over memory: nobody may use it
            entry.valueType, entry.value.uiVal, entry.nvmlReturn = 1, 77, NOT_SUPPORTED
        else:
            told = {164: gpu.link_mb_per_s, 165: int(link.active), 166: gpu.link_version}
            entry.valueType, entry.value.uiVal, entry.nvmlReturn = 1, told[entry.fieldId], 0
    return 0


def _fabric(nvml: FakeNvml, gpu: FakeGpu, out: Any) -> int:
    info = out._obj
    version = info.version >> 24 if hasattr(info, "version") else 1
    if gpu.fabric is None:
        return NOT_SUPPORTED
    if version not in gpu.fabric_versions:
        return 25
    info.state, info.status, uuid, info.cliqueId = gpu.fabric
    info.clusterUuid[:] = uuid
    return 0


_DEVICE: dict[str, Callable[..., int]] = {
    "nvmlDeviceGetName": lambda _, gpu, out, size: give(out, gpu.name),
    "nvmlDeviceGetUUID": lambda _, gpu, out, size: give(out, gpu.uuid),
    "nvmlDeviceGetSerial": lambda _, gpu, out, size: give(out, gpu.serial),
    "nvmlDeviceGetVbiosVersion": lambda _, gpu, out, size: give(out, "96.00.89.00.01"),
    "nvmlDeviceGetMinorNumber": lambda nvml, gpu, out: give(out, nvml.gpus.index(gpu)),
    "nvmlDeviceGetPciInfo_v3": _pci,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetMigMode": lambda _, gpu, out, pending: _modes(gpu.mig, out, pending),
    "nvmlDeviceGetEccMode": lambda _, gpu, out, pending: _modes(gpu.ecc, out, pending),
    "nvmlDeviceGetNvLinkState": _link_state,
    "nvmlDeviceGetNvLinkVersion": _link_version,
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": _far_id,
    "nvmlDeviceGetNvLinkRemoteDeviceType": _far_kind,
    "nvmlDeviceGetFieldValues": _field_values,
    "nvmlDeviceGetGpuFabricInfoV": _fabric,
    "nvmlDeviceGetGpuFabricInfo": _fabric,
    "nvmlDeviceGetP2PStatus": lambda nvml, gpu, other, kind, out: give(out, nvml.p2p_nvlink),
    "nvmlDeviceGetTopologyCommonAncestor": lambda nvml, gpu, other, out: give(out, nvml.ancestor),
}
