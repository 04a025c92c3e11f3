"""The devices that this process or job was given: the variables of CUDA, Slurm and container runtimes, resolved to physical GPUs.

Sources: CUDA C++ Programming Guide, "CUDA Environment Variables"; srun(1), "OUTPUT ENVIRONMENT VARIABLES"; NVIDIA Container Toolkit, "Environment variables
(OCI spec)"; Slurm's gres.conf(5): its numbers follow the PCI order of the GPUs, those of device files (minors) may not.
"""

from collections.abc import Mapping, Sequence

from preflight.model import Gpu, Mask
from preflight.model.devices import ORDER_VARIABLE, VARIABLE, Visible, resolve_devices
from preflight.model.job_gpus import GPUS_ON_NODE, JOB_GPUS, STEP_GPUS, given_numbers, kept_from_us, parse_numbers

CONTAINER_VARIABLE = "NVIDIA_VISIBLE_DEVICES"
MAX_KEPT = 2000  # letters of one value: 16 whole UUIDs are 656

# any of these says something of which GPUs are meant
_MASKS = (VARIABLE, CONTAINER_VARIABLE, STEP_GPUS, JOB_GPUS, GPUS_ON_NODE, "GPU_DEVICE_ORDINAL", "SLURM_GPUS_PER_TASK")
_BINDING = ("SLURM_GPU_BIND", "SLURM_TRES_PER_TASK", "SLURM_TRES_BIND", "SLURM_NTASKS_PER_GPU", "SLURM_GPUS_PER_NODE")
_TASKS = ("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE", "SLURM_GTIDS")
_PLACE = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_NODEID", "SLURM_LOCALID")
_KEPT = (*_MASKS, ORDER_VARIABLE, *_BINDING, *_TASKS, *_PLACE)


def read_mask(environment: Mapping[str, str], gpus: tuple[Gpu, ...] | None) -> Mask | None:
    """The mask of the process with these variables; None where no variable speaks of GPUs. `gpus`: those of the node as this process sees them, None: not known.

    Nothing is guessed: what doesn't resolve is None, and `problems` or `doubts` say why. Never raises.
    """
    if not any(name in environment for name in _MASKS):
        return None
    mask = Mask(variables={name: _text(environment[name]) for name in _KEPT if name in environment})
    numbers = given_numbers(mask)
    ours = None if gpus is None else [gpu for gpu in gpus if not kept_from_us(gpu)]
    if VARIABLE in environment:
        visible = resolve_devices(_text(environment[VARIABLE]), gpus, order=environment.get(ORDER_VARIABLE))
    elif numbers is not None and ours is not None:
        visible = Visible(_of_numbers(numbers, ours))
    else:
        return mask
    physical = _physical(ours or (), numbers if numbers is not None else _of_container(environment))
    return Mask(
        variables=mask.variables,
        gpu_uuids=visible.uuids,
        physical=tuple(physical.get(uuid) if uuid is not None else None for uuid in visible.uuids),
        problems=tuple(problem for problem in visible.problems if problem not in visible.doubts),
        doubts=visible.doubts,
    )


def _of_numbers(numbers: Sequence[int], gpus: Sequence[Gpu]) -> tuple[str | None, ...]:
    """The GPUs with these numbers on the machine: all, where just so many are seen; else by PCI order, where all of the machine are seen."""
    if len(numbers) == len(gpus):
        return tuple(gpu.uuid for gpu in gpus)
    if len(numbers) < len(gpus) and max(numbers, default=0) < len(gpus):
        return tuple(gpus[number].uuid for number in numbers)
    return (None,) * min(len(numbers), len(gpus))


def _physical(gpus: Sequence[Gpu], numbers: Sequence[int] | None) -> dict[str, int | None]:
    """UUID -> number on the machine: by the scheduler's list and by the device file; None where neither tells, or they differ."""
    listed: dict[int, int] = {}
    if numbers is not None and len(set(numbers)) == len(gpus):  # no more are seen than were given: renumbered from 0
        listed = {gpu.index: number for gpu, number in zip(gpus, sorted(numbers), strict=True)}
    elif numbers is not None and len(numbers) < len(gpus) and max(numbers, default=0) < len(gpus):
        listed = {gpu.index: position for position, gpu in enumerate(gpus)}
    found: dict[str, int | None] = {}
    for gpu in gpus:
        told = {number for number in (listed.get(gpu.index), gpu.minor_number) if number is not None}
        if gpu.uuid is not None:
            found[gpu.uuid] = told.pop() if len(told) == 1 else None
    for gpu in gpus:
        if gpu.uuid is not None:
            found |= dict.fromkeys(gpu.mig_devices or (), found[gpu.uuid])
    return found


def _of_container(environment: Mapping[str, str]) -> tuple[int, ...] | None:
    """The host's numbers that a container runtime was told; None where it was told UUIDs, "all", "void" or nothing."""
    return parse_numbers(environment.get(CONTAINER_VARIABLE, ""))


def _text(value: str) -> str:
    """A value that can be encoded and is not endless, whatever the environment holds."""
    text = value.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MAX_KEPT else text[: MAX_KEPT - 3] + "..."
