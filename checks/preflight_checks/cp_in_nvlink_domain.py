"""Every context-parallel group lies inside one NVLink domain.

Its ranks pass keys and values of every layer round. That can be hidden behind attention, the more so the longer the sequence, so a group that leaves
its domain is a warning with its cost, not a refusal; severity "fail" in [rules] makes it one. With hierarchical context parallelism the innermost
level is judged: the outer ones are made for the network.
"""

from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Verdict
from preflight.model.axis_findings import judge_axis, worst_allowed

NAME = "cp_in_nvlink_domain"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """As tp_in_nvlink_domain, for cp, or for its innermost level."""
    assert evidence.plan is not None
    axis = "hcp1" if "hcp1" in evidence.plan.groups else "cp"
    yield from judge_axis(evidence, check=NAME, axis=axis, crossing=worst_allowed(evidence, NAME, Verdict.WARN))


CHECK = Check(
    name=NAME,
    claim="Every context-parallel group lies inside one NVLink domain.",
    why="Its ranks pass the keys and values of every layer round; over the network that is hidden only behind long sequences.",
    source="Megatron-Core's context parallelism passes keys and values round a ring (context_parallel package); hierarchical groups: hierarchical_context_parallel_sizes",
    remedy="put cp next to tp in the order of axes, or lower cp so that tp x cp fits into a domain",
    uses=("plan",),
    judge=judge,
)
