"""Each node shows the GPUs that the plan needs there.

A rank without a GPU of its own ends the job at once, or shares a GPU and slows every group it is in. A GPU in MIG mode
takes no part in NCCL's collectives, so it doesn't count. GPUs that the scheduler or a mask keeps from the job are not the node's fault; those that only this
task's own cgroup hides count, if the step has them.
Source: NCCL user guide ("Using MIG instances"; older releases refuse MIG); nvml.h on lost GPUs; srun(1), "OUTPUT ENVIRONMENT VARIABLES".
"""

from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Gpu, Node, Part, Verdict
from preflight.model.job_gpus import num_given, task_binding, tasks_on_node, why_gone
from preflight.model.per_gpu import gpu_part

NAME = "gpu_count"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each node of the plan. Nothing where a run without GPUs is meant."""
    assert evidence.plan is not None
    assert evidence.inventory is not None
    if evidence.settings.cpu_declared:
        return
    placement = evidence.plan.placement
    by_name = {node.name: node for node in evidence.inventory.nodes}
    for name, count in zip(placement.nodes, placement.ranks_per_node, strict=True):
        if not count:
            continue
        node = by_name.get(name)
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
        measured = placement.gpu_uuids is not None
        yield _judge_node(node, node.gpus, count, expected, masked=not measured)


def _judge_node(node: Node, gpus: tuple[Gpu, ...], needed: int, expected: str, *, masked: bool) -> Finding:
    unusable = {gpu.index: reason for gpu in gpus if (reason := _why_unusable(gpu))}
    doubtful = {gpu.index: reason for gpu in gpus if gpu.index not in unusable and (reason := _doubt(gpu))}
    usable = len(gpus) - len(unusable) - len(doubtful)
    reasons = [f"GPU {index}: {reason}" for index, reason in sorted({**unusable, **doubtful}.items())]
    if not gpus and node.gpu_note:
        reasons.append(node.gpu_note)
    binding = task_binding(node)
    if binding is not None and not reasons and binding.given >= needed:
        return Finding(
            check=NAME,
            subject=node.name,
            verdict=Verdict.PASS,
            observed=f"the step has {binding.given}; this task is bound to {binding.seen}, which `gpu_isolation` judges",
            expected=expected,
        )
    limit = _kept(node, usable, needed) if masked and usable + len(doubtful) >= needed else None
    observed = "; ".join([f"{usable} usable of {len(gpus)}", *reasons, *([limit] if limit else [])])
    if usable >= needed and limit is None:
        return Finding(check=NAME, subject=node.name, verdict=Verdict.PASS, observed=observed, expected=expected)
    if usable + len(doubtful) >= needed and limit is None:
        return Finding(
            check=NAME,
            subject=node.name,
            verdict=Verdict.UNKNOWN,
            observed=observed,
            expected=expected,
            remedy=f"look at the kernel log and `nvidia-smi -q` of {node.name}",
        )
    given = num_given(node.mask) if node.mask is not None else None
    if limit is not None or (given is not None and given == len(gpus) < needed and not reasons):
        return _not_given(node, observed, expected, given)
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


def _kept(node: Node, usable: int, needed: int) -> str | None:
    """How the mask of this process leaves too few of the usable GPUs; None if it doesn't, or where each task has a mask of its own."""
    mask = node.mask
    if mask is None or mask.gpu_uuids is None or len(mask.gpu_uuids) >= needed or (tasks_on_node(mask) or 1) > 1:
        return None
    return f"the mask of this process shows {len(mask.gpu_uuids)} of {usable}"


def _not_given(node: Node, observed: str, expected: str, given: int | None) -> Finding:
    told = "" if given is None else f" (the scheduler gave {given} on this node)"
    return Finding(
        check=NAME,
        subject=node.name,
        verdict=Verdict.FAIL,
        observed=observed + told,
        expected=expected,
        remedy="ask the scheduler for as many GPUs on each node as the plan has ranks there (--gpus-per-node), or unset CUDA_VISIBLE_DEVICES",
        blames=Part(kind="environment", name=f"GPUs given to the job on {node.name}", confidence="likely"),
    )


def _why_unusable(gpu: Gpu) -> str | None:
    if gpu.mig_enabled:
        return "in MIG mode, takes no part in NCCL collectives"
    if gpu.uuid is None:
        return "; ".join(f"{problem.source}: {problem.text}" for problem in gpu.problems) or "can't be opened"
    return why_gone(gpu)


def _doubt(gpu: Gpu) -> str | None:
    """Problems of a GPU that still answers, and of no one fact: it may work or not. What an ordinary user may not read says nothing of it."""
    told = [problem for problem in gpu.problems if not problem.not_allowed and problem.field is None]
    return "; ".join(f"{problem.source}: {problem.text}" for problem in told) or None


def _blamed(node: Node, unusable: dict[int, str]) -> Part:
    if len(unusable) == 1:
        return next(gpu_part(node, gpu) for gpu in node.gpus or () if gpu.index in unusable)
    return Part(kind="node", name=node.name)


CHECK = Check(
    name=NAME,
    claim="Each node shows the GPUs that the plan needs there.",
    why="A rank without a GPU of its own ends the job, or shares a GPU and slows every group it is in.",
    source="One process per GPU is what NCCL and every framework's launcher assume; nvml.h on lost GPUs.",
    remedy="Reset or replace GPUs that are lost, switch MIG off, ask the scheduler for as many GPUs as ranks, or leave the node out.",
    uses=("inventory", "plan"),
    judge=judge,
)
