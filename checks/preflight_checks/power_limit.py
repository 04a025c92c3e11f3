"""Every GPU may draw the power that its product is made for.

A lower limit is somebody's setting, by nvidia-smi or out of band by the chassis, and no fault of the GPU. A whole cluster may be capped on purpose; a single GPU
that gets much less than the others of its product slows every group that it is in: one of four V100 has been found at 150 of 300 W (l4rz, iDRAC issue 3).
Source: nvml.h, nvmlDeviceGetEnforcedPowerLimit (the lowest of all limits, those set out of band too) and nvmlDeviceGetPowerManagementDefaultLimit.
`share_of_peers` is ours: below it the cap costs more speed than any difference between healthy GPUs.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from preflight.model import Check, Evidence, Finding, Gpu, Node, Power, Verdict
from preflight.model.per_gpu import Fault, judge_gpus, missing_fault, setting_part

NAME = "power_limit"
LIMITS = {"share_of_peers": 0.75}
_ROUNDING_W = 1.0


def judge(evidence: Evidence) -> Iterator[Finding]:
    """A cap below the default warns; it fails where this GPU gets less than `share_of_peers` of what most GPUs of its product have that work with it: those of its
    node, and of the plan's. Other nodes of a partition may be capped otherwise on purpose.
    """
    share = evidence.limits(NAME, LIMITS)["share_of_peers"]
    nodes = evidence.health or ()
    usual = _usual_limits(nodes)
    planned = set(evidence.plan.placement.nodes) if evidence.plan is not None else set()
    of_plan = _usual_limits([node for node in nodes if node.name in planned])
    with_it = {node.name: of_plan if node.name in planned else _usual_limits([node]) for node in nodes}

    def fault(node: Node, gpu: Gpu, power: Power) -> Fault | None:
        limit_w = _limit_w(power)
        if limit_w is None:
            return missing_fault(gpu, "enforced_limit_w", "power")
        default_w, peers_w = _default_w(evidence, gpu, power), usual.get(gpu.name)
        # the driver's default is the board's own: a board that has what it is made for isn't capped, whatever others have
        meant_w = peers_w if default_w is None else default_w
        if meant_w is None:
            return Fault(Verdict.UNKNOWN, f"limit {limit_w:.0f} W: neither a default nor another GPU to compare with")
        if limit_w >= meant_w - _ROUNDING_W:
            return None
        mates_w = with_it[node.name].get(gpu.name)
        odd = mates_w is not None and limit_w < share * mates_w
        others = f", while most GPUs of this product here have {mates_w:.0f} W" if odd else ""
        return Fault(
            Verdict.FAIL if odd else Verdict.WARN,
            f"limited to {limit_w:.0f} of {meant_w:.0f} W{others}",
            f"{meant_w:.0f} W",
            _remedy(node, power, limit_w, meant_w),
            part=setting_part(node, "power limit"),
        )

    yield from judge_gpus(NAME, evidence, "power", fault, good="power not capped", expected="the default power limit")


def _limit_w(power: Power) -> float | None:
    return power.limit_w if power.enforced_limit_w is None else power.enforced_limit_w


def _default_w(evidence: Evidence, gpu: Gpu, power: Power) -> float | None:
    profile = evidence.profile_of(gpu)
    expected = profile.power_limit_w if profile else None
    return power.default_limit_w if power.default_limit_w is not None else expected.value if expected else None


def _usual_limits(nodes: Iterable[Node]) -> dict[str | None, float]:
    """Product -> the limit that most of its GPUs have; the higher of two that are as common. Products with one GPU have no peers."""
    limits: dict[str, Counter[float]] = {}
    for node in nodes:
        for gpu in node.open_gpus:
            limit_w = _limit_w(gpu.power) if gpu.power else None
            if gpu.name is not None and limit_w is not None:
                limits.setdefault(gpu.name, Counter())[limit_w] += 1
    return {
        name: max(numbers, key=lambda limit: (numbers[limit], limit))
        for name, numbers in limits.items()
        if sum(numbers.values()) > 1
    }


def _remedy(node: Node, power: Power, limit_w: float, meant_w: float) -> str:
    if power.limit_w is not None and limit_w < power.limit_w - _ROUNDING_W:
        return f"lift the cap that was set out of band: BMC or power management of {node.name}"
    return f"set it back with `nvidia-smi -pl {meant_w:.0f}` on {node.name}, if the cap isn't meant"


CHECK = Check(
    name=NAME,
    claim="Every GPU may draw the power that its product is made for.",
    why="A group of GPUs is as fast as its slowest one; a GPU at half its power limit holds up all others.",
    source="nvml.h: enforced and default power limit; the share of peers that fails is our own choice.",
    remedy="Set the limit back with nvidia-smi -pl, or lift the cap in the BMC; lower share_of_peers if single caps are meant.",
    uses=("health",),
    judge=judge,
    need="advisory",
    limits=LIMITS,
)
