"""The GPUs that a job has on a node, and how its tasks share them, as mask, scheduler and plan say it (pure).

Sources: srun(1), "OUTPUT ENVIRONMENT VARIABLES": SLURM_STEP_GPUS and SLURM_JOB_GPUS hold numbers on the machine, whatever cgroups hide; SLURM_GPUS_ON_NODE
is their count for the step; SLURM_GTIDS lists the step's tasks on this node. Tried with Slurm 22.05: where tasks are bound, SLURM_STEP_GPUS holds those of the task,
and SLURM_GPUS_ON_NODE still counts those of the step; srun's own --gpus-per-task and --gpu-bind leave no variable.
"""

import re

from preflight.model.base import Record
from preflight.model.gpu import Gpu
from preflight.model.hostlist import MAX_NODES
from preflight.model.inventory import Node
from preflight.model.plan import Plan
from preflight.model.surroundings import Mask

STEP_GPUS, JOB_GPUS, GPUS_ON_NODE = "SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE"
MAX_NUMBER = 4096  # no machine has so many GPUs, and no node so many tasks

# NVML's words for a GPU that is gone until it is reset: nvml.h, NVML_ERROR_GPU_IS_LOST and NVML_ERROR_RESET_REQUIRED
_GONE = ("is lost", "requires reset", "reset required", "fallen off")


class Binding(Record, frozen=True):
    """Tasks of one step that share a node: how many, how many GPUs the driver shows to this one, and how many the step has there. `by`: the variable that asks for
    it, empty if none is set.
    """

    tasks: int
    seen: int
    given: int
    by: str


def parse_numbers(text: str) -> tuple[int, ...] | None:
    """A list of numbers as Slurm writes it: "2,5" or "0-3,6", in its order. None: it is something else (UUIDs, MIG names)."""
    numbers: list[int] = []
    for part in text.split(","):
        span = re.fullmatch(r"\s*([0-9]{1,4})(?:-([0-9]{1,4}))?\s*", part)
        if span is None or len(numbers) > MAX_NUMBER:
            return None
        numbers += range(int(span[1]), int(span[2] or span[1]) + 1)
    return tuple(numbers)


def given_numbers(mask: Mask) -> tuple[int, ...] | None:
    """The machine's numbers of the GPUs that Slurm gave the step (a bound task: to it), or else the job, on this node. None: it doesn't say, or not in numbers."""
    for name in (STEP_GPUS, JOB_GPUS):
        if mask.variables.get(name):
            return parse_numbers(mask.variables[name])
    return None


def num_given(mask: Mask) -> int | None:
    """How many GPUs Slurm gave the step or job on this node; None: it doesn't say."""
    numbers = given_numbers(mask)
    return len(numbers) if numbers is not None else _number(mask, GPUS_ON_NODE)


def tasks_on_node(mask: Mask) -> int | None:
    """How many tasks the step of this process has on this node; None: no step, or it isn't said."""
    listed = mask.variables.get("SLURM_GTIDS")
    if listed:
        numbers = parse_numbers(listed)
        return len(numbers) if numbers else None
    counts = _unfolded(mask.variables.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = _number(mask, "SLURM_NODEID")
    if not counts:
        return None
    if len(set(counts)) == 1:
        return counts[0]
    return counts[node] if node is not None and node < len(counts) else None


def job_uuids(node: Node, plan: Plan | None) -> frozenset[str] | None:
    """UUIDs of the GPUs that the job has on this node: where the plan's ranks were found, or else what the mask resolves to. None: nobody says, or not of each."""
    planned = plan.placement.uuids_on_node.get(node.name) if plan is not None else None
    if planned is not None:
        uuids = planned
    elif node.mask is not None and node.mask.gpu_uuids is not None:
        uuids = node.mask.gpu_uuids
    else:
        return None
    parents = {mig: gpu.uuid for gpu in node.gpus or () for mig in gpu.mig_devices or ()}
    known = [parents.get(uuid, uuid) if uuid is not None else None for uuid in uuids]
    return None if None in known else frozenset(uuid for uuid in known if uuid is not None)


def kept_from_us(gpu: Gpu) -> bool:
    """Whether this GPU could not be opened, and only because this process may not."""
    return gpu.uuid is None and gpu.name is None and bool(gpu.problems) and all(p.not_allowed for p in gpu.problems)


def why_gone(gpu: Gpu) -> str | None:
    """What the driver says of a GPU that is gone until it is reset, though it may have answered before; None: it says no such thing."""
    told = [f"{p.source}: {p.text}" for p in gpu.problems if any(word in p.text.lower() for word in _GONE)]
    return "; ".join(dict.fromkeys(told)) or None


def binding_asked(mask: Mask) -> str:
    """The setting by which Slurm binds each task of a step to GPUs of its own, as "SLURM_GPUS_PER_TASK=1"; empty if there is none, or it is switched off."""
    variables = mask.variables
    bind, tres_bind = variables.get("SLURM_GPU_BIND", ""), variables.get("SLURM_TRES_BIND", "")
    if bind.endswith("none") or "gpu:none" in tres_bind:
        return ""
    for name, word in (
        ("SLURM_GPU_BIND", ""),
        ("SLURM_TRES_BIND", "gpu:"),
        ("SLURM_GPUS_PER_TASK", ""),
        ("SLURM_TRES_PER_TASK", "gpu"),
    ):
        if variables.get(name) and word in variables[name]:
            return f"{name}={variables[name][:40]}"
    return ""


def task_binding(node: Node) -> Binding | None:
    """How this process's task is bound, if the driver shows it fewer GPUs than its step has on this node, and the step has other tasks there. None: it isn't bound,
    or that can't be told. A mask alone (CUDA_VISIBLE_DEVICES) hides nothing from the driver.
    """
    if node.mask is None or not node.gpus:
        return None
    tasks = tasks_on_node(node.mask) or 1
    seen = sum(not kept_from_us(gpu) for gpu in node.gpus)
    by = binding_asked(node.mask)
    per_task = _number(node.mask, "SLURM_GPUS_PER_TASK") or 0
    told = (len(given_numbers(node.mask) or ()), _number(node.mask, GPUS_ON_NODE) or 0, per_task * tasks)
    given = max(told)
    bound = tasks > 1 and seen < given and (seen * tasks <= given or by != "")  # one GPU lost of eight is no binding
    return Binding(tasks, seen, given, by) if bound else None


def _number(mask: Mask, name: str) -> int | None:
    text = mask.variables.get(name, "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 4 else None


def _unfolded(text: str) -> list[int]:
    """Slurm's counts per node, "8(x2),4" -> 8, 8, 4; empty if it is something else."""
    counts: list[int] = []
    for part in text.split(",") if text else ():
        match = re.fullmatch(r"([0-9]{1,4})(?:\(x([0-9]{1,6})\))?", part)
        if match is None or len(counts) > MAX_NODES:
            return []
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
