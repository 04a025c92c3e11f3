"""Each planned group reaches the bus bandwidth of its peers: the groups of the same axis, size and number of nodes.

The reference is the median of those groups, the better one of two. A group of an axis that has no peer is not judged here. The limit is only as good as the repeats, and a
group that was measured once is never called slow.
"""

from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Group, Verdict
from preflight.model.hostlist import fold_numbers
from preflight.model.measurement import median
from preflight.model.noise import TOO_NOISY_REMEDY, by_subject, relative_noise, repeats_of, upper_median, why_too_noisy
from preflight.model.units import show_rate

# Gates in use sit 2 to 13 % under typical inside a node, 4 to 8 % between nodes; 10 % gave no false alarm on a healthy cluster's 360 public measurements.
LIMITS = {"shortfall": 0.10}


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each group, or one for each kind of group where the noise forbids to tell."""
    assert evidence.plan is not None
    assert evidence.measurements is not None
    shortfall = evidence.limits("group_busbw", LIMITS)["shortfall"]
    repeats = by_subject(repeats_of(evidence.measurements), "alone")
    for axis in evidence.plan.timed_axes:
        kinds: dict[tuple[int, int], list[Group]] = {}
        for group in evidence.plan.on_axis(axis):
            if group.name not in repeats:
                yield _unmeasured(group, evidence)
            else:
                nodes = len(evidence.plan.placement.nodes_of(group.ranks))
                kinds.setdefault((len(group.ranks), nodes), []).append(group)
        for groups in kinds.values():
            if len(groups) > 1:
                yield from _judge_kind(axis, groups, repeats, shortfall)
            else:
                yield Finding(
                    check="group_busbw",
                    subject=groups[0].name,
                    verdict=Verdict.SKIP,
                    observed="no other group of its axis, size and number of nodes to compare it with",
                )


def _judge_kind(axis: str, groups: list[Group], repeats: dict[str, list[float]], shortfall: float) -> Iterator[Finding]:
    typical = {group.name: median(repeats[group.name]) for group in groups}
    reference = upper_median(typical.values())
    noisy = why_too_noisy(relative_noise(repeats[group.name] for group in groups), shortfall)
    if noisy:
        slowest = min(typical, key=lambda name: typical[name])
        yield Finding(
            check="group_busbw",
            subject=f"{axis} groups",
            verdict=Verdict.WARN,
            observed=f"{noisy}; slowest {slowest} at {show_rate(typical[slowest])}, like groups {show_rate(reference)}",
            expected=f"repeats alike enough to see a shortfall of {shortfall:.0%}",
            remedy=TOO_NOISY_REMEDY,
        )
        return
    for group in groups:
        values = repeats[group.name]
        slow = max(values) < (1 - shortfall) * reference
        once = slow and len(values) == 1
        remedy = ""
        if once:
            remedy = "give a larger --budget, so that it is repeated"
        elif slow:
            remedy = f"see pair_outlier for ranks {fold_numbers(group.ranks)}; if no pair of them is slow, their ring order or route is"
        yield Finding(
            check="group_busbw",
            subject=group.name,
            verdict=Verdict.UNKNOWN if once else Verdict.FAIL if slow else Verdict.PASS,
            observed=f"{show_rate(typical[group.name])}, {typical[group.name] / reference:.0%} of its peers"
            + (", in its only measurement" if once else ""),
            expected=f"at least {1 - shortfall:.0%} of {show_rate(reference)}, the median of {len(groups)} like groups in this run",
            remedy=remedy,
            evidence=(group.name,),
        )


def _unmeasured(group: Group, evidence: Evidence) -> Finding:
    assert evidence.measurements is not None
    failures = [m.failure.text for m in evidence.measurements if m.probe.subject == group.name and m.failure]
    return Finding(
        check="group_busbw",
        subject=group.name,
        verdict=Verdict.UNKNOWN,
        observed=f"no figure for ranks {fold_numbers(group.ranks)}: {failures[-1] if failures else 'it was not reached'}",
        expected="a figure for every planned group",
        remedy="" if failures else "let the run go on to its end, with a larger --budget if need be",
    )


CHECK = Check(
    name="group_busbw",
    claim="Each planned group reaches the bus bandwidth of its peers.",
    why="The job runs at the speed of its slowest group.",
    source="peers measured in the same run; bus bandwidth as nccl-tests defines it (doc/PERFORMANCE.md)",
    remedy="look at the pairs of the slow group: the slowest member holds it up",
    uses=("plan", "measurements"),
    judge=judge,
    limits=LIMITS,
)
