"""The NVLinks of one GPU, as NVML tells them.

How many there are is asked by field 91, never found by trying all indices that the header allows: a GPU with 18 links
answers "invalid argument" above, not "not supported".
"""

from typing import Any

from preflight.discover.nvml_device import (
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    QUIET,
    Device,
    Facts,
    bus_id_in,
    is_hidden,
    spelled_bus_id,
)
from preflight.discover.nvml_fields import LINK_COUNT, SWITCH_LINK_COUNT, read_fields

# nvml.h, NVML_FI_DEV_NVLINK_*; all take the link as scope
REMOTE_PORT, GET_SPEED, GET_STATE, GET_VERSION = 146, 164, 165, 166
_BASICS = (GET_STATE, GET_VERSION, GET_SPEED, REMOTE_PORT)
# up to NVLink 4; nvml.h calls them unsupported from Blackwell on
OLD_COUNTERS = {161: "replay", 162: "recovery", 163: "crc"}
# from NVLink 5 on; 216 to 218 are deprecated, 220 and 222 are rates
NEW_COUNTERS = {
    206: "malformed",
    207: "overrun",
    208: "received_errors",
    209: "received_remote_errors",
    210: "general",
    211: "local_integrity",
    212: "discards",
    213: "recovery_ok",
    214: "recovery_failed",
    215: "recovery_events",
    219: "effective_errors",
    221: "symbol_errors",
}
# nvml.h, nvmlNvLinkErrorCounter_t, for drivers without those fields
_COUNTERS_BY_CALL = {"replay": 0, "recovery": 1, "crc": 2}
# nvml.h, NVML_NVLINK_VERSION_*: an enum, not a number
LINK_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
NVLINK_5 = 7
MAX_LINKS = 64  # the header allows 36; more is a library that lies
# nvml.h, nvmlIntNvLinkDeviceType_t
REMOTE_KINDS = {0: "gpu", 1: "cpu", 2: "switch"}
# nvml.h, NVML_NVLINK_STATE_*: asleep wakes by itself; the last is up but closed to traffic
STATES = {0: "inactive", 1: "active", 2: "sleep", 3: "no traffic"}
ACTIVE_STATES = (1, 2)
# fields give MB/s, one direction, line rate: 26562 for NVLink 4
MEGA, MAX_SPEED_MB_PER_S = 10**6, 10**7  # 10 TB/s for one link: the drivers' markers for "not supported" are far above

_NO_SUCH_LINK = (*QUIET, INVALID_ARGUMENT)


def read_links(device: Device, told: dict[int, Any]) -> list[Facts] | None:
    """All links of a GPU. None: NVML could not say; empty: the product has no NVLink. `told`: the fields of the GPU."""
    if device.gone:
        return None
    count = told[LINK_COUNT]
    indices = range(min(int(count), MAX_LINKS)) if count is not None else _indices_by_state(device)
    if indices is None:
        return None
    basics = _by_link(device, indices, _BASICS)
    versions = [_version(device, index, values[1]) for index, values in zip(indices, basics, strict=True)]
    links = [
        _read_link(device, index, version, values)
        for index, version, values in zip(indices, versions, basics, strict=True)
    ]
    _drop_untold_ports(links)
    _add_counters(device, links, versions)
    _compare_with_switch_count(device, links, told[SWITCH_LINK_COUNT])
    return links


def _by_link(device: Device, indices: range, fields: tuple[int, ...]) -> list[list[Any]]:
    """The values of the fields, link by link."""
    if not indices:
        return []
    values = read_fields(device, [(field, index) for index in indices for field in fields], field="links")
    width = len(fields)
    return [values[width * row : width * (row + 1)] for row in range(len(indices))]


def _indices_by_state(device: Device) -> range | None:
    """For drivers without field 91: the links that have a state. None if the first error doesn't mean "no such link"."""
    for index in range(MAX_LINKS):
        _, code = device.try_ask("nvmlDeviceGetNvLinkState", index)
        if code in (NOT_SUPPORTED, INVALID_ARGUMENT):
            return range(index)
        if code:
            device.refused("nvmlDeviceGetNvLinkState", code, field="links")
            return None
    return range(MAX_LINKS)


def _version(device: Device, index: int, told: Any) -> int | None:
    version = told if told is not None else _ask(device, "nvmlDeviceGetNvLinkVersion", index)
    return None if version is None else int(version)


def _read_link(device: Device, index: int, version: int | None, values: list[Any]) -> Facts:
    """One link from its fields; older drivers have calls in their place. The far end is asked of active links only."""
    state, _, speed_mb_per_s, port = values
    if state is None:
        state = _ask(device, "nvmlDeviceGetNvLinkState", index)
    active = None if state is None else state in ACTIVE_STATES
    kind, bus_id = _read_far_end(device, index) if active else (None, None)
    known_speed = speed_mb_per_s is not None and 0 < speed_mb_per_s < MAX_SPEED_MB_PER_S
    return {
        "index": index,
        "active": active,
        "state": STATES.get(state),
        "peer_kind": kind,
        "peer_pci_bus_id": bus_id,
        "peer_link": int(port) if port is not None and bus_id is not None else None,
        "version": LINK_VERSIONS.get(version) if version is not None else None,
        "speed_bytes_per_s": int(speed_mb_per_s * MEGA) if known_speed else None,
    }


def _read_far_end(device: Device, index: int) -> tuple[str | None, str | None]:
    """Kind and PCI id of what a link ends at. An id of all F is a switch that this system may not see."""
    spelled = bus_id_in(_ask(device, "nvmlDeviceGetNvLinkRemotePciInfo", index))
    kind = REMOTE_KINDS.get(_ask(device, "nvmlDeviceGetNvLinkRemoteDeviceType", index))
    return kind or ("switch" if spelled is not None and is_hidden(spelled) else None), spelled_bus_id(spelled)


def _drop_untold_ports(links: list[Facts]) -> None:
    """Where the product doesn't tell ports, all read 0: no two links end at the same one."""
    ends = [(link["peer_pci_bus_id"], link["peer_link"]) for link in links]
    for link, end in zip(links, ends, strict=True):
        if ends.count(end) > 1:
            link["peer_link"] = None


def _add_counters(device: Device, links: list[Facts], versions: list[int | None]) -> None:
    """Errors and recoveries of each link, from the family of fields that its generation has."""
    if not links:
        return
    oldest = [version for version in versions if version is not None]
    old = not oldest or min(oldest) < NVLINK_5
    names = OLD_COUNTERS if old else NEW_COUNTERS
    told = _by_link(device, range(len(links)), tuple(names))
    for link, values in zip(links, told, strict=True):
        counters = {name: value for name, value in zip(names.values(), values, strict=True) if _is_count(value)}
        if old and not counters:
            counters = _counters_by_call(device, link["index"])
        link["counters"] = counters


def _is_count(value: Any) -> bool:
    return value is not None and value >= 0


def _counters_by_call(device: Device, index: int) -> dict[str, int]:
    told = {
        name: _ask(device, "nvmlDeviceGetNvLinkErrorCounter", index, number)
        for name, number in _COUNTERS_BY_CALL.items()
    }
    return {name: value for name, value in told.items() if value is not None}


def _compare_with_switch_count(device: Device, links: list[Facts], told: Any) -> None:
    """The driver's own count of links to switches, which newer nvidia-smi shows as NV#, beside what the links say one by one."""
    counted = sum(bool(link["active"]) and link["peer_kind"] == "switch" for link in links)
    if told and counted and told != counted:
        text = f"the driver counts {told} links to switches (field {SWITCH_LINK_COUNT}); {counted} links are active and end at one"
        device.complain("NVLink", text, field="links")


def _ask(device: Device, function: str, index: int, *arguments: int) -> Any:
    return device.ask(function, index, *arguments, field="links", quiet=_NO_SUCH_LINK)
