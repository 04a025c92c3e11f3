"""Placements as launchers make them, plans with a ledger, and machines of two racks, for the tests of the placement rules."""

import msgspec

from preflight.model import Finding, Placement, Plan, Topology, Traffic
from tests.builders import make_evidence, make_plan


def place(nodes, gpus, node_of, names=None) -> Placement:
    """A placement as a launcher makes it: `node_of` rank; local ranks in order of rank."""
    node_ranks = [node_of(rank) for rank in range(nodes * gpus)]
    seen = [0] * nodes
    local_ranks = []
    for node in node_ranks:
        local_ranks.append(seen[node])
        seen[node] += 1
    return Placement(
        source="predicted",
        method="test",
        nodes=tuple(names or (f"node{i}" for i in range(nodes))),
        node_ranks=tuple(node_ranks),
        local_ranks=tuple(local_ranks),
    )


def with_ledger(plan: Plan, **axes) -> Plan:
    """The plan with one row per axis: collective, bytes one rank sends, seconds inside, seconds outside, and whether it is exposed."""
    rows = tuple(
        Traffic(
            axis=axis,
            purpose="test",
            collective=collective,
            calls=1,
            message_bytes=sent,
            wire_bytes=sent,
            exposed=exposed,
            inside_s=inside,
            outside_s=outside,
        )
        for axis, (collective, sent, inside, outside, exposed) in axes.items()
    )
    return msgspec.structs.replace(plan, estimate=msgspec.structs.replace(plan.estimate, ledger=rows))


def said(check, plan: Plan, **evidence) -> list[Finding]:
    return list(check.CHECK.judge(make_evidence(plan=plan, **evidence)))


def two_racks(first: int, second: int) -> Topology:
    return Topology(
        node_domains={f"node{i}": "a" if i < first else "b" for i in range(first + second)}, source="racks.txt"
    )


def trays(first: int, second: int, **parallel) -> Plan:
    """A job on trays of four GPUs, `first` of one NVLink domain, then `second` of another."""
    return make_plan(nodes=first + second, gpus_per_node=4, gpu=None, topology=two_racks(first, second), **parallel)
