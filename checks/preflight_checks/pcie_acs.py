"""No PCI bridge between parts that talk to each other directly sends their traffic up to the CPU.

Access control services (ACS) on a bridge redirect traffic between devices below it through the root complex and the IOMMU. On bare metal that makes peer-to-peer
transfers slow, or hang: https://github.com/NVIDIA/nccl/issues/2079, 304, 606 and 667. Bits of the control register (PCI Express specification, ACS extended capability;
0x001d is SrcValid+, ReqRedir+, CmpltRedir+, UpstreamFwd+): ReqRedir, CmpltRedir, UpstreamFwd and EgressCtrl keep peer traffic off the direct way; SrcValid alone has been
seen to hang too. Inside a virtual machine they have to stay on (ATS), so that there they are worth a look at most.

Redirection is a fault where a probe between two such GPUs hung or gave wrong data; without a measurement it is a WARN. Only root may read the register. Where it can't be read, pairs
that all hang while those that go through host memory work are its signature (issue 667).
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

from preflight.model import Check, Evidence, Finding, Gpu, Measurement, Node, Part, PciBridge, Record, Verdict
from preflight.model.rails import rails, relation_of

NAME = "pcie_acs"

BITS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")  # bit 0 first
REDIRECT = 0b0111100
SOURCE_VALID = 0b0000001
NEAR = ("internal", "PIX", "PXB", "PHB")  # where NCCL lets GPUs access each other over PCIe
HUNG = {"no_answer": "hung", "timed_out": "hung", "wrong_data": "gave wrong data"}
EXPECTED = "no bridge between them that redirects peer traffic"
# NCCL user guide, troubleshooting, "PCI Access Control Services"
REMEDY = "as root: `setpci -s BRIDGE ECAP_ACS+0x6.w=0000` for each bridge (until the next reboot), or switch ACS or the IOMMU off in the BIOS; until then NCCL_P2P_DISABLE=1"


class _Way(Record, frozen=True):
    """Two parts that talk over PCIe: GPUs, or a GPU and its HCA. `bridges`: those that their traffic may be redirected by; None: which these are is unknown. `probes`: of two GPUs."""

    name: str
    bridges: tuple[PciBridge, ...] | None
    probes: tuple[Measurement, ...] = ()

    @property
    def hung(self) -> Measurement | None:
        """The last failed probe, if none worked."""
        failed = [probe for probe in self.probes if probe.failure and probe.failure.kind in HUNG]
        return failed[-1] if failed and not any(probe.samples for probe in self.probes) else None

    def with_bits(self, mask: int) -> tuple[PciBridge, ...]:
        return tuple(bridge for bridge in self.bridges or () if (bridge.acs_control or 0) & mask)

    @property
    def unreadable(self) -> bool:
        return self.bridges is None or any(not bridge.acs_readable for bridge in self.bridges)


def judge(evidence: Evidence) -> Iterator[Finding]:
    """For each node: pairs that hang, bridges that redirect, or one PASS. Nothing where no two parts talk over PCIe directly."""
    assert evidence.inventory is not None
    if evidence.settings.cpu_declared:
        return
    measured = _probes(evidence)
    for node in evidence.inventory.nodes:
        probes = measured.get(node.name, {})
        ways = [*_gpu_ways(node, probes), *_hca_ways(node)]
        hung = [way for way in ways if way.hung]
        if ways:
            yield from _hung_findings(node, hung, probes)
        if ways and node.tells_health:
            yield from _state_findings(node, ways, hung)


def _state_findings(node: Node, ways: Sequence[_Way], hung: Sequence[_Way]) -> Iterator[Finding]:
    """What the registers say by themselves."""
    rest = [way for way in ways if way not in hung]
    redirected = [way for way in rest if way.with_bits(REDIRECT)]
    checked = [way for way in rest if way not in redirected and way.with_bits(SOURCE_VALID)]
    unread = [way for way in rest if way.unreadable and way not in redirected and way not in checked]
    explained = [way for way in hung if way.unreadable or way.with_bits(REDIRECT | SOURCE_VALID)]
    translated = node.iommu is not None and node.iommu.mode == "translated" and not _virtual(node)
    for found, mask, text in (
        (redirected, REDIRECT, "ACS redirects"),
        (checked, SOURCE_VALID, "ACS checks the source of"),
    ):
        if found:
            yield _finding(
                node,
                Verdict.WARN,
                f"{text} peer traffic of {_names(found)}: {_bridges_text(found, mask)}{_vm_text(node)}",
                remedy=REMEDY,
            )
    if translated and node.iommu:
        observed = f"the IOMMU translates addresses ({node.iommu.source or 'source unknown'}): peer traffic passes it"
        yield _finding(node, Verdict.WARN, observed, remedy="boot with iommu=pt, or switch the IOMMU off in the BIOS")
    if unread:
        texts = dict.fromkeys(problem.text for problem in node.problems if problem.field == "pci_bridges")
        observed = f"ACS of the bridges between {_names(unread)} unknown: {'; '.join(texts) or 'not readable'}"
        yield _finding(node, Verdict.UNKNOWN, observed, remedy="run `preflight node` as root: only root may read it")
    elif node.iommu is None or node.iommu.mode is None:
        yield _finding(node, Verdict.UNKNOWN, "mode of the IOMMU unknown")
    elif not (explained or redirected or checked or translated):
        observed = f"{len(ways)} way{'s' * (len(ways) != 1)} over PCIe, no bridge redirects; IOMMU {node.iommu.mode}"
        observed += f": that {_names(hung)} hung has another cause" if hung else ""
        yield _finding(node, Verdict.PASS, observed)


def _hung_findings(
    node: Node, hung: Sequence[_Way], probes: dict[tuple[int, int], tuple[Measurement, ...]]
) -> Iterator[Finding]:
    """Pairs whose probe failed, and whose bridges explain it: by their registers, or, where these can't be read, by which pairs hang."""
    through_host = [
        pair
        for pair, tries in probes.items()
        if _ancestor(node, pair) in ("SYS", "NODE") and any(probe.samples for probe in tries)
    ]
    near = [
        pair
        for pair, tries in probes.items()
        if _ancestor(node, pair) in NEAR and any(probe.samples for probe in tries)
    ]
    for way in hung:
        assert way.hung is not None
        assert way.hung.failure is not None
        bridges = way.with_bits(REDIRECT | SOURCE_VALID)
        what = f"the probe {HUNG[way.hung.failure.kind]} ({way.hung.failure.text})"
        if bridges:
            observed = f"{what}; ACS redirects peer traffic between them through the root complex: {_bridges_text([way], REDIRECT | SOURCE_VALID)}{_vm_text(node)}"
            name = f"{node.name} PCI bridges {', '.join(bridge.bus_id for bridge in bridges)}"
        elif way.unreadable and through_host and not near:
            observed = f"{what}: pairs that would use peer-to-peer hang, {len(through_host)} that go through host memory work, which is what ACS or the IOMMU do; ACS is not readable"
            name = f"{node.name} PCI bridges between {way.name}"
        else:
            continue
        verdict = Verdict.WARN if _virtual(node) else Verdict.FAIL
        yield Finding(
            check=NAME,
            subject=f"{node.name} {way.name}",
            verdict=verdict,
            observed=observed,
            expected=EXPECTED,
            remedy=REMEDY,
            blames=Part(kind="path", name=name, confidence="likely") if verdict is Verdict.FAIL else None,
            evidence=(way.hung.probe.key,),
        )


def _probes(evidence: Evidence) -> dict[str, dict[tuple[int, int], tuple[Measurement, ...]]]:
    """Node -> indices of two of its GPUs -> what was measured between them alone."""
    if evidence.plan is None or evidence.inventory is None or not evidence.measurements:
        return {}
    by_uuid = {
        (node.name, gpu.uuid): gpu.index for node in evidence.inventory.nodes for gpu in node.gpus or () if gpu.uuid
    }
    seats = {
        rank.rank: (rank.node, by_uuid.get((rank.node, rank.gpu_uuid or ""), rank.local_rank))
        for rank in evidence.plan.placement.ranks
    }
    found: dict[str, dict[tuple[int, int], list[Measurement]]] = {}
    for measurement in evidence.measurements:
        both = [seats[rank] for rank in measurement.probe.ranks[:3] if rank in seats]
        if len(both) == len(measurement.probe.ranks) == 2 and both[0][0] == both[1][0]:
            first, second = sorted(index for _, index in both)
            found.setdefault(both[0][0], {}).setdefault((first, second), []).append(measurement)
    return {node: {pair: tuple(tries) for pair, tries in pairs.items()} for node, pairs in found.items()}


def _gpu_ways(node: Node, probes: dict[tuple[int, int], tuple[Measurement, ...]]) -> Iterator[_Way]:
    """Pairs of GPUs without NVLink that stand close enough, and that the driver lets access each other as far as it says."""
    for a, b in combinations(node.gpus or (), 2):
        peer = a.peer(b.index)
        refused = peer is not None and peer.p2p.get("read", "ok") != "ok"
        if peer is not None and peer.num_nvlinks == 0 and peer.ancestor in NEAR and not refused:
            bridges = _between(node, a.pci_upstream, b.pci_upstream)
            yield _Way(f"GPU {a.index} - GPU {b.index}", bridges, probes.get((a.index, b.index), ()))


def _hca_ways(node: Node) -> Iterator[_Way]:
    """GPUs and the HCAs that carry their traffic, where it needs not pass a CPU (a Grace's does)."""
    hcas = {hca.name: hca for hca in node.hcas or ()}
    for index, names in rails(node).own.items():
        gpu = next(gpu for gpu in node.gpus or () if gpu.index == index)
        for name in names:
            if name in hcas and relation_of(node, gpu, hcas[name]) in NEAR:
                yield _Way(f"GPU {index} - {name}", _between(node, gpu.pci_upstream, hcas[name].pci_upstream))


def _between(node: Node, above: Sequence[str] | None, other: Sequence[str] | None) -> tuple[PciBridge, ...] | None:
    """The bridges that only one of the two is below: their ports into what they share. Where the places are unknown, any of the node may be."""
    if node.pci_bridges is None:
        return None
    if not above or not other:
        return node.pci_bridges
    ids = set(above) ^ set(other)
    return tuple(bridge for bridge in node.pci_bridges if bridge.bus_id in ids)


def _ancestor(node: Node, pair: tuple[int, int]) -> str | None:
    gpu: Gpu | None = next((gpu for gpu in node.gpus or () if gpu.index == pair[0]), None)
    peer = gpu.peer(pair[1]) if gpu else None
    return peer.ancestor if peer else None


def _virtual(node: Node) -> bool:
    return node.platform is not None and node.platform.virtual_machine not in (None, "none")


def _vm_text(node: Node) -> str:
    return "; in a virtual machine ACS has to stay on (ATS)" if _virtual(node) else ""


def _names(ways: Sequence[_Way]) -> str:
    named = ", ".join(way.name for way in ways[:8])
    return named if len(ways) <= 8 else f"{named} and {len(ways) - 8} more"


def _bridges_text(ways: Sequence[_Way], mask: int) -> str:
    """As in "0x001d (SrcValid+, ReqRedir+, CmpltRedir+, UpstreamFwd+) on 0000:00:03.1, 0000:20:01.1"."""
    bridges = dict.fromkeys(bridge for way in ways for bridge in way.with_bits(mask))
    values = dict.fromkeys(bridge.acs_control or 0 for bridge in bridges)
    return "; ".join(
        f"0x{value:04x} ({decoded(value)}) on {', '.join(bridge.bus_id for bridge in bridges if bridge.acs_control == value)}"
        for value in values
    )


def decoded(control: int) -> str:
    """The set bits of an ACS control register: 0x001d -> "SrcValid+, ReqRedir+, CmpltRedir+, UpstreamFwd+"."""
    return ", ".join(f"{name}+" for bit, name in enumerate(BITS) if control >> bit & 1)


def _finding(node: Node, verdict: Verdict, observed: str, *, remedy: str = "") -> Finding:
    return Finding(check=NAME, subject=node.name, verdict=verdict, observed=observed, expected=EXPECTED, remedy=remedy)


CHECK = Check(
    name=NAME,
    claim="No PCI bridge between GPUs, or between a GPU and its HCA, redirects their traffic through the CPU.",
    why="On bare metal redirected peer traffic is slow, hangs or arrives wrong, while everything looks healthy.",
    source="NCCL user guide, troubleshooting of PCI access control services; NVIDIA/nccl issues 304, 606, 667 and 2079.",
    remedy="Switch ACS off on the bridges that are named (setpci, or the BIOS), use iommu=pt; until then NCCL_P2P_DISABLE=1.",
    uses=("inventory",),
    judge=judge,
    need="advisory",
)
