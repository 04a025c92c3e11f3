"""Each node shows the GPUs that the plan needs there.

A rank without a GPU of its own ends the job at once, or shares a GPU and slows every group it is in. A GPU in MIG mode
takes no part in NCCL's collectives, so it doesn't count.
"""

from collections import Counter
from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Gpu, Node, Part, Verdict

NAME = "gpu_count"

# NVML's words for a GPU that is gone until it is reset: nvml.h, NVML_ERROR_GPU_IS_LOST and NVML_ERROR_RESET_REQUIRED
_GONE = ("lost", "requires reset", "reset required", "fallen off")
_NOT_ALLOWED = ("permission",)  # what an ordinary user may not read says nothing of the GPU


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each node of the plan. Nothing where a run without GPUs is meant."""
    assert evidence.plan is not None
    assert evidence.inventory is not None
    if evidence.settings.cpu_declared:
        return
    needed = Counter(rank.node for rank in evidence.plan.placement.ranks)
    for name, count in needed.items():
        node = evidence.inventory.node(name)
        expected = f"{count} usable GPU{'s' * (count != 1)}, one for each rank that the plan places there"
        if node is None or node.gpus is None:
            note = (
                "discovery has no such node" if node is None else f"GPUs unknown: {node.gpu_note or 'no reason given'}"
            )
            yield Finding(
                check=NAME,
                subject=name,
                verdict=Verdict.UNKNOWN,
                observed=note,
                expected=expected,
                remedy=f"run `preflight node` and `nvidia-smi -L` on {name}; a driver that doesn't answer needs a reboot",
            )
            continue
        yield _judge_node(node, node.gpus, count, expected)


def _judge_node(node: Node, gpus: tuple[Gpu, ...], needed: int, expected: str) -> Finding:
    unusable = {gpu.index: reason for gpu in gpus if (reason := _why_unusable(gpu))}
    doubtful = {gpu.index: reason for gpu in gpus if gpu.index not in unusable and (reason := _doubt(gpu))}
    usable = len(gpus) - len(unusable) - len(doubtful)
    reasons = [f"GPU {index}: {reason}" for index, reason in sorted({**unusable, **doubtful}.items())]
    if not gpus and node.gpu_note:
        reasons.append(node.gpu_note)
    observed = "; ".join([f"{usable} usable of {len(gpus)}", *reasons])
    if usable >= needed:
        return Finding(check=NAME, subject=node.name, verdict=Verdict.PASS, observed=observed, expected=expected)
    if usable + len(doubtful) >= needed:
        return Finding(
            check=NAME,
            subject=node.name,
            verdict=Verdict.UNKNOWN,
            observed=observed,
            expected=expected,
            remedy=f"look at the kernel log and `nvidia-smi -q` of {node.name}",
        )
    return Finding(
        check=NAME,
        subject=node.name,
        verdict=Verdict.FAIL,
        observed=observed,
        expected=expected,
        remedy=f"repair the GPUs of {node.name} (reset, or MIG off), or leave the node out of the job"
        + ("" if node.gpus else '; if CPUs are meant, say backend = "auto" under [hardware], or --backend gloo'),
        blames=_blamed(node, unusable),
    )


def _why_unusable(gpu: Gpu) -> str | None:
    if gpu.mig_enabled:
        return "in MIG mode, takes no part in NCCL collectives"
    said = "; ".join(f"{problem.source}: {problem.text}" for problem in gpu.problems)
    if gpu.uuid is None:
        return said or "can't be opened"
    return said if any(word in said.lower() for word in _GONE) else None


def _doubt(gpu: Gpu) -> str | None:
    """Problems of a GPU that still answers: it may work or not."""
    told = [p for p in gpu.problems if not any(word in p.text.lower() for word in _NOT_ALLOWED)]
    return "; ".join(f"{problem.source}: {problem.text}" for problem in told) or None


def _blamed(node: Node, unusable: dict[int, str]) -> Part:
    if len(unusable) == 1:
        return Part(kind="gpu", name=f"{node.name} GPU {next(iter(unusable))}")
    return Part(kind="node", name=node.name)


CHECK = Check(
    name=NAME,
    claim="Each node shows the GPUs that the plan needs there.",
    why="A rank without a GPU of its own ends the job, or shares a GPU and slows every group it is in.",
    uses=("inventory", "plan"),
    judge=judge,
)
