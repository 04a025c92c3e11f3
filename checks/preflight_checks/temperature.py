"""No GPU is near the temperature at which it slows itself down.

Before a job a GPU is idle and should be cool; one at work may touch its limit for a moment, which is a WARN. Degrees alone say little, since products differ: what counts is the distance to the point where clocks are cut.
Source: nvml.h: on Ada and newer the driver tells the distance (nvmlDeviceGetMarginTemperature), on older products the slowdown threshold. `near_c` is ours.
"""

from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Gpu, Node, Part, Temperature, Verdict
from preflight.model.per_gpu import Fault, judge_gpus, missing_fault

NAME = "temperature"
LIMITS = {"near_c": 5.0}


def judge(evidence: Evidence) -> Iterator[Finding]:
    """At the point or above and known to be without work: FAIL; else, or within `near_c` of it: WARN. If all GPUs of a node are hot, its cooling is named."""
    near_c = evidence.limits(NAME, LIMITS)["near_c"]
    expected = f"more than {near_c:.0f} C below the slowdown point"

    def fault(node: Node, gpu: Gpu, temperature: Temperature) -> Fault | None:
        margin_c = _margin_c(temperature)
        if margin_c is None:
            return _unknown(gpu, temperature)
        if margin_c > near_c:
            return None
        idle = gpu.processes is not None and not gpu.processes  # None: whether it is at work isn't known
        verdict = Verdict.FAIL if margin_c <= 0 and idle else Verdict.WARN
        if _all_hot(node, near_c):
            part = Part(kind="node", name=node.name, confidence="likely")
            observed = "at the slowdown point or above" if margin_c <= 0 else "near the slowdown point"
            remedy = f"look at the fans, the cooling loop and the air inlet of {node.name}: all its GPUs are hot"
            return Fault(verdict, observed, expected, remedy, part=part)
        now = f"{temperature.gpu_c} C, " if temperature.gpu_c is not None else ""
        where = f"{margin_c} C below" if margin_c > 0 else f"{-margin_c} C above" if margin_c else "at"
        remedy = (
            f"look at the cooling of GPU {gpu.index} on {node.name} (heat sink, cold plate, air flow) before it is used"
        )
        work = ", while it is at work" if gpu.processes else ""
        return Fault(verdict, f"{now}{where} the slowdown point{work}", expected, remedy, confidence="likely")

    yield from judge_gpus(NAME, evidence, "temperature", fault, good="far from the slowdown point", expected=expected)


def _margin_c(temperature: Temperature) -> int | None:
    if temperature.margin_c is not None:
        return temperature.margin_c
    if temperature.slowdown_c is None or temperature.gpu_c is None:
        return None
    return temperature.slowdown_c - temperature.gpu_c


def _unknown(gpu: Gpu, temperature: Temperature) -> Fault:
    """Not applicable only where the product tells neither distance nor threshold."""
    if temperature.slowdown_c is not None:
        return Fault(Verdict.UNKNOWN, "the temperature itself is unknown")
    fields = ("margin_c", "slowdown_c")
    without = {field for field in fields if gpu.why_unknown(field).kind == "unsupported"}
    asked = [field for field in fields if field not in without]
    return missing_fault(gpu, *asked, "temperature") if asked else missing_fault(gpu, *fields)


def _all_hot(node: Node, near_c: float) -> bool:
    margins = [_margin_c(gpu.temperature) for gpu in node.open_gpus if gpu.temperature]
    known = [margin for margin in margins if margin is not None]
    return len(known) > 1 and max(known) <= near_c


CHECK = Check(
    name=NAME,
    claim="No GPU is near the temperature at which it slows itself down.",
    why="A GPU that is hot before the job cuts its clock as soon as the job loads it, and slows every group that it is in.",
    source="nvml.h: margin temperature (Ada and newer), slowdown threshold (older); the distance that warns is our own choice.",
    remedy="Look at the cooling of the GPU, or of the node if all its GPUs are hot.",
    uses=("health",),
    judge=judge,
    need="advisory",
    limits=LIMITS,
)
