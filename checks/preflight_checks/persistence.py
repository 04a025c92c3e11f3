"""The driver stays loaded while nobody uses the GPUs.

Without persistence mode the driver lets go of a GPU when the last process ends: the next start takes seconds for each GPU, counters of errors start over, and locked clocks and
power limits are lost. It never makes a GPU wrong, so this only warns. Just after boot it may read as off for half a minute (gpud issue 431: 25 s on eight GPUs).
Source: NVIDIA, Driver Persistence; ainode issue 238 (each look at an idle GPU took 32 s).
"""

from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Gpu, Node, Verdict
from preflight.model.per_gpu import Fault, judge_gpus, setting_part

NAME = "persistence"
_EXPECTED = "persistence mode on"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """Off is a warning about a setting, one for all GPUs of a node."""
    yield from judge_gpus(NAME, evidence, "persistence", _fault, good=_EXPECTED, expected=_EXPECTED)


def _fault(node: Node, _gpu: Gpu, on: bool) -> Fault | None:
    if on:
        return None
    return Fault(
        Verdict.WARN,
        "persistence mode off",
        _EXPECTED,
        "start nvidia-persistenced, or `nvidia-smi -pm 1`; just after boot look again after a minute",
        part=setting_part(node, "persistence mode"),
    )


CHECK = Check(
    name=NAME,
    claim="The driver stays loaded while nobody uses the GPUs.",
    why="Without persistence mode every start waits for the driver, error counters start over, and locked clocks and power limits are lost.",
    source="NVIDIA, Driver Persistence; gpud issue 431 (reads as off just after boot); ainode issue 238 (32 s stalls).",
    remedy="Start nvidia-persistenced on the node, or switch the mode on with nvidia-smi -pm 1.",
    uses=("health",),
    judge=judge,
    need="advisory",
)
