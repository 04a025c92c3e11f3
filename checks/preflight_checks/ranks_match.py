"""The ranks are where the plan file's launcher was expected to put them.

A plan is judged, and its job written, for one map from ranks to nodes. If the launcher makes another one, whatever was found out about the first is worth
nothing: the collected map is judged by all other checks, and this one says that it is not the one that was meant. A prediction that was not certain
(Placement.doubt) only warns. Nothing to judge where the
placement was not measured, or where the plan file names no launcher.
"""

from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Part, Verdict, compare_placements

NAME = "ranks_match"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for the whole map."""
    plan = evidence.plan
    if plan is None or plan.predicted is None or plan.placement.source != "measured":
        return
    launcher = plan.job.launch.launcher or "the launcher"
    difference = compare_placements(plan.predicted, plan.placement)
    expected = f"every rank where {launcher} was expected to put it ({plan.predicted.method})"
    if difference is None:
        observed = f"all {plan.world_size} ranks are where they were expected"
        yield Finding(check=NAME, subject="placement", verdict=Verdict.PASS, observed=observed, expected=expected)
        return
    yield Finding(
        check=NAME,
        subject="placement",
        verdict=Verdict.WARN if plan.predicted.doubt else Verdict.FAIL,
        observed=difference.text
        + (f"; the prediction was not certain: {plan.predicted.doubt}" if plan.predicted.doubt else ""),
        expected=expected,
        remedy="make [launch] of the plan file say how the job is really started (hosts in the order of the allocation, distribution, rendezvous), "
        f"or start it so; first rank to look at: {difference.rank}",
        blames=Part(kind="rank", name=f"rank {difference.rank}", confidence="likely"),
    )


CHECK = Check(
    name=NAME,
    claim="The ranks are where the plan file's launcher was expected to put them.",
    why="What was judged before the start was judged for another map from ranks to nodes.",
    source="the map that the ranks themselves told, beside the launcher's rules",
    remedy="change the launcher's options as the finding says, or the plan file to what is really done",
    uses=("plan",),
    judge=judge,
)
