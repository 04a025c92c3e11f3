"""It is certain, before the job starts, which rank sits on which node.

Some launchers order nodes by what a plan file may leave unsaid: host names under torchrun's c10d, Slurm's topology since 26.05, the lines of a DeepSpeed hostfile. The
prediction then takes one order and says why that is not certain (Placement.doubt). Where nobody told how nodes hang together they are interchangeable, and the order
decides nothing that we judge: a WARN. Where domains, leaves or racks are known, other findings rest on the order: UNKNOWN.
"""

from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Verdict

NAME = "rank_order"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for a predicted placement whose launcher is known. Nothing for a measured one, which is no prediction."""
    plan = evidence.plan
    assert plan is not None
    placement = plan.placement
    if placement.source == "measured" or plan.job.launch.launcher is None:
        return
    expected = "an order of nodes that follows from the plan file alone"
    if placement.doubt is None:
        yield Finding(check=NAME, subject="nodes", verdict=Verdict.PASS, observed=placement.method, expected=expected)
        return
    joined = placement.domains is not None and len(set(placement.domains)) < len(placement.domains)
    rests = joined or placement.leaves is not None or placement.racks is not None
    note = "findings about domains, leaves and racks rest on this order" if rests else "nothing judged here rests on it"
    yield Finding(
        check=NAME,
        subject="nodes",
        verdict=Verdict.UNKNOWN if rests else Verdict.WARN,
        observed=f"{placement.method}; {placement.doubt}; {note}",
        expected=expected,
        remedy="say it in the plan file, or run `preflight ranks` under the launcher and give the result as --ranks",
    )


CHECK = Check(
    name=NAME,
    claim="It is certain, before the job starts, which rank sits on which node.",
    why="A placement that rests on a guess is worse than none: the job may run on another one.",
    source="the launchers' own rules, named in preflight/plan/launchers/",
    remedy="give the order in the plan file (launch.hosts, launch.node_names), or measure it: preflight ranks",
    uses=("plan",),
    judge=judge,
)
