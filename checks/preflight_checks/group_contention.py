"""Groups keep their bandwidth when all groups of their axis run at once, and when groups of several axes do, as in training.

The ratio together / alone is near 1 where groups share nothing, and 1/k where k groups share a NIC; k comes from the inventory, where it tells whose NIC is whose. Less than that with good figures alone is
contention: an uplink, a route, a NIC that should not be shared. Where the pairs of the run show that routes between leaves give less than the hardware allows (uplinks that are oversubscribed), groups between
leaves that keep as much of theirs are told with the gap, WARN, and no more. Of the mixed step, in which groups of several axes run at once, only a WARN is made: how their messages overlap is the framework's choice.
On agents that share one machine (--local) the groups also share its cores, so the ratio says nothing of a fabric and is never called FAIL.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import hypot
from typing import NamedTuple

from preflight.model import Check, Evidence, Finding, Group, Mode, Plan, Verdict
from preflight.model.crossed_parts import CrossedParts, between_leaves
from preflight.model.expected_rate import Expectations
from preflight.model.group_series import Series, series_of, shape_of
from preflight.model.localisation import RouteReference
from preflight.model.noise import TOO_NOISY_REMEDY, relative_noise, why_too_noisy
from preflight.model.units import show_bytes, show_rate

NAME = "group_contention"
# Of what is left when sharing is counted in. 0.5: as if the groups shared what they need not share; 0.8: clearly more than measuring noise (1 to 3 %) and route effects (5 to 12 %).
LIMITS = {"warn_ratio": 0.8, "fail_ratio": 0.5}
AS_ROUTES = 0.9  # of what pairs keep between leaves, a group is held up by the routes; as group_busbw's shortfall
HOW: dict[Mode, str] = {"together": "all groups of the axis run at once", "mixed": "groups of several axes run at once"}


class _Both(NamedTuple):
    """A group's repeats alone and in another mode, of one message. `sharers`: groups that share its NICs in that mode, itself among them; None: not known."""

    alone: Series
    other: Series
    sharers: int | None

    @property
    def ratio(self) -> float:
        return self.other.typical / self.alone.typical

    @property
    def once(self) -> bool:
        """Timed only once in one of the two ways, on which no FAIL can rest."""
        return min(len(self.alone.rates), len(self.other.rates)) == 1


class _Case(NamedTuple):
    """What is looked up once. `route`: what pairs give between leaves, and its share of what the hardware allows them; None: not known, or all of it."""

    plan: Plan
    limits: dict[str, float]
    parts: CrossedParts
    route: tuple[RouteReference, float] | None
    local: bool


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each group that was timed both ways, its worst message, or one for each axis where the noise forbids to tell; the mixed step likewise."""
    assert evidence.plan is not None
    assert evidence.measurements is not None
    limits = evidence.limits(NAME, LIMITS)
    measured = [series for series in series_of(evidence.measurements) if not series.split]
    nics = _Nics(evidence)
    parts = CrossedParts(evidence.localisation, len(evidence.plan.placement.node_ranks))
    route = between_leaves(parts, evidence, nics.expected)
    case = _Case(evidence.plan, limits, parts, route, evidence.settings.local)
    for axis in evidence.plan.timed_axes:
        groups = evidence.plan.on_axis(axis)
        alone = {(s.group, s.message): s for s in measured if s.axis == axis and s.mode == "alone"}
        together = {(s.group, s.message): s for s in measured if s.axis == axis and s.mode == "together"}
        mixed = {(s.group, s.message): s for s in measured if s.axis == axis and s.mode == "mixed"}
        # of those that were not timed alone, group_busbw speaks
        untimed = {group for group, _ in alone} - {group for group, _ in together}
        if untimed and len(groups) > 1:
            yield _unmeasured(axis, [group.name for group in groups if group.name in untimed])
        both = [_Both(alone[key], together[key], nics.sharers(groups, key[0])) for key in alone if key in together]
        yield from _judge_axis(axis, both, case)
        across = [_Both(alone[key], mixed[key], nics.mixed_sharers(groups, key[0])) for key in alone if key in mixed]
        yield from _judge_axis(axis, across, case)


class _Nics:
    """Which groups of an axis share NICs."""

    def __init__(self, evidence: Evidence) -> None:
        self.expected = Expectations(evidence)
        self._evidence = evidence
        self._users: dict[str, tuple[dict[str, tuple[str, ...]], Counter[str]]] = {}
        self._groups: dict[str, dict[str, Group]] = {}  # axis -> its groups by name
        self._all: Counter[str] | None = None  # GPUs of the job on each NIC

    def sharers(self, groups: Sequence[Group], name: str) -> int | None:
        """How many groups use the busiest NIC of this one; 1: none is shared, or the group stays inside an NVLink domain. None: not known."""
        if self._evidence.inventory is None or self._evidence.settings.backend == "gloo":
            return None
        axis = groups[0].axis
        if axis not in self._users:
            cards = {group.name: self._cards(group) for group in groups}
            known = {group: own for group, own in cards.items() if own is not None}
            self._groups[axis] = {group.name: group for group in groups}
            self._users[axis] = (known, Counter(card for own in known.values() for card in own))
        cards_of, users = self._users[axis]
        if name not in cards_of or len(cards_of) < len(groups):
            return None
        return max((users[card] for card in cards_of[name]), default=1)

    def mixed_sharers(self, groups: Sequence[Group], name: str) -> int | None:
        """How many groups may use the busiest NIC of this one in the mixed step, where each GPU is at work in one group: GPUs of the job on that NIC, by those of them in this group."""
        if self.sharers(groups, name) is None:
            return None
        assert self._evidence.plan is not None
        if self._all is None:
            everyone = range(len(self._evidence.plan.placement.node_ranks))
            self._all = Counter(card for rank in everyone for card in self.expected.nics(rank) or ())
        axis = groups[0].axis
        ranks = self._groups[axis][name].ranks if self._users[axis][0][name] else ()
        mine = Counter(card for rank in ranks for card in self.expected.nics(rank) or ())
        return max((-(-self._all[card] // number) for card, number in mine.items()), default=1)

    def _cards(self, group: Group) -> tuple[str, ...] | None:
        domains = {self.expected.domain(rank) for rank in group.ranks}
        if None in domains:
            return None
        if len(domains) == 1:
            return ()
        found: dict[str, None] = {}
        for rank in group.ranks:
            own = self.expected.nics(rank)
            if not own:
                return None  # which NIC its traffic takes is not known
            found |= dict.fromkeys(own)
        return tuple(found)


def _judge_axis(axis: str, both: Sequence[_Both], case: _Case) -> Iterator[Finding]:
    if not both:
        return
    limits = case.limits
    lowest = min(both, key=lambda pair: pair.ratio)
    mode = lowest.other.mode
    noises = [
        relative_noise(series.rates for series in some)
        for some in zip(*[(p.alone, p.other) for p in both], strict=True)
    ]
    noise = None if None in noises else hypot(*(noise for noise in noises if noise is not None))
    noisy = why_too_noisy(noise, 1 - limits["warn_ratio"])
    if noisy and (mode != "mixed" or lowest.ratio < limits["warn_ratio"]):
        yield Finding(
            check=NAME,
            subject=f"{axis} groups" + (" in the mixed step" if mode == "mixed" else ""),
            verdict=Verdict.WARN,
            observed=f"{noisy}; lowest ratio {lowest.ratio:.2f} ({lowest.alone.group})",
            expected=f"repeats alike enough to see a ratio of {limits['warn_ratio']:g}",
            remedy=TOO_NOISY_REMEDY,
        )
        return
    worst: dict[str, _Both] = {}
    for pair in both:
        before = worst.get(pair.alone.group)
        if before is None or pair.ratio * (pair.sharers or 1) < before.ratio * (before.sharers or 1):
            worst[pair.alone.group] = pair
    for pair in worst.values():
        yield _group(pair, case)


def _unmeasured(axis: str, names: list[str]) -> Finding:
    """An axis of which some groups lack a figure: what they do to each other is not known."""
    return Finding(
        check=NAME,
        subject=f"{axis} groups",
        verdict=Verdict.UNKNOWN,
        observed=f"{len(names)} groups were timed alone, but not together with the others: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}",
        expected="every group of the axis timed alone and with all others",
        remedy="see reachable for groups that failed; else give a larger --budget",
    )


def _as_routes(pair: _Both, case: _Case) -> str:
    """That the group keeps as much as pairs do on the routes between leaves, in words; empty: it keeps less, stays inside a leaf, or the routes are not known."""
    if case.route is None or not shape_of(case.plan, pair.alone.ranks)[1]:
        return ""
    route, share = case.route
    if pair.ratio * (pair.sharers or 1) < AS_ROUTES * share:
        return ""
    return f"routes between leaves keep {share:.0%} of the hardware's rate for pairs too ({show_rate(route.bytes_per_s)}, {route.source})"


def _group(pair: _Both, case: _Case) -> Finding:
    mode, limits, local = pair.other.mode, case.limits, case.local
    shared = pair.sharers or 1
    warn, fail = limits["warn_ratio"] / shared, limits["fail_ratio"] / shared
    verdict = Verdict.PASS
    if pair.ratio < warn:
        may_fail = mode == "together" and not pair.once and not local
        verdict = Verdict.FAIL if pair.ratio < fail and may_fail else Verdict.WARN
    observed = f"{pair.ratio:.2f} of its bandwidth is left when {HOW[mode]}, at {show_bytes(pair.alone.size_bytes)}"
    if verdict is not Verdict.PASS and local:
        observed += "; the agents share one machine's cores, so this says nothing of a fabric"
    fine = verdict is Verdict.PASS or local
    crossed = "" if fine else case.parts.named_for(pair.alone.ranks, 1 - pair.ratio * shared)
    routes = "" if fine or crossed else _as_routes(pair, case)
    if routes:
        verdict = Verdict.WARN
        observed += f"; {routes}"
    observed += f"; its ranks cross {crossed} (slow_part)" if crossed else ""
    observed += "; one of the two was timed only once" if pair.once and not fine else ""
    expected = f"at least {warn:.2g}"
    if mode == "together":
        expected += f" (below {fail:.2g}: FAIL)"
    if shared > 1:
        expected += f": {shared} groups share each NIC, which leaves {1 / shared:.2f}"
    elif pair.sharers is None:
        expected += "; whether the groups share NICs is not known"
    name = pair.alone.group
    return Finding(
        check=NAME,
        subject=name if mode == "together" else f"{name} in the mixed step",
        verdict=verdict,
        observed=observed,
        expected=expected,
        remedy=""
        if fine
        else f"do first what slow_part says of {crossed}; then time the groups again"
        if crossed
        else "give a larger --budget, so that it is repeated"
        if pair.once
        else "ask whether the uplinks are oversubscribed; groups that stay inside leaves don't share them"
        if routes
        else "look for an uplink, a route or a NIC that these groups share; another rank order may part them",
        evidence=(f"{name} alone", f"{name} {mode}"),
    )


CHECK = Check(
    name=NAME,
    claim="Groups keep their bandwidth when all groups of their axis run at once, and when those of several axes do.",
    why="In training they do run at once; a tool that times one at a time sees a fabric that the job never gets.",
    source="the ratio of two measurements of the same run, alone and together; 1/k where k groups share a NIC, from the inventory",
    remedy="give groups that run at once NICs of their own, or ask the network's operator about oversubscribed uplinks",
    uses=("plan", "measurements"),
    judge=judge,
    limits=LIMITS,
)
