"""Everything a check may look at."""

from collections.abc import Mapping
from typing import Literal

from preflight.model.base import Noun
from preflight.model.gpu import Gpu
from preflight.model.inventory import Inventory, Node
from preflight.model.job import Rule
from preflight.model.localisation import Localisation
from preflight.model.measurement import Measurement
from preflight.model.plan import Plan
from preflight.model.profile import Profile
from preflight.model.topology import Topology

IncidentKind = Literal[
    "agent_lost",
    "agent_busy",
    "agent_refused",
    "agent_late",
    "agent_error",
    "worker_not_started",
    "worker_hung",
    "worker_slow",
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
    """What one subject measured before: busbw of earlier runs, newest last, in bytes per second. `runs`: of each figure, its run's place in Baseline.runs; empty: not known."""

    subject: str
    collective: str
    size_bytes: int
    busbw_bytes_per_s: tuple[float, ...]
    runs: tuple[int, ...] = ()


class BaselineRun(Noun, frozen=True, kw_only=True):
    """An earlier run. `at_s`: Unix time. `facts`, `nodes` (by name): software of the run and of its nodes, as places in Baseline.facts; None, or left out: not known."""

    at_s: float
    facts: int | None = None
    nodes: dict[str, int] = {}


class Baseline(Noun, frozen=True, kw_only=True):
    """This cluster's own history. `facts`: name -> version, each combination once."""

    entries: tuple[BaselineEntry, ...] = ()
    runs: tuple[BaselineRun, ...] = ()
    facts: tuple[dict[str, str], ...] = ()


class Evidence(Noun, frozen=True, kw_only=True):
    """The single argument of every check. None: this command doesn't look at that, which is not the same as "unknown".

    `profile`: of the job's GPU, as the plan names it; `profiles`: of the GPUs that were found, by NVML product name in lower case. `before`: the same nodes at an earlier
    time, so that counters can be compared. `rules`: those of the site, which the plan file's override. `localisation`: what the judge inferred from the measurements
    before the checks run; None: there were none.
    """

    settings: Settings = Settings()
    inventory: Inventory | None = None
    topology: Topology | None = None
    plan: Plan | None = None
    profile: Profile | None = None
    profiles: dict[str, Profile] = {}
    before: Inventory | None = None
    rules: dict[str, Rule] = {}
    measurements: tuple[Measurement, ...] | None = None
    incidents: tuple[Incident, ...] = ()
    baseline: Baseline | None = None
    localisation: Localisation | None = None

    @property
    def health(self) -> tuple[Node, ...] | None:
        """The nodes whose source tells more than how things are joined; None if there are none: then checks of health don't run."""
        nodes = tuple(node for node in self.inventory.nodes if node.tells_health) if self.inventory else ()
        return nodes or None

    def profile_of(self, gpu: Gpu) -> Profile | None:
        """The profile of the product that the driver names; None: no name, or no profile for it."""
        return self.profiles.get(gpu.name.casefold()) if gpu.name else None

    def rule(self, check: str) -> Rule:
        """What plan file and site say of a check; empty if nothing."""
        plan = self.plan.job.rules if self.plan else {}
        return plan.get(check) or self.rules.get(check) or Rule()

    def limits(self, check: str, defaults: Mapping[str, float]) -> dict[str, float]:
        """The limits of a check: its defaults, overridden by `[rules.<check>.limits]` of the site, then of the plan file."""
        plan = self.plan.job.rules if self.plan else {}
        limits = dict(defaults)
        for rules in (self.rules, plan):
            limits.update(rules[check].limits if check in rules else {})
        return limits
