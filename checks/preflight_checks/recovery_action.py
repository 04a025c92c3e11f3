"""No GPU's driver asks for a reset, a reboot or a drain.

The driver keeps one word for what it needs after an error before the GPU is whole again. It is the driver's own judgement over everything that it saw, errors included that no
counter shows. Drivers before 570 don't have it.
Source: nvml.h, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION (field 230) and its values; nvidia-resiliency-ext reads it before it restarts a job.
"""

from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Gpu, Node, Verdict
from preflight.model.finding import Confidence
from preflight.model.per_gpu import Fault, judge_gpus, setting_part

NAME = "recovery_action"
_EXPECTED = "nothing that the driver asks for"

# the wish -> what to do, with {node} and {gpu}
_REMEDIES = {
    "reset": "drain {node}, end the processes on GPU {gpu}, and reset it (`nvidia-smi --gpu-reset -i {gpu}`; GPUs that share NVSwitches are reset together)",
    "reboot": "drain {node} and reboot it",
    "system reboot": "drain {node} and reboot the whole system",
    "drain p2p": "end the jobs that reach GPU {gpu} of {node} from other GPUs, then reset it",
    "drain and reset": "drain {node}: let the work on GPU {gpu} end and start no more, then reset it",
    "bus reset": "drain {node} and have GPU {gpu} reset through its PCI bus, or reboot",
}
_LIKELY = {"reboot", "system reboot", "drain p2p"}  # what the driver needs is more than this GPU


def judge(evidence: Evidence) -> Iterator[Finding]:
    """Anything but "none" fails, with the driver's wish as the remedy."""
    good = "the driver asks for nothing"
    yield from judge_gpus(NAME, evidence, "recovery_action", _fault, good=good, expected=_EXPECTED)


def _fault(node: Node, gpu: Gpu, action: str) -> Fault | None:
    if action == "none":
        return None
    observed = f'the driver asks for "{action}"'
    if action == "IMEX domain":
        remedy = f"drain {node.name} and restart the IMEX service on all nodes of its NVLink domain"
        return Fault(Verdict.FAIL, observed, _EXPECTED, remedy, part=setting_part(node, "IMEX domain"))
    remedy = _REMEDIES.get(action, "drain {node} and reboot it").format(node=node.name, gpu=gpu.index)
    confidence: Confidence = "likely" if action in _LIKELY else "certain"
    return Fault(Verdict.FAIL, observed, _EXPECTED, remedy, confidence=confidence)


CHECK = Check(
    name=NAME,
    claim="No GPU's driver asks for a reset, a reboot or a drain.",
    why="A GPU that its driver wants reset is not whole: the next job on it fails, or runs with part of its memory or links missing.",
    source="nvml.h, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION (field 230), drivers from 570 on.",
    remedy="Do what the driver asks for, after the node has been drained; it says `none` again afterwards.",
    uses=("health",),
    judge=judge,
)
