"""What one busy expert costs: the expert groups' exchange with a skewed split, beside the same exchange with equal shares.

In training, experts don't get equal numbers of tokens, and an exchange ends when the busiest rank has all of its own. If that rank takes a share s of everybody's tokens, its link carries n x s times what it carries with
equal shares over n ranks, and the exchange takes that much longer: 2.4 times for 30 % of 8 ranks. Much more than that is the network's doing (incast), and worth a look. What the skew itself costs is no fault.
"""

from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Verdict
from preflight.model.group_series import Series, series_of
from preflight.model.measurement import median
from preflight.model.noise import TOO_NOISY_REMEDY, relative_noise, why_too_noisy
from preflight.model.units import show_bytes, show_seconds

NAME = "straggler_cost"
# so much longer than the busiest rank's link explains; routes and measuring explain about 12 % (see pairs of healthy clusters)
LIMITS = {"excess_ratio": 1.3}


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each group that was timed with a skewed split too."""
    assert evidence.plan is not None
    assert evidence.measurements is not None
    excess = evidence.limits(NAME, LIMITS)["excess_ratio"]
    measured = series_of(evidence.measurements)
    even = {(s.group, s.collective, s.size_bytes, s.mode): s for s in measured if not s.split}
    worst: dict[str, Finding] = {}
    for skewed in measured:
        equal = even.get((skewed.group, skewed.collective, skewed.size_bytes, skewed.mode))
        if skewed.split and equal is not None and len(skewed.split) == len(skewed.ranks):
            finding = _compare(evidence, equal, skewed, excess)
            before = worst.get(finding.subject)
            if before is None or finding.verdict.rank < before.verdict.rank:
                worst[finding.subject] = finding
    yield from worst.values()


def _compare(evidence: Evidence, equal: Series, skewed: Series, excess: float) -> Finding:
    share = max(skewed.split) / sum(skewed.split)
    bound = max(1.0, share * len(skewed.ranks))
    before_s, after_s = median(equal.durations_s), median(skewed.durations_s)
    ratio = after_s / before_s
    noisy = why_too_noisy(relative_noise([equal.rates, skewed.rates]), 1 - 1 / excess)
    slow = ratio > excess * bound
    observed = (
        f"a rank that takes {share:.0%} of the tokens makes the exchange {ratio:.2f} times as long "
        f"({show_seconds(after_s)} in place of {show_seconds(before_s)} at {show_bytes(skewed.size_bytes)}){_per_step(evidence, equal, after_s - before_s)}"
    )
    remedy = ""
    if slow and noisy:
        observed, remedy = f"{observed}; {noisy}", TOO_NOISY_REMEDY
    elif slow:
        remedy = "look at congestion towards one receiver (flow control, adaptive routing) on the way of these ranks; a capacity factor bounds the busiest expert"
    return Finding(
        check=NAME,
        subject=skewed.group,
        verdict=Verdict.WARN if slow else Verdict.PASS,
        observed=observed,
        expected=f"at most {excess * bound:.2f} times: the busiest rank's link carries {bound:.2f} times as much, and {excess:g} for the routes",
        remedy=remedy,
        evidence=(
            f"{skewed.group} {skewed.collective} {skewed.mode}",
            f"{skewed.group} {skewed.collective} skewed {skewed.mode}",
        ),
    )


def _per_step(evidence: Evidence, series: Series, extra_s: float) -> str:
    """What that adds to a training step, where the ledger knows how often the axis exchanges."""
    assert evidence.plan is not None
    calls = sum(
        row.calls
        for row in evidence.plan.estimate.ledger
        if row.axis == series.axis and row.collective == series.collective
    )
    if not calls or extra_s <= 0:
        return ""
    return f"; over {calls:.0f} exchanges of a step that is up to {show_seconds(calls * extra_s)}"


CHECK = Check(
    name=NAME,
    claim="A skewed exchange between experts costs no more than the busiest rank's link explains.",
    why="Tokens are never spread evenly, so the even exchange that benchmarks time is not the one that training waits for.",
    source="two measurements of the same run, with equal shares and with a skewed split; the bound is the busiest receiver's share times the number of ranks",
    remedy="bound the busiest expert (capacity factor, auxiliary loss), and look for congestion towards one receiver",
    uses=("plan", "measurements"),
    judge=judge,
    need="advisory",
    limits=LIMITS,
)
