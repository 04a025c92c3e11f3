"""What the stand-in library says of a GPU's health and load: the calls behind FakeNvml for errors, rows, pages, PCIe, clocks, power, heat and processes."""

from collections.abc import Callable, Sequence
from typing import Any

from tests.fake_gpus import NOT_SUPPORTED, FakeGpu

INSUFFICIENT_SIZE = 7


def number(argument: Any) -> int:
    return int(getattr(argument, "value", argument))


def give(argument: Any, value: Any) -> int:
    """Write through a byref() argument or into a string buffer; a value of None: not supported."""
    if value is None:
        return NOT_SUPPORTED
    if hasattr(argument, "_obj"):
        argument._obj.value = value
    else:
        argument.value = value.encode() if isinstance(value, str) else value
    return 0


def _ecc(nvml: Any, gpu: FakeGpu, kind: Any, counter: Any, out: Any) -> int:
    return give(out, gpu.ecc_counts[2 * number(counter) + number(kind)])


def _sram(nvml: Any, gpu: FakeGpu, out: Any) -> int:
    if gpu.sram_exceeded is None:
        return NOT_SUPPORTED
    out._obj.bThresholdExceeded = gpu.sram_exceeded
    return 0


def _remapped(nvml: Any, gpu: FakeGpu, *out: Any) -> int:
    return max(give(one, value) for one, value in zip(out, gpu.remapped or (None,) * 4, strict=True))


def _retired(nvml: Any, gpu: FakeGpu, cause: Any, count: Any, pages: Any) -> int:
    if gpu.retired is None:
        return NOT_SUPPORTED
    wanted = gpu.retired[number(cause)]
    enough = count._obj.value >= wanted
    count._obj.value = wanted
    return 0 if enough else INSUFFICIENT_SIZE


def _processes(kind: str) -> Callable[..., int]:
    def listed(nvml: Any, gpu: FakeGpu, count: Any, out: Any) -> int:
        processes = [process for process in gpu.processes if kind in process.kinds]
        enough = count._obj.value >= len(processes)
        count._obj.value = len(processes)
        if not enough:
            return INSUFFICIENT_SIZE
        for entry, process in zip(out or (), processes, strict=False):
            entry.pid = process.pid
            entry.usedGpuMemory = 2**64 - 1 if process.memory_bytes is None else process.memory_bytes
        return 0

    return listed


def _constraints(nvml: Any, gpu: FakeGpu, least: Any, most: Any) -> int:
    give(least, 100_000)
    return give(most, _nth(gpu.limits_mw, 3))


def _structure(member: str, fact: str) -> Callable[..., int]:
    def told(nvml: Any, gpu: FakeGpu, out: Any) -> int:
        value = getattr(gpu, fact)
        if value is None:
            return NOT_SUPPORTED
        setattr(out._obj, member, value)
        return 0

    return told


def _nth(values: Sequence[int] | None, index: int) -> int | None:
    return None if values is None else values[index]


def _at(values: dict[int, int] | None, key: Any) -> int | None:
    return (values or {}).get(number(key))


HEALTH: dict[str, Callable[..., int]] = {
    "nvmlDeviceGetTotalEccErrors": _ecc,
    "nvmlDeviceGetSramEccErrorStatus": _sram,
    "nvmlDeviceGetRemappedRows": _remapped,
    "nvmlDeviceGetRetiredPages": _retired,
    "nvmlDeviceGetRetiredPagesPendingStatus": lambda _, gpu, out: give(out, _nth(gpu.retired, 2)),
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda _, gpu, out: give(out, _nth(gpu.pcie, 0)),
    "nvmlDeviceGetCurrPcieLinkWidth": lambda _, gpu, out: give(out, _nth(gpu.pcie, 1)),
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda _, gpu, out: give(out, _nth(gpu.pcie, 2)),
    "nvmlDeviceGetMaxPcieLinkWidth": lambda _, gpu, out: give(out, _nth(gpu.pcie, 3)),
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": lambda _, gpu, out: give(out, _nth(gpu.pcie, 4)),
    "nvmlDeviceGetPcieReplayCounter": lambda _, gpu, out: give(out, gpu.replays),
    "nvmlDeviceGetClockInfo": lambda _, gpu, kind, out: give(out, _at(gpu.clocks, kind)),
    "nvmlDeviceGetMaxClockInfo": lambda _, gpu, kind, out: give(out, _at(gpu.max_clocks, kind)),
    "nvmlDeviceGetApplicationsClock": lambda _, gpu, kind, out: give(out, gpu.application_clock),
    "nvmlDeviceGetCurrentClocksEventReasons": lambda _, gpu, out: give(out, gpu.reasons),
    "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _, gpu, out: give(out, gpu.reasons),
    "nvmlDeviceGetPowerUsage": lambda _, gpu, out: give(out, gpu.draw_mw),
    "nvmlDeviceGetPowerManagementLimit": lambda _, gpu, out: give(out, _nth(gpu.limits_mw, 0)),
    "nvmlDeviceGetPowerManagementDefaultLimit": lambda _, gpu, out: give(out, _nth(gpu.limits_mw, 1)),
    "nvmlDeviceGetEnforcedPowerLimit": lambda _, gpu, out: give(out, _nth(gpu.limits_mw, 2)),
    "nvmlDeviceGetPowerManagementLimitConstraints": _constraints,
    "nvmlDeviceGetTemperatureV": _structure("temperature", "temperature"),
    "nvmlDeviceGetTemperature": lambda _, gpu, sensor, out: give(out, gpu.temperature),
    "nvmlDeviceGetMarginTemperature": _structure("marginTemperature", "margin"),
    "nvmlDeviceGetTemperatureThreshold": lambda _, gpu, kind, out: give(out, _nth(gpu.thresholds, number(kind))),
    "nvmlDeviceGetComputeRunningProcesses_v3": _processes("Compute"),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": _processes("Graphics"),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": _processes("MPS"),
}
