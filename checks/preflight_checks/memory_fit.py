"""What the job needs fits into the memory of each GPU.

Where the plan file gives the model's shape, the estimate of the fullest pipeline stage is judged: above the memory is refused; within the estimate's error band below it asks for a look.
Where the shape or the batch isn't known, only the training state can be counted: weights, gradients and optimizer as the framework shards them; where not even that is known, 16 bytes
per parameter / (tp x pp). It leaves out activations (for 70B at
tp 8, pp 4 and 4096 tokens some 11 GB with the common savings), CUDA context, NCCL buffers and fragmentation (some 5 GB): together 20 % of an 80 GB GPU. Hence the margin: less than that free
asks for a look; a state as large as the memory is refused, unless a distributed optimizer would make it fit: the plan file may not say whether there is one.
"""

import math
from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Memory, Part, Plan, Verdict
from preflight.model.hostlist import fold
from preflight.model.units import GIB, GIGA, show_bytes

NAME = "memory_fit"
LIMITS = {"warn_free_share": 0.20, "warn_error_bands": 1.0}
# Data sheets say GB of memory chips that hold GiB: nvidia-smi shows 81,559 MiB for an H100 of 80 GB, 143,771 for an H200 of 141 GB, 183,359 for a B200 of 180 GB. Half a
# percent is lost to firmware. So a size that a profile took from a data sheet is certain to be too small only from here on.
DATA_SHEET_FACTOR = 0.995 * GIB / GIGA
CPU_BACKENDS = ("gloo", "auto")  # declare that a run without GPUs is meant


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding, unless the run is meant to work without GPUs and none is claimed."""
    plan = evidence.plan
    if plan is None or evidence.settings.cpu_declared or plan.estimate.state_bytes_per_gpu is None:
        return
    limits, estimate = evidence.limits(NAME, LIMITS), plan.estimate.memory
    needed = plan.estimate.state_bytes_per_gpu if estimate is None else estimate.total_bytes
    what = "state" if estimate is None else "the job"
    memory, source = _memory(evidence, plan)
    hardware = plan.job.hardware
    if memory is None:
        if hardware.gpu is None and hardware.backend in CPU_BACKENDS and evidence.inventory is None:
            return
        yield Finding(
            check=NAME,
            subject="memory",
            verdict=Verdict.UNKNOWN,
            observed=f"{what} takes {show_bytes(needed)} per GPU, but {source}",
            expected=_expected(estimate, limits),
            remedy='give [hardware] gpu_memory = "80GB", or a gpu that has a profile',
        )
    elif estimate is None:
        yield _judge_state(plan, needed, memory, source, limits)
    else:
        yield _judge_estimate(plan, estimate, memory, source, limits)


def _expected(estimate: Memory | None, limits: dict[str, float]) -> str:
    if estimate is None:
        return f"state below the memory of a GPU, {limits['warn_free_share'] * 100:.0f} % of it left free"
    band = estimate.error_share * limits["warn_error_bands"]
    return f"estimate + {band * 100:.0f} % below the memory of a GPU ({estimate.error_source})"


def _judge_estimate(plan: Plan, estimate: Memory, memory: int, source: str, limits: dict[str, float]) -> Finding:
    """The whole estimate against the memory, with its band."""
    total = estimate.total_bytes
    most = total * (1 + estimate.error_share * limits["warn_error_bands"])
    from_data_sheet = source == "as planned" and plan.job.hardware.gpu_memory_bytes is None
    surely = memory * (DATA_SHEET_FACTOR if from_data_sheet else 1)
    verdict = Verdict.FAIL if total > surely else Verdict.WARN if most > memory else Verdict.PASS
    lines = ", ".join(f"{line.part} {show_bytes(line.size_bytes)}" for line in estimate.lines)
    left_out = f"; not counted: {', '.join(estimate.not_modelled)}" if estimate.not_modelled else ""
    stage = f", stage {estimate.stage}" if plan.degrees["pp"] > 1 else ""
    if memory < total <= surely:
        source += ", a data sheet's GB, which are nearly GiB"
    return Finding(
        check=NAME,
        subject="memory",
        verdict=verdict,
        observed=f"estimate {show_bytes(total)} of {show_bytes(memory)} per GPU ({source}{stage}): {lines}{left_out}",
        expected=_expected(estimate, limits),
        remedy=""
        if verdict is Verdict.PASS
        else _savings(plan, estimate, (total if total > surely else most) - memory),
        blames=None if verdict is Verdict.PASS else Part(kind="plan", name="parallel", confidence="likely"),
    )


def _savings(plan: Plan, estimate: Memory, missing: float) -> str:
    """What the plan file could change, what saves most first, so that `missing` bytes are saved. Savings are rough: whether all of them together reach so far is said."""
    parallel, training, degrees = plan.job.parallel, plan.job.training, plan.degrees
    size = {line.part: line.size_bytes for line in estimate.lines}
    replicas = degrees["dp"] * degrees["cp"]
    options: list[tuple[float, str]] = []
    if training.recompute != "full":
        options.append((size["activations"] * 0.7, 'recompute = "full"'))
    if degrees["tp"] > 1 and parallel.sequence_parallel is not True and parallel.framework != "torchtitan":
        options.append((size["activations"] * 0.4, "sequence_parallel = true"))
    if training.attention == "unfused" and training.recompute == "none":
        options.append((size["activations"] * 0.5, 'attention = "flash"'))
    if parallel.zero_stage in {None, 0} and parallel.framework in {"megatron", "deepspeed"} and replicas > 1:
        options.append(
            (size["optimizer"] * (1 - 1 / replicas), f"zero_stage = 1 (optimizer state shared by {replicas} ranks)")
        )
    if (training.micro_batch_size or 1) > 1:
        options.append((size["activations"] * 0.5, "a smaller micro_batch_size"))
    if degrees.get("dp_replicate", 1) > 1 and parallel.zero_stage in {None, 3}:
        state = size["parameters"] + size["gradients"] + size["optimizer"]
        options.append((state / 2, "a larger dp_shard in place of dp_replicate"))
    best = [text for _, text in sorted(options, reverse=True)[:3]]
    split = f"raise tp x pp above {degrees['tp'] * degrees['pp']}"
    if best and sum(saved for saved, _ in options) < missing:
        return f"{split}: {show_bytes(missing)} are too much, and these save less even together: {', '.join(best)}"
    return f"save {show_bytes(missing)}: " + ", or ".join([*best, split])


def _judge_state(plan: Plan, state: int, memory: int, source: str, limits: dict[str, float]) -> Finding:
    """The state against the memory, with a margin for all that it leaves out. Where it is by the 16-byte rule, sharding may yet make it fit."""
    margin, by_rule = limits["warn_free_share"], plan.estimate.state_formula is None
    verdict = Verdict.PASS
    if state >= memory and not by_rule:
        verdict = Verdict.FAIL
    elif state >= memory:
        # experts are divided by etp x ep, not by tp: how many parameters that concerns, the plan file doesn't say
        verdict = Verdict.UNKNOWN if _least_state(plan, state) < memory else Verdict.FAIL
        if _sharded(plan, state) < memory:
            verdict = Verdict.WARN  # whether the optimizer's state is sharded, it doesn't say either
    elif memory - state < margin * memory:
        verdict = Verdict.WARN
    return Finding(
        check=NAME,
        subject="memory",
        verdict=verdict,
        observed=f"state {show_bytes(state)} of {show_bytes(memory)} per GPU ({source}), {show_bytes(memory - state)} free",
        expected=_expected(None, limits),
        remedy="" if verdict is Verdict.PASS else _remedy(plan, state, memory * (1 - margin), verdict),
        blames=Part(kind="plan", name="parallel") if verdict in {Verdict.FAIL, Verdict.WARN} else None,
    )


def _memory(evidence: Evidence, plan: Plan) -> tuple[int | None, str]:
    """Bytes of the smallest GPU as discovered, else as planned; and where that comes from, or why it is None."""
    if evidence.inventory is not None:
        planned = set(plan.placement.nodes)
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
    """State per GPU as far as it may be sharded: all 16 bytes with ZeRO-3, else 4 bytes of weights and gradients stay and 12 are divided by dp x cp (ZeRO-1).

    Example: dp 4: (4 + 12/4) / 16 = 44 % of the 16-byte state.
    """
    replicas = plan.degrees["dp"] * plan.degrees["cp"]
    if plan.job.parallel.zero_stage == 3 or plan.job.parallel.framework in {"torchtitan", "fsdp"}:
        return state / replicas
    return state * (4 + 12 / replicas) / 16


def _remedy(plan: Plan, state: int, room: float, verdict: Verdict) -> str:
    shards = plan.degrees["tp"] * plan.degrees["pp"]
    if plan.estimate.state_formula is not None:
        wider = "" if plan.job.parallel.zero_stage == 0 else " or the ranks that share its state (dp_shard, zero_stage)"
        return f"raise tp x pp above {shards}{wider}"
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
    claim="Weights, gradients, optimizer, activations and buffers fit into the memory of each GPU.",
    why="A job that does not fit ends after minutes of start-up, on all nodes at once.",
    source="the memory model of preflight/plan/memory.py, whose error was measured against published runs (tests/plan/memory_cases.py)",
    remedy="more tensor or pipeline parallelism, a distributed optimizer, activation recomputation, or smaller micro-batches",
    uses=("plan",),
    judge=judge,
    limits=LIMITS,
    of_placement=False,
)
