"""What the pairs say of the fabric, as text: culprits with their reasons, the references they were held against, notes, and the probes that would decide more."""

from collections import Counter
from collections.abc import Sequence

from preflight.model import Ask, Culprit, Localisation
from preflight.model.crossing import shortened
from preflight.model.part_names import part_phrase
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
        text = "no probe gave a figure to compare, so that nothing is known of any part"
        if found.cleared_ends:
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
        text = f"nothing is called slow above {1 - found.floor:.0%} of its reference"
        lines += hang("floor".ljust(LABEL), text, width=width, indent=2)
    lines += _some("note", found.notes, MAX_NOTES, width=width)
    return lines + _asks(found, width=width)


def _some(label: str, texts: Sequence[str], most: int, *, width: int) -> list[str]:
    lines = [line for text in texts[:most] for line in hang(label.ljust(LABEL), text, width=width, indent=2)]
    return [*lines, f"  {'':<12}... and {len(texts) - most} more"] if len(texts) > most else lines


def _culprit(found: Localisation, culprit: Culprit, *, width: int) -> list[str]:
    label = "failed" if culprit.failed else "slow"
    if culprit.kind is None:
        names = list(dict.fromkeys(part_phrase(one, found.ends) for one in culprit.candidates))
        could = shortened("; ".join(names))
        text = f"not identifiable: {'one of' if len(names) > 1 else 'perhaps'} {could}" if names else "not identifiable"
        lines = hang(label.ljust(LABEL), text, width=width, indent=2)
    else:
        lines = hang(
            label.ljust(LABEL), f"{part_phrase(culprit, found.ends)} ({culprit.confidence})", width=width, indent=2
        )
    if culprit.depth is not None and culprit.observed_bytes_per_s is not None:
        against = f" of {show_rate(culprit.reference_bytes_per_s)}" if culprit.reference_bytes_per_s else ""
        figure = f"{show_rate(culprit.observed_bytes_per_s)}{against}, {culprit.depth:.0%} less"
        figure += f", {culprit.reference}" if culprit.reference else ""
        lines += hang("", figure, width=width, indent=2 + LABEL)
    if culprit.reason:
        lines += hang("", culprit.reason, width=width, indent=2 + LABEL)
    return lines


def _asks(found: Localisation, *, width: int) -> list[str]:
    times = Counter(_ask(found, ask) for ask in found.asks)  # a pair that is asked for again and again is one line
    texts = [text if number == 1 else f"{text} ({number} times)" for text, number in times.items()]
    return _some("next probe", texts, MAX_ASKS, width=width)


def _ask(found: Localisation, ask: Ask) -> str:
    ends = found.ends.name(ask.a) if ask.a == ask.b else f"{found.ends.name(ask.a)} - {found.ends.name(ask.b)}"
    return clean(f"{ask.op} {ends}{f': {ask.reason}' if ask.reason else ''}")
