"""What many pairs that fail have in common: one GPU's way to the network, a node's, or unlike slots of different nodes (pure)."""

from collections.abc import Iterable, Mapping, Sequence

from preflight.model.base import Record
from preflight.model.ends import ends_of
from preflight.model.evidence import Evidence
from preflight.model.finding import Part
from preflight.model.measurement import Measurement
from preflight.model.plan import Rank

ALIKE_NODES = 4  # from so many nodes on, what all of them can't do is no node's fault


class Shared(Record, frozen=True):
    """`rank`: the only rank that is in all of them; `node`: the only node; `unlike_slots`: they are all those between unlike GPU slots of different nodes;
    `all_nodes`: no pair between nodes works, and those inside nodes do. None, False: not so.
    """

    rank: int | None = None
    node: str | None = None
    unlike_slots: bool = False
    all_nodes: bool = False


def shared(
    failing: Sequence[Sequence[Measurement]], worked: Mapping[int, Iterable[tuple[int, ...]]], placed: Sequence[Rank]
) -> Shared:
    """What explains all of these pairs, where nothing that worked refutes it and every partner is known to be good between nodes. `failing`: what was tried of each pair; of those that
    carried anything, smaller messages too, their rates tell more. `worked`: rank -> the ranks of each probe in which it worked.
    """
    across = [tried[0].probe.ranks for tried in failing if _crosses(tried[0].probe.ranks, placed)]
    if len(across) < len(failing) or not across or any(m.samples for tried in failing for m in tried):
        return Shared()
    good = {pair for probes in worked.values() for pair in probes if len(pair) == 2 and _crosses(pair, placed)}
    if not good:
        alive = {placed[rank].node for rank, probes in worked.items() if any(len(pair) == 2 for pair in probes)}
        mentioned = {placed[rank].node for pair in across for rank in pair}
        return Shared(all_nodes=len(mentioned) >= ALIKE_NODES and mentioned <= alive)
    partners = {rank for pair in good for rank in pair}
    common = set(across[0]).intersection(*across)
    if len(common) == 1:
        rank = min(common)
        others = {other for pair in across for other in pair} - {rank}
        inside = any(not _crosses(pair, placed) for pair in worked.get(rank, ()) if len(pair) == 2)
        if inside and rank not in partners and others <= partners:
            return Shared(rank=rank)
    nodes = {placed[across[0][0]].node, placed[across[0][1]].node}.intersection(
        *({placed[a].node, placed[b].node} for a, b in across)
    )
    if len(nodes) == 1:
        node = nodes.pop()
        others = {other for pair in across for other in pair if placed[other].node != node}
        out = not any(placed[rank].node == node for rank in partners)
        return Shared(node=node) if out and others <= partners else Shared()
    unlike = all(placed[a].local_rank != placed[b].local_rank for a, b in across)
    refuted = any(placed[a].local_rank != placed[b].local_rank for a, b in good)
    touched = {rank for pair in across for rank in pair}
    return Shared(unlike_slots=unlike and not refuted and touched <= partners)


def _crosses(pair: tuple[int, ...], placed: Sequence[Rank]) -> bool:
    return placed[pair[0]].node != placed[pair[1]].node


class Explained(Record, frozen=True):
    """What a finding says of it. `blames` None: nothing to leave out."""

    text: str
    remedy: str
    blames: Part | None = None


def explained(found: Shared, number: int, evidence: Evidence) -> Explained | None:
    """In words, of so many pairs; None: nothing is shared. A node without another one on its leaf is not blamed: the leaf's way out explains as much."""
    assert evidence.plan is not None
    placed = evidence.plan.placement.ranks
    if found.rank is not None:
        seat = placed[found.rank]
        name = f"{seat.node} GPU {seat.local_rank}"
        return Explained(
            f"rank {found.rank} ({name}) is in all {number} of them, and works with the other GPUs of its node; all its partners work between nodes with others",
            f"leave {seat.node} out, and look at the network card of GPU {seat.local_rank}: if it works with NCCL_NET_GDR_LEVEL=LOC, "
            "its way to GPU memory is at fault (firmware, ACS, IOMMU), else its port, cable and addresses",
            Part(kind="nic", name=f"NIC of {name}", confidence="likely")
            if _has_neighbour(seat.node, evidence)
            else None,
        )
    if found.node is not None:
        return Explained(
            f"{found.node} is in all {number} of them, and all its partners work between nodes with others",
            f"leave {found.node} out, and look at its data network: interface, addresses, firewall, partition key, and its switch's way out",
            Part(kind="node", name=found.node, confidence="likely") if _has_neighbour(found.node, evidence) else None,
        )
    if found.unlike_slots:
        return Explained(
            f"all {number} are between unlike GPU slots of different nodes, and like slots work: the rails are not joined to each other",
            "set NCCL_CROSS_NIC=0; rings along rails work then, and an all-to-all, gather or send between unlike slots needs PXN, or rails that are joined",
        )
    if found.all_nodes:
        return Explained(
            f"none of the {number} pairs between nodes works, and those inside nodes do: it is what the nodes have in common",
            "look at the data network as all nodes see it: which interface and HCAs NCCL takes, index of the address table (NCCL_IB_GID_INDEX), partition key, firewall",
            Part(kind="environment", name="the network between the nodes, or its settings", confidence="likely"),
        )
    return None


def _has_neighbour(node: str, evidence: Evidence) -> bool:
    """Whether another node of the run is on the same leaf switch; True where nobody told the leaves."""
    assert evidence.plan is not None
    ends = ends_of(evidence.plan, evidence.topology)
    if ends.leaves is None:
        return True
    leaves = dict(zip(ends.nodes, ends.leaves, strict=True))
    return leaves[node] is None or list(leaves.values()).count(leaves[node]) > 1
