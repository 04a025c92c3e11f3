"""What a coordinator is asked to do, and what it gives back."""

from collections.abc import Callable

import msgspec

from preflight.fleet.local import Address
from preflight.fleet.memory import Memory
from preflight.fleet.munge import Munge
from preflight.model import Coverage, Evidence, Job, Placement
from preflight.model.position import Position
from preflight.probe.schedule import Round

Progress = Callable[[str, float, float], None]  # phase, seconds of work done, seconds of work planned


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `per_node`: ranks on each node, None: as many as it has usable GPUs, or as the plan file says. `key`: what agents know us by. `memory`: the state that scans go on from, None: none.

    `placement`: where the job's ranks said that they are, None: it is predicted. `slurm_job`: the number of the job that it is for, None: for none; resident agents give way to all others.
    """

    run_id: str
    job: Job
    agents: tuple[Address, ...]
    key: bytes | Munge
    budget_s: float
    backend: str | None = None
    per_node: int | None = None
    local: bool = False
    memory: Memory | None = None
    placement: Placement | None = None
    slurm_job: str | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run gathered. `stopped` says why it ended early, None: it didn't. `position`: where the next scan of these nodes goes on, None: nothing was planned."""

    evidence: Evidence
    coverage: Coverage
    versions: dict[str, str]
    phases_s: dict[str, float]
    stopped: str | None = None
    position: Position | None = None


class Stopped(Exception):  # noqa: N818
    """The run was interrupted."""


def describe(probes: Round) -> str:
    """A round in a few words, for the progress bar."""
    first, number = probes[0], len(probes)
    kind = first.collective.replace("_", " ")
    if len(first.ranks) == 1:
        return f"{kind} on {number} GPUs" if number > 1 else f"{kind}, {first.subject}"
    if first.axis is None:
        return f"{number} pairs at once" if number > 1 else first.subject
    axes = " and ".join(dict.fromkeys(str(probe.axis) for probe in probes))
    return f"{axes} groups {first.mode}" if number > 1 else f"{first.subject} {first.mode}"
