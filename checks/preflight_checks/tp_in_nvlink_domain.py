"""Every tensor-parallel group lies inside one NVLink domain.

A group that leaves its domain does its all-reduces, two per layer, over the network: the job runs, many times slower, and nothing
fails. Domain: Gpu.nvlink_domain (NVML fabric info: cluster UUID and clique), or what a topology file or the plan file says. Where nobody tells more,
a node counts as one domain, and every finding says so; that is wrong for machines whose NVLink joins several nodes.
"""

from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Verdict
from preflight.model.axis_findings import judge_axis

NAME = "tp_in_nvlink_domain"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each group that leaves its domain (the first 8; then one for the rest), and for those that stay inside."""
    yield from judge_axis(evidence, check=NAME, axis="tp", crossing=Verdict.FAIL)


CHECK = Check(
    name=NAME,
    claim="Every tensor-parallel group lies inside one NVLink domain.",
    why="A group that leaves it does two all-reduces per layer over the network: many times slower, and silent.",
    source="two all-reduces per layer forward and backward: Shoeybi et al. 2019, Megatron-LM; NVML fabric info for the domain",
    remedy="block distribution of ranks (srun -m block), or a tp that divides the GPUs of a domain",
    uses=("plan",),
    judge=judge,
)
