"""Series of planned groups beside the three references: what the hardware allows, like groups of the run, and earlier runs; which of them a series is short of, and whether that can be called (pure; group_busbw needs it)."""

from collections.abc import Iterator, Sequence

from preflight.model.base import Record
from preflight.model.changed_since import fall_of
from preflight.model.changes import LEAST_BEFORE
from preflight.model.crossed_parts import CrossedParts
from preflight.model.evidence import BaselineEntry, Evidence
from preflight.model.expected_rate import Expectation, Expectations
from preflight.model.finding import Verdict
from preflight.model.group_series import Reference, Series, peers_reference, shape_of
from preflight.model.localisation import RouteReference
from preflight.model.noise import SIGMAS, expected_chance_alarms, relative_noise, transient_share, why_too_noisy
from preflight.model.units import show_rate

CHANCE_ALARMS = 0.01  # groups of a kind that may be slow each time by chance
AS_DEEP = 0.7  # of its shortfall, how deep a repeat must be held up to make one
HISTORY_RUNS = LEAST_BEFORE  # earlier runs that make a history
AS_PEERS = 0.95  # of its peers, a group is no worse than they


class Case(Record, frozen=True):
    """The evidence, its limits, and what was looked up once."""

    evidence: Evidence
    limits: dict[str, float]
    expected: Expectations
    history: dict[tuple[str, str, int], BaselineEntry]
    parts: CrossedParts
    route: tuple[RouteReference, float] | None  # between leaves, and its share of what the hardware allows a pair there


class Kind(Record, frozen=True):
    """Series that are each other's peers. `noise`: of their repeats, None: nothing was repeated. `peers`: None: fewer than two of them, or too noisy."""

    series: list[Series]
    across: bool
    noise: float | None
    noisy: str | None
    shortfall: float
    peers: Reference | None


class Short(Record, frozen=True):
    """A series below one of the references. `depth`: 1 - best repeat / reference. `sure`: deep and often enough to be called; else it is UNKNOWN."""

    reference: str
    depth: float
    sure: bool
    verdict: Verdict
    unsure: str = ""


def kinds_of(case: Case, measured: Sequence[Series]) -> Iterator[Kind]:
    """The largest messages first, so that of equal verdicts theirs are shown."""
    assert case.evidence.plan is not None
    kinds: dict[object, list[Series]] = {}
    for series in sorted(measured, key=lambda series: -series.size_bytes):
        kinds.setdefault((series.message, shape_of(case.evidence.plan, series.ranks)), []).append(series)
    for some in kinds.values():
        per_node, leaves = shape_of(case.evidence.plan, some[0].ranks)
        shortfall = case.limits["unknown_route_shortfall" if leaves is None else "shortfall"]
        noise = relative_noise(series.rates for series in some)
        noisy = why_too_noisy(noise, shortfall)
        peers = None
        if len(some) > 1 and not noisy:
            peers = peers_reference([series.typical for series in some], shortfall)
        yield Kind(some, len(per_node) > 1, noise, noisy, shortfall, peers)


def short_of_peers(kind: Kind, series: Series) -> Short | None:
    """Its best repeat below that of its peers; None: not so, or it has none."""
    if kind.peers is None or max(series.rates) >= (1 - kind.shortfall) * kind.peers.bytes_per_s:
        return None
    depth = 1 - max(series.rates) / kind.peers.bytes_per_s
    return _called(kind, series, "its peers", depth, Verdict.FAIL)


def short_of_formula(case: Case, kind: Kind, series: Series, want: Expectation) -> Short | None:
    """Its best repeat below what the hardware allows; None: not so, or no formula. WARN where pairs between leaves reach no more of it, or the formula is a hint."""
    least = want.minimum_bytes_per_s
    if want.bytes_per_s is None or least is None or max(series.rates) >= least:
        return None
    depth = 1 - max(series.rates) / want.bytes_per_s
    what = f"what the hardware allows ({show_rate(want.bytes_per_s)}: {want.formula}; {want.source})"
    assert case.evidence.plan is not None
    if case.route and kind.across and shape_of(case.evidence.plan, series.ranks)[1]:
        route, share = case.route
        if max(series.rates) >= (1 - kind.shortfall) * share * want.bytes_per_s:
            what += f"; routes between leaves give {share:.0%} of that to pairs too ({show_rate(route.bytes_per_s)}, {route.source})"
            return _called(kind, series, what, depth, Verdict.WARN)
    return _called(kind, series, what, depth, Verdict.FAIL if want.firm else Verdict.WARN)


def short_of_history(case: Case, kind: Kind, series: Series) -> Short | None:
    """Its best repeat below what it used to reach. A drop by itself is worth a look and no more: what else changed is not all known. One that a single measurement shows is only told once several runs show it."""
    entry = case.history.get((series.group, series.collective, series.size_bytes))
    assert case.evidence.plan is not None
    if entry is None:
        return None
    nodes = case.evidence.plan.placement.nodes_of(series.ranks)
    fall = fall_of(case.evidence, entry, max(series.rates), nodes, floor=case.limits["history_drop"])
    if fall is None or (len(series.rates) == 1 and not fall.drop.lasting):
        return None
    usual = fall.drop.before
    what = f"its own history ({show_rate(usual)}, the median of {fall.drop.runs_before} earlier runs; {fall.text})"
    if len(series.rates) == 1:
        return Short(what, 1 - max(series.rates) / usual, True, Verdict.WARN)
    return _called(kind, series, what, 1 - max(series.rates) / usual, Verdict.WARN)


def _called(kind: Kind, series: Series, reference: str, depth: float, verdict: Verdict) -> Short:
    """Whether it can be called: measured more than once, and deeper than the noise."""
    if len(series.rates) == 1:
        return Short(reference, depth, False, Verdict.UNKNOWN, "in its only measurement")
    if kind.noise is not None and depth < SIGMAS * kind.noise:
        return Short(reference, depth, False, Verdict.WARN, f"with repeats that differ by {kind.noise:.0%}")
    held_up = transient_share((each.rates for each in kind.series), max(kind.shortfall, AS_DEEP * depth)) or 0.0
    if expected_chance_alarms(len(kind.series), len(series.rates), held_up) > CHANCE_ALARMS:
        return Short(reference, depth, False, Verdict.WARN, f"where {held_up:.0%} of the repeats are held up so much")
    return Short(reference, depth, True, verdict)


def beside_peers(kind: Kind, series: Series, short: Short) -> Short:
    """As fast as its peers, of which others are not short: then the limit is near, and the group no worse than they are."""
    if kind.peers is None or short.verdict is not Verdict.FAIL or max(series.rates) < AS_PEERS * kind.peers.bytes_per_s:
        return short
    return short.replace(verdict=Verdict.WARN)
