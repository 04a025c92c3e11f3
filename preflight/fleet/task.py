"""What a coordinator is asked to do, and what it gives back."""

from collections.abc import Callable, Sequence

import msgspec

from preflight.fleet.local import Address
from preflight.model import Coverage, Evidence, Job, Measurement
from preflight.probe.schedule import Round

Progress = Callable[[str, float, float], None]  # phase, seconds of work done, seconds of work planned


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `per_node`: ranks on each node, None: as many as it has usable GPUs, or as the plan file says."""

    run_id: str
    job: Job
    agents: tuple[Address, ...]
    key: bytes
    budget_s: float
    backend: str | None = None
    per_node: int | None = None
    local: bool = False


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run gathered. `stopped` says why it ended early, None: it didn't."""

    evidence: Evidence
    coverage: Coverage
    versions: dict[str, str]
    phases_s: dict[str, float]
    stopped: str | None = None


class Stopped(Exception):  # noqa: N818
    """The run was interrupted."""


def coverage_of(schedule: Sequence[Round], measurements: Sequence[Measurement]) -> Coverage:
    """How many of the planned pairs and groups (alone and together counted as one) have at least one figure."""
    planned = {(probe.axis is None, probe.subject) for probes in schedule for probe in probes}
    measured = {(m.probe.axis is None, m.probe.subject) for m in measurements if m.samples} & planned
    return Coverage(
        pairs_planned=sum(pair for pair, _ in planned),
        pairs_measured=sum(pair for pair, _ in measured),
        groups_planned=sum(not pair for pair, _ in planned),
        groups_measured=sum(not pair for pair, _ in measured),
    )


def describe(probes: Round) -> str:
    """A round in a few words, for the progress bar."""
    first = probes[0]
    if first.axis is None:
        return f"{len(probes)} pairs at once"
    return f"{first.axis} groups {first.mode}" if len(probes) > 1 else f"{first.subject} {first.mode}"
