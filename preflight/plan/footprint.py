"""What each group touches: how many nodes, NVLink domains, leaves and GPU slots."""

from collections.abc import Mapping

from preflight.model import Footprint, Placement, Topology


def add_topology(placement: Placement, topology: Topology | None, nodes_per_domain: int | None) -> Placement:
    """The placement with what is known of domains, leaves and racks filled in. Nothing known: unchanged."""
    return placement


def find_footprints(placement: Placement, groups: Mapping[str, tuple[tuple[int, ...], ...]]) -> dict[str, Footprint]:
    """Axis -> what its groups touch."""
    return {}
