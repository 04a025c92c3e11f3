"""The job's device mask names GPUs that are there.

A mask made for another view of the machine (numbers of the host inside a container that renumbers them, UUIDs of another node) makes CUDA show fewer GPUs or none: the
job then fails on this node and works on the next, which looks like a flaky node. The node is not to blame. Where a mask of the
scheduler names as many GPUs as it gave and fewer are here, one is lost: then the mask isn't to blame either.
What is shown carries the UUID, and the number on the machine where it is known.
Source: SlinkyProject/slurm-operator PR 112 (Slurm 25.11 hands out UUIDs; cgroups and containers renumber); CUDA C++ Programming Guide, "CUDA Environment Variables".
"""

from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Mask, Node, Part, Verdict
from preflight.model.devices import VARIABLE
from preflight.model.job_gpus import JOB_GPUS, STEP_GPUS, num_given
from preflight.model.per_gpu import count

NAME = "gpu_mask"
EXPECTED = "a mask whose every entry is one GPU of this view"
HIDING = ("", "-1", "NoDevFiles")  # what people and schedulers write to hide every GPU on purpose


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each node with a mask that CUDA or Slurm gave. Nothing without one, and where the GPUs are unknown: `gpus_answer` says that."""
    if evidence.settings.cpu_declared:
        return
    for node in evidence.health or ():
        if node.mask is not None and node.gpus and node.mask.gpu_uuids is not None:
            yield _judge_mask(node, node.mask)


def _judge_mask(node: Node, mask: Mask) -> Finding:
    assert mask.gpu_uuids is not None
    view = f"this process sees {count(node.open_gpus)}: {', '.join(str(gpu.uuid) for gpu in node.open_gpus) or 'none'}"
    blames = Part(kind="environment", name=f"{VARIABLE} on {node.name}")
    lacking = _lacking(node, mask)
    if mask.problems and lacking:
        return Finding(
            check=NAME,
            subject=node.name,
            verdict=Verdict.FAIL,
            observed=f"{lacking}: the mask is the scheduler's, and fits what it gave; {view}{_given(mask)}",
            expected=EXPECTED,
            remedy=f"look for the GPU that is missing (`gpus_answer`, `gpu_census`, the kernel log of {node.name}), and drain {node.name}",
        )
    if mask.problems:
        on_purpose = mask.variables.get(VARIABLE, "?").strip() in HIDING
        return Finding(
            check=NAME,
            subject=node.name,
            verdict=Verdict.WARN if on_purpose else Verdict.FAIL,
            observed=f"{'; '.join(mask.problems)}; {view}{_given(mask)}",
            expected=EXPECTED,
            remedy=f"unset {VARIABLE}, or name the GPUs by UUID or by their number in this view (0 to {max(len(node.open_gpus) - 1, 0)})",
            blames=blames,
        )
    if None in mask.gpu_uuids:
        why = "; ".join(mask.doubts) or "the scheduler's numbers fit no GPU of this view"
        return Finding(
            check=NAME,
            subject=node.name,
            verdict=Verdict.UNKNOWN,
            observed=f"which GPUs the mask means is not determined: {why}{_given(mask)}",
            expected=EXPECTED,
            remedy="name the GPUs by UUID, or set CUDA_DEVICE_ORDER=PCI_BUS_ID",
        )
    return Finding(check=NAME, subject=node.name, verdict=Verdict.PASS, observed=_resolved(mask), expected=EXPECTED)


def _lacking(node: Node, mask: Mask) -> str | None:
    """How many GPUs the scheduler gave and how many are here, where the mask names as many as it gave and fewer are here; then not the mask is wrong."""
    given, named = num_given(mask), len(mask.variables.get(VARIABLE, "").split(","))
    return f"{given} GPUs given, {len(node.open_gpus)} here" if given == named > len(node.open_gpus) > 0 else None


def _resolved(mask: Mask) -> str:
    """The GPUs that the mask means, in CUDA's order: "2 GPUs: GPU-2222... (physical 2), GPU-5555... (physical 5)"."""
    numbers = (*mask.physical, *(None,) * len(mask.gpu_uuids or ()))
    shown = [
        f"{uuid}" + ("" if number is None else f" (physical {number})")
        for uuid, number in zip(mask.gpu_uuids or (), numbers, strict=False)
    ]
    return f"{len(shown)} GPU{'s' * (len(shown) != 1)}: {', '.join(shown)}"


def _given(mask: Mask) -> str:
    told = [f"{name}={mask.variables[name]}" for name in (STEP_GPUS, JOB_GPUS) if mask.variables.get(name)]
    return f" ({', '.join(told)})" if told else ""


CHECK = Check(
    name=NAME,
    claim="The job's device mask names GPUs that are there.",
    why="A mask made for another view shows the job fewer GPUs or none, here and not on the next node, which looks like a flaky node.",
    source="SlinkyProject/slurm-operator PR 112; CUDA C++ Programming Guide, environment variables; srun(1): SLURM_JOB_GPUS is not relative to cgroups.",
    remedy="Leave CUDA_VISIBLE_DEVICES to the scheduler, or name GPUs by UUID: numbers change with cgroups and containers, UUIDs don't.",
    uses=("health",),
    judge=judge,
)
