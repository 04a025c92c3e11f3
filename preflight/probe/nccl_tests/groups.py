"""Runs over three nodes or more: the slowest member holds all of them up, so that a fast run clears its nodes and a slow one accuses all the others of its own together."""

from preflight.model.crossing import shortened
from preflight.model.hostlist import fold
from preflight.model.localisation import Culprit, Ends, Localisation, RouteReference
from preflight.model.units import show_rate
from preflight.probe.nccl_tests.families import Family, figures_at
from preflight.probe.nccl_tests.shots import show_size

SHORTFALL = 0.15  # as for pairs whose leaves nobody told; healthy H100 clusters stay within some 4 % (public logs), fan-out adds 10 to 30 % only between unlike numbers of nodes
LEAST_RUNS = 3


def judge_groups(family: Family, size_bytes: int, ends: Ends) -> Localisation:
    """The node that alone can explain all slow runs of the family, if there is one; else which may. Few runs: `unjudged`, with their figures."""
    rates = {
        run.source: (frozenset(run.hosts), figures.busbw_bytes_per_s)
        for run in family.runs
        if len(run.hosts) > 2 and (figures := figures_at(run, size_bytes))
    }
    where = f"{family.name} at {show_size(size_bytes)}"
    if len(rates) < LEAST_RUNS:
        told = ", ".join(f"{fold(hosts)} {show_rate(rate)}" for hosts, rate in rates.values())
        return Localisation(ends=ends, unjudged=f"{told or 'no figure'}: too few runs to compare", shots=len(rates))
    best = sorted((rate for _, rate in rates.values()), reverse=True)
    reference = best[(len(best) - 1) // 4]  # the upper quarter: one run that came out well doesn't set it
    fast = frozenset(host for hosts, rate in rates.values() if rate >= (1 - SHORTFALL) * reference for host in hosts)
    slow = {source: (hosts, rate) for source, (hosts, rate) in rates.items() if rate < (1 - SHORTFALL) * reference}
    found = RouteReference(
        op=where,
        route="between nodes",
        bytes_per_s=reference,
        shots=len(rates),
        source=f"upper quarter of {len(rates)} runs",
    )
    return Localisation(
        ends=ends,
        references=(found,),
        culprits=_culprits(slow, fast, reference, where),
        floor=SHORTFALL,
        cleared_ends=len(fast),
        shots=len(rates),
    )


def _culprits(
    slow: dict[str, tuple[frozenset[str], float]], fast: frozenset[str], reference: float, where: str
) -> tuple[Culprit, ...]:
    if not slow:
        return ()
    observed = max(rate for _, rate in slow.values())
    facts = {
        "ops": (where,),
        "observed_bytes_per_s": observed,
        "reference_bytes_per_s": reference,
        "depth": 1 - observed / reference,
        "reference": f"the faster runs of {where}",
        "evidence": tuple(slow)[:8],
    }
    common = frozenset.intersection(*(hosts for hosts, _ in slow.values())) - fast
    suspects = {host for hosts, _ in slow.values() for host in hosts} - fast
    over = "; ".join(dict.fromkeys(fold(sorted(hosts)) for hosts, _ in slow.values()))
    one = len(slow) == 1
    told = f"{len(slow)} run{'' if one else 's'} {'is' if one else 'are'} slow ({shortened(over)}), {show_rate(observed)} at best of {show_rate(reference)}"
    if len(common) == 1 and suspects == common and len(slow) > 1:
        node = next(iter(common))
        reason = f"{told}; {node} is in each of them and in no fast one, and all their other nodes are in fast ones"
        return (Culprit(kind="node", nodes=(node,), confidence="likely", reason=reason, **facts),)  # type: ignore[arg-type]
    candidates = tuple(
        Culprit(kind="node", nodes=(node,), confidence="possible", reason=f"in slow runs of {where}, in no fast one")
        for node in sorted(suspects)
    )
    whom = (
        fold(sorted(suspects))
        if suspects
        else "no node: each is in a fast run too, so that it is what these have in common, a switch or a way that only they use"
    )
    reason = f"{told}; in slow runs only: {whom}"
    return (Culprit(kind=None, confidence="possible", reason=reason, candidates=candidates[:16], **facts),)  # type: ignore[arg-type]
