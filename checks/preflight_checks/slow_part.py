"""No part of the fabric is slower than its peers: GPU, NIC, slot, node, link, leaf, uplink, path between sets of nodes.

Pairs of GPUs are measured in rounds; a fast pair clears every part that it crossed, and a part is named only if all that crossed it was slow, nothing else explains that, and partners that are
known to be good stand beside it. What could be more than one part is UNKNOWN, with the probes that would decide. The inference is the judge's (Evidence.localisation); this check says what
it found. Rates are compared within one class of routes only; the gap between classes is told and blamed on nothing.

Source: peers measured in the same run; the smallest depth that is called is 8 times the noise and at least 10 % (healthy clusters stay within 4 % of their median over 45 pairs in public nccl-tests
logs, and differ by 5 to 12 % between classes of routes).
"""

from collections.abc import Iterator

from preflight.model import Check, Culprit, Ends, Evidence, Finding, Localisation, Part, Verdict
from preflight.model.finding import PartKind
from preflight.model.hostlist import fold
from preflight.model.noise import TOO_NOISY_REMEDY
from preflight.model.units import show_rate

NAME = "slow_part"
MOST_ASKS = 6  # that a remedy spells out
WORTH_A_LOOK = (
    "too many on one",
    "slower than their peers by less",
)  # of the notes: nothing is named, and all is not well
ON_METHOD = ("never by the average", "the noise of")  # of the notes: the fabric section has them
MOST_UNCLEAR = 8  # questions with a finding of their own


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each culprit and question; one PASS or WARN where there is none."""
    found = evidence.localisation
    if found is None:
        return
    if found.unjudged:
        yield _unjudged(found)
        return
    named = [culprit for culprit in found.culprits if culprit.kind is not None or _one_end(culprit)]
    unclear = [culprit for culprit in found.culprits if culprit.kind is None and not _one_end(culprit)]
    yield from (_named(culprit, found) for culprit in named)
    yield from (_unclear(culprit, found) for culprit in unclear[:MOST_UNCLEAR])
    if len(unclear) > MOST_UNCLEAR:
        text = f"{len(unclear) - MOST_UNCLEAR} more slow pairs of which more than one explanation remains"
        yield _finding(Verdict.UNKNOWN, text, _expected(found), _run_asks(found, ()))
    if not found.culprits:
        yield _nothing_slow(found)


def _finding(verdict: Verdict, observed: str, expected: str, remedy: str = "") -> Finding:
    """About the fabric as a whole."""
    return Finding(check=NAME, subject="fabric", verdict=verdict, observed=observed, expected=expected, remedy=remedy)


def _unjudged(found: Localisation) -> Finding:
    if found.floor is not None:  # figures are there, and the noise hides what they say
        expected = "repeats alike enough to tell a slow part from a fast one"
        return _finding(Verdict.WARN, found.unjudged, expected, TOO_NOISY_REMEDY)
    verdict = Verdict.SKIP if "too few" in found.unjudged else Verdict.UNKNOWN
    return _finding(verdict, found.unjudged, "three pairs or more")


def _one_end(culprit: Culprit) -> bool:
    """A question whose every answer is on one GPU's own way: whatever it is, this rank is slow."""
    ends = {candidate.ends for candidate in culprit.candidates}
    kinds = {candidate.kind for candidate in culprit.candidates}
    return culprit.kind is None and len(ends) == 1 and bool(kinds) and kinds <= {"gpu", "nic"}


def _named(culprit: Culprit, found: Localisation) -> Finding:
    part, subject = part_of(culprit, found.ends), subject_of(culprit, found.ends)
    return Finding(
        check=NAME,
        subject=subject,
        verdict=Verdict.UNKNOWN if culprit.kind is not None and culprit.confidence == "possible" else Verdict.FAIL,
        observed=culprit.reason,
        expected=_expected(found, culprit),
        remedy=_remedy(culprit, found.ends),
        blames=part,
        evidence=culprit.evidence,
    )


def _unclear(culprit: Culprit, found: Localisation) -> Finding:
    touched = {end for one in culprit.candidates for end in one.ends}
    nodes = {node for one in culprit.candidates for node in (*one.nodes, *one.other_nodes)}
    nodes |= {found.ends.nodes[found.ends.node[end]] for end in touched}
    could_be = "; ".join(dict.fromkeys(f"{subject_of(one, found.ends)}" for one in culprit.candidates[:4]))
    more = f" and {len(culprit.candidates) - 4} more" if len(culprit.candidates) > 4 else ""
    text = f"{culprit.reason}; it could be {could_be}{more}" if could_be else culprit.reason
    return Finding(
        check=NAME,
        subject=fold(sorted(nodes)) or "fabric",
        verdict=Verdict.UNKNOWN,
        observed=text,
        expected=_expected(found, culprit),
        remedy=_run_asks(found, nodes),
        evidence=culprit.evidence,
    )


def subject_of(culprit: Culprit, ends: Ends) -> str:
    """The part for people: "n3 GPU 2", "NIC of n3 GPU 2", "n1 GPU 0 to n2 GPU 0", "uplink of leaf1", "n[0-8] to n[9-16]"."""
    names = [ends.name(end) for end in culprit.ends]
    slot = "" if culprit.slot is None else f", slot {culprit.slot}"
    if culprit.kind is None and culprit.candidates:
        return f"{ends.name(culprit.candidates[0].ends[0])}" if culprit.candidates[0].ends else "fabric"
    if culprit.kind == "path" or (culprit.kind == "class" and culprit.other_nodes and not culprit.fact):
        return f"{fold(culprit.nodes)} to {fold(culprit.other_nodes)}"
    if culprit.kind == "uplink" and culprit.share is not None:
        return f"part of the uplink of {culprit.leaf}{slot}"
    return {
        "gpu": " ".join(names),
        "nic": f"NIC of {' '.join(names)}",
        "link": " to ".join(names),
        "slot": f"slot {culprit.slot}",
        "node": fold(culprit.nodes),
        "class": culprit.fact or fold(culprit.nodes),
        "leaf": f"{culprit.leaf}{slot}",
        "uplink": f"uplink of {culprit.leaf}{slot}",
        "environment": "environment",
    }.get(culprit.kind or "", culprit.kind or "fabric")


def part_of(culprit: Culprit, ends: Ends) -> Part:
    """What is blamed. Where GPU and NIC were not told apart: the rank."""
    kind: PartKind = culprit.kind or "rank"
    return Part(kind=kind, name=subject_of(culprit, ends), confidence=culprit.confidence)


def _expected(found: Localisation, culprit: Culprit | None = None) -> str:
    floor = found.floor or 0.0
    if culprit is not None and culprit.failed:
        return "every run comes to its end" if found.ends.whole_nodes else "every probe gives a figure"
    if culprit is not None and culprit.reference and culprit.reference_bytes_per_s is not None:
        return f"at least {1 - floor:.0%} of {_rate(culprit.reference_bytes_per_s)}, {culprit.reference}"
    shown = "; ".join(f"{_rate(r.bytes_per_s)} {r.route} ({r.source})" for r in found.references[:4])
    return f"at least {1 - floor:.0%} of {shown}" if shown else ""


def _rate(bytes_per_s: float) -> str:
    """Slow links in MB/s, so that digits are left."""
    return show_rate(bytes_per_s) if bytes_per_s >= 1e9 else f"{bytes_per_s / 1e6:.1f} MB/s"


def _remedy(culprit: Culprit, ends: Ends) -> str:
    """The smallest next step."""
    node = ends.nodes[ends.node[culprit.ends[0]]] if culprit.ends else fold(culprit.nodes)
    slot = ends.slot[culprit.ends[0]] if culprit.ends else culprit.slot
    way = {"both": "", "sending": " as sender", "receiving": " as receiver"}[culprit.direction]
    links = "its cables, optics and port counters"
    if culprit.kind == "link":
        names = " and ".join(ends.name(end) for end in culprit.ends)
        return f"look at what only {names} share: route, switch port, cable; both work with others"
    if culprit.kind is None:
        end = culprit.candidates[0].ends[0]
        return f"leave {ends.nodes[ends.node[end]]} out, or look at the GPU and NIC of slot {ends.slot[end]}: pairs inside the node would tell which"
    return {
        "gpu": f"leave {node} out of the job, and test its GPU {slot} by itself",
        "nic": f"leave {node} out of the job, and test the NIC of its GPU {slot}{way}: {links}",
        "slot": f"look at what slot {slot} of all nodes has in common: rail switch, NIC model and firmware, PCIe place",
        "node": f"leave {node} out of the job, and test it by itself{way}: NICs, PCIe, power, other work on it",
        "class": f"give all nodes the same software: {culprit.fact}",
        "leaf": f"look at the switch {culprit.leaf}; no single node on it is at fault",
        "uplink": f"look at the uplinks of {culprit.leaf}{way}; no node on it is at fault: place the job inside leaves until then",
        "path": "look at the route between the sets, no node is at fault: uplink, spine, firewall, interface; place the job inside one set until then",
        "environment": "look at what all have in common before any node: NCCL settings, drivers, GPUDirect, the fabric as a whole",
    }.get(culprit.kind, "")


def _run_asks(found: Localisation, nodes: "frozenset[str] | set[str] | tuple[str, ...]") -> str:
    asks = [ask for ask in found.asks if not nodes or {_node(found, ask.a), _node(found, ask.b)} & set(nodes)]
    pairs = dict.fromkeys(f"{found.ends.name(ask.a)} - {found.ends.name(ask.b)}" for ask in asks)
    shown = ", ".join(list(pairs)[:MOST_ASKS])
    if not shown:
        return "not identifiable from these probes"
    how = "run nccl-tests over" if found.ends.whole_nodes else "run again, with a larger --budget, to measure"
    return f"not identifiable from these probes: {how} {shown}"


def _node(found: Localisation, end: int) -> str:
    return found.ends.nodes[found.ends.node[end]]


def _nothing_slow(found: Localisation) -> Finding:
    what = "nodes" if found.ends.whole_nodes else "GPUs"
    text = f"no part slower than its peers: {found.cleared_ends} {what}, {found.shots} probes"
    odd = [note for note in found.notes if any(word in note for word in WORTH_A_LOOK)]
    notes = [note for note in found.notes if not any(word in note for word in ON_METHOD)]
    shown = "; ".join([text, *notes[:4]])
    if odd:
        return _finding(
            Verdict.WARN, shown, _expected(found), "run again when the nodes are idle; look at the fabric if it stays"
        )
    return _finding(Verdict.PASS, shown, _expected(found))


CHECK = Check(
    name=NAME,
    claim="No part of the fabric is slower than its peers.",
    why="One slow GPU, NIC, cable or uplink holds up every collective that crosses it, and blaming the wrong part costs a good node.",
    source="peers measured in the same run; fabric benchmarks and public pair matrices for floor and method (see the header of the file)",
    remedy="Leave out or look at the part that is named; where several remain, run the probes that the finding lists.",
    uses=("measurements",),
    judge=judge,
)
