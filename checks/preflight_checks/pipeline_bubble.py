"""The pipeline spends little of its time idle.

How much follows from the schedule (preflight/model/pipeline.py). 1F1B with p stages and m micro-batches takes the time of m + p - 1, of which p - 1 are idle: idle share
(p - 1) / (m + p - 1). Overhead over the ideal time is (p - 1) / m, another number; both are shown, the idle share is judged.

Limits: 10 % idle asks for a look, 25 % refuses. Four stages with 4 micro-batches idle for 3/7 = 42.9 % of the time: nearly half of the GPUs
are paid for nothing; with 27 or more it is 10 % or less. Both are our choice and meant to be overridden.
"""

from collections.abc import Iterator
from fractions import Fraction

from preflight.model import Check, Evidence, Finding, Part, Plan, Verdict
from preflight.model.pipeline import exact_overhead, micro_batches_for, schedule_of

NAME = "pipeline_bubble"
LIMITS = {"warn_idle_share": 0.10, "fail_idle_share": 0.25}


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding, if there is a pipeline."""
    plan = evidence.plan
    if plan is None or plan.degrees["pp"] == 1:
        return
    limits = evidence.limits(NAME, LIMITS)
    warn, fail = (Fraction(str(limits[name])) for name in ("warn_idle_share", "fail_idle_share"))
    expected = f"idle share at most {_percent(warn)} (above {_percent(fail)}: no-go)"
    stages, chunks, micro_batches = plan.degrees["pp"], plan.job.parallel.virtual_stages, plan.estimate.micro_batches
    if micro_batches is None:
        yield Finding(
            check=NAME,
            subject="pipeline",
            verdict=Verdict.UNKNOWN,
            observed=f"{stages} stages, but the number of micro-batches is not given",
            expected=expected,
            remedy="give training.micro_batches, or global_batch_size with micro_batch_size",
        )
        return
    schedule = schedule_of(plan.job)
    overhead = exact_overhead(schedule, p=stages, m=micro_batches, v=chunks)
    idle = overhead / (1 + overhead)
    verdict = Verdict.FAIL if idle > fail else Verdict.WARN if idle > warn else Verdict.PASS
    virtual = f", {chunks} virtual stages" if chunks > 1 else ""
    named = f", {schedule} schedule" if schedule not in {"1f1b", "interleaved"} else ""
    yield Finding(
        check=NAME,
        subject="pipeline",
        verdict=verdict,
        observed=f"idle share {_percent(idle)}, overhead {_percent(overhead)}, with {stages} stages and {micro_batches} micro-batches{virtual}{named}",
        expected=expected,
        remedy="" if verdict is Verdict.PASS else _remedy(plan, warn, fail if verdict is Verdict.FAIL else None),
        blames=None if verdict is Verdict.PASS else Part(kind="plan", name="training"),
    )


def _enough(plan: Plan, share: Fraction) -> int | None:
    """The fewest micro-batches whose idle share is at most `share`. None: no number would do."""
    if not 0 < share < 1:
        return None
    chunks = plan.job.parallel.virtual_stages
    return micro_batches_for(schedule_of(plan.job), p=plan.degrees["pp"], v=chunks, idle_share=float(share))


def _remedy(plan: Plan, warn: Fraction, fail: Fraction | None) -> str:
    enough = _enough(plan, warn)
    if enough is None:
        return f"no number of micro-batches reaches {_percent(warn)}: raise the limit, or set pp = 1"
    batch_size = plan.job.training.micro_batch_size
    total = f" (global batch {enough * batch_size * plan.degrees['dp']})" if batch_size else ""
    remedy = f"use at least {enough} micro-batches{total} for {_percent(warn)}"
    passable = None if fail is None else _enough(plan, fail)
    if fail is not None and passable is not None and passable != enough:
        remedy += f"; {passable} would do for {_percent(fail)}, with a warning"
    return remedy


def _percent(share: Fraction) -> str:
    return f"{float(share * 100):.1f} %"


CHECK = Check(
    name=NAME,
    claim="The pipeline spends little of its time idle.",
    why="Stages wait for the first micro-batch to arrive and the last to leave: with few micro-batches, half the GPUs are paid for nothing.",
    source="Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU Clusters: (p - 1) / m; the limits are our choice",
    remedy="more micro-batches, fewer stages, or virtual stages",
    uses=("plan",),
    judge=judge,
    limits=LIMITS,
    of_placement=False,
)
