"""The HCAs that carry the job's traffic can address each other: partition keys, RoCE addresses, MTU.

A port can be up and still reach nobody: its only RoCE address is link-local, NCCL_IB_GID_INDEX names an empty entry, its partition keys make it a limited member, two
of which can't talk. A RoCE interface with an MTU of 1500 sends messages in packets of 1024 bytes.

Source: NVIDIA/nccl issues 769, 426, 1510, 394 (entries of the address table), 1323 (partition keys); MicrosoftDocs/azure-docs issue 69185 and azurehpc-health-checks issue 152 (all keys 0x8001); InfiniBand
specification, partition keys: bit 15 is full membership, limited members can't reach each other; 4096 bytes of payload and RoCE headers need an MTU of 4200 (NVIDIA's RoCE guides).
"""

from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Gid, Hca, Node, Part, Port, Verdict
from preflight.model.rails import rails

NAME = "hca_addressing"
LIMITS = {"roce_mtu_bytes": 4200.0}
FULL_MEMBER = 0x8000
INDEX = "NCCL_IB_GID_INDEX"
EXPECTED = "full membership of one partition, and for RoCE a routable address and a large MTU"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """For each node with GPUs and HCAs of their own: one finding for each port that is wrong, or one PASS. Ports that are down are another check's."""
    mtu = int(evidence.limits(NAME, LIMITS)["roce_mtu_bytes"])
    for node in evidence.health or ():
        if not node.gpus or not node.hcas:
            continue
        own = {name for names in rails(node).own.values() for name in names}
        ports = [(hca, port) for hca in node.hcas if hca.name in own for port in hca.ports or () if port.up]
        found = [finding for hca, port in ports for finding in _judge_port(node, hca, port, mtu)]
        yield from found
        if ports and not found:
            seen = f"{len(ports)} ports: {_seen(ports)}"
            yield Finding(check=NAME, subject=node.name, verdict=Verdict.PASS, observed=seen, expected=EXPECTED)


def _judge_port(node: Node, hca: Hca, port: Port, mtu: int) -> Iterator[Finding]:
    if hca.driver == "efa":  # its own addressing
        return
    if port.link_layer == "InfiniBand":
        yield from _judge_pkeys(node, hca, port)
    elif port.link_layer == "Ethernet":
        yield from _judge_gids(node, hca, port)
        if port.mtu_bytes is not None and port.mtu_bytes < mtu:
            observed = f"MTU {port.mtu_bytes} on {port.interface or 'its interface'}"
            remedy = f"set the MTU to {mtu} or more here and on the switches"
            yield _finding(node, hca, Verdict.WARN, observed, remedy)


def _judge_pkeys(node: Node, hca: Hca, port: Port) -> Iterator[Finding]:
    if port.pkeys is None:
        yield _finding(
            node, hca, Verdict.UNKNOWN, "partition keys can't be read", "run `cat` on its pkeys/0", blames=False
        )
        return
    keys = [key for key in port.pkeys if key & 0x7FFF]
    spelled = ", ".join(f"0x{key:04x}" for key in keys) or "none"
    if not any(key & FULL_MEMBER for key in keys):
        observed = f"no partition in which it is a full member (keys {spelled})"
        yield _finding(
            node, hca, Verdict.FAIL, observed, "add its port as a full member in the subnet manager's partitions"
        )
    elif keys and not port.pkeys[0] & 0x7FFF:
        observed = f"the key at index 0 is empty, where NCCL looks (keys {spelled})"
        yield _finding(node, hca, Verdict.WARN, observed, "set NCCL_IB_PKEY to the index of the job's partition")


def _judge_gids(node: Node, hca: Hca, port: Port) -> Iterator[Finding]:
    if port.gids is None:
        yield _finding(node, hca, Verdict.UNKNOWN, "address table can't be read", "run `show_gids`", blames=False)
        return
    setting = node.setting(INDEX)
    if setting is not None and setting.value.isascii() and setting.value.isdecimal() and len(setting.value) < 10:
        chosen = next((gid for gid in port.gids if gid.index == int(setting.value)), None)
        origin = f"{INDEX}={setting.value} ({setting.origin})"
        if chosen is None:
            observed = f"{origin} names an entry of its address table that is empty"
            yield _finding(node, hca, Verdict.FAIL, observed, _INDEX_REMEDY, environment=True)
        elif _is_link_local(chosen) or chosen.kind == "RoCE v1":
            why = "link-local" if _is_link_local(chosen) else "RoCE v1"
            observed = f"{origin} is {chosen.address}, which is {why} and can't be routed"
            yield _finding(node, hca, Verdict.WARN, observed, _INDEX_REMEDY, environment=True)
    elif not any(gid.kind in ("RoCE v2", None) and not _is_link_local(gid) for gid in port.gids):
        listed = ", ".join(f"{gid.index}: {gid.address}" for gid in port.gids) or "empty"
        observed = f"no RoCE v2 address that can be routed (table: {listed})"
        yield _finding(node, hca, Verdict.WARN, observed, f"give {port.interface or 'its interface'} an IP address")


_INDEX_REMEDY = f"unset {INDEX}: NCCL from 2.21 on finds the entry itself; or give the index of the RoCE v2 IPv4 entry"


def _is_link_local(gid: Gid) -> bool:
    """fe80::/10, and 169.254/16 in its mapped form (RFC 4291, RFC 3927)."""
    address = gid.address.lower()
    return address.startswith(
        ("fe8", "fe9", "fea", "feb", "::ffff:169.254.", "::ffff:a9fe:", "0000:0000:0000:0000:0000:ffff:a9fe:")
    )


def _finding(
    node: Node,
    hca: Hca,
    verdict: Verdict,
    observed: str,
    remedy: str,
    *,
    environment: bool = False,
    blames: bool = True,
) -> Finding:
    name = f"{node.name} {hca.name}"
    part = Part(kind="environment", name=f"{INDEX} on {node.name}") if environment else Part(kind="nic", name=name)
    return Finding(
        check=NAME,
        subject=name,
        verdict=verdict,
        observed=observed,
        expected=EXPECTED,
        remedy=remedy,
        blames=part if blames else None,
    )


def _seen(ports: list[tuple[Hca, Port]]) -> str:
    layers = sorted({port.link_layer or "link layer unknown" for _, port in ports})
    return ", ".join(layers)


CHECK = Check(
    name=NAME,
    claim="The HCAs that carry the job's traffic can address each other: partition keys, RoCE addresses, MTU.",
    why="A port that is up and addressed wrongly lets a job hang at its first connection between nodes, or run slowly.",
    source="NVIDIA/nccl issues 769, 426, 1510, 1323; azurehpc-health-checks issue 152; InfiniBand specification, partition keys",
    remedy="partitions in the subnet manager; NCCL_IB_GID_INDEX unset; an IP address and an MTU of 4200 or more for RoCE",
    uses=("health",),
    judge=judge,
    need="advisory",
    limits=LIMITS,
)
