"""What NVML says of this node's GPUs. The only importer of pynvml, and only while reading: no handle is held afterwards.

A call may hang for ever in the kernel or kill the process, so this runs in a child (nvml_child.py, run by nvml_run.py).
Each question is asked of each GPU by itself: one that is lost costs its own facts, never those of the others. "Not
supported" leaves the fact None; every other error is kept as a problem of that GPU.
"""

from types import ModuleType
from typing import TYPE_CHECKING

from preflight.discover.nvml_device import Device, Facts, describe, text_or_none
from preflight.discover.nvml_gpu import read_gpu
from preflight.discover.nvml_load import read_what_changes
from preflight.discover.nvml_pairs import read_peers

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.discover.nvml_reading import NvmlReading

MAX_GPUS = 256  # four times what a node can hold today; more is a library that lies
LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED, VERSIONS_DIFFER = 12, 9, 18  # nvml.h, nvmlReturn_t


def read_gpus() -> "NvmlReading":
    """Everything that the Gpu noun has, from NVML, which is shut down afterwards. Doesn't raise for what NVML says."""
    import msgspec

    from preflight.discover.nvml_reading import NvmlReading, complete

    return complete(msgspec.convert(read_facts(), NvmlReading))


def read_facts(tell: "Callable[[str], object]" = str, *, only_load: bool = False) -> Facts:
    """A reading as plain data: what becomes an NvmlReading. Doesn't raise for what NVML says. `tell` hears what is asked next, as in "GPU 3". `only_load`: of each GPU its
    UUID, clocks and processes alone.
    """
    try:
        import pynvml
    except (ImportError, OSError) as error:
        return _unread(f"the NVML binding (nvidia-ml-py) can't be imported: {error}")
    try:
        pynvml.nvmlInitWithFlags(pynvml.NVML_INIT_FLAG_NO_GPUS)
    except pynvml.NVMLError as error:
        return _failed_start(pynvml, error)
    try:
        return _read_loads(pynvml, tell) if only_load else _read_all(pynvml, tell)
    except pynvml.NVMLError as error:
        return _unread(f"NVML can't count the GPUs: {describe(pynvml, error)[1]}")
    finally:
        _shut_down(pynvml)


def _unread(why: str, *, no_driver: bool = False) -> Facts:
    problems = [] if no_driver else [{"source": "NVML", "text": why}]
    return {"note": why, "no_driver": no_driver, "problems": problems}


def _failed_start(nvml: ModuleType, error: Exception) -> Facts:
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


def _read_all(nvml: ModuleType, tell: "Callable[[str], object]") -> Facts:
    system = Device(nvml, None)
    count = nvml.nvmlDeviceGetCount()
    if count > MAX_GPUS:
        return _unread(f"NVML counts {count} GPUs, which no node has")
    devices: list[Device] = []
    read: list[tuple[Facts, bool]] = []
    for index in range(count):
        tell(f"GPU {index}")
        devices.append(_open(nvml, index))
    for index, device in enumerate(devices):
        tell(f"GPU {index}")
        read.append(_read_gpu(device, index))
    tell("pairs of GPUs")
    peers = read_peers(devices)
    tell("the driver itself")
    gpus = [
        facts | {"peers": its_peers, "problems": device.problems}
        for (facts, _), its_peers, device in zip(read, peers, devices, strict=True)
    ]
    return {
        "driver_version": text_or_none(system.ask("nvmlSystemGetDriverVersion", field="driver_version")),
        "cuda_version": _cuda_version(system.ask("nvmlSystemGetCudaDriverVersion_v2", field="cuda_version")),
        "nvml_version": text_or_none(system.ask("nvmlSystemGetNVMLVersion", field="nvml_version")),
        "confidential_compute": _confidential(system),
        "gpus": gpus,
        "undecided": [facts["index"] for facts, undecided in read if undecided],
        "problems": system.problems,
    }


def _read_loads(nvml: ModuleType, tell: "Callable[[str], object]") -> Facts:
    count = nvml.nvmlDeviceGetCount()
    if count > MAX_GPUS:
        return _unread(f"NVML counts {count} GPUs, which no node has")
    gpus: list[Facts] = []
    for index in range(count):
        tell(f"GPU {index}")
        device = _open(nvml, index)
        if not device.gone:
            uuid = text_or_none(device.ask("nvmlDeviceGetUUID", field="uuid"))
            gpus.append({"index": index, "uuid": uuid, **read_what_changes(device)})
    return {"gpus": gpus}


def _open(nvml: ModuleType, index: int) -> Device:
    """A handle attaches the GPU to the driver: this is where a broken one fails."""
    opener = Device(nvml, None)
    handle = opener.ask("nvmlDeviceGetHandleByIndex", index, quiet=())
    device = Device(nvml, handle)
    device.problems += opener.problems
    device.gone = handle is None
    return device


def _read_gpu(device: Device, index: int) -> tuple[Facts, bool]:
    """Its facts and what read_gpu gives; an answer that we don't understand costs what comes after it of this GPU, and nothing of the others."""
    facts: Facts = {"index": index}
    try:
        return facts, read_gpu(device, facts)
    except (ValueError, TypeError, ArithmeticError, AttributeError, LookupError, MemoryError) as error:
        device.complain("NVML", f"an answer can't be understood: {type(error).__name__}: {error}", field=None)
        return facts, False


def _cuda_version(number: int | None) -> str | None:
    """12040 -> "12.4": 1000 x major + 10 x minor (cuda.h, CUDA_VERSION)."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def _confidential(system: Device) -> bool | None:
    state = system.ask("nvmlSystemGetConfComputeState", field="confidential_compute")
    return None if state is None else bool(state.ccFeature)
