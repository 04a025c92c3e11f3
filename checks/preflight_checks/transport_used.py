"""NCCL moves data the way that the hardware offers: peer access inside a node, RDMA between nodes, straight to and from GPU memory.

What NCCL uses is what counts, not what is configured. A variable that was left over, a library that is not found, a module that is loaded and not registered: each makes NCCL take a slower way without a
word, on all nodes alike, so that comparing nodes finds nothing. So the workers keep what NCCL itself says of the ways it took. 0 NVLS channels are no fault: A100 and older have no such thing, and
pairs don't use it.

Sources: NVIDIA/nccl-tests issue 228 (NCCL_P2P_DISABLE=1 left over: 24 in place of 220 GB/s on healthy NVLink); NVIDIA/nccl issues 1676 and 1537 (GPUDirect RDMA off for all HCAs: 10 in
place of 180 GB/s); NVIDIA-NeMo/RL issue 1973 and NVIDIA/nccl issues 229, 959 (the plugin is not on the library path: sockets). NCCL takes host memory between GPUs of different CPU sockets (issue 406), and leaves
GPUDirect RDMA off for HCAs that share no PCIe switch with the GPU (user guide, NCCL_NET_GDR_LEVEL): both are normal.
Peer access over PCIe may be slower than staging through host memory (NVIDIA/nccl issues 814 and 1817, NVIDIA/nccl-tests issue 74): worth a look, since a setting decides it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from preflight.model import Check, Evidence, Finding, Gpu, Measurement, Node, Part, Route, Transport, Verdict
from preflight.model.hostlist import fold, fold_numbers
from preflight.model.measurement import median
from preflight.model.nccl_lists import read_number
from preflight.model.rails import rails
from preflight.model.units import show_rate

NAME = "transport_used"
# by peer access over PCIe 9.9 GB/s, by way of host memory 22 (NVIDIA/nccl issue 814), where copies between GPU and host reach 24 to 26: 0.4 of them. Ours: what keeps 0.6 is left alone
LIMITS = {"peer_share_of_copies": 0.6}
MANY = 8  # pairs that are named
SOCKET = "NET/Socket"
EXPECTED = "peer access where NVLink or one PCIe tree joins GPUs, RDMA between nodes that have HCAs, straight to and from GPU memory"

Fault = Literal["no peer access", "sockets", "no GPUDirect"]
State = Literal["good", "normal", "bad", "doubtful", "unknown"]  # normal: slower, and as usual for this machine


class _Way(NamedTuple):
    """A way that one rank's NCCL told of."""

    route: Route
    told_by: Transport
    key: str


class _Judged(NamedTuple):
    way: _Way
    fault: Fault | None
    state: State


class _Place(NamedTuple):
    """Where a rank sits; None: not known."""

    node: Node | None
    gpu: Gpu | None
    name: str


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each fault and node, or for all nodes; else one PASS. Nothing where NCCL did not run."""
    assert evidence.plan is not None
    assert evidence.measurements is not None
    if evidence.settings.backend != "nccl" or evidence.settings.simulated:
        return
    ran = [m for m in evidence.measurements if m.samples and len(m.probe.ranks) > 1]
    ways = {
        (t.rank, route.sender, route.receiver, route.via): _Way(route, t, m.probe.key)
        for m in ran
        for t in m.transports
        for route in t.routes
    }
    if ran and not ways:
        yield _untold(len(ran))
    places = _places(evidence)
    judged = [_judge_way(way, places) for way in ways.values()]
    for fault in ("no peer access", "sockets", "no GPUDirect"):
        for state in ("bad", "doubtful", "unknown"):
            found = [each for each in judged if each.fault == fault and each.state == state]
            for part in _by_node(found, places) if fault == "no peer access" else [found]:
                if part:
                    yield _finding(fault, state, part, places)
    slow = list(_slow_peers(evidence, ran, places))
    yield from slow
    if judged and not slow and all(each.state in ("good", "normal") for each in judged):
        yield _all_good(judged)


def _places(evidence: Evidence) -> dict[int, _Place]:
    assert evidence.plan is not None
    nodes = {node.name: node for node in evidence.inventory.nodes} if evidence.inventory else {}
    places = {}
    for rank in evidence.plan.placement.ranks:
        node = nodes.get(rank.node)
        gpu = next((g for g in (node.gpus or () if node else ()) if g.uuid and g.uuid == rank.gpu_uuid), None)
        places[rank.rank] = _Place(node, gpu, rank.node)
    return places


def _judge_way(way: _Way, places: Mapping[int, _Place]) -> _Judged:
    route, told_by = way.route, way.told_by
    a, b = places.get(route.sender), places.get(route.receiver)
    if a is None or b is None or route.kind in ("P2P", "other"):
        return _Judged(way, None, "good")
    if a.name == b.name and "NCCL_HOSTID" not in told_by.settings:
        return _Judged(way, "no peer access", _peer_access(a, b))
    if route.kind == "SHM":
        return _Judged(way, None, "good")
    if route.via.startswith(SOCKET):
        return _Judged(way, "sockets", _rdma_there(a, b))
    if "GDRDMA" in route.via:
        return _Judged(way, None, "good")
    return _Judged(way, "no GPUDirect", _direct_there(places.get(told_by.rank)))


def _peer_access(a: _Place, b: _Place) -> State:
    """Whether GPUs of a node that exchange data through host memory, or over the network, could reach each other's memory."""
    if a.gpu is None or b.gpu is None:
        return "unknown"
    peers = [peer for peer in (a.gpu.peer(b.gpu.index), b.gpu.peer(a.gpu.index)) if peer is not None]
    if any(peer.num_nvlinks for peer in peers):
        return "bad"
    told = {status for peer in peers for kind, status in peer.p2p.items() if kind in ("read", "write")}
    close = any(peer.ancestor in ("internal", "PIX", "PXB") for peer in peers)
    if told == {"ok"} and close:
        return "doubtful"
    return "normal" if told - {"unknown"} else "unknown"


def _rdma_there(a: _Place, b: _Place) -> State:
    """Whether both nodes have an HCA with an active port, and one of those that carry the traffic of GPUs."""
    if a.node is None or b.node is None or a.node.hcas is None or b.node.hcas is None:
        return "unknown"
    if not all(
        any(port.state == "active" for hca in node.hcas or () for port in hca.ports or ()) for node in (a.node, b.node)
    ):
        return "normal"
    return "bad" if all(rails(node).own for node in (a.node, b.node)) else "doubtful"


def _direct_there(place: _Place | None) -> State:
    """Whether the GPU has an HCA so close that NCCL would reach its memory directly."""
    if place is None or place.node is None or place.gpu is None:
        return "unknown"
    found = rails(place.node)
    if place.gpu.index in found.unknown_gpus:
        return "unknown"
    return "bad" if found.own.get(place.gpu.index) else "normal"


def _slow_peers(evidence: Evidence, ran: Sequence[Measurement], places: Mapping[int, _Place]) -> Iterator[Finding]:
    """For each node: pairs whose peer access over PCIe is slower than the way through host memory would be, by the copies that their GPUs make."""
    share = evidence.limits(NAME, LIMITS)["peer_share_of_copies"]
    copies: dict[int, list[float]] = {}
    for m in evidence.measurements or ():
        if m.probe.collective in ("host_to_device", "device_to_host") and m.algbw_bytes_per_s:
            copies.setdefault(m.probe.ranks[0], []).append(m.algbw_bytes_per_s)
    slow: dict[str, dict[tuple[int, ...], tuple[float, float, str]]] = {}
    for m in ran:
        ends, rate = m.probe.ranks, m.algbw_bytes_per_s
        kinds = {route.kind for told_by in m.transports for route in told_by.routes}
        if len(ends) != 2 or m.probe.collective != "send_recv" or kinds != {"P2P"} or not rate:
            continue
        a, b = (places.get(rank) for rank in ends)
        if a is None or b is None or a.gpu is None or b.gpu is None or not all(rank in copies for rank in ends):
            continue
        peer, least = a.gpu.peer(b.gpu.index), min(median(copies[rank]) for rank in ends)
        if a.name == b.name and peer is not None and peer.num_nvlinks == 0 and rate < share * least:
            slow.setdefault(a.name, {})[ends] = (rate, least, m.probe.key)
    for node, pairs in slow.items():
        named = ", ".join(f"{a}-{b}" for a, b in list(pairs)[:MANY]) + (", ..." if len(pairs) > MANY else "")
        best, least = max(rate for rate, _, _ in pairs.values()), min(copy for _, copy, _ in pairs.values())
        yield Finding(
            check=NAME,
            subject=node,
            verdict=Verdict.WARN,
            observed=f"ranks {named} exchange {show_rate(best)} at most by peer access over PCIe, where copies between these GPUs and host memory reach {show_rate(least)}: "
            "peer access may be slower than staging through host memory",
            expected=f"at least {share:.0%} of what copies to and from host memory reach",
            remedy="time the job with NCCL_P2P_DISABLE=1, and with NCCL_P2P_LEVEL at PIX, PXB and PHB; keep what is fastest",
            evidence=tuple(key for _, _, key in pairs.values())[:MANY],
        )


def _by_node(found: Sequence[_Judged], places: Mapping[int, _Place]) -> list[list[_Judged]]:
    by_node: dict[str, list[_Judged]] = {}
    for each in found:
        by_node.setdefault(places[each.way.route.sender].name, []).append(each)
    return list(by_node.values())


_MEANING: dict[Fault, tuple[str, str]] = {
    "no peer access": (
        "without peer access ({via}), though {why}",
        "look at `nvidia-smi topo -p2p r`, at PCIe access control (ACS) and at what else steers NCCL there",
    ),
    "sockets": (
        "over TCP sockets ({via}), though {why}",
        "look why NCCL finds no HCA: libibverbs and the network plugin in the job's environment, /dev/infiniband in the container",
    ),
    "no GPUDirect": (
        "through host memory on their way to the HCA ({via}), though {why}",
        "load nvidia-peermem, or use the open kernel modules (dmabuf) and an NCCL that takes what is there: see gpu_direct",
    ),
}
_WHY: dict[tuple[Fault, State], str] = {
    ("no peer access", "bad"): "NVLink joins the GPUs",
    ("no peer access", "doubtful"): "the driver allows it below one PCIe tree",
    ("no peer access", "unknown"): "whether the GPUs could reach each other is not known",
    ("sockets", "bad"): "both nodes have HCAs with an active port for their GPUs",
    ("sockets", "doubtful"): "both nodes have an HCA with an active port",
    ("sockets", "unknown"): "whether the nodes have HCAs is not known",
    ("no GPUDirect", "bad"): "an HCA shares PCIe switches with the GPU",
    ("no GPUDirect", "unknown"): "whether an HCA is close to the GPU is not known",
}


def _finding(fault: Fault, state: State, found: Sequence[_Judged], places: Mapping[int, _Place]) -> Finding:
    pairs = sorted({(each.way.route.sender, each.way.route.receiver) for each in found})
    named = ", ".join(f"{a}-{b}" for a, b in pairs[:MANY]) + (", ..." if len(pairs) > MANY else "")
    nodes = list(dict.fromkeys(places[rank].name for pair in pairs for rank in pair))
    via = ", ".join(dict.fromkeys(each.way.route.via for each in found[:MANY]))
    says, remedy = _MEANING[fault]
    says = says.format(via=via, why=_WHY[(fault, state)])
    told = [each.way.told_by for each in found]
    causes = _causes(fault, told, [places[t.rank].node for t in told if t.rank in places])
    off = sorted({hca for t in told for hca in t.gdr_disabled}) if fault == "no GPUDirect" else []
    notes = list(dict.fromkeys(note for t in told for note in t.notes)) if fault != "no peer access" else []
    observed = (
        f"ranks {named} exchange data {says}"
        if len(nodes) == 1
        else f"{len(pairs)} ways between {fold(nodes)} ({named}) go {says}"
    )
    observed += f"; NCCL says that GPUDirect RDMA is disabled for {', '.join(off)}" if off else ""
    observed += f"; {', '.join(causes)}" if causes else f"; NCCL says: {'; '.join(notes[:3])}" if notes else ""
    verdict = {"bad": Verdict.FAIL, "doubtful": Verdict.WARN}.get(state, Verdict.UNKNOWN)
    return Finding(
        check=NAME,
        subject=nodes[0] if len(nodes) == 1 else "ways between nodes",
        verdict=verdict,
        observed=observed,
        expected=EXPECTED,
        remedy=f"take it out, unless it is meant: {', '.join(causes)}" if causes else remedy,
        blames=_blame(fault, causes, nodes) if verdict in (Verdict.FAIL, Verdict.WARN) else None,
        evidence=tuple(dict.fromkeys(each.way.key for each in found))[:MANY],
    )


def _blame(fault: Fault, causes: Sequence[str], nodes: Sequence[str]) -> Part | None:
    """The environment where a setting explains it, and where it lies between software and HCAs; what keeps two GPUs of a node apart is not identifiable from here."""
    if causes:
        return Part(kind="environment", name=causes[0])
    if fault == "no peer access":
        return None
    what = "RDMA for NCCL" if fault == "sockets" else "GPUDirect RDMA"
    return Part(kind="environment", name=f"{what} on {fold(list(nodes))}", confidence="likely")


def _on(value: str) -> bool:
    return bool(read_number(value))


def _least(value: str) -> bool:
    return value.strip().upper() in {"LOC", "0"}


_SETTINGS: dict[Fault, dict[str, Callable[[str], bool]]] = {
    "no peer access": {"NCCL_P2P_DISABLE": _on, "NCCL_P2P_LEVEL": _least, "NCCL_P2P_DIRECT_DISABLE": _on},
    "sockets": {"NCCL_IB_DISABLE": _on, "NCCL_NET": lambda value: value.strip().casefold() == "socket"},
    "no GPUDirect": {"NCCL_NET_GDR_LEVEL": _least, "NCCL_DMABUF_ENABLE": lambda value: value.strip() == "0"},
}


def _causes(fault: Fault, told: Sequence[Transport], nodes: Sequence[Node | None]) -> list[str]:
    """Settings in force that explain it, with their place: "NCCL_P2P_DISABLE=1 from environment"."""
    causes: dict[str, None] = {}
    origins = {
        (setting.name, setting.value): setting.origin
        for node in nodes
        for setting in (node.settings or () if node is not None else ())
    }
    for transport in told:
        for name, explains in _SETTINGS[fault].items():
            value = transport.settings.get(name)
            if value is None or not explains(value):
                continue
            file = "NCCL's configuration file" if name in transport.from_file else "the environment"
            causes[f"{name}={value} from {origins.get((name, value), file)}"] = None
    return list(causes)


def _untold(number: int) -> Finding:
    return Finding(
        check=NAME,
        subject="ways",
        verdict=Verdict.UNKNOWN,
        observed=f"NCCL ran in {number} probes, and nothing that it says of its ways could be read",
        expected=EXPECTED,
        remedy="run a job with NCCL_DEBUG=INFO, and look at the lines with `via`",
    )


def _all_good(judged: Sequence[_Judged]) -> Finding:
    kinds: dict[str, int] = {}
    for each in judged:
        name = each.way.route.via.split("/")[0] + (", as usual there" if each.state == "normal" else "")
        kinds[name] = kinds.get(name, 0) + 1
    ranks = fold_numbers(sorted({each.way.told_by.rank for each in judged}))
    told = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    return Finding(
        check=NAME,
        subject="ways",
        verdict=Verdict.PASS,
        observed=f"{len(judged)} ways, as ranks {ranks} tell: {told}",
        expected=EXPECTED,
    )


CHECK = Check(
    name=NAME,
    claim="NCCL moves data the way that the hardware offers.",
    why="NCCL falls back to slower ways without an error: host memory in place of NVLink, sockets in place of RDMA, on every node alike.",
    source="what NCCL says of its own ways (NCCL_DEBUG=INFO); NVIDIA/nccl-tests issue 228, NVIDIA/nccl issues 1676, 1537, 229, 959, NVIDIA-NeMo/RL issue 1973",
    remedy="take the setting out that switches the faster way off, or install what NCCL did not find",
    uses=("plan", "measurements"),
    judge=judge,
    need="advisory",
    limits=LIMITS,
)
