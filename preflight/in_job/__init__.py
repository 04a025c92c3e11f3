"""Inside a job, in the first lines of its script: are the ranks where the plan needs them? Public as `preflight.assert_placement`.

Three ways to know where the ranks are: gathered over the job's own torch.distributed, given as a file of `preflight ranks`, or derived from what the
launcher tells each process. Torch is never imported here: a job that uses torch.distributed has done so.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from preflight.errors import PlacementError
from preflight.in_job.agreeing import agreed
from preflight.in_job.judging import PlanLike, derived, given, judged, outcome_of
from preflight.model import Job, Plan, RankFacts

DEADLINE_S = 60.0  # ranks reach the first line of a script within seconds of one another; slow file systems take longer


def assert_placement(
    plan: PlanLike, *, ranks: str | Path | Sequence[RankFacts] | None = None, deadline_s: float = DEADLINE_S
) -> str:
    """Raise PlacementError unless the ranks of this job sit where its plan needs them. Call it on every rank, after init_process_group.

        import preflight
        torch.distributed.init_process_group(...)
        preflight.assert_placement("job.toml")

    `plan`: a plan file (TOML), or a Job or Plan of preflight.model; of a Plan only its job counts, since the placement is what is in question.

    Under an initialised torch.distributed every rank sends its host, boot id, local rank, GPU UUID and NVLink domain to rank 0, as tensors over the default
    group; rank 0 judges the placement they form by every installed check that needs nothing but a plan (tensor-parallel groups inside an NVLink
    domain, one rank per GPU, the launcher's expected order, divisibility, ..., as [rules] of the plan file want them; not by estimates of memory and
    bubble, which are the planner's business), and sends its reason to all. So all ranks raise, with one text, or none does; also if a rank can't read the plan, has another plan than rank 0, or did not come within
    `deadline_s` seconds. GPUs are named by the device that the process uses already, else by CUDA_VISIBLE_DEVICES and the local rank.

    Without torch.distributed: the placement is derived from the launcher's variables (Slurm's step, torchrun's numbers) or predicted from [launch], judged, and this process must
    be where it says. Each rank then answers for itself: the reason is the same for all as far as the plan is at fault, and names this rank where it is elsewhere.

    `ranks`: a file or folder of `preflight ranks`, or its facts, in place of all this: judged by each process alone, nothing is sent.

    Gives the fingerprint of the plan as it is placed ("pf1-..."), for checkpoints to carry. A FAIL raises; WARN and UNKNOWN don't. Raises nothing but
    PlacementError, except for a wrong type of argument (TypeError).
    """
    if not isinstance(plan, str | Path | Job | Plan):
        raise TypeError(f"plan: {type(plan).__name__}, expected the path of a plan file, a Job or a Plan")
    torch_distributed = sys.modules.get("torch.distributed")
    if ranks is not None:
        outcome = outcome_of(lambda: judged(plan, given(ranks)))
    elif torch_distributed is not None and torch_distributed.is_available() and torch_distributed.is_initialized():
        outcome = agreed(plan, deadline_s)
    else:
        outcome = outcome_of(lambda: derived(plan))
    if outcome.reason:
        raise PlacementError(outcome.reason)
    return outcome.fingerprint
