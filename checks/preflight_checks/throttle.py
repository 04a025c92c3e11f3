"""No GPU is held down by heat or by its power supply.

An idle GPU lowers its clock, a busy one meets its power cap, an administrator locks clocks: all normal. Slowdown by hardware is not: it halves the clock or worse, and
one slow GPU slows every group that it is in. A single look may meet a moment of clock change, so this warns; how long each reason was in force between two snapshots is judged
by `counter_growth`.
Source: nvml.h, nvmlClocksEventReason... (HW slowdown: clocks cut to a half or less, by heat, by the power brake that the power supply asserts, or by a draw that is too
high; "may be also reported during PState or clock change"); CycleCloud's health agent warns of the same ones (mask 0xE8); open_clip issue 703 (which ones are normal).
"""

from collections.abc import Iterator

from preflight.model import Check, Clocks, Evidence, Finding, Gpu, Node, Part, Verdict
from preflight.model.counters import held_down_by_fault
from preflight.model.per_gpu import Fault, judge_gpus, missing_fault

NAME = "throttle"
_EXPECTED = "no slowdown by hardware or by heat"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """The power brake comes from outside the GPU: the node is named for it. Heat and the rest: the GPU."""
    yield from judge_gpus(NAME, evidence, "clocks", _fault, good=_EXPECTED, expected=_EXPECTED, note=_note)


def _fault(node: Node, gpu: Gpu, clocks: Clocks) -> Fault | None:
    if clocks.throttle_reasons is None:
        return missing_fault(gpu, "throttle_reasons", "clocks")
    bad = [reason for reason in clocks.throttle_reasons if held_down_by_fault(reason)]
    if not bad:
        return None
    observed = f"held down now by: {', '.join(bad)}"
    if any("brake" in reason for reason in bad):
        remedy = "look at the power supplies and the power cap of the chassis: they assert the brake"
        return Fault(
            Verdict.WARN, observed, _EXPECTED, remedy, part=Part(kind="node", name=node.name, confidence="likely")
        )
    if any("thermal" in reason for reason in bad):
        remedy = (
            f"look at the temperature and the cooling of GPU {gpu.index} on {node.name}, then measure it under load"
        )
        return Fault(Verdict.WARN, observed, _EXPECTED, remedy, confidence="likely")
    remedy = f"look again after a minute; if it stays, look at power and cooling of GPU {gpu.index} on {node.name}"
    return Fault(Verdict.WARN, observed, _EXPECTED, remedy, confidence="possible")


def _note(_gpu: Gpu, clocks: Clocks) -> str | None:
    """What is normal and still explains a slow measurement; idle is what a GPU should be before a job."""
    return ", ".join(reason for reason in clocks.throttle_reasons or () if "idle" not in reason) or None


CHECK = Check(
    name=NAME,
    claim="No GPU is held down by heat or by its power supply.",
    why="Slowdown by hardware halves the clock or worse, and one slow GPU slows every group that it is in.",
    source="nvml.h, nvmlClocksEventReasons; CycleCloud's health agent (mask 0xE8); open_clip issue 703.",
    remedy="Power brake: the chassis' power supplies and caps. Heat: cooling of that GPU. Then measure under load.",
    uses=("health",),
    judge=judge,
    need="advisory",
)
