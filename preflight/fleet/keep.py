"""Which nodes of an over-provisioned allocation a job should use (pure). Bad ones go first; of the good ones those stay that lie on the fewest leaves, NVLink domains are used in whole blocks,
and of what is left over the slowest go.
"""

from collections.abc import Mapping, Sequence

from preflight.model import Evidence, Finding, Report, Verdict
from preflight.model.base import Noun
from preflight.model.hostlist import fold
from preflight.model.measurement import Measurement, median

NOISE = 0.05  # a node whose pairs are slower than those of most by less is none of the slow ones


class Standing(Noun, frozen=True, kw_only=True):
    """One node as the probes left it. `bad`: why it can't be kept, empty if it can; `failed`: by a FAIL, not for want of evidence. `slow`: by how much its pairs are slower than those of most (0.1: a
    tenth), 0 within the noise. `leaf`, `domain`: None: nobody told.
    """

    node: str
    bad: str = ""
    failed: bool = False
    slow: float = 0.0
    leaf: str | None = None
    domain: str | None = None


class Kept(Noun, frozen=True, kw_only=True):
    """The choice. `nodes`: in the order of the allocation. `left_out`: node -> why. `wanted`: how many were asked for; fewer are there only if there are no more good ones."""

    nodes: tuple[str, ...]
    left_out: dict[str, str]
    wanted: int

    @property
    def enough(self) -> bool:
        """Whether as many are good as were asked for."""
        return len(self.nodes) == self.wanted


def choose(standings: Sequence[Standing], wanted: int, *, block: int = 1) -> Kept:
    """The nodes to keep. `block`: nodes that belong into one NVLink domain together, since groups that need NVLink join them.

    Worked example: leaves a a a b b, the second node of a is bad, 3 wanted: both good ones of a and one of b; of those the slower is left out.
    """
    good = [standing for standing in standings if not standing.bad]
    out = {standing.node: standing.bad for standing in standings if standing.bad}
    units, rest = _units(good, block)
    chosen = _fewest_leaves(units, wanted // block if block > 1 else wanted)
    names = {standing.node for unit in chosen for standing in unit}
    for standing in sorted(
        [s for unit in units for s in unit if s.node not in names] + rest, key=lambda standing: standing.slow
    ):
        if len(names) < wanted:
            names.add(standing.node)
    for standing in good:
        if standing.node not in names:
            out[standing.node] = _why(standing, wanted)
    kept = tuple(standing.node for standing in standings if standing.node in names)
    return Kept(nodes=kept, left_out={s.node: out[s.node] for s in standings if s.node in out}, wanted=wanted)


def _why(standing: Standing, wanted: int) -> str:
    slower = f"its pairs are {standing.slow:.0%} slower than those of most, and " if standing.slow else ""
    return f"{slower}{wanted} are enough"


def _units(good: Sequence[Standing], block: int) -> tuple[list[list[Standing]], list[Standing]]:
    """Sets of `block` nodes of one domain, the fastest of each domain together; and the nodes that make up none. Where no domain is known a node is its own."""
    if block <= 1:
        return [[standing] for standing in good], []
    domains: dict[str, list[Standing]] = {}
    rest: list[Standing] = []
    for standing in good:
        if standing.domain is None:
            rest.append(standing)
        else:
            domains.setdefault(standing.domain, []).append(standing)
    units = []
    for members in domains.values():
        ordered = sorted(members, key=lambda standing: standing.slow)
        whole = len(ordered) // block * block
        units += [ordered[i : i + block] for i in range(0, whole, block)]
        rest += ordered[whole:]
    return units, rest


def _fewest_leaves(units: Sequence[list[Standing]], count: int) -> list[list[Standing]]:
    """So many units on as few leaves as can be. Of leaves that would do as well: those whose nodes are faster. A node whose leaf nobody told counts as alone on it."""
    leaves: dict[str, list[list[Standing]]] = {}
    for number, unit in enumerate(units):
        names = {standing.leaf for standing in unit}
        leaf = names.pop() if len(names) == 1 else None
        leaves.setdefault(f"?{number}" if leaf is None else f"={leaf}", []).append(unit)
    for members in leaves.values():
        members.sort(key=_slowest)
    taken: list[list[Standing]] = []
    free = dict(leaves)
    while free and len(taken) < count:
        left = count - len(taken)
        # a leaf that holds all that is left ends it, and which of these costs least is then the question; else the largest
        best = min(free, key=lambda leaf: _cost(free[leaf], left))
        taken += free.pop(best)[:left]
    return taken


def _cost(members: Sequence[Sequence[Standing]], left: int) -> tuple[int, float, int]:
    used = members[:left]
    return -len(used), max(map(_slowest, used)), len(members)


def _slowest(unit: Sequence[Standing]) -> float:
    return max(standing.slow for standing in unit)


def standings_of(report: Report) -> tuple[Standing, ...]:
    """How each node of a run stands, in the order in which the run had them."""
    evidence = report.evidence
    plan, nodes = evidence.plan, evidence.inventory.nodes if evidence.inventory else ()
    names = [node.name for node in nodes]
    bad = _bad(report.findings, names)
    slow = _slowness(evidence)
    domains = dict(zip(plan.placement.nodes, plan.placement.domains or (), strict=False)) if plan else {}
    topology = evidence.topology
    return tuple(
        Standing(
            node=name,
            bad=bad[name].observed if name in bad else "",
            failed=name in bad and bad[name].verdict is Verdict.FAIL,
            slow=slow.get(name, 0.0),
            leaf=topology.leaf_of(name) if topology else None,
            domain=domains.get(name),
        )
        for name in names
    )


def _bad(findings: Sequence[Finding], names: Sequence[str]) -> dict[str, Finding]:
    """Node -> the worst finding against it: a FAIL that blames it or a part in it, or has it for subject; an UNKNOWN of a required check about it. What is said alike of all nodes is no reason."""
    known, found = set(names), dict[str, Finding]()
    about: dict[str, list[Finding]] = {}
    for finding in findings:  # worst first
        if finding.verdict is Verdict.FAIL or (finding.verdict is Verdict.UNKNOWN and finding.need == "required"):
            for node in _nodes_of(finding, known):
                about.setdefault(node, []).append(finding)
    for node, those in about.items():
        own = [f for f in those if f.verdict is Verdict.FAIL or not _said_of_all(f, about, known)]
        if own:
            found[node] = own[0]
    return found


def _said_of_all(finding: Finding, about: Mapping[str, Sequence[Finding]], known: set[str]) -> bool:
    return len(known) > 1 and all(any(f.check == finding.check for f in about.get(node, ())) for node in known)


def _nodes_of(finding: Finding, known: set[str]) -> list[str]:
    """The nodes that a finding is against: of the part that it blames if that lies in one node, else its subject's."""
    part = finding.blames
    if part is not None and part.kind in {"gpu", "nic", "node", "rank"}:
        return _named(part.name, known)
    if part is not None:
        return []
    return _named(finding.subject, known)


def _named(text: str, known: set[str]) -> list[str]:
    """Nodes that stand as a word of the text: "n3", "n3 GPU 2", "NIC of n3 GPU 2", "rank 4 on n3". Two of them: it is about neither alone."""
    words = text.replace(",", " ").replace(":", " ").split()
    found = [word for word in dict.fromkeys(words) if word in known]
    whole = [name for name in known if name == text]
    return whole or (found if len(found) == 1 else [])


def _slowness(evidence: Evidence) -> dict[str, float]:
    """Node -> by how much the median of its pairs with other nodes is below the median of all; within the noise: not there."""
    if evidence.plan is None:
        return {}
    node_of = {rank.rank: rank.node for rank in evidence.plan.placement.ranks}
    rates: dict[str, list[float]] = {}
    for measurement in evidence.measurements or ():
        rate = _pair_rate(measurement, node_of)
        if rate is not None:
            for rank in measurement.probe.ranks:
                rates.setdefault(node_of[rank], []).append(rate)
    if len(rates) < 3:
        return {}
    medians = {node: median(each) for node, each in rates.items()}
    usual = median(list(medians.values()))
    below = {node: round(1 - rate / usual, 2) for node, rate in medians.items() if usual > 0}
    return {node: share for node, share in below.items() if share >= NOISE}


def _pair_rate(measurement: Measurement, node_of: Mapping[int, str]) -> float | None:
    probe = measurement.probe
    if probe.axis is not None or probe.collective != "send_recv" or len({node_of[rank] for rank in probe.ranks}) != 2:
        return None
    return measurement.busbw_bytes_per_s


def kept_text(kept: Kept) -> str:
    """The choice in lines for a person."""
    lines = [f"kept {len(kept.nodes)} of {len(kept.nodes) + len(kept.left_out)} nodes: {fold(kept.nodes) or 'none'}"]
    lines += [f"  left out {node}: {why}" for node, why in kept.left_out.items()]
    return "\n".join(lines) + "\n"
