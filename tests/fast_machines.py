"""Machines whose links and NICs are all known, for what is expected of them: readable, healthy, and each argument makes one thing different."""

from collections.abc import Sequence
from typing import Any

import msgspec

from preflight.model import (
    Evidence,
    Gpu,
    GpuPeer,
    Hca,
    Inventory,
    Link,
    Measurement,
    Node,
    PcieLink,
    Plan,
    Port,
    Settings,
    busbw_factor,
)
from preflight.plan.profiles import profiles_of
from tests.builders import make_measurement, make_plan, uuids_of

# profile -> (NVML name, links, NVLink version, line rate that the driver reports, PCIe generation)
PRODUCTS = {
    "A100-80GB": ("NVIDIA A100-SXM4-80GB", 12, "3.0", 25_000_000_000, 4),
    "H100-80GB": ("NVIDIA H100 80GB HBM3", 18, "4.0", 26_562_000_000, 5),
    "H200-141GB": ("NVIDIA H200", 18, "4.0", 26_562_000_000, 5),
    "B200-180GB": ("NVIDIA B200", 18, "5.0", 53_125_000_000, 5),
    "GB200-186GB": ("NVIDIA GB200", 18, "5.0", 53_125_000_000, 5),
    "RTX-5090-32GB": ("NVIDIA GeForce RTX 5090", 0, None, None, 5),
    "L40S-48GB": ("NVIDIA L40S", 0, None, None, 4),
}
GBIT = 125_000_000


def machine(
    name: str,
    product: str = "H100-80GB",
    *,
    gpus: int = 8,
    nics: int = 8,
    gbit: int | None = 400,
    links_down: int = 0,
    per_pair: int | None = None,
    domain: str | None = None,
    **node: Any,
) -> Node:
    """One node. GPU i's own NIC is i x nics // gpus. `links_down`: of GPU 0. `per_pair`: joined in a mesh by so many links; None: through switches. `gbit` None: the ports' rate is not known."""
    nvml_name, links, _, _, generation = PRODUCTS[product]
    pcie = PcieLink(generation=generation, width=16, max_generation=generation, max_width=16)

    def gpu(index: int) -> Gpu:
        active = links - (links_down if index == 0 else 0)
        joined = min(per_pair if per_pair is not None else links, active) if links else 0
        return Gpu(
            index=index,
            uuid=f"GPU-{name}-{index}",
            name=nvml_name,
            nvlink_domain=(domain or name) if links else "none",
            links=_links(product, active, switched=per_pair is None),
            peers=tuple(GpuPeer(index=other, num_nvlinks=joined) for other in range(gpus) if other != index),
            pcie=pcie,
            nics=_own(index, gpus, nics),
        )

    hcas = tuple(_hca(i, gbit, pcie) for i in range(nics))
    facts: dict[str, Any] = {"gpus": tuple(gpu(i) for i in range(gpus)), "hcas": hcas, "settings": (), **node}
    return Node(name=name, **facts)


def _own(index: int, gpus: int, nics: int) -> dict[str, Any]:
    own = [f"mlx5_{n}" for n in range(nics) if n * gpus // nics == index] or [f"mlx5_{index * nics // gpus}"]
    return dict.fromkeys(own, "PIX") if nics else {}


def _links(product: str, active: int, *, switched: bool) -> tuple[Link, ...]:
    _, links, version, line, _ = PRODUCTS[product]
    peer: Any = "switch" if switched else "gpu"
    return tuple(
        Link(index=i, active=i < active, version=version, speed_bytes_per_s=line, peer_kind=peer) for i in range(links)
    )


def _hca(index: int, gbit: int | None, pcie: PcieLink) -> Hca:
    port = Port(
        number=1,
        state="active",
        physical_state="LinkUp",
        rate_bytes_per_s=None if gbit is None else gbit * GBIT,
        link_layer="InfiniBand",
    )
    return Hca(
        name=f"mlx5_{index}",
        driver="mlx5_core",
        pci_bus_id=f"0000:{0x40 + index:02x}:00.0",
        is_virtual_function=False,
        pcie=pcie,
        ports=(port,),
    )


def inventory_of(nodes: int = 2, product: str = "H100-80GB", **changes: Any) -> Inventory:
    """Nodes node0, node1, ... alike."""
    return Inventory(nodes=tuple(machine(f"node{i}", product, **changes) for i in range(nodes)))


def evidence_of(
    inventory: Inventory, *, profiles: bool = False, hardware: dict[str, Any] | None = None, **job: Any
) -> Evidence:
    """The evidence of a run over all GPUs of the inventory, block placement, nothing measured. `profiles`: the built-in ones count too."""
    per_node = len(inventory.nodes[0].gpus or ())
    world = per_node * len(inventory.nodes)
    sizes = job or {"tp": per_node, "dp": world // per_node}
    plan = make_plan(
        nodes=len(inventory.nodes),
        gpus_per_node=per_node,
        gpu=None,
        layers=max(80, sizes.get("pp", 1)),
        node_names=[node.name for node in inventory.nodes],
        gpu_uuids=uuids_of(inventory),
        hardware=hardware,
        **sizes,
    )
    return Evidence(
        settings=Settings(backend="nccl"),
        inventory=inventory,
        plan=plan,
        profiles=profiles_of(inventory) if profiles else {},
        measurements=(),
    )


def timed(
    plan: Plan,
    name: str,
    busbw: Sequence[float],
    *,
    size_bytes: int = 2**33,
    mode: Any = "alone",
    collective: Any = "all_reduce",
    **changes: Any,
) -> list[Measurement]:
    """The repeats of one group's probe at these busbw in bytes per second."""
    axis = name.rstrip("0123456789")
    ranks = plan.group(axis, int(name[len(axis) :])).ranks
    factor = busbw_factor(collective, len(ranks))
    found = []
    for repeat, rate in enumerate(busbw):
        measurement = make_measurement(
            ranks,
            subject=name,
            axis=axis,
            collective=collective,
            size_bytes=size_bytes,
            mode=mode,
            repeat=repeat,
            algbw_bytes_per_s=rate / factor,
        )
        found.append(msgspec.structs.replace(measurement, **changes))
    return found
