"""What an advice starts from: a job, the nodes it has, and what is known of each node, whatever order the nodes are put in."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from preflight.model import Job, Placement, Plan, Topology
from preflight.plan.placement import launch_hosts


class Situation(NamedTuple):
    """A job on its nodes.

    `nodes`: in the order of the allocation. `counts`: ranks on each of them. `topology`: domain, leaf and rack by node name, so that they stay with
    a node that moves. `names_known`: False where the names were made up because nobody told any: no file may then name them.
    """

    job: Job
    plan: Plan
    nodes: tuple[str, ...]
    counts: tuple[int, ...]
    topology: Topology | None
    uuids: dict[str, tuple[str | None, ...]]
    names_known: bool

    @property
    def per_node(self) -> int:
        """Ranks that most nodes have."""
        return Counter(self.counts).most_common(1)[0][0]

    @property
    def even(self) -> bool:
        """Whether all nodes have the same number of ranks."""
        return len(set(self.counts)) == 1

    def labels(self, kind: str) -> tuple[str | None, ...]:
        """The "domain", "leaf" or "rack" of each node of `nodes`, None where nobody told. Without domains each node is one of its own."""
        placement = self.plan.placement
        columns = {"domain": placement.domains, "leaf": placement.leaves, "rack": placement.racks}
        known = columns[kind]
        if known is None:
            return self.nodes if kind == "domain" else (None,) * len(self.nodes)
        by_name = dict(zip(placement.nodes, known, strict=True))
        return tuple(by_name[name] for name in self.nodes)


def situation_of(job: Job, plan: Plan, topology: Topology | None) -> Situation:
    """The situation of a plan. Domains that the plan knows, from a file or by assumption, are kept by node name."""
    placement = plan.placement
    hosts = launch_hosts(job)
    nodes = hosts if hosts is not None and set(hosts) == set(placement.nodes) else placement.nodes
    counted = Counter(placement.node_ranks)
    counts = {name: counted[index] for index, name in enumerate(placement.nodes)}
    return Situation(
        job=job,
        plan=plan,
        nodes=tuple(nodes),
        counts=tuple(counts[name] for name in nodes),
        topology=_facts(placement, topology),
        uuids=_uuids(placement),
        names_known=hosts is not None
        or placement.source == "measured"
        or placement.gpu_uuids is not None
        or not all(re.fullmatch(r"node[0-9]+", name) for name in placement.nodes),
    )


def block_placement(
    names: Sequence[str], per_node: int, *, method: str, uuids: dict[str, tuple[str | None, ...]]
) -> Placement:
    """Consecutive ranks fill a node, the nodes in this order."""
    known = [uuids.get(name, ()) for name in names]
    columns = tuple(gpus[local] if local < len(gpus) else None for gpus in known for local in range(per_node))
    return Placement(
        source="predicted",
        method=method,
        nodes=tuple(names),
        node_ranks=tuple(node for node in range(len(names)) for _ in range(per_node)),
        local_ranks=tuple(range(per_node)) * len(names),
        gpu_uuids=columns if any(columns) else None,
    )


def _facts(placement: Placement, topology: Topology | None) -> Topology | None:
    """What the placement knows of its nodes, by name, over what the topology says of GPUs."""
    base = topology or Topology()
    if placement.domains is None and placement.leaves is None and placement.racks is None:
        return topology

    def by_name(column: tuple[str | None, ...] | None) -> dict[str, str] | None:
        if column is None:
            return None
        return {name: label for name, label in zip(placement.nodes, column, strict=True) if label is not None}

    leaves = by_name(placement.leaves)
    return msgspec.structs.replace(
        base,
        node_domains=by_name(placement.domains) or base.node_domains,
        switches=base.switches or (None if leaves is None else {name: (leaf,) for name, leaf in leaves.items()}),
        racks=base.racks or by_name(placement.racks),
        source=base.source or placement.domain_source,
    )


def _uuids(placement: Placement) -> dict[str, tuple[str | None, ...]]:
    """Node name -> UUIDs by local rank; empty if none is known."""
    if placement.gpu_uuids is None:
        return {}
    found: dict[str, dict[int, str | None]] = {}
    for node, local, uuid in zip(placement.node_ranks, placement.local_ranks, placement.gpu_uuids, strict=True):
        found.setdefault(placement.nodes[node], {})[local] = uuid
    return {name: tuple(gpus.get(i) for i in range(max(gpus) + 1)) for name, gpus in found.items()}
