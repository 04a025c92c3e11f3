"""No GPU that the job uses is in MIG mode, and no change of that mode is waiting for a reset.

A GPU in MIG mode is cut into slices that can't reach other GPUs: no peer access, no NVLink, no part in NCCL's collectives. That is somebody's choice and no fault of the GPU: it
stops a job only if a rank is to run there.
Source: NVIDIA, Multi-Instance GPU User Guide (no GPU-to-GPU peer access in MIG mode); aws-parallelcluster-cookbook issue 3183, nccl issue 1716; magic_castle issue 276.
"""

from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Gpu, Node, Verdict
from preflight.model.job_gpus import job_uuids
from preflight.model.per_gpu import Fault, judge_gpus, setting_part

NAME = "mig_mode"
_EXPECTED = "MIG mode off, and no change waiting"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """On and used by a rank: FAIL; on otherwise, or a change that waits: WARN."""

    def fault(node: Node, gpu: Gpu, on: bool) -> Fault | None:
        waiting = gpu.mig_pending is not None and gpu.mig_pending != on
        if on:
            used = _uses(evidence, node, gpu)
            slices = "" if gpu.mig_devices is None else f" with {len(gpu.mig_devices)} MIG devices"
            observed = f"in MIG mode{slices}{', and the job has a rank on it' if used else ''}"
            remedy = (
                "reset it, which ends MIG mode as was already asked for"
                if waiting
                else "switch it off (`nvidia-smi -mig 0` for this GPU, then a reset), or leave the GPU out of the job"
            )
            verdict = Verdict.FAIL if used else Verdict.WARN
            return Fault(verdict, observed, _EXPECTED, remedy, part=setting_part(node, "MIG mode"))
        if waiting:
            remedy = "take it back with `nvidia-smi -mig 0`, unless MIG mode is meant"
            observed = "MIG mode is off and comes on with the next reset"
            return Fault(Verdict.WARN, observed, _EXPECTED, remedy, part=setting_part(node, "MIG mode"))
        return None

    yield from judge_gpus(NAME, evidence, "mig_enabled", fault, good=_EXPECTED, expected=_EXPECTED)


def _uses(evidence: Evidence, node: Node, gpu: Gpu) -> bool:
    """Whether a rank is certain to run on this GPU: placement or mask name it, or the node needs more GPUs than it has without MIG."""
    if evidence.plan is None or node.name not in evidence.plan.placement.nodes:
        return False
    named = job_uuids(node, evidence.plan)
    if named is not None:
        return gpu.uuid in named
    placement = evidence.plan.placement
    here = placement.ranks_per_node[placement.nodes.index(node.name)]
    without_mig = [other for other in node.open_gpus if other.mig_enabled is False]
    return here > len(without_mig)


CHECK = Check(
    name=NAME,
    claim="No GPU that the job uses is in MIG mode, and no change of that mode is waiting for a reset.",
    why="A GPU in MIG mode has no peer access and takes no part in NCCL's collectives: the job fails when it forms its groups.",
    source="NVIDIA, Multi-Instance GPU User Guide; aws-parallelcluster-cookbook issue 3183; nccl issue 1716.",
    remedy="Switch MIG mode off and reset the GPU, or leave the GPU out of the job.",
    uses=("health",),
    judge=judge,
)
