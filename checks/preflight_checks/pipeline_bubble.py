"""The pipeline spends little of its time idle.

With p stages, m micro-batches and v virtual stages, a step takes the time of m v + p - 1 chunks, of which p - 1 are idle:
idle share (p - 1) / (m v + p - 1) (1F1B and interleaved schedules). Overhead over the ideal time is (p - 1) / (m v), another number.

Limits: 10 % idle asks for a look, 25 % refuses. Four stages with 4 micro-batches idle for 3/7 = 42.9 % of the time: nearly half of the GPUs
are paid for nothing; with 27 or more it is 10 % or less. Both are our choice and meant to be overridden.
"""

import math
from collections.abc import Iterator
from fractions import Fraction

from preflight.model import Check, Evidence, Finding, Part, Plan, Verdict

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
    idle = Fraction(stages - 1, micro_batches * chunks + stages - 1)
    overhead = Fraction(stages - 1, micro_batches * chunks)
    verdict = Verdict.FAIL if idle > fail else Verdict.WARN if idle > warn else Verdict.PASS
    virtual = f", {chunks} virtual stages" if chunks > 1 else ""
    yield Finding(
        check=NAME,
        subject="pipeline",
        verdict=verdict,
        observed=f"idle share {_percent(idle)}, overhead {_percent(overhead)}, with {stages} stages and {micro_batches} micro-batches{virtual}",
        expected=expected,
        remedy="" if verdict is Verdict.PASS else _remedy(plan, warn, fail if verdict is Verdict.FAIL else None),
        blames=None if verdict is Verdict.PASS else Part(kind="plan", name="training"),
    )


def micro_batches_for(share: Fraction, stages: int, chunks: int) -> int | None:
    """The fewest micro-batches m whose idle share is at most `share`: m >= (p-1) (1-x) / (x v). None: no number would do.

    Interleaved schedules need a multiple of p, so with virtual stages it is rounded up to one.
    Worked example, p = 4, v = 1: x = 1/10 needs 3 x 0.9 / 0.1 = 27, x = 1/4 needs 9.
    """
    if share <= 0:
        return None
    needed = max(1, math.ceil((stages - 1) * (1 - share) / (share * chunks)))
    return needed if chunks == 1 else -(-needed // stages) * stages


def _remedy(plan: Plan, warn: Fraction, fail: Fraction | None) -> str:
    stages, chunks = plan.degrees["pp"], plan.job.parallel.virtual_stages
    enough = micro_batches_for(warn, stages, chunks)
    if enough is None:
        return f"no number of micro-batches reaches {_percent(warn)}: raise the limit, or set pp = 1"
    batch_size = plan.job.training.micro_batch_size
    total = f" (global batch {enough * batch_size * plan.degrees['dp']})" if batch_size else ""
    remedy = f"use at least {enough} micro-batches{total} for {_percent(warn)}"
    passable = None if fail is None else micro_batches_for(fail, stages, chunks)
    if fail is not None and passable is not None and passable != enough:
        remedy += f"; {passable} would do for {_percent(fail)}, with a warning"
    return remedy


def _percent(share: Fraction) -> str:
    return f"{float(share * 100):.1f} %"


CHECK = Check(
    name=NAME,
    claim="The pipeline spends little of its time idle.",
    why="Stages wait for the first micro-batch to arrive and the last to leave: with few micro-batches, half the GPUs are paid for nothing.",
    uses=("plan",),
    judge=judge,
    limits=LIMITS,
)
