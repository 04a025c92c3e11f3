"""The findings as a page shows them: alike ones in one entry, worst first; what passed and what was skipped in a line for each check."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from preflight.model import Finding, Verdict
from preflight.model.hostlist import fold
from preflight.report.text import clean, shorten

MAX_NAMES = 600  # letters of a folded list
MAX_EVIDENCE = 24
MAX_ENTRIES = 300  # a page of more is read by nobody; report.json has all
MAX_TEXT = 4000  # letters of one text of a finding
LOUD = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN)


class Entry(NamedTuple):
    """Findings of one check that say the same. `number`: how many subjects."""

    verdict: str
    check: str
    subjects: str
    number: int
    observed: str
    expected: str
    blames: str
    remedy: str
    need: str
    origin: str
    evidence: tuple[str, ...]
    more_evidence: int


class Quiet(NamedTuple):
    """What one check says of everything that passed, or was skipped: its first finding, and whom else it is of."""

    check: str
    number: int
    subjects: str
    observed: str


def safe(text: str, most: int = MAX_TEXT) -> str:
    """A text from elsewhere without what steers or hides, and not endless. The template escapes it."""
    return shorten(clean(text[: 4 * most]), most)


def folded(names: Iterable[str]) -> str:
    """Names as a short list."""
    return safe(fold(dict.fromkeys(names)), MAX_NAMES)


def entries_of(findings: Sequence[Finding]) -> tuple[list[Entry], int]:
    """What is not well, worst first, and how many entries were left out."""
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for finding in sorted((f for f in findings if f.verdict in LOUD), key=lambda f: f.verdict.rank):
        kind = (finding.blames.kind, finding.blames.confidence) if finding.blames else ("", "")
        said = (finding.observed, finding.expected, finding.remedy, finding.need, finding.origin or "")
        alike.setdefault((finding.verdict.value, finding.check, *said, *kind), []).append(finding)
    entries = [_entry(some) for some in alike.values()]
    return entries[:MAX_ENTRIES], max(0, len(entries) - MAX_ENTRIES)


def _entry(some: Sequence[Finding]) -> Entry:
    first = some[0]
    evidence = tuple(dict.fromkeys(key for finding in some for key in finding.evidence))
    return Entry(
        verdict=first.verdict.value,
        check=safe(first.check),
        subjects=folded(finding.subject for finding in some),
        number=len(some),
        observed=safe(first.observed),
        expected=safe(first.expected),
        blames=_blamed(some),
        remedy=safe(first.remedy),
        need=first.need,
        origin=safe(first.origin or ""),
        evidence=tuple(safe(key, MAX_NAMES) for key in evidence[:MAX_EVIDENCE]),
        more_evidence=max(0, len(evidence) - MAX_EVIDENCE),
    )


def _blamed(some: Sequence[Finding]) -> str:
    """The part as in the terminal: "NIC of n3 GPU 2 (likely)"."""
    parts = [finding.blames for finding in some if finding.blames]
    if not parts:
        return ""
    names = folded(part.name for part in parts)
    told = parts[0].kind == "gpu" or names.lower().startswith(f"{parts[0].kind} ")  # "n3 GPU 2" says itself what it is
    return f"{names if told else f'{parts[0].kind} {names}'} ({parts[0].confidence})"


def quiet_of(findings: Sequence[Finding], verdict: Verdict) -> list[Quiet]:
    """Checks that passed, or were skipped, in the order of the report."""
    by_check: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.verdict is verdict:
            by_check.setdefault(finding.check, []).append(finding)
    return [
        Quiet(safe(check), len(some), folded(f.subject for f in some), safe(some[0].observed))
        for check, some in by_check.items()
    ]


def counts_of(findings: Iterable[Finding]) -> list[tuple[str, int]]:
    """(verdict, how many), worst first; those that nobody has given are left out."""
    counts = Counter(finding.verdict for finding in findings)
    return [(verdict.value, counts[verdict]) for verdict in Verdict if counts[verdict]]
