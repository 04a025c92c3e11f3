"""Network interfaces, and HCAs: RDMA devices with their ports (NCCL's word; InfiniBand, RoCE and EFA alike)."""

from typing import Literal

from preflight.model.base import Noun
from preflight.model.gpu import PcieLink


class Nic(Noun, frozen=True, kw_only=True):
    """A network interface. `speed_bytes_per_s` is None where the kernel doesn't know (loopback, virtual, down).

    `pci_upstream` as for a GPU; None for an interface that sits on no PCI bus. `default_route`: the system's own traffic leaves here.
    """

    name: str
    kind: Literal["ethernet", "infiniband", "loopback", "virtual"] | None = None
    up: bool | None = None
    addresses: tuple[str, ...] = ()
    mtu_bytes: int | None = None
    speed_bytes_per_s: int | None = None
    pci_bus_id: str | None = None
    numa_node: int | None = None
    pci_upstream: tuple[str, ...] | None = None
    default_route: bool | None = None


class Gid(Noun, frozen=True, kw_only=True):
    """One entry of a port's address table. `address`: as IPv6 text, RoCE v4 addresses mapped ("::ffff:10.0.0.1"); empty entries are left out."""

    index: int
    address: str
    kind: Literal["IB", "RoCE v1", "RoCE v2"] | None = None
    interface: str | None = None


class Port(Noun, frozen=True, kw_only=True):
    """One port of an HCA. `state`: "active", "armed", "init", "down", "defer"; `physical_state`: "LinkUp", "Polling", "Disabled", "Sleep", "LinkErrorRecovery", ...

    `rate_bytes_per_s` (one direction) and `width` (lanes) are None unless the link is up: what a down port prints is a placeholder. `mtu_bytes`: of the
    interface over it. `pkeys`: by index, 0 for an empty entry, without the empty ones at the end. `counters`: the kernel's own names ("symbol_error", "link_downed", "out_of_sequence"), those of hw_counters too.
    """

    number: int
    state: str | None = None
    physical_state: str | None = None
    rate_bytes_per_s: int | None = None
    width: int | None = None
    link_layer: Literal["InfiniBand", "Ethernet"] | None = None
    lid: int | None = None
    sm_lid: int | None = None
    interface: str | None = None
    mtu_bytes: int | None = None
    gids: tuple[Gid, ...] | None = None
    pkeys: tuple[int, ...] | None = None
    counters: dict[str, int] = {}

    @property
    def up(self) -> bool | None:
        """Active with a link; None if the state is unknown."""
        return None if self.state is None else self.state == "active" and self.physical_state in (None, "LinkUp")


class Hca(Noun, frozen=True, kw_only=True):
    """An RDMA device. `driver`: the kernel module ("mlx5_core", "efa"). `card_guid`: the system image GUID, one for all functions of a card. `is_virtual_function`: a share of a card, not a card. `max_read_request_bytes`: from PCI
    configuration space. What could not be read of it is among the node's problems.
    """

    name: str
    driver: str | None = None
    pci_bus_id: str | None = None
    numa_node: int | None = None
    pci_upstream: tuple[str, ...] | None = None
    pcie: PcieLink | None = None
    firmware_version: str | None = None
    board_id: str | None = None
    node_guid: str | None = None
    card_guid: str | None = None
    is_virtual_function: bool | None = None
    max_read_request_bytes: int | None = None
    ports: tuple[Port, ...] | None = None
