"""What NVML tells of a GPU's health: memory errors, replaced rows and pages, the PCIe link, and what the driver asks for."""

import ctypes
from typing import Any

from preflight.discover.nvml_device import Device, Facts, known
from preflight.discover.nvml_fields import (
    FUNCTION,
    RECOVERY_ACTION,
    RETIRED_DOUBLE_BIT,
    RETIRED_PENDING,
    RETIRED_SINGLE_BIT,
)

# nvml.h: nvmlMemoryErrorType_t (0 corrected, 1 uncorrected) and nvmlEccCounterType_t (0 volatile, 1 aggregate)
_ECC_COUNTS = {
    "corrected_volatile": (0, 0),
    "uncorrected_volatile": (1, 0),
    "corrected_aggregate": (0, 1),
    "uncorrected_aggregate": (1, 1),
}
# nvml.h, nvmlPageRetirementCause_t
_SINGLE_BIT, _DOUBLE_BIT = 0, 1
# nvml.h, NVML_GPU_RECOVERY_ACTION_*
RECOVERY_ACTIONS = {
    0: "none",
    1: "reset",
    2: "reboot",
    3: "drain p2p",
    4: "drain and reset",
    5: "IMEX domain",
    6: "bus reset",
    7: "system reboot",
}
MAX_REPLACED = 2**20  # rows or pages: boards have spares for some hundreds


class _SramStatus(ctypes.Structure):
    """nvml.h, nvmlEccSramErrorStatus_v1_t: eleven counts, and whether the vendor's threshold is exceeded."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("counts", ctypes.c_ulonglong * 11),
        ("bThresholdExceeded", ctypes.c_uint32),
    )


def read_health(device: Device, told: dict[int, Any]) -> Facts:
    """`told`: the fields of the GPU."""
    return {
        "pcie": _pcie(device),
        "ecc": _ecc(device),
        "row_remap": _row_remap(device),
        "retired_pages": _retired_pages(device, told),
        "recovery_action": _recovery_action(device, told[RECOVERY_ACTION]),
    }


def _pcie(device: Device) -> Facts | None:
    def ask(part: str, function: str) -> int | None:
        # 0 is what a link that can't be read shows: no generation or width has that number
        return device.ask(function, field="pcie", part=part) or None

    return known(
        generation=ask("generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
        width=ask("width", "nvmlDeviceGetCurrPcieLinkWidth"),
        max_generation=ask("max_generation", "nvmlDeviceGetMaxPcieLinkGeneration"),
        max_width=ask("max_width", "nvmlDeviceGetMaxPcieLinkWidth"),
        device_max_generation=ask("device_max_generation", "nvmlDeviceGetGpuMaxPcieLinkGeneration"),
        replays=device.ask("nvmlDeviceGetPcieReplayCounter", field="pcie", part="replays"),
    )


def _ecc(device: Device) -> Facts | None:
    """Counts are refused as "not supported" where ECC is off, and volatile ones while MIG is on."""
    counts = {
        part: device.ask("nvmlDeviceGetTotalEccErrors", kind, counter, field="ecc", part=part)
        for part, (kind, counter) in _ECC_COUNTS.items()
    }
    return known(**counts, sram_threshold_exceeded=_sram_threshold(device))


def _sram_threshold(device: Device) -> bool | None:
    status = _SramStatus(version=ctypes.sizeof(_SramStatus) | 1 << 24)  # nvml.h, NVML_STRUCT_VERSION
    field, part = "ecc", "sram_threshold_exceeded"
    told = device.ask_into("nvmlDeviceGetSramEccErrorStatus", ctypes.byref(status), field=field, part=part)
    return bool(status.bThresholdExceeded) if told else None


def _row_remap(device: Device) -> Facts | None:
    rows = device.ask("nvmlDeviceGetRemappedRows", field="row_remap")
    if rows is None:
        return None
    correctable, uncorrectable, pending, failed = rows
    if max(correctable, uncorrectable) > MAX_REPLACED:
        device.complain("nvmlDeviceGetRemappedRows", f"{max(rows)} rows can't be", field="row_remap")
        return None
    return {
        "correctable": correctable,
        "uncorrectable": uncorrectable,
        "pending": bool(pending),
        "failed": bool(failed),
    }


def _retired_pages(device: Device, told: dict[int, Any]) -> Facts | None:
    """Before Ampere. By fields, which count; by the lists of pages where the driver doesn't have those."""
    single_bit, double_bit, pending = told[RETIRED_SINGLE_BIT], told[RETIRED_DOUBLE_BIT], told[RETIRED_PENDING]
    if single_bit is None and double_bit is None:
        single_bit = _count_pages(device, "single_bit", _SINGLE_BIT)
        double_bit = _count_pages(device, "double_bit", _DOUBLE_BIT)
    most = max(single_bit or 0, double_bit or 0)
    if most > MAX_REPLACED:
        device.complain("retired pages", f"{most} pages can't be", field="retired_pages")
        return None
    if pending is None:
        pending = device.ask("nvmlDeviceGetRetiredPagesPendingStatus", field="retired_pages", part="pending")
    return known(single_bit=single_bit, double_bit=double_bit, pending=None if pending is None else bool(pending))


def _count_pages(device: Device, part: str, cause: int) -> int | None:
    pages = device.ask("nvmlDeviceGetRetiredPages", cause, field="retired_pages", part=part)
    return None if pages is None else len(pages)


def _recovery_action(device: Device, code: Any) -> str | None:
    if code is None:
        return None
    action = RECOVERY_ACTIONS.get(code)
    if action is None:
        text = f"the driver asks for action {code}, which NVML had not when this was written"
        device.complain(FUNCTION, text, field="recovery_action")
    return action
