"""What else may have slowed a part that a run's measurements speak against: its node is drained only where all of that can be left out (pure).

The localiser names what explains most. A drain wants more, since the nodes of a job often lie scattered: one that is alone on its leaf, or whose leaf nobody told, is as slow with all
others as a sick one, where uplinks are few or busy. So a node is drained for its way to others only if it was slow with nodes of its own leaf that are fast with others, and fast with nobody.
Failures are no rates: a worker or an agent may have been the reason.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from preflight.model.ends import ends_of
from preflight.model.evidence import Evidence
from preflight.model.finding import Finding, Part, Verdict
from preflight.model.localisation import LONE
from preflight.model.measurement import Measurement, median

SLOWER = 0.08  # as in controller_evidence.py: healthy clusters stay within 4 %
FASTER = 0.15  # than with the nodes of its leaf: then it is no part of the node that holds it back
TIMES = 2
MANY = 4  # nodes from which on half of them are a kind of their own
MOST_PORTS = 128  # of one leaf switch (SN5600: 128 of 400 Gbit/s)
OF_NODES = frozenset({"node", "gpu", "nic", "link"})
COPIES = frozenset({"host_to_device", "device_to_host"})


class Alibis:
    """Of the nodes of one run. `accused`: of each check, all nodes that it speaks against, which are no measure of one another. `findings`: all of the run."""

    def __init__(
        self, evidence: Evidence, accused: Mapping[str, AbstractSet[str]], findings: Iterable[Finding]
    ) -> None:
        assert evidence.plan is not None
        self.unsettled = next((f for f in findings if _is_of_the_network(f)), None)
        self.measurements = evidence.measurements or ()
        ends = ends_of(evidence.plan, evidence.topology)
        self.node_of = [ends.nodes[node] for node in ends.node]
        self.slot_of = ends.slot
        self.leaf_of = dict(zip(ends.nodes, ends.leaves or (None,) * len(ends.nodes), strict=True))
        on_leaf = Counter(
            above[0] for above in ((evidence.topology and evidence.topology.switches) or {}).values() if above
        )
        self.no_leaves = {leaf for leaf, number in on_leaf.items() if number > MOST_PORTS}
        self.accused = accused.get("slow_part", frozenset())
        self.slow_alone = accused.get("gpu_speed", frozenset())
        self.by_node: dict[str, list[tuple[int, int, float]]] = {}
        self.inside: dict[str, list[tuple[int, int, float]]] = {}
        for m in self.measurements:
            self._sort_in(m)

    def of(self, finding: Finding, node: str) -> str:
        """Why this finding is not enough to drain the node; empty: it is."""
        if finding.check == "gpu_speed":
            return self._of_company(finding) or self._of_copies(finding)
        if finding.check != "slow_part" or finding.blames is None or finding.blames.kind == "link":
            return ""
        ranks = self._ranks(finding, node)
        if finding.blames.kind == "gpu" and self._is_slow_inside(ranks, node):
            return ""
        return self._of_pairs(finding.blames, ranks, node)

    def _sort_in(self, m: Measurement) -> None:
        probe, rate = m.probe, m.busbw_bytes_per_s
        if probe.axis is not None or probe.collective != "send_recv" or probe.size_name == LONE or rate is None:
            return
        if len(probe.ranks) != 2 or max(probe.ranks) >= len(self.node_of):
            return
        a, b = probe.ranks
        if self.node_of[a] == self.node_of[b]:
            self.inside.setdefault(self.node_of[a], []).append((a, b, rate))
            return
        self.by_node.setdefault(self.node_of[a], []).append((a, b, rate))
        self.by_node.setdefault(self.node_of[b], []).append((b, a, rate))

    def _of_company(self, finding: Finding) -> str:
        """Half of the nodes are slower than the other half: then two kinds of nodes are there, and neither is the measure."""
        number, many = len(self.leaf_of), len(self.slow_alone)
        whole = finding.blames is not None and finding.blames.kind == "node"
        if 2 * many < number or not (whole or number >= MANY):
            return ""
        return f"{many} of {number} nodes are as slow, so that it is no measure which of them are well"

    def _of_copies(self, finding: Finding) -> str:
        """A slow slot or link is a fact of its own (pcie_link)."""
        named = set(finding.evidence)
        ops = {m.probe.collective for m in self.measurements if m.probe.key in named}
        only = bool(ops) and ops <= COPIES
        return "only its copies to and from the host were slow, which a busy host does too" if only else ""

    def _ranks(self, finding: Finding, node: str) -> set[int]:
        """The ranks of the part: those of the node that all of the finding's probes share, else all of the node."""
        here = {rank for rank, name in enumerate(self.node_of) if name == node}
        named = set(finding.evidence)
        shared = [set(m.probe.ranks) & here for m in self.measurements if m.probe.key in named]
        one = set.intersection(*shared) if shared else set()
        return one if one and finding.blames is not None and finding.blames.kind != "node" else here

    def _is_slow_inside(self, ranks: AbstractSet[int], node: str) -> bool:
        rates = self.inside.get(node, ())
        mine = [rate for a, b, rate in rates if ranks & {a, b}]
        others = [rate for a, b, rate in rates if not ranks & {a, b}]
        return len(mine) >= TIMES and len(others) >= TIMES and median(mine) < (1 - SLOWER) * median(others)

    def _of_pairs(self, part: Part, ranks: AbstractSet[int], node: str) -> str:
        measured = set(self.by_node)
        if 2 * len(self.accused & measured) >= len(measured):
            return f"{len(self.accused & measured)} of {len(measured)} nodes are as slow, so that it is no measure which of them are well"
        if self.unsettled is not None:
            return f"more of the network was slow in the same run ({self.unsettled.subject}), which may be the reason"
        leaf = self.leaf_of.get(node)
        if leaf in self.no_leaves:
            return f"its leaf {leaf} has more nodes by the topology file than a switch has ports, so that it is none"
        if leaf is None:
            return "which leaf it is on is not known (topology of the plan, or of [slurm]), and a healthy node that is alone on its leaf may be as slow"
        met = [probe for probe in self.by_node.get(node, ()) if probe[0] in ranks]
        by_mate: dict[str, list[tuple[float, bool]]] = {}
        beyond: dict[str, list[float]] = {}
        for mine, theirs, rate in met:
            other = self.node_of[theirs]
            if other in self.accused:
                continue
            if self.leaf_of.get(other) != leaf:
                beyond.setdefault(other, []).append(rate)
            elif (usual := self._usual(other, node, like=self._is_like(mine, theirs))) is not None:
                by_mate.setdefault(other, []).append((rate, rate < (1 - SLOWER) * usual))
        return _weighed(part, by_mate, beyond)

    def _usual(self, mate: str, node: str, *, like: bool) -> float | None:
        """What a node of the same leaf gives with others that nothing speaks against, which are as near or farther."""
        rates = [
            rate
            for mine, theirs, rate in self.by_node.get(mate, ())
            if self._is_like(mine, theirs) == like and self.node_of[theirs] not in {node, *self.accused}
        ]
        return median(rates) if len(rates) >= TIMES else None

    def _is_like(self, a: int, b: int) -> bool:
        return self.slot_of[a] == self.slot_of[b]


def _is_of_the_network(finding: Finding) -> bool:
    """Something between nodes is slow, or nobody can tell what."""
    if finding.check != "slow_part" or finding.verdict not in {Verdict.FAIL, Verdict.UNKNOWN}:
        return False
    return finding.blames is None or finding.blames.kind not in OF_NODES


def _weighed(part: Part, by_mate: dict[str, list[tuple[float, bool]]], beyond: dict[str, list[float]]) -> str:
    probes = [probe for mine in by_mate.values() for probe in mine]
    if sum(slow for _, slow in probes) < TIMES:
        return "it was not seen to be slow with nodes of its own leaf that are fast with others: the way out of the leaf may be it"
    for mate, mine in by_mate.items():
        if 2 * sum(slow for _, slow in mine) <= len(mine):
            return f"it was as fast with {mate} as others are"
    level = median([rate for rate, _ in probes])
    for other, rates in _often(beyond):
        if median(rates) > (1 + FASTER) * level:
            return f"it was faster with {other}, on another leaf, than with nodes of its own: the {part.kind} does not hold it back"
    return ""


def _often(beyond: dict[str, list[float]]) -> Iterator[tuple[str, Sequence[float]]]:
    return ((other, rates) for other, rates in beyond.items() if len(rates) >= TIMES)
