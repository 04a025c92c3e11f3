"""How the GPUs of a node reach each other, as the driver says of each pair: the PCIe ancestor, and peer access by kind."""

from preflight.discover.nvml_device import GONE, Device, Facts

# nvml.h, nvmlGpuTopologyLevel_t; the words are those of `nvidia-smi topo`
ANCESTORS = {0: "internal", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
# nvml.h, nvmlGpuP2PCapsIndex_t; numbers, since the binding's constant for read is a tuple by mistake
P2P_KINDS = {"read": 0, "write": 1, "nvlink": 2, "atomics": 3, "pci": 4}
# nvml.h, nvmlGpuP2PStatus_t
P2P_STATUSES = {
    0: "ok",
    1: "chipset",
    2: "gpu",
    3: "topology",
    4: "disabled",
    5: "not supported",
    6: "unknown",
}


def read_peers(devices: list[Device]) -> list[list[Facts]]:
    """For each GPU its peers, in the order of their indices. Numbers of NVLinks are not among the facts: they follow from all of them."""
    ancestors = {
        (a, b): _ancestor(devices[a], devices[b]) for a in range(len(devices)) for b in range(a + 1, len(devices))
    }
    return [
        [
            {"index": b, "ancestor": ancestors[min(a, b), max(a, b)], "p2p": _p2p(device, devices[b])}
            for b in range(len(devices))
            if b != a
        ]
        for a, device in enumerate(devices)
    ]


def _ancestor(device: Device, other: Device) -> str | None:
    if device.gone or other.gone:
        return None
    # an error may be the other GPU's fault, and is then among its own problems: none is noted here
    level, code = device.try_ask("nvmlDeviceGetTopologyCommonAncestor", other.handle)
    return None if code or level is None else ANCESTORS.get(level)


def _p2p(device: Device, other: Device) -> dict[str, str]:
    """What the driver says, by kind; a kind that it doesn't answer is left out."""
    told: dict[str, str] = {}
    if device.gone or other.gone:
        return told
    for name, kind in P2P_KINDS.items():
        status, code = device.try_ask("nvmlDeviceGetP2PStatus", other.handle, kind)
        if code in GONE:
            break
        if status in P2P_STATUSES:
            told[name] = P2P_STATUSES[status]
    return told
