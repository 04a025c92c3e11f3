"""What a run knows of how its nodes hang together: fabric information of their GPUs, and the topology file that the plan names."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from preflight.discover.topology import build_topology
from preflight.model import Inventory, Job, Node, Topology


def known_topology(job: Job, nodes: Sequence[Node]) -> Topology:
    """NVLink domains as the GPUs tell them; leaves, racks and the rest from the file. Raises ConfigError if the file can't be read."""
    seen = build_topology(Inventory(nodes=tuple(nodes)))
    if job.launch.topology is None:
        return seen
    from preflight.discover.topology_files import read_topology

    return msgspec.structs.replace(read_topology(Path(job.launch.topology)), nvlink_domains=seen.nvlink_domains)
