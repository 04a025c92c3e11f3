"""Every expert-parallel group, and every group that splits experts (etp), lies inside one NVLink domain, so that ep x etp does.

Two all-to-alls per layer forward and two backward go along ep. Some dispatchers work only inside one domain (HybridEP, symmetric memory; the plan file says
ep_needs_domain): then a group that leaves it is refused. Others are built for it (DeepSeek-V3 ran ep 64 over 8 nodes, sending each token to at
most 4 of them), so otherwise it is a warning with its cost; severity "fail" in [rules] makes it a refusal.
"""

from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Verdict
from preflight.model.axis_findings import judge_axis, worst_allowed
from preflight.model.together import Remedy

NAME = "ep_in_nvlink_domain"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """As tp_in_nvlink_domain, for ep and etp."""
    assert evidence.plan is not None
    needed = evidence.plan.job.parallel.ep_needs_domain
    verdict = Verdict.FAIL if needed else worst_allowed(evidence, NAME, Verdict.WARN)

    def amend(change: Remedy) -> str:
        if change.blames.name != "parallel.ep":
            return change.text
        if needed:
            return f"{change.text}; or use a dispatcher that works over several domains"
        return f"{change.text}; or keep it, if the dispatcher sends each token to few nodes"

    for axis in ("ep", "etp"):
        yield from judge_axis(evidence, check=NAME, axis=axis, crossing=verdict, amend=amend)


CHECK = Check(
    name=NAME,
    claim="Every expert-parallel group lies inside one NVLink domain.",
    why="Each MoE layer sends every token to its experts and back; between domains that takes many times longer, and some dispatchers break.",
    source="DeepSeek-V3 technical report (node-limited routing to 4 nodes); NVIDIA HybridEP and symmetric-memory dispatchers need one domain",
    remedy="lower ep, or let ranks of an expert group sit side by side; with node-limited routing set the rule to warn",
    uses=("plan",),
    judge=judge,
)
