"""Each GPU of the node answers the driver.

A GPU that can't be opened, or is lost until it is reset, ends every job that touches it; and a driver call that hangs leaves the node's state unknown, which is not
healthy. One bad GPU fails by itself and is blamed alone. If all fail alike it is the node or its driver, not each of them; in a container it may have lost its right to
the devices (`systemctl daemon-reload` on the host does that: NVIDIA/nvidia-container-toolkit issue 48), which is unknown. A GPU that may not be
opened is unknown, unless the scheduler gave this job just as many others.
Source: nvml.h, nvmlDeviceGetHandleByIndex_v2 (GPU_IS_LOST, RESET_REQUIRED, IRQ_ISSUE, INSUFFICIENT_POWER, UNKNOWN are of one GPU; NO_PERMISSION of the caller).
"""

from collections.abc import Iterator, Sequence

from preflight.model import Check, Evidence, Finding, Gpu, Node, Part, Verdict
from preflight.model.job_gpus import kept_from_us, num_given, why_gone
from preflight.model.per_gpu import count, gpu_name, gpu_part, gpus_subject

NAME = "gpus_answer"
EXPECTED = "every GPU of the node answers the driver"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """For each node: one finding for each GPU that doesn't answer, or one PASS. Nothing for nodes without GPUs and where a run without them is meant."""
    if evidence.settings.cpu_declared:
        return
    for node in evidence.health or ():
        if node.gpus is None:
            yield _unknown_node(node)
        elif node.gpus:
            yield from _judge_gpus(node, node.gpus)


def _unknown_node(node: Node) -> Finding:
    return Finding(
        check=NAME,
        subject=node.name,
        verdict=Verdict.UNKNOWN,
        observed=f"GPUs unknown: {node.gpu_note or 'no reason given'}",
        expected=EXPECTED,
        remedy=f"run `nvidia-smi -L` on {node.name} by hand and look at its kernel log; a driver call that never returns needs a reboot of the node",
    )


def _judge_gpus(node: Node, gpus: Sequence[Gpu]) -> Iterator[Finding]:
    kept = [gpu for gpu in gpus if kept_from_us(gpu)]
    bad = {gpu.index: reason for gpu in gpus if gpu not in kept and (reason := _why_bad(gpu))}
    alike = len(bad) == len(gpus) and len(set(bad.values())) == 1
    if alike and (len(gpus) > 1 or _may_have_lost_its_right(node)):
        yield _all_alike(node, next(iter(bad.values())), len(bad))
        return
    for gpu in gpus:
        if gpu.index in bad:
            yield _bad(node, gpu, bad[gpu.index])
    good = len(gpus) - len(kept) - len(bad)
    given = num_given(node.mask) if node.mask is not None else None
    explained = given == good + len(bad)
    if kept and not explained:
        yield _may_not(node, kept)
    if good:
        rest = f"; {count(kept)} kept from this job" if kept and explained else ""
        answers = f"{good} GPU{'s answer' if good > 1 else ' answers'}{rest}"
        yield Finding(check=NAME, subject=node.name, verdict=Verdict.PASS, observed=answers, expected=EXPECTED)


def _why_bad(gpu: Gpu) -> str | None:
    if gpu.uuid is None and gpu.name is None:
        return (
            "; ".join(f"{p.source}: {p.text}" for p in gpu.problems)
            or "can't be opened, and the driver gives no reason"
        )
    return why_gone(gpu)


def _bad(node: Node, gpu: Gpu, reason: str) -> Finding:
    return Finding(
        check=NAME,
        subject=gpu_name(node, gpu),
        verdict=Verdict.FAIL,
        observed=reason,
        expected=EXPECTED,
        remedy=f"drain {node.name}, look for an Xid of this GPU in its kernel log, reset it (nvidia-smi --gpu-reset) or power-cycle the node; replace it if it is lost again",
        blames=gpu_part(node, gpu),
    )


def _may_have_lost_its_right(node: Node) -> bool:
    """Whether this is a container, and the driver doesn't say that a GPU is gone."""
    contained = node.platform is not None and node.platform.container not in (None, "none")
    return contained and not any(map(why_gone, node.gpus or ()))


def _all_alike(node: Node, reason: str, number: int) -> Finding:
    kept = _may_have_lost_its_right(node)
    return Finding(
        check=NAME,
        subject=node.name,
        verdict=Verdict.UNKNOWN if kept else Verdict.FAIL,
        observed=f"none of {number} GPUs answers: {reason}",
        expected=EXPECTED,
        remedy=f"all fail alike, so look at what they share on {node.name}: driver, kernel log, power; in a container, whether it still may use the devices",
        blames=None if kept else Part(kind="node", name=node.name, confidence="likely"),
    )


def _may_not(node: Node, kept: Sequence[Gpu]) -> Finding:
    return Finding(
        check=NAME,
        subject=f"{node.name} GPUs {', '.join(str(gpu.index) for gpu in kept)}"
        if len(kept) > 1
        else gpus_subject(node, kept),
        verdict=Verdict.UNKNOWN,
        observed="may not be opened by this process: "
        + "; ".join(dict.fromkeys(p.text for g in kept for p in g.problems)),
        expected=EXPECTED,
        remedy="run as root, or in the job that the GPUs are given to; if they are another job's, say so by its mask",
    )


CHECK = Check(
    name=NAME,
    claim="Each GPU of the node answers the driver.",
    why="A GPU that can't be opened or is lost ends every job that touches it, and a driver that hangs leaves the node's state unknown.",
    source="nvml.h: error codes of nvmlDeviceGetHandleByIndex_v2, which are of one GPU each; NO_PERMISSION is of the caller.",
    remedy="Drain the node, look for the GPU's Xid in the kernel log, reset the GPU or power-cycle the node, and replace what is lost again.",
    uses=("health",),
    judge=judge,
)
