"""What a check says: verdicts, findings, and the contract of a check.

Worst first: FAIL > UNKNOWN > WARN > PASS > SKIP. UNKNOWN (evidence missing, or the check broke) is never PASS.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Literal

from preflight.model.base import Noun
from preflight.model.job import Need

if TYPE_CHECKING:
    from preflight.model.evidence import Evidence


class Verdict(str, Enum):
    """The level of a finding. `Verdict.FAIL.rank` is 0: smaller is worse."""

    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"
    WARN = "WARN"
    PASS = "PASS"  # noqa: S105 - a verdict, not a password
    SKIP = "SKIP"

    @property
    def rank(self) -> int:
        """Position in the order worst-first, from 0."""
        return list(Verdict).index(self)


Answer = Literal["go", "undecided", "no-go"]
PartKind = Literal[
    "gpu",
    "slot",
    "switch",
    "nic",
    "rail",
    "link",
    "rank",
    "node",
    "leaf",
    "uplink",
    "path",
    "class",
    "environment",
    "plan",
]
Confidence = Literal["certain", "likely", "possible"]


class Part(Noun, frozen=True, kw_only=True):
    """The smallest thing that the evidence supports blaming, and how sure that is."""

    kind: PartKind
    name: str
    confidence: Confidence = "certain"


class Finding(Noun, frozen=True, kw_only=True):
    """What one check says of one subject.

    `remedy` is the smallest change that would help, empty when nothing needs doing. `blames` is None when nothing is
    blamed, or when the part is not identifiable. `evidence` names measurements (Probe.key) or facts it rests on.
    `need` is set by the harness. `origin`: the other tool that said it, None for our own.
    """

    check: str
    subject: str
    verdict: Verdict
    observed: str
    expected: str = ""
    remedy: str = ""
    blames: Part | None = None
    evidence: tuple[str, ...] = ()
    need: Need = "required"
    origin: str | None = None


class CheckRun(Noun, frozen=True, kw_only=True):
    """That a check ran, and for how long."""

    check: str
    duration_s: float
    num_findings: int


Facts = Literal["inventory", "health", "before", "plan", "measurements"]


class Check(Noun, frozen=True, kw_only=True):
    """A check: a name (= its file's name = metric label), a claim, and a pure function from evidence to findings.

    `claim`, `why`, `source` (where the rule and its numbers come from) and `remedy` (what to do in general; a finding's own is more exact) are what
    `preflight checks explain` shows.

    `judge` yields one finding for each thing judged, passes included; yields nothing when there is nothing to judge (the
    harness says SKIP); may raise (the harness says UNKNOWN). No clock, log, exit, subprocess, environment or metric
    inside. `uses` names the facts without which the check can't run: the harness says SKIP where a command doesn't
    gather them. `limits` are the numbers that a plan file may override, by name. `of_placement` False: the verdict does not depend on where ranks sit, so that it is for
    the planner to give, and never stops a job that already runs (preflight.assert_placement).
    """

    name: str
    claim: str
    why: str
    uses: tuple[Facts, ...]
    judge: Callable[["Evidence"], Iterator[Finding]]
    source: str = ""
    remedy: str = ""
    need: Need = "required"
    limits: Mapping[str, float] = {}
    of_placement: bool = True
