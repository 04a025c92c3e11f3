"""The training state fits into the memory of each GPU, with room for what comes on top.

State: 16 bytes per parameter (weights, gradients, optimizer) / (tp x pp). What the estimate leaves out takes memory too: for 70B at
tp 8, pp 4 and 4096 tokens some 11 GB of activations with the common savings, and some 5 GB of CUDA context, NCCL buffers and
fragmentation: together 20 % of an 80 GB GPU. Hence the margin: less than that free asks for a look; a state as large as the memory is refused,
unless a distributed optimizer would make it fit: the plan file doesn't say whether there is one.
"""

import math
from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Part, Plan, Verdict
from preflight.model.hostlist import fold
from preflight.model.units import show_bytes

NAME = "memory_fit"
LIMITS = {"warn_free_share": 0.20}
CPU_BACKENDS = ("gloo", "auto")  # declare that a run without GPUs is meant


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding, unless the run is meant to work without GPUs and none is claimed."""
    plan = evidence.plan
    if plan is None or evidence.settings.cpu_declared or plan.estimate.state_bytes_per_gpu is None:
        return
    state, margin = plan.estimate.state_bytes_per_gpu, evidence.limits(NAME, LIMITS)["warn_free_share"]
    expected = f"state below the memory of a GPU, {margin * 100:.0f} % of it left free"
    memory, source = _memory(evidence, plan)
    hardware = plan.job.hardware
    if memory is None:
        if hardware.gpu is None and hardware.backend in CPU_BACKENDS and evidence.inventory is None:
            return
        yield Finding(
            check=NAME,
            subject="memory",
            verdict=Verdict.UNKNOWN,
            observed=f"state takes {show_bytes(state)} per GPU, but {source}",
            expected=expected,
            remedy='give [hardware] gpu_memory = "80GB", or a gpu that has a profile',
        )
        return
    verdict = Verdict.PASS
    if state >= memory:
        # experts are divided by etp x ep, not by tp: how many parameters that concerns, the plan file doesn't say
        verdict = Verdict.UNKNOWN if _least_state(plan, state) < memory else Verdict.FAIL
        if _sharded(plan, state) < memory:
            verdict = Verdict.WARN  # whether the optimizer's state is sharded, it doesn't say either
    elif memory - state < margin * memory:
        verdict = Verdict.WARN
    yield Finding(
        check=NAME,
        subject="memory",
        verdict=verdict,
        observed=f"state {show_bytes(state)} of {show_bytes(memory)} per GPU ({source}), {show_bytes(memory - state)} free",
        expected=expected,
        remedy="" if verdict is Verdict.PASS else _remedy(plan, state, memory * (1 - margin), verdict),
        blames=Part(kind="plan", name="parallel") if verdict in {Verdict.FAIL, Verdict.WARN} else None,
    )


def _memory(evidence: Evidence, plan: Plan) -> tuple[int | None, str]:
    """Bytes of the smallest GPU as discovered, else as planned; and where that comes from, or why it is None."""
    if evidence.inventory is not None:
        planned = {rank.node for rank in plan.placement.ranks}
        sizes = {
            node.name: [gpu.memory_bytes for gpu in node.gpus or ()]
            for node in evidence.inventory.nodes
            if node.name in planned
        }
        unknown = sorted(name for name, known in sizes.items() if not known or None in known)
        unknown += sorted(planned - set(sizes))
        known = [size for of_node in sizes.values() for size in of_node if size is not None]
        if known and not unknown:
            return min(known), "discovered"
        if plan.estimate.gpu_memory_bytes is None:
            return None, f"the memory of the GPUs on {fold(unknown)} is not known"
    if plan.estimate.gpu_memory_bytes is not None:
        return plan.estimate.gpu_memory_bytes, "as planned"
    gpu = plan.job.hardware.gpu
    return None, f"no profile tells the memory of {gpu!r}" if gpu else "the plan file names no GPU"


def _least_state(plan: Plan, state: int) -> float:
    """State per GPU if all parameters were experts: divided by etp x ep in place of tp where that is more."""
    experts = plan.degrees.get("etp", 1) * plan.degrees["ep"]
    return state * plan.degrees["tp"] / max(plan.degrees["tp"], experts)


def _sharded(plan: Plan, state: int) -> float:
    """State per GPU with a distributed optimizer: 4 bytes of weights and gradients stay, 12 are divided by dp x cp (ZeRO-1).

    Example: dp 4: (4 + 12/4) / 16 = 44 % of the 16-byte state.
    """
    return state * (4 + 12 / (plan.degrees["dp"] * plan.degrees["cp"])) / 16


def _remedy(plan: Plan, state: int, room: float, verdict: Verdict) -> str:
    shards = plan.degrees["tp"] * plan.degrees["pp"]
    if verdict is Verdict.WARN and _sharded(plan, state) < state:
        with_optimizer = f"{show_bytes(_sharded(plan, state))} with the optimizer's state sharded over dp x cp"
        return f"make sure that the optimizer is distributed ({with_optimizer}), or raise tp x pp above {shards}"
    if verdict is Verdict.UNKNOWN:
        return f"find out how much of the model is experts (ep {plan.degrees['ep']} divides them further), or raise tp x pp above {shards}"
    if room <= 0:
        return f"raise tp x pp above {shards}"
    needed = math.ceil(state * shards / room)
    return f"raise tp x pp from {shards} to {needed} or more"


CHECK = Check(
    name=NAME,
    claim="The training state fits into the memory of each GPU, with room for activations and buffers.",
    why="A job that does not fit ends after minutes of start-up, on all nodes at once.",
    uses=("plan",),
    judge=judge,
    limits=LIMITS,
)
