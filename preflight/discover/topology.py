"""How the nodes of an inventory hang together, as far as the nodes themselves can tell: their NVLink domains.

Switch tiers and rails come from files or from the fabric; here they stay None, "nobody told us".
"""

from preflight.model import Inventory, Topology


def build_topology(inventory: Inventory) -> Topology:
    """NVLink domains over all nodes: the GPUs (by UUID) whose domain carries the same text, in order of discovery.

    A GPU that reaches no other ("none"), whose domain is unknown, or whose UUID is unknown is in no domain. None, not
    empty, if no domain was found and some node's GPUs, or some GPU's domain, could not be found out.
    """
    domains: dict[str, list[str]] = {}
    for node in inventory.nodes:
        for gpu in node.gpus or ():
            if gpu.uuid is not None and gpu.nvlink_domain not in (None, "none"):
                domains.setdefault(str(gpu.nvlink_domain), []).append(gpu.uuid)
    known = all(
        node.gpus is not None and all(gpu.nvlink_domain is not None for gpu in node.gpus) for node in inventory.nodes
    )
    if not domains and not (known and inventory.nodes):
        return Topology()
    return Topology(nvlink_domains={name: tuple(uuids) for name, uuids in domains.items()})
