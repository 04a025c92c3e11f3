"""No part of the fabric is slower than its peers: GPU, NIC, slot, node, link, leaf, uplink, path between sets of nodes.

Pairs of GPUs are measured in rounds; a fast pair clears every part that it crossed, and a part is named only if all that crossed it was slow, nothing else explains that, and partners that are
known to be good stand beside it. What could be more than one part is UNKNOWN, with the probes that would decide. The inference is the judge's (Evidence.localisation); this check says what
it found. Rates are compared within one class of routes only; the gap between classes is told and blamed on nothing.

Source: peers measured in the same run; the smallest depth that is called is 8 times the noise and at least 10 % (healthy clusters stay within 4 % of their median over 45 pairs in public nccl-tests
logs, and differ by 5 to 12 % between classes of routes).
"""

from collections.abc import Iterable, Iterator

from preflight.model import Check, Culprit, Ends, Evidence, Finding, Localisation, Measurement, Part, Verdict
from preflight.model.expected_rate import Expectations
from preflight.model.finding import PartKind
from preflight.model.hostlist import fold
from preflight.model.noise import TOO_NOISY_REMEDY
from preflight.model.part_names import is_one_end, part_name, part_phrase
from preflight.model.part_remedies import Around, remedy_of
from preflight.model.rails import rails
from preflight.model.units import show_rate

NAME = "slow_part"
MOST_ASKS = 6  # that a remedy spells out
WORTH_A_LOOK = (
    "too many on one",
    "slower than their peers by less",
)  # of the notes: nothing is named, and all is not well
ON_METHOD = ("never by the average", "the noise of")  # of the notes: the fabric section has them
SEE = "mend what reachable says of them, and run again"
MOST_UNCLEAR = 8  # questions with a finding of their own


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each culprit and question; one PASS or WARN where there is none."""
    found = evidence.localisation
    if found is None:
        return
    silent = _without_figure(evidence.measurements or ())
    if found.unjudged:
        yield _unjudged(found, silent)
        return
    around = _around(evidence, found)
    named = [culprit for culprit in found.culprits if culprit.kind is not None or is_one_end(culprit)]
    unclear = [culprit for culprit in found.culprits if culprit.kind is None and not is_one_end(culprit)]
    yield from (_named(culprit, found, around) for culprit in named)
    yield from (_unclear(culprit, found) for culprit in unclear[:MOST_UNCLEAR])
    if len(unclear) > MOST_UNCLEAR:
        text = f"{len(unclear) - MOST_UNCLEAR} more slow pairs of which more than one explanation remains"
        yield _finding(Verdict.UNKNOWN, text, _expected(found), _run_asks(found, ()))
    if not found.culprits:
        yield _nothing_slow(found, silent)


def _without_figure(measurements: Iterable[Measurement]) -> int:
    """How many pairs were tried and gave no figure at all. Those that were left out are coverage, and none of these."""
    figures: dict[tuple[int, ...], bool] = {}
    for m in measurements:
        if m.probe.axis is None and len(m.probe.ranks) == 2 and not (m.failure and m.failure.kind == "not_run"):
            pair = tuple(sorted(m.probe.ranks))
            figures[pair] = figures.get(pair, False) or bool(m.samples)
    return list(figures.values()).count(False)


def _around(evidence: Evidence, found: Localisation) -> Around:
    """What a remedy may point at. NICs are looked up only for ends whose own way is slow."""
    nccl = evidence.settings.backend != "gloo"
    ends = [culprit.ends[0] for culprit in found.culprits if culprit.kind == "nic" and culprit.ends]
    if not ends or evidence.plan is None or evidence.inventory is None:
        return Around(nccl)
    expected = Expectations(evidence)
    seats = {end: expected.seat(end) for end in ends}
    return Around(nccl, {end: rails(seat.node).own.get(seat.gpu.index, ()) for end, seat in seats.items() if seat})


def _finding(verdict: Verdict, observed: str, expected: str, remedy: str = "") -> Finding:
    """About the fabric as a whole."""
    return Finding(check=NAME, subject="fabric", verdict=verdict, observed=observed, expected=expected, remedy=remedy)


def _unjudged(found: Localisation, silent: int) -> Finding:
    if found.floor is not None:  # figures are there, and the noise hides what they say
        expected = "repeats alike enough to tell a slow part from a fast one"
        return _finding(Verdict.WARN, found.unjudged, expected, TOO_NOISY_REMEDY)
    verdict = Verdict.SKIP if "too few" in found.unjudged and not silent else Verdict.UNKNOWN
    return _finding(verdict, found.unjudged + _silence(silent), "three pairs or more", SEE if silent else "")


def _named(culprit: Culprit, found: Localisation, around: Around) -> Finding:
    part, subject = part_of(culprit, found.ends), part_name(culprit, found.ends)
    return Finding(
        check=NAME,
        subject=subject,
        verdict=Verdict.UNKNOWN if culprit.kind is not None and culprit.confidence == "possible" else Verdict.FAIL,
        observed=culprit.reason,
        expected=_expected(found, culprit),
        remedy=remedy_of(culprit, found.ends, around),
        blames=part,
        evidence=culprit.evidence,
    )


def _unclear(culprit: Culprit, found: Localisation) -> Finding:
    touched = {end for one in culprit.candidates for end in one.ends}
    nodes = {node for one in culprit.candidates for node in (*one.nodes, *one.other_nodes)}
    nodes |= {found.ends.nodes[found.ends.node[end]] for end in touched}
    could_be = "; ".join(dict.fromkeys(part_phrase(one, found.ends) for one in culprit.candidates[:4]))
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


def part_of(culprit: Culprit, ends: Ends) -> Part:
    """What is blamed. Where GPU and NIC were not told apart: the rank."""
    kind: PartKind = culprit.kind or "rank"
    return Part(kind=kind, name=part_name(culprit, ends), confidence=culprit.confidence)


def _expected(found: Localisation, culprit: Culprit | None = None) -> str:
    floor = found.floor or 0.0
    if culprit is not None and culprit.failed:
        return "every run comes to its end" if found.ends.whole_nodes else "every probe gives a figure"
    if culprit is not None and culprit.reference and culprit.reference_bytes_per_s is not None:
        return f"at least {1 - floor:.0%} of {show_rate(culprit.reference_bytes_per_s)}, {culprit.reference}"
    shown = "; ".join(f"{show_rate(r.bytes_per_s)} {r.route} ({r.source})" for r in found.references[:4])
    return f"at least {1 - floor:.0%} of {shown}" if shown else ""


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


def _silence(silent: int) -> str:
    if not silent:
        return ""
    one = silent == 1
    return f"; {silent} pair{'' if one else 's'} gave no figure (see reachable), so that of what only {'it crosses' if one else 'they cross'} nothing is known"


def _nothing_slow(found: Localisation, silent: int) -> Finding:
    """A part is cleared by a fast probe; what has none is not claimed."""
    what, number = "nodes" if found.ends.whole_nodes else "GPUs", len(found.ends.node)
    if not found.cleared_ends:
        return _finding(Verdict.UNKNOWN, f"no probe gave a figure to compare{_silence(silent)}", _expected(found), SEE)
    seen = "" if found.cleared_ends == number else f" of {number}"
    text = f"no part slower than its peers: {found.cleared_ends}{seen} {what}, {found.shots} probes{_silence(silent)}"
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
