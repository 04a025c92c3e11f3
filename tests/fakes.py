"""FakeNvml: a Python object in the place of the NVML library, behind the real binding, made from a description.

The binding's own wrappers, structures and error classes run unchanged; only the calls into the library end here. Each call
is a function of ctypes arguments that gives an NVML return code, as the library's is.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import pynvml

from tests.fake_gpus import (
    HIDDEN_FAR_END,
    INVALID_ARGUMENT,
    LOST,
    NEW_LINK_COUNTERS,
    NO_PERMISSION,
    NOT_SUPPORTED,
    OLD_LINK_COUNTERS,
    FakeGpu,
    FakeLink,
    FakeProcess,
    a100_pcie_bridged,
    a100_pcie_unbridged,
    a100_sxm,
    b200_sxm,
    gb200_tray,
    geforce,
    h100_sxm,
    lost,
    v100_sxm,
    with_mig,
)
from tests.fake_health import HEALTH, give, number

__all__ = [
    "HIDDEN_FAR_END",
    "INVALID_ARGUMENT",
    "LOST",
    "NOT_SUPPORTED",
    "NO_PERMISSION",
    "FakeGpu",
    "FakeLink",
    "FakeNvml",
    "FakeProcess",
    "a100_pcie_bridged",
    "a100_pcie_unbridged",
    "a100_sxm",
    "b200_sxm",
    "gb200_tray",
    "geforce",
    "h100_sxm",
    "lost",
    "v100_sxm",
    "with_mig",
]

_MIG_STEP = 4096  # handles of MIG devices are above those of GPUs, in steps
_NOT_FOUND, _OTHER_VERSION = 6, 25


class FakeNvml:
    """The library. `start`: code of initialising. `missing`: functions that this version doesn't have. `p2p_nvlink`:
    the driver's word on every pair, `p2p`: the same by kind (0 read, 1 write, 3 atomics, 4 pci). `ancestor`: the PCIe level of every pair.
    `confidential`: None: not supported.
    """

    def __init__(
        self,
        gpus: Sequence[FakeGpu] = (),
        *,
        start: int = 0,
        missing: Sequence[str] = (),
        p2p_nvlink: int = 0,
        p2p: dict[int, int] | None = None,
        ancestor: int = 50,
        count: int | None = None,
        confidential: int | None = 0,
    ) -> None:
        self.gpus = list(gpus)
        self.start = start
        self.missing = set(missing)
        self.p2p = {2: p2p_nvlink, **(p2p or {})}
        self.ancestor = ancestor
        self.count = len(self.gpus) if count is None else count
        self.confidential = confidential
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
        if handle_number(handle) >= _MIG_STEP:
            uuid = gpu.mig_uuids[handle_number(handle) // _MIG_STEP - 1]
            return give(arguments[0], uuid) if name == "nvmlDeviceGetUUID" else INVALID_ARGUMENT
        code = gpu.errors.get(name, gpu.errors.get("*", 0))
        return code or _DEVICE[name](self, gpu, *arguments)


def handle_number(handle: Any) -> int:
    """Handles are 1, 2, ...: the library's are opaque addresses."""
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)


def index_of(handle: Any) -> int:
    return handle_number(handle) % _MIG_STEP - 1


def _give_handle(out: Any, value: int) -> int:
    ctypes.cast(ctypes.pointer(out._obj), ctypes.POINTER(ctypes.c_void_p))[0] = value
    return 0


def _handle(nvml: FakeNvml, index: Any, out: Any) -> int:
    gpu = nvml.gpus[number(index)]
    if "nvmlDeviceGetHandleByIndex_v2" in gpu.errors:
        return gpu.errors["nvmlDeviceGetHandleByIndex_v2"]
    return _give_handle(out, number(index) + 1)


def _start(nvml: FakeNvml, *_: Any) -> int:
    nvml.initialised += nvml.start == 0
    return nvml.start


def _stop(nvml: FakeNvml) -> int:
    nvml.initialised -= 1
    return 0


def _confidential(nvml: FakeNvml, out: Any) -> int:
    if nvml.confidential is None:
        return NOT_SUPPORTED
    out._obj.ccFeature = nvml.confidential
    return 0


_WORDS = {
    0: b"Success",
    2: b"Invalid Argument",
    3: b"Not Supported",
    4: b"Insufficient Permissions",
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
    "nvmlSystemGetConfComputeState": _confidential,
    "nvmlDeviceGetCount_v2": lambda nvml, out: give(out, nvml.count),
    "nvmlDeviceGetHandleByIndex_v2": _handle,
}


def _pci(nvml: FakeNvml, gpu: FakeGpu, out: Any) -> int:
    out._obj.busId = gpu.pci.encode()
    return 0


def _memory(nvml: FakeNvml, gpu: FakeGpu, out: Any) -> int:
    """The first form counts what the driver reserves as used, the second doesn't."""
    second = hasattr(out._obj, "version")
    out._obj.total = gpu.memory_bytes
    out._obj.used = gpu.used_bytes + (0 if second else gpu.reserved_bytes)
    return 0


def _modes(current: int | None, pending: int | None, out: Any, out_pending: Any) -> int:
    give(out_pending, current if pending is None else pending)
    return give(out, current)


def _bits(mask: int | None, words: Any, out: Any) -> int:
    if mask is None:
        return NOT_SUPPORTED
    for word in range(number(words)):
        out._obj[word] = mask >> 64 * word & (2**64 - 1)
    return 0


def _mig_handle(nvml: FakeNvml, gpu: FakeGpu, index: Any, out: Any) -> int:
    if number(index) >= len(gpu.mig_uuids):
        return _NOT_FOUND
    return _give_handle(out, nvml.gpus.index(gpu) + 1 + _MIG_STEP * (number(index) + 1))


def _link(gpu: FakeGpu, index: Any) -> FakeLink | int:
    if gpu.links is None:
        return NOT_SUPPORTED
    return gpu.links[number(index)] if number(index) < len(gpu.links) else INVALID_ARGUMENT


def _of_link(gpu: FakeGpu, index: Any, out: Any, value: Callable[[FakeLink], int]) -> int:
    link = _link(gpu, index)
    return link if isinstance(link, int) else give(out, value(link))


def _far_id(nvml: FakeNvml, gpu: FakeGpu, index: Any, out: Any) -> int:
    link = _link(gpu, index)
    if isinstance(link, int):
        return link
    out._obj.busId = link.far_id.encode()
    return 0


def _gpu_field(gpu: FakeGpu, number: int) -> int | None:
    """A field of the GPU as a whole; None: refused."""
    retired = gpu.retired if gpu.retired_by_fields else None
    return {
        91: None if gpu.links is None else len(gpu.links),
        230: gpu.recovery,
        82: gpu.memory_temperature,
        **dict(zip((29, 30, 31), retired or (None,) * 3, strict=True)),
        **dict(zip((193, 194), gpu.tlimits or (None,) * 2, strict=True)),
        **gpu.throttled_ns,
    }.get(number)


def _link_field(gpu: FakeGpu, number: int, index: int) -> int | None:
    link = _link(gpu, index)
    if isinstance(link, int):
        return None
    state = int(link.active) if link.state is None else link.state
    told = {164: gpu.link_mb_per_s, 165: state, 166: gpu.link_version, 146: link.far_port}
    counters = NEW_LINK_COUNTERS if gpu.link_version >= 7 else OLD_LINK_COUNTERS
    return {**told, **dict.fromkeys(counters, 0), **link.counters}.get(number)


def _field_values(nvml: FakeNvml, gpu: FakeGpu, count: Any, out: Any) -> int:
    for entry in out._obj:
        value = _gpu_field(gpu, entry.fieldId)
        if value is None:
            value = _link_field(gpu, entry.fieldId, entry.scopeId)
        code = gpu.field_errors.get(entry.fieldId, NOT_SUPPORTED if value is None else 0)
        # the value beside an error is left over memory: nobody may use it
        entry.valueType, entry.value.uiVal, entry.nvmlReturn = 1, 77, code
        if code == 0 and value is not None:
            entry.valueType = 3 if value > 2**31 else 5 if value < 0 else 1
            setattr(entry.value, {3: "ullVal", 5: "siVal", 1: "uiVal"}[entry.valueType], value)
    return 0


def _fabric(nvml: FakeNvml, gpu: FakeGpu, out: Any) -> int:
    info = out._obj
    version = info.version >> 24 if hasattr(info, "version") else 1
    if gpu.fabric is None:
        return NOT_SUPPORTED
    if version not in gpu.fabric_versions:
        return _OTHER_VERSION
    info.state, info.status, uuid, info.cliqueId = gpu.fabric
    info.clusterUuid[:] = uuid
    if version >= 2:
        info.healthMask = gpu.fabric_health[0]
    if version >= 3:
        info.healthSummary = gpu.fabric_health[1]
    return 0


_IDENTITY: dict[str, Callable[..., int]] = {
    "nvmlDeviceGetName": lambda _, gpu, out, size: give(out, gpu.name),
    "nvmlDeviceGetUUID": lambda _, gpu, out, size: give(out, gpu.uuid),
    "nvmlDeviceGetSerial": lambda _, gpu, out, size: give(out, gpu.serial),
    "nvmlDeviceGetVbiosVersion": lambda _, gpu, out, size: give(out, "96.00.89.00.01"),
    "nvmlDeviceGetInforomImageVersion": lambda _, gpu, out, size: give(out, gpu.inforom),
    "nvmlDeviceGetGspFirmwareVersion": lambda _, gpu, out: give(out, gpu.gsp),
    "nvmlDeviceGetMinorNumber": lambda nvml, gpu, out: give(out, nvml.gpus.index(gpu)),
    "nvmlDeviceGetModuleId": lambda _, gpu, out: give(out, gpu.module_id),
    "nvmlDeviceGetPciInfo_v3": _pci,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetMemoryInfo_v2": _memory,
    "nvmlDeviceGetMigMode": lambda _, gpu, out, pending: _modes(gpu.mig, gpu.mig_pending, out, pending),
    "nvmlDeviceGetMaxMigDeviceCount": lambda _, gpu, out: give(out, 7),
    "nvmlDeviceGetMigDeviceHandleByIndex": _mig_handle,
    "nvmlDeviceGetEccMode": lambda _, gpu, out, pending: _modes(gpu.ecc, gpu.ecc_pending, out, pending),
    "nvmlDeviceGetPersistenceMode": lambda _, gpu, out: give(out, gpu.persistence),
    "nvmlDeviceGetCpuAffinity": lambda _, gpu, words, out: _bits(gpu.cpus, words, out),
    "nvmlDeviceGetMemoryAffinity": lambda _, gpu, words, out, scope: _bits(
        None if gpu.node is None else 1 << gpu.node, words, out
    ),
    "nvmlDeviceGetNumaNodeId": lambda _, gpu, out: give(out, gpu.own_node),
}

_LINKS: dict[str, Callable[..., int]] = {
    "nvmlDeviceGetNvLinkState": lambda _, gpu, index, out: _of_link(gpu, index, out, lambda link: int(link.active)),
    "nvmlDeviceGetNvLinkVersion": lambda _, gpu, index, out: _of_link(gpu, index, out, lambda link: gpu.link_version),
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": _far_id,
    "nvmlDeviceGetNvLinkRemoteDeviceType": lambda _, gpu, index, out: _of_link(
        gpu, index, out, lambda link: link.far_kind
    ),
    "nvmlDeviceGetNvLinkErrorCounter": lambda _, gpu, index, counter, out: _of_link(
        gpu, index, out, lambda link: link.counters.get(OLD_LINK_COUNTERS[number(counter)], 0)
    ),
    "nvmlDeviceGetFieldValues": _field_values,
    "nvmlDeviceGetGpuFabricInfoV": _fabric,
    "nvmlDeviceGetGpuFabricInfo": _fabric,
    "nvmlDeviceGetP2PStatus": lambda nvml, gpu, other, kind, out: give(out, nvml.p2p.get(number(kind), 0)),
    "nvmlDeviceGetTopologyCommonAncestor": lambda nvml, gpu, other, out: give(out, nvml.ancestor),
}

_DEVICE: dict[str, Callable[..., int]] = {**_IDENTITY, **_LINKS, **HEALTH}
