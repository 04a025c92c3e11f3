"""What each axis costs that may leave its NVLink domain: data parallelism, its shards, expert data parallelism, pipelines.

Information, never a refusal: some axis has to cross, and which one is cheapest is a matter of bytes and of what compute can hide, not of a rule. For each
axis that the ledger knows: how many of its groups leave their domain, the bytes, and the seconds inside and outside.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from preflight.model import Check, Evidence, Finding, Verdict
from preflight.model.crossing import Cost, cost_of, cost_text, span_text, subject_of, where_text
from preflight.model.domains import Domains
from preflight.model.units import show_seconds

NAME = "axis_cost"
JUDGED_ELSEWHERE = {"tp", "cp", "ep", "etp"}  # by checks of their own


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each axis, one that compares those that cross, and one that compares the two orders of pipeline and data parallelism."""
    domains = Domains.of(evidence)
    if domains is None:
        return
    crossing: dict[str, Cost] = {}
    for axis in domains.plan.groups:
        if axis not in JUDGED_ELSEWHERE:
            yield from _judge_axis(domains, axis, crossing)
    if len(crossing) > 1:
        yield _compare(crossing)
    yield from _other_order(domains)


def _judge_axis(domains: Domains, axis: str, crossing: dict[str, Cost]) -> Iterator[Finding]:
    plan, groups = domains.plan, domains.plan.groups[axis]
    if cost_of(domains, axis, groups[0]) is None:
        return
    found = domains.along(axis)
    apart = found.apart + found.pcie
    example = groups[apart[0] if apart else 0]
    cost = cost_of(domains, axis, example)
    assert cost is not None
    note = f" ({domains.note})" if domains.note else ""
    unknown = f", {len(found.unknown)} not known" if found.unknown else ""
    if apart:
        crossing[axis] = cost
        footprint = plan.footprints.get(axis)
        span = f", each on {span_text([footprint.nodes[index] for index in apart], 'node')}" if footprint else ""
        first = f"{subject_of(axis, apart[:1])}: {where_text(plan, example, domains)}"
        observed = f"{len(apart)} of {len(groups)} groups leave their NVLink domain{span}{unknown}{note}; {first}"
    else:
        observed = f"{len(found.inside)} of {len(groups)} groups inside one NVLink domain{unknown}{note}"
    yield Finding(
        check=NAME,
        subject=subject_of(axis, range(len(groups))),
        verdict=Verdict.PASS,
        observed=f"{observed}; {cost_text(cost)}",
    )


def _compare(crossing: dict[str, Cost]) -> Finding:
    """Which of the axes that cross costs most, so that one sees which to bring inside first."""

    def seconds(cost: Cost) -> float:
        return (cost.outside_s or 0.0) - (cost.inside_s or 0.0)

    ordered = sorted(crossing.items(), key=lambda item: (seconds(item[1]), item[1].sent_bytes), reverse=True)
    parts = []
    for axis, cost in ordered:
        hidden = ", beside compute" if cost.hidden else ""
        known = cost.outside_s is not None and cost.inside_s is not None
        parts.append(f"{axis} {show_seconds(seconds(cost))} per step{hidden}" if known else f"{axis}, rates not known")
    observed = f"staying inside one domain would save, before overlap: {'; '.join(parts)}"
    return Finding(check=NAME, subject="axes that cross", verdict=Verdict.PASS, observed=observed)


def _other_order(domains: Domains) -> Iterator[Finding]:
    """The seconds of pp and of the gradients in Megatron's two orders, where all domains are alike and filled one after another, so that
    strides tell which groups cross: those whose n x stride ranks are more than a domain has, or do not divide it.
    """
    plan = domains.plan
    order, degrees = plan.order, plan.degrees
    gradients = "dp_cp" if degrees["cp"] > 1 else "dp"
    if plan.job.parallel.framework != "megatron" or not {"dp", "pp"} <= set(order):
        return
    costs = {axis: cost_of(domains, axis, plan.groups[axis][0]) for axis in (gradients, "pp") if axis in plan.groups}
    if None in costs.values() or not domains.is_filled_in_order:
        return
    size = domains.sizes[0]
    swapped = tuple({"dp": "pp", "pp": "dp"}.get(axis, axis) for axis in order)
    totals = []
    for axes in (order, swapped):
        total_s, where = 0.0, []
        for axis, cost in costs.items():
            if cost is None or cost.inside_s is None or cost.outside_s is None:
                return
            inside = size % _span(axis, axes, degrees) == 0
            total_s += cost.inside_s if inside else cost.outside_s
            where.append(f"{axis} {'inside a domain' if inside else 'across'}")
        totals.append((f"{'-'.join(axes)}: {', '.join(where)}", total_s))
    if len(costs) < 2 or totals[0][0].partition(":")[2] == totals[1][0].partition(":")[2]:
        return
    (here, here_s), (there, there_s) = totals
    observed = f"order {here}, {show_seconds(here_s)} per step; {there}, {show_seconds(there_s)} (before overlap)"
    etp, ep = degrees.get("etp", 1), degrees["ep"]
    if "edp" in degrees and etp * ep != degrees["tp"] * degrees["cp"] and swapped[-1] != "pp":
        observed += f"; Megatron refuses it, since etp {etp} x ep {ep} is not tp {degrees['tp']} x cp {degrees['cp']}: only another order of nodes can do that"
    yield Finding(check=NAME, subject="order", verdict=Verdict.PASS, observed=observed)


def _span(axis: str, order: Sequence[str], degrees: Mapping[str, int]) -> int:
    """How many consecutive ranks hold a whole number of groups of this axis: the product of the degrees up to and with it (ep is no axis of dense layers)."""
    last = max(order.index(name) for name in axis.split("_"))
    return math.prod(degrees[name] for name in order[: last + 1] if name != "ep")


CHECK = Check(
    name=NAME,
    claim="What each axis costs that leaves its NVLink domain is known.",
    why="Some axis has to cross to the network; which one should is a matter of bytes and overlap, not of a rule.",
    source="the plan's ledger of bytes (preflight/plan/ledger.py) and the link rates of the profile or plan file",
    remedy="nothing by itself; `preflight plan --advise` compares orders of the axes",
    uses=("plan",),
    judge=judge,
    need="advisory",
)
