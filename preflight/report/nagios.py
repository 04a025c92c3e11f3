"""A run as the line that Nagios, Icinga and their kin read: "PREFLIGHT CRITICAL - no-go: 1 FAIL (xid): gpu07: ... | fail=1 ...".

The format: a status, text, a bar, then 'label'=value[UOM];[warn];[crit];[min];[max], separated by spaces; U stands for a value that could not be determined; no bar and no line break in the text
(monitoring-plugins.org/doc/guidelines.html, "Plugin Output" and "Performance data"; Icinga's developer guidelines, "Performance Data Metrics", for labels without special characters).
"""

from collections import Counter
from collections.abc import Iterator

from preflight.model import Report, Verdict
from preflight.report.rates import group_rates, pair_rates
from preflight.report.text import clean, shorten
from preflight.statistics import spread_of

# NRPE before 3.0 carries 1,024 bytes; the figures take up to 400 of them
MAX_TEXT = 500
WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")


def nagios_text(report: Report) -> str:
    """Status, the answer with its reason, the worst finding, and the run's figures; one line. Bars in texts become broken ones, since what follows a bar is data."""
    from preflight.report.console import answer_line

    text = f"{status_word(report)} - {answer_line(report)}"
    worst = _worst(report)
    text = shorten(clean(f"{text}: {worst}" if worst else text), MAX_TEXT)
    return f"PREFLIGHT {_ascii(text)} | {' '.join(_figures(report))}\n"


def status_word(report: Report) -> str:
    """OK, WARNING (go, with a WARN among the findings), CRITICAL (no-go) or UNKNOWN (undecided)."""
    if report.answer == "go":
        return WORDS[any(finding.verdict is Verdict.WARN for finding in report.findings)]
    return WORDS[2] if report.answer == "no-go" else WORDS[3]


def _worst(report: Report) -> str:
    worst = next((finding for finding in report.findings if finding.verdict.rank <= Verdict.WARN.rank), None)
    return f"{worst.subject}: {worst.observed}" if worst else ""


def _ascii(text: str) -> str:
    """Programs on the way cut at bytes and know no encoding."""
    return text.replace("|", "/").encode("ascii", "backslashreplace").decode()


def _figures(report: Report) -> Iterator[str]:
    counts = Counter(finding.verdict for finding in report.findings)
    for verdict in Verdict:
        yield f"{verdict.value.lower()}={counts[verdict]};;;0"
    yield f"duration={max(report.duration_s, 0):.3f}s;;;0"
    if report.evidence.settings.simulated:
        yield "simulated=1"
    seen = report.coverage
    for what, measured, planned in (
        ("pairs_measured", seen.pairs_measured, seen.pairs_planned),
        ("groups_measured", seen.groups_measured, seen.groups_planned),
    ):
        if planned:
            yield f"{what}={measured};;;0;{planned}"
    measurements = report.evidence.measurements or ()
    pairs = pair_rates(measurements)
    if pairs:
        spread = spread_of(rate for rate in pairs.values() if rate is not None)
        # busbw; the format has no unit of rates. U: measured, and no pair gave a figure
        yield f"pair_min_bytes_per_second={f'{spread.minimum:.0f}' if spread else 'U'};;;0"
        yield f"pair_median_bytes_per_second={f'{spread.median:.0f}' if spread else 'U'};;;0"
    kept = spread_of(rate.contention for rate in group_rates(measurements) if rate.contention is not None)
    if kept:
        yield f"group_contention_min={kept.minimum:.3f};;;0"
