"""HCAs and network interfaces are alike on all nodes: names, number, firmware, ports, MTU, address tables, OFED.

NCCL_IB_HCA, NCCL_SOCKET_IFNAME and NCCL_IB_GID_INDEX are one text for all nodes: where a name or an index means something else, that node uses another port or
none. Said are the classes and who is in them. A difference is a WARN; it is FAIL only for an NCCL_IB_GID_INDEX that was set and means a routable RoCE v2
address on some nodes, and on no port of others. Virtual functions and interfaces without a PCI device are left out.
Source: NCCL issues 286 and 1581 (interface names differ), 769, 426, 1510 (GID index 3, 4, 5 mean different things), 307 (names against cables); NCCL finds the index itself from 2.21 on (its
environment documentation); firmware: gcm, imbue.
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

from preflight.model import Check, Evidence, Finding, Gid, Hca, Node, Part, Port, Verdict
from preflight.model.classes import classify
from preflight.model.hostlist import fold
from preflight.model.uniform import NodeFact, compare_nodes
from preflight.model.units import show_line_rate

NAME = "nic_uniform"
GID_INDEX = "NCCL_IB_GID_INDEX"
ROUTABLE = "RoCE v2 over IPv4"
_LABEL = re.compile(r"NIC\d+")  # a column of `nvidia-smi topo -m`, no name


def _cards(node: Node) -> tuple[Hca, ...] | None:
    return None if node.hcas is None else tuple(hca for hca in node.hcas if not hca.is_virtual_function)


def _number(node: Node) -> Hashable | None:
    cards = _cards(node)
    return None if cards is None else len(cards)


def _names(node: Node) -> Hashable | None:
    names = sorted(hca.name for hca in _cards(node) or ())
    return None if any(map(_LABEL.fullmatch, names)) else fold(names) or None


def _firmware(node: Node) -> Hashable | None:
    told = {
        f"{hca.board_id or hca.driver or 'HCA'}: {hca.firmware_version}"
        for hca in _cards(node) or ()
        if hca.firmware_version
    }
    return ", ".join(sorted(told)) or None


def _ports(node: Node) -> list[Port] | None:
    """The ports with a link; those without one are the business of other checks."""
    return [port for hca in _cards(node) or () for port in hca.ports or () if port.up] or None


def _rates(node: Node) -> Hashable | None:
    ports = [(port.rate_bytes_per_s, port.link_layer) for port in _ports(node) or () if port.rate_bytes_per_s]
    counts = sorted(Counter(ports).items(), key=str)
    return (
        ", ".join(f"{n} x {show_line_rate(rate)} {layer or ''}".strip() for (rate, layer), n in counts if rate) or None
    )


def _mtu(node: Node) -> Hashable | None:
    told = sorted({port.mtu_bytes for port in _ports(node) or () if port.mtu_bytes})
    return ", ".join(f"{mtu} bytes" for mtu in told) or None


def _interfaces(node: Node) -> Hashable | None:
    return ", ".join(sorted(nic.name for nic in node.nics or () if nic.pci_bus_id and nic.up)) or None


def _ofed(node: Node) -> Hashable | None:
    return node.versions.get("ofed") or node.versions.get("mlnx_ofed")


FACTS = (
    NodeFact("number of HCAs", _number),
    NodeFact("HCA names", _names),
    NodeFact("HCA firmware", _firmware),
    NodeFact("ports with a link", _rates),
    NodeFact("MTU of HCA ports", _mtu),
    NodeFact("interfaces with a link", _interfaces),
    NodeFact("OFED version", _ofed),
)


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each fact over all nodes that tell it; one for the meaning of a GID index that was set. Nothing where no node has an HCA but for interfaces."""
    assert evidence.inventory is not None
    nodes = evidence.inventory.nodes
    if len({node.source == "nccl xml" for node in nodes}) > 1:  # which lists what one communicator uses
        nodes = tuple(node for node in nodes if node.source != "nccl xml")
    facts = FACTS if any(node.hcas for node in nodes) else FACTS[5:]
    yield from compare_nodes(NAME, evidence, nodes, facts)
    yield from _gid_index([node for node in nodes if _meanings(node) is not None])


def _gid_index(nodes: Sequence[Node]) -> Iterator[Finding]:
    """What the index that NCCL was told means on each node: one class where it is right."""
    if not nodes:
        return
    classes = classify(nodes, _meanings, lambda node: node.name)
    if list(classes.members) == [ROUTABLE]:
        text = f"index {_index(nodes[0])} is {ROUTABLE} on {classes.num_known} node{'s' * (classes.num_known > 1)}"
        yield Finding(check=NAME, subject=GID_INDEX, verdict=Verdict.PASS, observed=text, expected=ROUTABLE)
    if classes.uniform:
        return
    lame = [name for value, names in classes.members.items() if "RoCE v2 over" not in str(value) for name in names]
    certain = 0 < len(lame) < classes.num_known
    yield Finding(
        check=NAME,
        subject=GID_INDEX,
        verdict=Verdict.FAIL if certain else Verdict.WARN,
        observed=classes.text(),
        expected=f"an index that means {ROUTABLE} on every port that NCCL uses",
        remedy=f"unset {GID_INDEX} where NCCL is 2.21 or newer, which finds the index itself; else make the address tables of the nodes alike",
        blames=Part(kind="environment", name=f"{GID_INDEX} on {fold(lame)}") if certain else None,
    )


def _index(node: Node) -> int | None:
    setting = node.setting(GID_INDEX)
    text = setting.value.strip() if setting else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 4 else None


def _meanings(node: Node) -> str | None:
    """What the index that was set means on the Ethernet ports with a link; None where none was set, or no table was read."""
    index = _index(node)
    ports = [port for port in _ports(node) or () if port.link_layer == "Ethernet" and port.gids is not None]
    if index is None or not ports:
        return None
    found = {_meaning(next((gid for gid in port.gids or () if gid.index == index), None)) for port in ports}
    return " and ".join(sorted(found))


def _meaning(gid: Gid | None) -> str:
    if gid is None:
        return "no address"
    if gid.address.lower().startswith("fe80"):
        return f"{gid.kind or 'unknown kind'}, link-local"
    mapped = gid.address.lower().startswith("::ffff:")
    return f"{gid.kind or 'unknown kind'} over {'IPv4' if mapped else 'IPv6'}"


CHECK = Check(
    name=NAME,
    claim="HCAs and interfaces have the same names, number, firmware, rates, MTU and address tables on all nodes.",
    why="NCCL's settings are one text for all nodes: where a name or a GID index means something else, that node talks over another port or not at all.",
    source="NCCL issues 286, 307, 426, 769, 1510 and 1581; firmware manifests of gcm and imbue's cluster-health.",
    remedy="Name devices by PCI slot (rdma-core's persistent naming), bring firmware and OFED to one version, and let NCCL find the GID index itself.",
    uses=("inventory",),
    judge=judge,
    need="advisory",
)
