"""The NVLinks of one GPU, as NVML tells them.

How many there are is asked by field 91, never found by trying all indices that the header allows: a GPU with 18 links
answers "invalid argument" above, not "not supported".
"""

from typing import Any

from preflight.discover.nvlink import LINK_VERSIONS
from preflight.discover.nvml_device import INVALID_ARGUMENT, NOT_SUPPORTED, QUIET, Device, text_or_none
from preflight.discover.pci import pci_bus_id
from preflight.model import Link
from preflight.model.gpu import PeerKind
from preflight.model.units import MEGA

# nvml.h, NVML_FI_DEV_NVLINK_*; the last three take the link as scope
LINK_COUNT, GET_SPEED, GET_STATE, GET_VERSION = 91, 164, 165, 166
MAX_LINKS = 64  # the header allows 36; more is a library that lies
# nvml.h, nvmlIntNvLinkDeviceType_t
REMOTE_KINDS: dict[int, PeerKind] = {0: "gpu", 1: "cpu", 2: "switch"}
HIDDEN = "FFFFFFFF"  # domain of a far end that is not shown: GB200's switches, or those kept from a virtual machine
# nvml.h, nvmlNvlinkState_t: 1 active, 2 asleep (wakes by itself); 0 inactive, 3 up but closed to traffic
ACTIVE_STATES = (1, 2)
# fields give MB/s, one direction, line rate: 26562 for NVLink 4
MAX_SPEED_MB_PER_S = 10**7  # 10 TB/s for one link: the drivers' markers for "not supported" are far above

# nvml.h, nvmlValueType_t -> member of the union
_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
_NO_SUCH_LINK = (*QUIET, INVALID_ARGUMENT)


def read_links(device: Device) -> tuple[Link, ...] | None:
    """All links of a GPU. None: NVML could not say; empty: the product has no NVLink."""
    (count,) = _fields(device, [LINK_COUNT])
    if device.gone:
        return None
    indices = range(min(int(count), MAX_LINKS)) if count is not None else _indices_by_state(device)
    if indices is None:
        return None
    wanted = [(field, index) for index in indices for field in (GET_STATE, GET_VERSION, GET_SPEED)]
    told = _fields(device, wanted) if wanted else []
    return tuple(_read_link(device, index, *told[3 * index : 3 * index + 3]) for index in indices)


def _indices_by_state(device: Device) -> range | None:
    """For drivers without field 91: the links that have a state. None if the first error doesn't mean "no such link"."""
    for index in range(MAX_LINKS):
        _, code = device.try_ask("nvmlDeviceGetNvLinkState", index)
        if code in (NOT_SUPPORTED, INVALID_ARGUMENT):
            return range(index)
        if code:
            device.ask("nvmlDeviceGetNvLinkState", index)  # once more, so that the reason is kept
            return None
    return range(MAX_LINKS)


def _read_link(
    device: Device, index: int, state: float | None, version: float | None, speed_mb_per_s: float | None
) -> Link:
    """One link from its fields; older drivers have calls in their place. The far end is asked of active links only."""
    active = state in ACTIVE_STATES if state is not None else _as_bool(_ask(device, "nvmlDeviceGetNvLinkState", index))
    if version is None:
        version = _ask(device, "nvmlDeviceGetNvLinkVersion", index)
    kind, bus_id = _read_far_end(device, index) if active else (None, None)
    known_speed = speed_mb_per_s is not None and 0 < speed_mb_per_s < MAX_SPEED_MB_PER_S
    return Link(
        index=index,
        active=active,
        peer_kind=kind,
        peer_pci_bus_id=bus_id,
        version=LINK_VERSIONS.get(int(version)) if version is not None else None,
        speed_bytes_per_s=int(speed_mb_per_s * MEGA) if known_speed and speed_mb_per_s else None,
    )


def _read_far_end(device: Device, index: int) -> tuple[PeerKind | None, str | None]:
    """Kind and PCI id of what a link ends at. An id of all F is a switch that this system may not see."""
    remote = _ask(device, "nvmlDeviceGetNvLinkRemotePciInfo", index)
    kind = REMOTE_KINDS.get(_ask(device, "nvmlDeviceGetNvLinkRemoteDeviceType", index))
    spelled = text_or_none(remote.busId) if remote is not None else None
    if spelled is None:
        return kind, None
    if spelled.upper().startswith(HIDDEN):
        return kind or "switch", None
    return kind, pci_bus_id(spelled)


def _ask(device: Device, function: str, index: int) -> Any:
    return device.ask(function, index, quiet=_NO_SUCH_LINK)


def _as_bool(state: int | None) -> bool | None:
    return None if state is None else bool(state)


def _fields(device: Device, wanted: list[Any]) -> list[float | None]:
    """Field values, each None unless its own return code is 0: the call succeeds though entries fail."""
    entries = device.ask("nvmlDeviceGetFieldValues", wanted)
    if entries is None:
        return [None] * len(wanted)
    return [_value(entry) for entry in entries]


def _value(entry: Any) -> float | None:
    member = _MEMBERS.get(entry.valueType)
    return None if entry.nvmlReturn != 0 or member is None else getattr(entry.value, member)
