"""NVML's field values: many facts of one GPU in few calls, each with a return code of its own."""

from collections.abc import Sequence
from typing import Any

from preflight.discover.nvml_device import (
    BLANKS_32,
    BLANKS_64,
    INVALID_ARGUMENT,
    MINUS_ONE_32,
    MINUS_ONE_64,
    QUIET,
    Device,
)

FUNCTION = "nvmlDeviceGetFieldValues"
CHUNK = 128  # entries in one call; no limit is documented

# nvml.h, NVML_FI_DEV_*
LINK_COUNT, SWITCH_LINK_COUNT, RECOVERY_ACTION = 91, 147, 230
RETIRED_SINGLE_BIT, RETIRED_DOUBLE_BIT, RETIRED_PENDING = 29, 30, 31
MEMORY_TEMPERATURE, SHUTDOWN_TLIMIT, SLOWDOWN_TLIMIT = 82, 193, 194
# how long a reason held the clocks down, in ns
THROTTLED_NS = {
    74: "power",
    75: "thermal",
    76: "sync boost",
    77: "board limit",
    78: "low utilization",
    79: "reliability",
    80: "total app clocks",
    81: "total base clocks",
    269: "sw thermal slowdown",
    270: "hw thermal slowdown",
    271: "hw power brake slowdown",
}
# field -> the GPU's field, and the part of it, that is missing where the driver refuses it; None: another call tells
OF_GPU: dict[int, tuple[str | None, str | None]] = {
    LINK_COUNT: (None, None),
    SWITCH_LINK_COUNT: (None, None),
    RECOVERY_ACTION: ("recovery_action", None),
    RETIRED_SINGLE_BIT: (None, None),
    RETIRED_DOUBLE_BIT: (None, None),
    RETIRED_PENDING: (None, None),
    MEMORY_TEMPERATURE: ("temperature", "memory_c"),
    SHUTDOWN_TLIMIT: (None, None),
    SLOWDOWN_TLIMIT: (None, None),
    **dict.fromkeys(THROTTLED_NS, ("clocks", "throttled_ns")),
}

# nvml.h, nvmlValueType_t -> member of the union
_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
_DOUBLE, _64_BIT = 0, (2, 3, 4)
_UNKNOWN_FIELD = (*QUIET, INVALID_ARGUMENT)  # a driver that is older than the field


def read_gpu_fields(device: Device) -> dict[int, int | None]:
    """The fields that concern a GPU as a whole, by number; None where there is no value."""
    entries, code = _read(device, list(OF_GPU))
    told: dict[int, int | None] = dict.fromkeys(OF_GPU)
    for position, (number, (field, part)) in enumerate(OF_GPU.items()):
        if entries:
            told[number] = value_of(entries[position])
        refusal = entries[position].nvmlReturn if entries else code
        if refusal and field is not None:
            device.refused(FUNCTION, refusal, field=field, part=part, quiet=_UNKNOWN_FIELD if entries else QUIET)
    return told


def read_fields(device: Device, wanted: Sequence[tuple[int, int]], *, field: str) -> list[int | None]:
    """Values of (field, scope), each None unless its own return code is 0: the call succeeds though entries fail. `field`: of the GPU that they belong to."""
    entries, code = _read(device, wanted)
    if code:
        device.refused(FUNCTION, code, field=field)
    return [value_of(entry) for entry in entries] if entries else [None] * len(wanted)


def _read(device: Device, wanted: Sequence[Any]) -> tuple[list[Any], int]:
    """The entries of all and 0, or none and the code of the call that failed as a whole."""
    entries: list[Any] = []
    for start in range(0, len(wanted), CHUNK):
        told, code = (None, 0) if device.gone else device.try_ask(FUNCTION, wanted[start : start + CHUNK])
        if told is None:
            return [], code
        entries += told
    return entries, 0


def value_of(entry: Any) -> int | None:
    """The number in an entry, without a fraction; None if there is none, or a driver's blank stands in its place."""
    if entry.nvmlReturn:
        return None
    kind = entry.valueType
    member = _MEMBERS.get(kind)
    if member is None:
        return None
    value: int | float = getattr(entry.value, member)
    if kind == _DOUBLE:
        return int(value) if abs(value) < MINUS_ONE_64 else None  # neither infinite nor no number
    number = int(value)
    blanks, minus_one = (BLANKS_64, MINUS_ONE_64) if kind in _64_BIT else (BLANKS_32, MINUS_ONE_32)
    return None if number in blanks or number == minus_one else number
