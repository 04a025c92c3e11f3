"""The smallest thing to do about a part that the localiser names: what to leave out, and which port, switch or setting to look at (pure; slow_part and its like need it).

Which end of a cable counts what goes wrong on it: errors of bits and packets are counted where they arrive (symbol_error, port_rcv_errors: Linux, Documentation/ABI/stable/sysfs-class-infiniband). So what a NIC
sends badly shows at the switch port that its cable leads to, and what it receives badly at its own port.
"""

from preflight.model.base import Record
from preflight.model.crossing import shortened
from preflight.model.hostlist import fold
from preflight.model.localisation import Culprit, Direction, Ends
from preflight.model.part_names import is_one_end

RISING = "symbol_error, port_rcv_errors, link_downed"  # the kernel's names of counters that preflight node judges


class Around(Record, frozen=True):
    """What is there to look at. `nccl`: NCCL moved the data, so that its settings count; False: gloo did, over ordinary interfaces. `cards`: end -> names of its NICs, where they are known ("mlx5_3")."""

    nccl: bool = True
    cards: "dict[int, tuple[str, ...]]" = {}


def remedy_of(culprit: Culprit, ends: Ends, around: Around) -> str:
    """What to do; empty: nothing is known that would help."""
    if is_one_end(culprit):
        return _rank(culprit, ends, around)
    node, nodes = fold(culprit.nodes), shortened(fold(culprit.nodes))
    common = "no single node is at fault, so leave none out: "
    return {
        "gpu": _gpu(culprit, ends, around),
        "nic": _nic(culprit, ends, around),
        "node": f"leave {node} out of the job, then look at what all that runs on it shares{_way(culprit.direction)}: {_of_node(around)}",
        "slot": f"{common}look at what GPU slot {culprit.slot} of all nodes has in common: the switch or rail that its NICs are cabled to, their firmware and their PCIe slots (nic_uniform, pcie_link)",
        "link": _link(culprit, ends),
        "leaf": f"{common}look at the switch behind {_slot(culprit)}: what it carries between its own nodes is slow",
        "uplink": _uplink(culprit),
        "path": _path(culprit),
        "class": _software(culprit, nodes),
        "environment": _environment(around),
    }.get(culprit.kind or "", "")


def _gpu(culprit: Culprit, ends: Ends, around: Around) -> str:
    if not culprit.ends:
        return ""
    node, slot = _seat(culprit, ends)
    what = _way(culprit.direction)
    if not around.nccl:
        return f"leave {node} out of the job, then look on it at what the worker of slot {slot} shares with others{what}: cores, memory, other work"
    return f"leave {node} out of the job, then test its GPU {slot} by itself{what}: preflight node there judges its PCIe link, NVLinks, clocks and errors, gpu_speed its copies and products"


def _nic(culprit: Culprit, ends: Ends, around: Around) -> str:
    if not culprit.ends:
        return ""
    node, slot = _seat(culprit, ends)
    known = around.cards.get(culprit.ends[0], ())
    card = f"{'NIC' if len(known) < 2 else 'NICs'} of its GPU {slot}{f' ({fold(known)})' if known else ''}"
    return f"leave {node} out of the job, then look at the {card}: {_cable(culprit.direction, around)}"


def _cable(direction: Direction, around: Around) -> str:
    """Of a NIC's port and cable: the end that counts what goes wrong in this direction."""
    far = "the switch port at the other end of its cable, which counts what arrives damaged there"
    own = "its own port, which counts what arrives damaged"
    own += f" ({RISING}: preflight node --save before a load, --since behind it)" if around.nccl else " (ethtool -S)"
    where = {"sending": far, "receiving": own, "both": f"both ends of its cable: {own}; {far}"}[direction]
    return f"{where}; and its PCIe link{' (pcie_link)' if around.nccl else ''}"


def _of_node(around: Around) -> str:
    if not around.nccl:
        return "its interface (speed, errors: ethtool), its cable, other work on it"
    return f"PCIe, power, other work, or its only NIC; preflight node there judges links, clocks and ports ({RISING} with --since)"


def _link(culprit: Culprit, ends: Ends) -> str:
    if len(culprit.ends) < 2:
        return ""
    one, other = (ends.name(end) for end in culprit.ends[:2])
    between = f"from {one} to {other}" if culprit.direction != "both" else f"between {one} and {other}"
    if ends.node[culprit.ends[0]] == ends.node[culprit.ends[1]]:
        return (
            f"both work with others: look at what joins the two inside their node (nvlink_pairs, p2p_access), {between}"
        )
    return f"both work with others, so leave neither out: look at the switch ports on the route {between}, at a flow that shares it (ECMP), and at a firewall; run again, and keep the two out of one group while it stays"


def _uplink(culprit: Culprit) -> str:
    where = _slot(culprit)
    inside = (
        f"no node on {culprit.leaf} is at fault, so leave none out, and place the job inside leaves until it is mended"
    )
    ports = {
        "sending": f"the far ends of the uplinks of {where}, which count what arrives damaged from it",
        "receiving": f"{where}'s own ends of its uplinks, which count what arrives damaged",
        "both": f"both ends of the uplinks of {where}",
    }[culprit.direction]
    if culprit.share is None:
        return f"{inside}: count how many uplinks of {where} are up, and at which speed, beside another leaf; then look at {ports}"
    return f"{inside}: {culprit.share:.0%} of what crosses is slow, so some of the uplinks are: find them by errors and speed at {ports}, and take them out of the routes"


def _path(culprit: Culprit) -> str:
    one, other = (shortened(fold(side)) for side in (culprit.nodes, culprit.other_nodes))
    larger = one if len(culprit.nodes) >= len(culprit.other_nodes) else other
    way = {"both": "between", "sending": "from", "receiving": "to"}[culprit.direction]
    joint = {"both": "and", "sending": "to", "receiving": "from"}[culprit.direction]
    return f"no node is at fault, so leave none out for it: look at the route {way} {one} {joint} {other}: uplinks and spine, firewall, interface taken; until then place the job inside one set, {larger}"


def _software(culprit: Culprit, nodes: str) -> str:
    fact = culprit.fact or "software"
    if culprit.other_nodes:
        return f"give all nodes the same software ({fact}); until then place the job inside one set: {nodes}, or {shortened(fold(culprit.other_nodes))}"
    return f"give all nodes the same software ({fact}); until then leave out those that have it: {nodes}"


def _environment(around: Around) -> str:
    if not around.nccl:
        return "no node is at fault: look at what all have in common, the interface that is used, its speed and MTU"
    return "no node is at fault: look at what all have in common, NCCL's settings, drivers, GPUDirect RDMA (nccl_settings, gpu_direct, transport_used), then at the fabric as a whole"


def _rank(culprit: Culprit, ends: Ends, around: Around) -> str:
    node, slot = _seat(culprit.candidates[0], ends)
    others = ends.node.count(ends.node[culprit.candidates[0].ends[0]]) > 1
    how = ["pairs inside the node"] * others + ["copies from its host (gpu_speed)"] * around.nccl
    told = f": run again with a larger --budget, {' and '.join(how)} tell" if how else ""
    return f"leave {node} out of the job; whether GPU {slot} or its NIC is at fault is not known{told}"


def _slot(culprit: Culprit) -> str:
    return f"{culprit.leaf}" if culprit.slot is None else f"{culprit.leaf} that slot {culprit.slot} is cabled to"


def _seat(culprit: Culprit, ends: Ends) -> tuple[str, int]:
    end = culprit.ends[0]
    return ends.nodes[ends.node[end]], ends.slot[end]


def _way(direction: Direction) -> str:
    return {"both": "", "sending": " (what it sends is slow)", "receiving": " (what it receives is slow)"}[direction]
