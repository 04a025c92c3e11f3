"""The ends of a run's probes: one for each rank of its plan (pure; schedule and localiser need it)."""

from preflight.model.localisation import Ends
from preflight.model.plan import Plan
from preflight.model.topology import Topology


def ends_of(plan: Plan, topology: Topology | None = None) -> Ends:
    """End number = rank. Leaves from the topology, else from the placement; None where nobody told any."""
    placement = plan.placement
    told = tuple(topology.leaf_of(node) for node in placement.nodes) if topology else ()
    leaves = told if any(told) else placement.leaves
    return Ends(
        nodes=placement.nodes,
        node=placement.node_ranks,
        slot=placement.local_ranks,
        leaves=leaves if leaves and any(leaves) else None,
    )
