"""One run from its request to its report: local agents if asked for, the coordinator, the judge."""

import asyncio
import contextlib
import os
import platform
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import msgspec

from preflight import __version__
from preflight.errors import ConfigError, UsageError, WorldError
from preflight.fleet.auth import new_key
from preflight.fleet.coordinator import REAL, Coordinator
from preflight.fleet.interrupt import Interruptions
from preflight.fleet.local import Address, LocalAgents
from preflight.fleet.memory import Memory
from preflight.fleet.munge import Munge
from preflight.fleet.task import Outcome, Progress, Request
from preflight.fleet.world import World
from preflight.formats import readable
from preflight.judge.run import judge, localised
from preflight.model import Baseline, Check, Environment, Evidence, Job, Placement, Report
from preflight.model.baseline import baseline_of
from preflight.model.position import Position

# variables that change what NCCL, gloo, torch and CUDA do; recorded, since one left over in an environment explains many a slow link
_STEERING = ("NCCL_", "TORCH_NCCL_", "GLOO_", "CUDA_", "UCX_", "FI_", "OMP_NUM_THREADS", "LD_PRELOAD")
MAX_LOCAL = 64


def new_run_id() -> str:
    """A name for a run that sorts by time."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + "-" + secrets.token_hex(3)


def run(
    job: Job,
    checks: tuple[Check, ...],
    *,
    progress: Progress,
    budget_s: float,
    backend: str | None = None,
    local: tuple[int, int] | None = None,
    agents: tuple[Address, ...] = (),
    key: bytes | Munge | None = None,
    interruptions: Interruptions | None = None,
    world: World = REAL,
    command: str = "run",
    memory: Memory | None = None,
    earlier: Sequence[Report] = (),
    placement: Placement | None = None,
    slurm_job: str | None = None,
    past: Callable[[Evidence], Baseline | None] | None = None,
) -> Report:
    """Measure and judge. Raises ConfigError, WorldError; an interruption ends it early with a partial report.

    `local` (agents, workers on each): on this machine. Else `agents`, with the key that they have, or munge. `world`: where it takes place; seconds are those of its clock. `memory`: where scans go
    on; what this one did is kept there if the file can be written, else said on stderr. `earlier`: reports of earlier runs, which this one's figures are compared with. `placement`: where the job's ranks
    said that they are (`preflight ranks`), in place of where its launcher should put them. `slurm_job`: the number of the job that it is for; resident agents give way to all others. `past`: what a history says of the parts that were measured, asked where no earlier reports were given.
    """
    if local and local[0] * local[1] > MAX_LOCAL:
        raise UsageError(f"--local {local[0]}x{local[1]}: at most {MAX_LOCAL} workers on one machine")
    run_id, started_at_s, began = new_run_id(), time.time(), world.clock()
    request = Request(
        run_id=run_id,
        job=job,
        agents=agents,
        key=key or new_key(),
        budget_s=budget_s,
        backend=backend,
        per_node=local[1] if local else None,
        local=local is not None,
        memory=memory,
        placement=placement,
        slurm_job=slurm_job,
    )
    outcome = _gathered(request, local[0] if local else 0, progress, interruptions, world)
    _keep(memory, outcome.position)
    evidence = localised(_with_history(outcome.evidence, earlier, past))
    findings, runs, answer = judge(evidence, checks, partial=outcome.stopped is not None)
    return Report(
        run_id=run_id,
        command=command,
        started_at_s=started_at_s,
        duration_s=world.clock() - began,
        answer=answer,
        findings=findings,
        evidence=evidence,
        checks=runs,
        coverage=outcome.coverage,
        environment=_environment(outcome),
        phases_s=outcome.phases_s,
        partial=outcome.stopped is not None,
        partial_reason=outcome.stopped,
    )


def _keep(memory: Memory | None, position: Position | None) -> None:
    """A state that can't be written costs no result. None: there is nothing to keep."""
    if memory is None or position is None:
        return
    try:
        memory.keep(position)
    except (ConfigError, WorldError) as error:
        with contextlib.suppress(OSError):  # standard error may be on the same full disk
            sys.stderr.write(f"preflight: {error}\n")


def _with_history(
    evidence: Evidence,
    earlier: Sequence[Report],
    past: Callable[[Evidence], Baseline | None] | None = None,
) -> Evidence:
    if not earlier and past is None:
        return evidence
    try:
        if earlier:
            baseline: Baseline | None = baseline_of(earlier, evidence.plan, evidence.settings.backend, now=evidence)
        else:
            baseline = past(evidence) if past else None
    except Exception as error:  # noqa: BLE001 - what was measured must not be lost with it
        with contextlib.suppress(OSError):
            sys.stderr.write(f"preflight: earlier runs tell no history: {type(error).__name__}: {error}\n")
        return evidence
    return msgspec.structs.replace(evidence, baseline=baseline)


def _gathered(
    request: Request, num_local: int, progress: Progress, interruptions: Interruptions | None, world: World
) -> Outcome:
    """What the coordinator gathers. The outcome is not the result of asyncio's task: asyncio prints that into a text that nobody reads, which takes seconds for a large fleet."""
    kept: list[Outcome] = []

    async def gather() -> None:
        kept.append(await _gather(request, num_local, progress, interruptions, world))

    asyncio.run(gather())
    return kept[0]


async def _gather(
    request: Request, num_local: int, progress: Progress, interruptions: Interruptions | None, world: World
) -> Outcome:
    interrupted = asyncio.Event()
    local = LocalAgents(request.key if isinstance(request.key, bytes) else new_key())
    if interruptions is not None:
        interruptions.attach(interrupted)
    connect = partial(local.start, num_local) if num_local else None
    try:
        return await Coordinator(request, progress, interrupted, connect, world).run()
    finally:
        await local.stop()


def _environment(outcome: Outcome) -> Environment:
    versions = {"preflight": __version__, "python": platform.python_version(), "kernel": platform.release()}
    for name in ("aiohttp", "numpy", "msgspec", "nvidia-ml-py"):
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    variables = {
        readable(name): readable(value) for name, value in sorted(os.environ.items()) if name.startswith(_STEERING)
    }
    return Environment(versions={**versions, **outcome.versions}, variables=variables)
