"""Where this process is as a rank of a job: from its launcher's variables, the kernel and the GPU driver. No torch, no CUDA."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from preflight.discover.files import read_text
from preflight.discover.nvml_reading import NvmlReading
from preflight.discover.nvml_run import NvmlRun
from preflight.errors import ConfigError
from preflight.model import Gpu, Problem, RankFacts
from preflight.model.devices import ORDER_VARIABLE, VARIABLE, own_device, resolve_devices

SOURCE = "environment"
MAX_KEPT = 200  # letters; a longer variable (the node list of a big job) is left out, so that a line of facts can be written in one piece


class Numbering(NamedTuple):
    """One launcher's variables for rank, world size and local rank: of the latter two the first that is set counts."""

    rank: str
    world_size: tuple[str, ...] = ()
    local_rank: tuple[str, ...] = ()


# The first whose rank is set counts: torchrun and DeepSpeed run inside the tasks of the others, and mpirun inside those of Slurm, whose batch step has
# variables of its own.
# Sources: torch.distributed.run; srun(1), OUTPUT ENVIRONMENT VARIABLES; mpirun(1) of Open MPI; Hydra of MPICH and Intel MPI; PMIx standard.
_SLURM_SIZE = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
NUMBERINGS = (
    Numbering("RANK", ("WORLD_SIZE",), ("LOCAL_RANK",)),
    Numbering("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), ("OMPI_COMM_WORLD_LOCAL_RANK",)),
    Numbering("PMI_RANK", ("PMI_SIZE",), ("MPI_LOCALRANKID",)),
    Numbering("PMIX_RANK"),
    Numbering("SLURM_PROCID", _SLURM_SIZE, ("SLURM_LOCALID",)),
)
_TORCH = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
_SLURM = ("SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID", "SLURM_GTIDS", "SLURMD_NODENAME")
_SLURM_STEP = (*_SLURM_SIZE, "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE")
_SLURM_HOW = ("SLURM_DISTRIBUTION", "SLURM_DIST_PLANESIZE", "SLURM_HOSTFILE", "SLURM_TOPOLOGY_ADDR")
_OTHERS = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "PMIX_RANK")
_KEPT = (*_TORCH, *_SLURM, *_SLURM_STEP, *_SLURM_HOW, *_OTHERS, "JOB_COMPLETION_INDEX")


class Place(NamedTuple):
    """This process's numbers. None: its launcher doesn't say. `numbered_by`: the variable that gave the rank."""

    rank: int
    world_size: int | None
    local_rank: int | None
    numbered_by: str


def this_rank(environ: Mapping[str, str], root: Path | str = "/", *, deadline_s: float = 20.0) -> RankFacts:
    """Everything about this process as a rank of a job. `root`: where /proc is found; `deadline_s`: limit for the GPU driver, in seconds.

    A driver that is missing or hangs leaves the GPU None. Raises ConfigError where no launcher numbers this process, or the numbers make no sense.
    """
    place = place_of(environ)
    facts = facts_without_gpu(environ, place, Path(root))
    reading = read_driver(Path(root), deadline_s)
    return facts if reading is None else with_gpu(facts, reading)


def place_of(environ: Mapping[str, str]) -> Place:
    """Rank, world size and local rank as the launcher tells them. Raises ConfigError."""
    for numbering in NUMBERINGS:
        rank = _number(environ, numbering.rank)
        if rank is None:
            continue
        world_size, local_rank = _first(environ, numbering.world_size), _first(environ, numbering.local_rank)
        if _number(environ, "SLURM_PROCID") == rank:  # RANK=$SLURM_PROCID, as many scripts do, or srun with PMI
            local_rank = _number(environ, "SLURM_LOCALID") if local_rank is None else local_rank
            world_size = _first(environ, _SLURM_SIZE) if world_size is None else world_size
        if world_size is not None and not rank < world_size:
            raise ConfigError(
                SOURCE,
                f"{rank}, but {' or '.join(numbering.world_size)} says that there are {world_size} ranks, so the last is {world_size - 1}",
                key=numbering.rank,
                remedy="a variable is left over from another launcher: unset it",
            )
        return Place(rank, world_size, local_rank, numbering.rank)
    index = environ.get("JOB_COMPLETION_INDEX")
    hint = f" (JOB_COMPLETION_INDEX={index[:20]!r} numbers pods, not ranks)" if index is not None else ""
    raise ConfigError(
        SOURCE,
        f"no launcher numbers this process: none of {', '.join(numbering.rank for numbering in NUMBERINGS)} is set{hint}",
        remedy="start it as the job is started: with srun, torchrun --no-python, deepspeed or mpirun",
    )


def facts_without_gpu(environ: Mapping[str, str], place: Place, root: Path) -> RankFacts:
    """What the launcher and the kernel tell; costs no process and no driver call."""
    return RankFacts(
        rank=place.rank,
        world_size=place.world_size,
        local_rank=place.local_rank,
        numbered_by=place.numbered_by,
        host=_text(read_text(root / "proc/sys/kernel/hostname") or os.uname().nodename),
        node=_text(environ["SLURMD_NODENAME"]) if environ.get("SLURMD_NODENAME") else None,
        boot_id=read_text(root / "proc/sys/kernel/random/boot_id"),
        visible_devices=_text(environ[VARIABLE]) if VARIABLE in environ else None,
        device_order=_text(environ[ORDER_VARIABLE]) if ORDER_VARIABLE in environ else None,
        environment={
            name: _text(environ[name]) for name in _KEPT if len(environ.get(name, "")) in range(1, MAX_KEPT + 1)
        },
    )


def has_driver(root: Path) -> bool:
    """Whether an NVIDIA driver is there at all; without one NVML need not be asked."""
    return (root / "proc/driver/nvidia").is_dir() or (root / "dev/nvidiactl").exists()


def read_driver(root: Path, deadline_s: float) -> NvmlReading | None:
    """NVML's reading, made in a child within the deadline; None where there is no driver."""
    if not has_driver(root):
        return None
    with contextlib.closing(NvmlRun(deadline_s)) as run:
        return run.result()


def with_gpu(facts: RankFacts, reading: NvmlReading) -> RankFacts:
    """The facts with this rank's GPU and domain, as far as NVML tells."""
    problems = [*facts.problems, *reading.problems]
    visible = resolve_devices(facts.visible_devices, reading.gpus, order=facts.device_order)
    problems += [Problem(source=VARIABLE, text=text) for text in visible.problems]
    own = own_device(visible, facts.local_rank)
    if own.problem is not None:
        problems.append(Problem(source="GPU of this rank", text=own.problem))
    gpu = next((gpu for gpu in reading.gpus or () if gpu.uuid is not None and gpu.uuid == own.uuid), None)
    if gpu is not None:
        problems += gpu.problems
    return msgspec.structs.replace(
        facts,
        gpu_uuid=own.uuid,
        pci_bus_id=gpu.pci_bus_id if gpu else None,
        domain=gpu.nvlink_domain if gpu else common_domain(reading.gpus or ()),
        problems=tuple(problems),
    )


def common_domain(gpus: tuple[Gpu, ...]) -> str | None:
    """The fabric's domain that all GPUs of a node share; None if they don't, or the fabric gives none."""
    domains = {gpu.nvlink_domain for gpu in gpus}
    return domains.pop() if len(domains) == 1 else None


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    found = (_number(environ, name) for name in names)
    return next((number for number in found if number is not None), None)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    """The number in a variable, None if it isn't set. Raises ConfigError for what is no number from 0 on."""
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ConfigError(
            SOURCE, f"{text[:40]!r} is no number from 0 on", key=name, remedy="unset it, or let the launcher set it"
        )
    return int(text)


def _text(value: str) -> str:
    """A value that can be encoded, whatever bytes the environment holds."""
    return os.fsencode(value).decode("utf-8", "backslashreplace")
