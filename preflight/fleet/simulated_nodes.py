"""What a simulated node has: GPUs of the cluster's product with their NVLinks, HCAs with a port each. Nothing is told of its health, since none is modelled."""

import uuid

from preflight.model import Gpu, GpuPeer, Hca, Link, Node, PcieLink, Port, Profile, Topology
from preflight.model.gpu import P2pKind, P2pStatus
from preflight.model.link_rates import NIC_SHARE
from preflight.probe.simulate import Cluster

_NAMESPACE = uuid.UUID(
    "6d2b1c1e-3f0e-5d0a-9a51-2f6f0c6a7b10"
)  # of the names from which UUIDs of simulated GPUs are made
# line rates of one port, bytes per second: 10, 25, 50, 100, 200, 400, 800 and 1600 Gbit/s
_LINE_RATES = (1.25e9, 3.125e9, 6.25e9, 12.5e9, 25e9, 50e9, 100e9, 200e9)


def simulated_node(cluster: Cluster, profile: Profile | None, number: int) -> Node:
    """The node as discovery would describe it, as far as how it is joined goes. `profile`: of the cluster's product."""
    name = cluster.nodes[number]
    domain = cluster.domains[number] if cluster.domains else name
    links = _links(profile)
    pcie = _pcie(profile)
    peers = _peers(len(links) if links is not None else None, cluster.gpus_per_node)
    gpus = tuple(
        Gpu(
            index=slot,
            uuid=gpu_uuid(name, slot),
            name=cluster.product,
            pci_bus_id=f"{slot:04x}:01:00.0",
            module_id=slot,
            memory_bytes=int(profile.gpu_memory_bytes.value) if profile and profile.gpu_memory_bytes else None,
            mig_enabled=False,
            nvlink_domain="none" if links == () else domain,
            links=links,
            peers=tuple(peer for peer in peers if peer.index != slot),
            pcie=pcie,
            nics={_hca(slot // cluster.gpus_per_nic): "PIX"},
        )
        for slot in range(cluster.gpus_per_node)
    )
    return Node(
        name=name,
        source="simulated",
        driver_version=_value(cluster, "driver", number) or "simulated",
        versions={fact: value for fact in cluster.classes if (value := _value(cluster, fact, number)) is not None},
        gpus=gpus,
        hcas=tuple(_card(cluster, number) for number in range(-(-cluster.gpus_per_node // cluster.gpus_per_nic))),
        simulated=True,
    )


def gpu_uuid(node: str, slot: int) -> str:
    """The same for the same node name and slot."""
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'{node}:{slot}')}"


def simulated_topology(cluster: Cluster, source: str) -> Topology:
    """Leaves as the cluster's map tells them, and NVLink domains."""
    told = cluster.told_leaves or cluster.leaves
    switches: dict[str, tuple[str, ...]] = {
        node: (leaf,) for node, leaf in zip(cluster.nodes, told, strict=True) if leaf is not None
    }
    domains: dict[str, list[str]] = {}
    for node, domain in zip(cluster.nodes, cluster.domains or cluster.nodes, strict=True):
        domains.setdefault(domain, []).extend(gpu_uuid(node, slot) for slot in range(cluster.gpus_per_node))
    return Topology(
        switches=switches if cluster.leaves_told else None,
        nvlink_domains={name: tuple(uuids) for name, uuids in domains.items()},
        source=source,
    )


def _hca(number: int) -> str:
    return f"mlx5_{number}"


def _card(cluster: Cluster, number: int) -> Hca:
    """With a port of the next higher line rate: a NIC of 400 Gbit/s carries 48 GB/s."""
    line = next((rate for rate in _LINE_RATES if rate * (NIC_SHARE + 0.02) >= cluster.nic_bytes_per_s), None)
    port = Port(
        number=1,
        state="active",
        physical_state="LinkUp",
        rate_bytes_per_s=int(line or cluster.nic_bytes_per_s / NIC_SHARE),
        link_layer="InfiniBand",
    )
    return Hca(
        name=_hca(number),
        pci_bus_id=f"{number * cluster.gpus_per_nic:04x}:02:00.0",
        is_virtual_function=False,
        ports=(port,),
    )


def _links(profile: Profile | None) -> tuple[Link, ...] | None:
    """All active, as the profile says; None: it doesn't say."""
    if profile is None or profile.nvlink_links is None or profile.link_bytes_per_s is None:
        return () if profile is not None and profile.nvlink_layouts == () else None
    speed = int(profile.link_bytes_per_s.value)
    number = int(profile.nvlink_links.value)
    return tuple(Link(index=index, active=True, peer_kind="switch", speed_bytes_per_s=speed) for index in range(number))


def _peers(num_nvlinks: int | None, gpus: int) -> tuple[GpuPeer, ...]:
    """All to all through switches. What the driver would say of peer access isn't modelled where there is no NVLink."""
    ok: dict[P2pKind, P2pStatus] = {"read": "ok", "write": "ok", "nvlink": "ok"} if num_nvlinks else {}
    return tuple(GpuPeer(index=index, num_nvlinks=num_nvlinks, p2p=ok) for index in range(gpus))


def _pcie(profile: Profile | None) -> PcieLink | None:
    if profile is None or profile.pcie_generation is None:
        return None
    generation = int(profile.pcie_generation.value)
    width = int(profile.pcie_width.value) if profile.pcie_width else 16
    return PcieLink(generation=generation, width=width, max_generation=generation, max_width=width)


def _value(cluster: Cluster, fact: str, number: int) -> str | None:
    return cluster.classes[fact][number] if fact in cluster.classes else None
