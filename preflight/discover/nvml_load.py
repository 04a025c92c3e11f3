"""What NVML tells of a GPU at work: clocks and what holds them down, power, temperature, processes."""

import ctypes
from typing import Any

from preflight.discover.nvml_device import Device, Facts, known
from preflight.discover.nvml_fields import MEMORY_TEMPERATURE, SHUTDOWN_TLIMIT, SLOWDOWN_TLIMIT, THROTTLED_NS

_SM_CLOCK, _MEMORY_CLOCK = 1, 2  # nvml.h, nvmlClockType_t
# nvml.h, nvmlClocksEventReason*, which were called nvmlClocksThrottleReason*
_REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "sw power cap",
    0x8: "hw slowdown",
    0x10: "sync boost",
    0x20: "sw thermal slowdown",
    0x40: "hw thermal slowdown",
    0x80: "hw power brake slowdown",
    0x100: "display clocks",
}
_GPU_SENSOR = 0  # nvml.h, nvmlTemperatureSensors_t
_SHUTDOWN, _SLOWDOWN = 0, 1  # nvml.h, nvmlTemperatureThresholds_t
MAX_C = 250  # no threshold of silicon is above; drivers' markers are
MILLI = 1000
MAX_W = 100_000
# later ones name a process that several lists have
_PROCESS_LISTS = (
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
    ("compute", "nvmlDeviceGetComputeRunningProcesses"),
    ("mps", "nvmlDeviceGetMPSComputeRunningProcesses"),
)


def read_load(device: Device, told: dict[int, Any]) -> Facts:
    """`told`: the fields of the GPU."""
    return {
        "clocks": _clocks(device, told),
        "power": _power(device),
        "temperature": _temperature(device, told),
        "processes": _processes(device),
    }


def read_what_changes(device: Device) -> Facts:
    """What changes from second to second: clocks now, what holds them down, and who is on the GPU."""
    clocks = known(
        sm_mhz=device.ask("nvmlDeviceGetClockInfo", _SM_CLOCK, field="clocks", part="sm_mhz"),
        memory_mhz=device.ask("nvmlDeviceGetClockInfo", _MEMORY_CLOCK, field="clocks", part="memory_mhz"),
        throttle_reasons=_throttle_reasons(device),
    )
    return {"clocks": clocks, "processes": _processes(device)}


def _clocks(device: Device, told: dict[int, Any]) -> Facts | None:
    def ask(part: str, function: str, clock: int) -> int | None:
        mhz: int | None = device.ask(function, clock, field="clocks", part=part)
        return mhz

    return known(
        sm_mhz=ask("sm_mhz", "nvmlDeviceGetClockInfo", _SM_CLOCK),
        memory_mhz=ask("memory_mhz", "nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
        max_sm_mhz=ask("max_sm_mhz", "nvmlDeviceGetMaxClockInfo", _SM_CLOCK) or None,
        max_memory_mhz=ask("max_memory_mhz", "nvmlDeviceGetMaxClockInfo", _MEMORY_CLOCK) or None,
        application_sm_mhz=ask("application_sm_mhz", "nvmlDeviceGetApplicationsClock", _SM_CLOCK) or None,
        throttle_reasons=_throttle_reasons(device),
        throttled_ns={name: told[field] for field, name in THROTTLED_NS.items() if told[field] is not None},
    )


def _throttle_reasons(device: Device) -> list[str] | None:
    """Names of the bits that are set; one that NVML had not when this was written is "reason 0x200"."""
    mask = device.ask_first(
        ("nvmlDeviceGetCurrentClocksEventReasons",),
        ("nvmlDeviceGetCurrentClocksThrottleReasons",),
        field="clocks",
        part="throttle_reasons",
    )
    if mask is None:
        return None
    bits = [1 << bit for bit in range(64) if mask >> bit & 1]
    return [_REASONS.get(bit, f"reason {bit:#x}") for bit in bits]


def _power(device: Device) -> Facts | None:
    def ask(part: str, function: str) -> float | None:
        return _watts(device.ask(function, field="power", part=part))

    constraints = device.ask("nvmlDeviceGetPowerManagementLimitConstraints", field="power", part="max_limit_w")
    return known(
        draw_w=ask("draw_w", "nvmlDeviceGetPowerUsage"),
        limit_w=ask("limit_w", "nvmlDeviceGetPowerManagementLimit"),
        default_limit_w=ask("default_limit_w", "nvmlDeviceGetPowerManagementDefaultLimit"),
        enforced_limit_w=ask("enforced_limit_w", "nvmlDeviceGetEnforcedPowerLimit"),
        max_limit_w=_watts(constraints[1]) if constraints is not None else None,
    )


def _watts(milliwatts: int | None) -> float | None:
    return milliwatts / MILLI if milliwatts is not None and 0 < milliwatts < MAX_W * MILLI else None


def _temperature(device: Device, told: dict[int, Any]) -> Facts | None:
    """Ada and newer tell their thresholds as "T.Limit": the margin at which it happens, 0 or a little below.

    Degrees follow from it: what is now plus the margin left, less the margin at which it happens. Source: NVML documentation of
    nvmlDeviceGetTemperatureThreshold (fields 193 to 196 in its place) and NVIDIA's runbook on thermal margins (hardware slows down
    where the margin falls below field 194).
    """
    now = device.ask_first(
        ("nvmlDeviceGetTemperatureV", _GPU_SENSOR),
        ("nvmlDeviceGetTemperature", _GPU_SENSOR),
        field="temperature",
        part="gpu_c",
    )
    if not _is_temperature(now):
        device.complain("temperature", f"{now} C can't be", field="temperature")
        now = None
    margin = _margin(device)
    best = None if now is None or margin is None else now + margin
    memory_c = told[MEMORY_TEMPERATURE]
    return known(
        gpu_c=now,
        memory_c=(memory_c or None) if _is_temperature(memory_c) else None,  # 0 has been seen where there is no sensor
        slowdown_c=_threshold(device, "slowdown_c", _SLOWDOWN, best, told[SLOWDOWN_TLIMIT]),
        shutdown_c=_threshold(device, "shutdown_c", _SHUTDOWN, best, told[SHUTDOWN_TLIMIT]),
        margin_c=margin,
    )


class _Margin(ctypes.Structure):
    """nvml.h, nvmlMarginTemperature_v1_t."""

    _fields_ = (("version", ctypes.c_uint32), ("marginTemperature", ctypes.c_int32))


def _margin(device: Device) -> int | None:
    margin = _Margin(version=ctypes.sizeof(_Margin) | 1 << 24)  # nvml.h, NVML_STRUCT_VERSION
    field, part = "temperature", "margin_c"
    told = device.ask_into("nvmlDeviceGetMarginTemperature", ctypes.byref(margin), field=field, part=part)
    return int(margin.marginTemperature) if told and _is_temperature(margin.marginTemperature) else None


def _is_temperature(degrees: int | None) -> bool:
    """Whether silicon can be so warm, or the number is unknown anyway."""
    return degrees is None or -MAX_C < degrees < MAX_C


def _threshold(device: Device, part: str, kind: int, best: int | None, tlimit: int | None) -> int | None:
    """Degrees as told, or from the margin at which it happens. `best`: where that margin is zero."""
    part_without = part if tlimit is None else None
    told_c = device.ask("nvmlDeviceGetTemperatureThreshold", kind, field="temperature", part=part_without)
    if told_c is not None and 0 < told_c < MAX_C:
        return int(told_c)
    return None if best is None or tlimit is None or not -MAX_C < tlimit < MAX_C else best - tlimit


def _processes(device: Device) -> list[Facts] | None:
    """Everybody on the GPU. None if the list of compute processes, which all products have, can't be had."""
    found: dict[int, Facts] = {}
    complete = False
    for kind, function in _PROCESS_LISTS:
        listed = device.ask_first((f"{function}_v3",), (f"{function}_v2",), field="processes")
        complete = complete or (kind == "compute" and listed is not None)
        for process in listed or ():
            memory = process.usedGpuMemory
            known_before = found.get(process.pid, {}).get("memory_bytes")
            found[process.pid] = {
                "pid": process.pid,
                "memory_bytes": known_before if memory is None else int(memory),
                "kind": kind,
            }
    return list(found.values()) if complete else None
