"""Everything a check may look at."""

from collections.abc import Mapping
from typing import Literal

from preflight.model.base import Noun
from preflight.model.inventory import Inventory
from preflight.model.measurement import Measurement
from preflight.model.plan import Plan
from preflight.model.profile import Profile
from preflight.model.topology import Topology

IncidentKind = Literal[
    "agent_lost",
    "agent_busy",
    "agent_refused",
    "agent_late",
    "worker_not_started",
    "worker_hung",
    "worker_died",
    "worker_unkillable",
    "store_lost",
    "budget_ended",
]


class Incident(Noun, frozen=True, kw_only=True):
    """Something that went wrong while measuring, as seen by the part that saw it. `at_s`: seconds since the run began. `probe`: the key of
    the probe during which it happened, None if none was under way.
    """

    kind: IncidentKind
    text: str
    phase: str
    at_s: float
    node: str | None = None
    rank: int | None = None
    probe: str | None = None


class Settings(Noun, frozen=True, kw_only=True):
    """How the evidence was gathered.

    `backend`: what moved the data, None when nothing did; `backend_reason`: why that one. `cpu_declared`: someone said that a run without GPUs is meant, so
    that checks of GPUs don't apply; a machine whose GPUs are merely missing is not that. `local`: agents and workers all
    ran on one machine.
    """

    backend: Literal["nccl", "gloo"] | None = None
    backend_reason: str | None = None
    cpu_declared: bool = False
    local: bool = False
    simulated: bool = False


class BaselineEntry(Noun, frozen=True, kw_only=True):
    """What one subject measured before: busbw of earlier runs, newest last, in bytes per second."""

    subject: str
    collective: str
    size_bytes: int
    busbw_bytes_per_s: tuple[float, ...]


class Baseline(Noun, frozen=True, kw_only=True):
    """This cluster's own history."""

    entries: tuple[BaselineEntry, ...] = ()


class Evidence(Noun, frozen=True, kw_only=True):
    """The single argument of every check. None: this command doesn't look at that, which is not the same as "unknown"."""

    settings: Settings = Settings()
    inventory: Inventory | None = None
    topology: Topology | None = None
    plan: Plan | None = None
    profile: Profile | None = None
    measurements: tuple[Measurement, ...] | None = None
    incidents: tuple[Incident, ...] = ()
    baseline: Baseline | None = None

    def limits(self, check: str, defaults: Mapping[str, float]) -> dict[str, float]:
        """The limits of a check: its defaults, overridden by `[rules.<check>.limits]` of the plan file."""
        rule = self.plan.job.rules.get(check) if self.plan else None
        return {**defaults, **(rule.limits if rule else {})}
