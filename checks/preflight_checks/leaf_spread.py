"""The groups of an axis touch no more leaf switches and racks than the nodes, listed leaf by leaf, would make them touch.

The measure is the order of the nodes, not a wish: some axis has to cross leaves. What is compared is the same job on the same nodes, listed leaf by leaf: if the
groups of an axis touch more leaves now than then, in sum, the order of nodes scatters them (names sorted as text, an allocation in several pieces).
Leaves and racks come from a topology file; where nobody tells them, nothing is judged.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from preflight.model import Check, Evidence, Finding, Plan, Verdict
from preflight.model.axis_findings import worst_allowed
from preflight.model.crossing import cost_of, cost_text, subject_of, where_text
from preflight.model.domains import Domains
from preflight.model.hostlist import fold
from preflight.model.together import order_of_nodes

NAME = "leaf_spread"
_PLURAL = {"leaf": "leaves", "rack": "racks"}


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each axis and tier (leaves, racks) that is known."""
    plan = evidence.plan
    if plan is None:
        return
    verdict = worst_allowed(evidence, NAME, Verdict.WARN)
    for axis, footprint in plan.footprints.items():
        for tier, now, then in (
            ("leaf", footprint.leaves, footprint.leaves_in_order),
            ("rack", footprint.racks, footprint.racks_in_order),
        ):
            if now is not None and then is not None:
                yield from _judge_tier(plan, axis, tier, now, then, verdict=verdict)


def _judge_tier(
    plan: Plan, axis: str, tier: str, now: Sequence[int], then: Sequence[int], *, verdict: Verdict
) -> Iterator[Finding]:
    if now == then and 0 not in now:  # the usual case, and there may be 65,536
        subject = subject_of(axis, range(len(now)))
        yield Finding(check=NAME, subject=subject, verdict=Verdict.PASS, observed=_spread(now, tier))
        return
    known = [index for index, number in enumerate(now) if number and then[index]]  # 0: not known for some node
    if not known:
        return
    here, ordered = [now[index] for index in known], [then[index] for index in known]
    observed = f"{_spread(here, tier)}; with the nodes listed {tier} by {tier}: {_spread(ordered, tier)}"
    if sum(here) <= sum(ordered):
        subject = subject_of(axis, known)
        yield Finding(check=NAME, subject=subject, verdict=Verdict.PASS, observed=_spread(here, tier))
        return
    worse = [index for index in known if now[index] > then[index]]
    ranks = plan.groups[axis][worse[0]]
    names = (plan.placement.leaves if tier == "leaf" else plan.placement.racks) or ()
    seen = dict.fromkeys(names[plan.placement.node_ranks[rank]] or "?" for rank in ranks)
    cost = cost_text(cost_of(Domains(plan, None), axis, ranks))
    order = order_of_nodes(plan)
    yield Finding(
        check=NAME,
        subject=subject_of(axis, worse),
        verdict=verdict,
        observed=f"{observed}; {subject_of(axis, worse[:1])}: {where_text(plan, ranks)}, {_PLURAL[tier]} {fold(seen)}"
        + (f"; {cost}" if cost else ""),
        expected=f"no more {_PLURAL[tier]} than with the nodes listed {tier} by {tier}",
        remedy=f"list the nodes {tier} by {tier}: {order.text}",
        blames=order.blames,
    )


def _spread(numbers: Sequence[int], tier: str) -> str:
    """As in "8 groups over 1 leaf, 24 over 2 leaves"."""
    counted = sorted(Counter(numbers).items())
    parts = [
        f"{groups}{' groups' if not place else ''} over {number} {tier if number == 1 else _PLURAL[tier]}"
        for place, (number, groups) in enumerate(counted)
    ]
    return ", ".join(parts)


CHECK = Check(
    name=NAME,
    claim="The groups of an axis touch no more leaf switches and racks than the order of the nodes makes necessary.",
    why="A group that is scattered over leaves sends through the spine what one switch could carry.",
    source="the same job on the same nodes, listed leaf by leaf, as the measure",
    remedy="list the nodes leaf by leaf (in Slurm: topology/tree or --switches), or sort the hostfile so",
    uses=("plan",),
    judge=judge,
    need="advisory",
)
