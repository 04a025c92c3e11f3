"""What the pairs say of the fabric, as text: culprits with their reasons, the references they were held against, notes, and the probes that would decide more."""

from collections import Counter
from collections.abc import Sequence

from preflight.model import Ask, Culprit, Localisation
from preflight.model.crossing import shortened
from preflight.model.hostlist import fold
from preflight.model.units import show_rate
from preflight.report.text import clean, hang

MAX_CULPRITS = 12
MAX_REFERENCES = 8
MAX_NOTES = 8
MAX_ASKS = 8
LABEL = 12  # "next probe" and two spaces


def fabric_lines(found: Localisation | None, *, width: int) -> list[str]:
    """The section; empty where nothing was localised."""
    if found is None:
        return []
    lines: list[str] = []
    if found.unjudged:
        lines += hang("unjudged".ljust(LABEL), found.unjudged, width=width, indent=2)
    for number, culprit in enumerate(found.culprits):
        if number == MAX_CULPRITS:
            lines.append(f"  ... and {len(found.culprits) - MAX_CULPRITS} more: see --format json")
            break
        lines += _culprit(found, culprit, width=width)
    if not found.culprits and not found.unjudged:
        what = "nodes" if found.ends.whole_nodes else "GPUs"
        text = f"no part is slower than its peers: {found.cleared_ends} of {len(found.ends.node)} {what} have a probe at the reference, of {found.shots} probes"
        lines += hang("", text, width=width, indent=2)
    for reference in found.references[:MAX_REFERENCES]:
        noise = "not repeated" if reference.noise is None else f"repeats differ by {reference.noise:.1%}"
        formula = ""
        if reference.expected_bytes_per_s is not None:
            formula = f"; expected {show_rate(reference.expected_bytes_per_s)}, {reference.expected_source}"
        text = f"{reference.op} {reference.route}: {show_rate(reference.bytes_per_s)}, {reference.source}, {reference.shots} probes, {noise}{formula}"
        lines += hang("reference".ljust(LABEL), text, width=width, indent=2)
    if found.floor is not None and not found.unjudged:
        lines.append(f"  {'floor':<12}nothing is called slow above {1 - found.floor:.0%} of its reference")
    lines += _some("note", found.notes, MAX_NOTES, width=width)
    return lines + _asks(found, width=width)


def _some(label: str, texts: Sequence[str], most: int, *, width: int) -> list[str]:
    lines = [line for text in texts[:most] for line in hang(label.ljust(LABEL), text, width=width, indent=2)]
    return [*lines, f"  {'':<12}... and {len(texts) - most} more"] if len(texts) > most else lines


def _culprit(found: Localisation, culprit: Culprit, *, width: int) -> list[str]:
    label = "failed" if culprit.failed else "slow"
    if culprit.kind is None:
        names = list(dict.fromkeys(name_of(found, one) for one in culprit.candidates))
        could = shortened("; ".join(names))
        text = f"not identifiable: {'one of' if len(names) > 1 else 'perhaps'} {could}" if names else "not identifiable"
        lines = hang(label.ljust(LABEL), text, width=width, indent=2)
    else:
        lines = hang(label.ljust(LABEL), f"{name_of(found, culprit)} ({culprit.confidence})", width=width, indent=2)
    if culprit.depth is not None and culprit.observed_bytes_per_s is not None:
        against = f" of {show_rate(culprit.reference_bytes_per_s)}" if culprit.reference_bytes_per_s else ""
        figure = f"{show_rate(culprit.observed_bytes_per_s)}{against}, {culprit.depth:.0%} less"
        figure += f", {culprit.reference}" if culprit.reference else ""
        lines += hang("", figure, width=width, indent=2 + LABEL)
    if culprit.reason:
        lines += hang("", culprit.reason, width=width, indent=2 + LABEL)
    return lines


def name_of(found: Localisation, culprit: Culprit) -> str:
    """The part for people: "node n3, sending", "nic of n3 GPU 2", "path n[0-8] to n[9-16]"."""
    ends = [found.ends.name(end) for end in culprit.ends]
    nodes, others = shortened(fold(culprit.nodes)), shortened(fold(culprit.other_nodes))
    slot = "" if culprit.slot is None else f" slot {culprit.slot}"
    name = {
        "gpu": f"GPU {' and '.join(ends)}",
        "nic": f"NIC of {' and '.join(ends)}",
        "link": f"link {' to '.join(ends)}",
        "slot": f"slot {culprit.slot} on all nodes",
        "rail": f"rail{slot}",
        "node": f"node {nodes}",
        "leaf": f"inside leaf {culprit.leaf}{slot}",
        "uplink": f"uplink of leaf {culprit.leaf}{slot}",
        "path": f"path {nodes} to {others}",
        "class": f"{culprit.fact or 'one class of nodes'}: {nodes}{f' with {others}' if others else ''}",
        "environment": "environment: all alike",
        None: "something",
    }.get(culprit.kind, f"{culprit.kind} {nodes or ' '.join(ends)}")
    share = "" if culprit.share is None else f", {culprit.share:.0%} of what crosses it"
    way = "" if culprit.direction == "both" else f", {culprit.direction}"
    return f"{name}{share}{way}"


def _asks(found: Localisation, *, width: int) -> list[str]:
    times = Counter(_ask(found, ask) for ask in found.asks)  # a pair that is asked for again and again is one line
    texts = [text if number == 1 else f"{text} ({number} times)" for text, number in times.items()]
    return _some("next probe", texts, MAX_ASKS, width=width)


def _ask(found: Localisation, ask: Ask) -> str:
    ends = found.ends.name(ask.a) if ask.a == ask.b else f"{found.ends.name(ask.a)} - {found.ends.name(ask.b)}"
    return clean(f"{ask.op} {ends}{f': {ask.reason}' if ask.reason else ''}")
