"""One GPU from NVML: its identity, modes and place, and with them what its own modules read of health, load, links and fabric."""

import ctypes
from typing import Any

from preflight.discover.nvml_device import Device, Facts, bus_id_in, spelled_bus_id, text_or_none
from preflight.discover.nvml_fabric import domain_of, is_undecided, read_fabric
from preflight.discover.nvml_fields import read_gpu_fields
from preflight.discover.nvml_health import read_health
from preflight.discover.nvml_links import read_links
from preflight.discover.nvml_load import read_load

CPU_WORDS, NODE_WORDS = 128, 16  # of 64 bits: Linux has at most 8192 CPUs (NR_CPUS) and 1024 NUMA nodes (MAX_NUMNODES)
GSP_VERSION_BYTES = 0x40  # nvml.h, NVML_GSP_FIRMWARE_VERSION_BUF_SIZE
NEAREST_NODE = 0  # nvml.h, NVML_AFFINITY_SCOPE_NODE
MAX_MIG_DEVICES = 64  # a GPU has 7; more is a library that lies
NOT_FOUND = 6  # nvml.h, nvmlReturn_t: no MIG device of that index


def read_gpu(device: Device, facts: Facts) -> bool:
    """Fill the facts of one GPU, without its peers; whether its NVLink fabric is still undecided."""
    if not device.gone:
        facts |= _identity(device)
        facts |= _modes(device)
        facts |= _place(device)
    undecided = False
    if not device.gone:
        fabric = read_fabric(device)
        undecided = is_undecided(fabric)
        told = read_gpu_fields(device)
        facts |= {"fabric": fabric, "nvlink_domain": domain_of(fabric), "links": read_links(device, told)}
        facts |= read_health(device, told)
        facts |= read_load(device, told)
    facts["unsupported"] = device.unsupported(facts)
    return undecided


def _identity(device: Device) -> Facts:
    return {
        "uuid": _text(device, "nvmlDeviceGetUUID", "uuid"),
        "name": _text(device, "nvmlDeviceGetName", "name"),
        "pci_bus_id": spelled_bus_id(bus_id_in(device.ask("nvmlDeviceGetPciInfo_v3", field="pci_bus_id"))),
        "serial": _text(device, "nvmlDeviceGetSerial", "serial"),
        "minor_number": device.ask("nvmlDeviceGetMinorNumber", field="minor_number"),
        "module_id": _module_id(device),
        "vbios_version": _text(device, "nvmlDeviceGetVbiosVersion", "vbios_version"),
        "inforom_version": _text(device, "nvmlDeviceGetInforomImageVersion", "inforom_version"),
        "gsp_version": _gsp_version(device),
        **_memory(device),
    }


def _text(device: Device, function: str, field: str) -> str | None:
    return text_or_none(device.ask(function, field=field))


def _module_id(device: Device) -> int | None:
    """0 on products without a baseboard."""
    number = ctypes.c_uint32()
    told = device.ask_into("nvmlDeviceGetModuleId", ctypes.byref(number), field="module_id")
    return number.value or None if told else None


def _gsp_version(device: Device) -> str | None:
    text = ctypes.create_string_buffer(GSP_VERSION_BYTES)
    told = device.ask_into("nvmlDeviceGetGspFirmwareVersion", text, field="gsp_version")
    return text_or_none(text.value) if told else None


def _memory(device: Device) -> Facts:
    """Total and used. The second form counts what the driver keeps for itself apart; drivers without it (before 510) don't count it as used."""
    second = getattr(device.nvml, "nvmlMemory_v2", None)
    newest = [] if second is None else [("nvmlDeviceGetMemoryInfo", second)]
    memory = device.ask_first(*newest, ("nvmlDeviceGetMemoryInfo",), field="memory_bytes")
    if memory is None or not memory.total:
        return {}
    return {"memory_bytes": int(memory.total), "memory_used_bytes": int(memory.used)}


def _modes(device: Device) -> Facts:
    mig, mig_pending = _pair(device, "nvmlDeviceGetMigMode", "mig_enabled")
    ecc, ecc_pending = _pair(device, "nvmlDeviceGetEccMode", "ecc_enabled")
    persistence = device.ask("nvmlDeviceGetPersistenceMode", field="persistence")
    return {
        "mig_enabled": mig,
        "mig_pending": mig_pending,
        "mig_devices": _mig_devices(device) if mig else None if mig is None else [],
        "ecc_enabled": ecc,
        "ecc_pending": ecc_pending,
        "persistence": None if persistence is None else bool(persistence),
    }


def _pair(device: Device, function: str, field: str) -> tuple[bool | None, bool | None]:
    """[current, pending] of a mode."""
    modes = device.ask(function, field=field)
    return (None, None) if modes is None else (bool(modes[0]), bool(modes[1]))


def _mig_devices(device: Device) -> list[str] | None:
    count = device.ask("nvmlDeviceGetMaxMigDeviceCount", field="mig_devices")
    if count is None:
        return None
    uuids: list[str] = []
    for index in range(min(int(count), MAX_MIG_DEVICES)):
        handle, code = device.try_ask("nvmlDeviceGetMigDeviceHandleByIndex", index)
        if code:
            device.refused("nvmlDeviceGetMigDeviceHandleByIndex", code, field="mig_devices", quiet=(NOT_FOUND,))
            continue
        part = Device(device.nvml, handle)
        uuid = _text(part, "nvmlDeviceGetUUID", "mig_devices")
        device.problems += part.problems
        if uuid is not None:
            uuids.append(uuid)
    return uuids


def _place(device: Device) -> Facts:
    cpus = device.ask("nvmlDeviceGetCpuAffinity", CPU_WORDS, field="cpus")
    nodes = device.ask("nvmlDeviceGetMemoryAffinity", NODE_WORDS, NEAREST_NODE, field="numa_node")
    near = _bits(nodes)
    own = device.ask("nvmlDeviceGetNumaNodeId", field="own_numa_node")
    return {
        "cpus": _ranges(_bits(cpus)) or None,
        "numa_node": near[0] if len(near) == 1 else None,
        "own_numa_node": own if own is not None and own >= 0 else None,
    }


def _bits(words: Any) -> list[int]:
    """The numbers of the bits that are set in an array of 64-bit words."""
    if words is None:
        return []
    mask = int.from_bytes(bytes(words), "little")
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def _ranges(numbers: list[int]) -> str:
    """Ascending numbers as the kernel spells lists of CPUs: [0, 1, 2, 5] -> "0-2,5"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)
