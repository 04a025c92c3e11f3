"""A GPU's registration in its NVLink fabric (Hopper and newer), from NVML."""

import ctypes
from types import ModuleType
from typing import Any

from preflight.discover.nvml_device import (
    DEPRECATED,
    FUNCTION_NOT_FOUND,
    OTHER_STRUCT_VERSION,
    Device,
    Facts,
    describe_code,
    known,
)

# nvml.h, NVML_GPU_FABRIC_STATE_*
STATES = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}
# nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_*: groups of two bits; 0 not supported, 1 true, 2 false
_HEALTH_SHIFTS = {"degraded bandwidth": 0, "route recovery": 2, "route unhealthy": 4, "access timeout recovery": 6}
_TRUE, _FALSE = 1, 2
_MISCONFIGURATION_SHIFT = 8
# nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_*: four bits; 0 not supported, 1 none
_MISCONFIGURATIONS = {
    2: "incorrect system GUID",
    3: "incorrect chassis serial number",
    4: "no partition",
    5: "insufficient NVLinks",
    6: "incompatible GPU firmware",
    7: "invalid location",
    8: "invalid GPU state",
}
# nvml.h, NVML_GPU_FABRIC_HEALTH_SUMMARY_*; 0: not supported
_SUMMARIES = {1: "healthy", 2: "unhealthy", 3: "limited capacity"}


class _First(ctypes.Structure):
    """nvml.h, nvmlGpuFabricInfo_t; ours, since bindings spell it in different ways."""

    _fields_ = (
        ("clusterUuid", ctypes.c_uint8 * 16),
        ("status", ctypes.c_uint32),
        ("cliqueId", ctypes.c_uint32),
        ("state", ctypes.c_uint8),
    )


class _Second(ctypes.Structure):
    """nvmlGpuFabricInfo_v2_t."""

    _fields_ = (("version", ctypes.c_uint32), *_First._fields_, ("healthMask", ctypes.c_uint32))


class _Third(ctypes.Structure):
    """nvmlGpuFabricInfo_v3_t."""

    _fields_ = (*_Second._fields_, ("healthSummary", ctypes.c_uint8))


# newest first: old drivers refuse newer forms
_FORMS: tuple[tuple[type[ctypes.Structure], int, str], ...] = (
    (_Third, 3, "nvmlDeviceGetGpuFabricInfoV"),
    (_Second, 2, "nvmlDeviceGetGpuFabricInfoV"),
    (_First, 1, "nvmlDeviceGetGpuFabricInfo"),
)
_OTHER_FORM = (FUNCTION_NOT_FOUND, OTHER_STRUCT_VERSION, DEPRECATED)


def read_fabric(device: Device) -> Facts | None:
    """The registration; one that isn't complete, or failed, is a problem too, of the domain that stays unknown for it. None: none, or not told."""
    for kind, version, function in _FORMS:
        info = kind()
        if version > 1:
            info.version = ctypes.sizeof(kind) | version << 24  # nvml.h, NVML_STRUCT_VERSION
        code = device.try_into(function, ctypes.byref(info))
        if code == 0:
            return _parse(device, info)
        if code not in _OTHER_FORM:
            device.refused(function, code, field="fabric")
            return None
    device.lacks("fabric")
    return None


def _parse(device: Device, info: Any) -> Facts | None:
    state = STATES.get(info.state)
    if state is None:
        device.complain(
            "NVLink fabric", f"state {info.state}, which NVML had not when this was written", field="fabric"
        )
        return None
    completed = state == "completed"
    status = int(info.status) if completed else None  # nvml.h: its value counts only then
    if state in ("not started", "in progress"):
        text = f"registration {state}: is the fabric manager running?"
        device.complain("NVLink fabric", text, field="nvlink_domain")
    elif status:
        text = f"registration failed, NVML code {status}: {_words(device.nvml, status)}"
        device.complain("NVLink fabric", text, field="nvlink_domain")
    mask = getattr(info, "healthMask", None)
    return known(
        state=state,
        status=status,
        status_text=_words(device.nvml, status) if status is not None else None,
        cluster_uuid=_uuid(bytes(info.clusterUuid)) if completed else None,
        clique_id=int(info.cliqueId) if completed else None,
        health_mask=mask,
        health=_health(mask or 0),
        misconfiguration=_misconfiguration(mask or 0),
        health_summary=_SUMMARIES.get(getattr(info, "healthSummary", 0)),
    )


def _words(nvml: ModuleType, status: int) -> str:
    """The driver's text without the code, which stands beside it."""
    return describe_code(nvml, status).rpartition(" (NVML ")[0]


def _health(mask: int) -> dict[str, bool]:
    told = {name: mask >> shift & 3 for name, shift in _HEALTH_SHIFTS.items()}
    return {name: value == _TRUE for name, value in told.items() if value in (_TRUE, _FALSE)}


def _misconfiguration(mask: int) -> str | None:
    code = mask >> _MISCONFIGURATION_SHIFT & 0xF
    return None if code < 2 else _MISCONFIGURATIONS.get(code, f"code {code}")


def _uuid(uuid: bytes) -> str | None:
    """The cluster's UUID. All zeros are none: one switched node, which has no name of its own."""
    digits = uuid.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])) if any(uuid) else None


def domain_of(fabric: Facts | None) -> str | None:
    """The fabric's name for this GPU's NVLink domain, "clusterUUID.clique"; None where it gives none."""
    if fabric is None or fabric.get("status") != 0 or "cluster_uuid" not in fabric:
        return None
    return f"{fabric['cluster_uuid']}.{fabric['clique_id']}"


def is_undecided(fabric: Facts | None) -> bool:
    """Whether the domain is unknown, whatever the links say, because the fabric is not set up."""
    return fabric is not None and (fabric["state"] in ("not started", "in progress") or bool(fabric.get("status")))
