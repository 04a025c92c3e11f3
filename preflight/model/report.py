"""One run as a document."""

from preflight.model.base import Noun
from preflight.model.evidence import Evidence
from preflight.model.finding import Answer, CheckRun, Finding

SCHEMA = "preflight.report/1"


class Coverage(Noun, frozen=True, kw_only=True):
    """How much of what was planned was measured. What the budget didn't reach is stated here; it is not a finding.

    `links`: GPUs' ways out of their nodes (one for each rank of a run over several nodes); `uplinks`: leaves' ways to other leaves; `leaf_pairs`: pairs of leaves with a probe between them. 0 planned: not known, or there
    are none. `scan`: how far the tournament over all pairs of nodes has come, runs before this one included: "rounds 6 to 10 of 63".
    """

    pairs_planned: int = 0
    pairs_measured: int = 0
    groups_planned: int = 0
    groups_measured: int = 0
    links_planned: int = 0
    links_measured: int = 0
    uplinks_planned: int = 0
    uplinks_measured: int = 0
    leaf_pairs_planned: int = 0
    leaf_pairs_measured: int = 0
    scan: str = ""


class Environment(Noun, frozen=True, kw_only=True):
    """With what it ran: versions by name, and the variables that steer NCCL, gloo and CUDA."""

    versions: dict[str, str] = {}
    variables: dict[str, str] = {}


class Report(Noun, frozen=True, kw_only=True, tag_field="schema", tag=SCHEMA):
    """One run: the evidence, the findings worst first, the answer.

    `partial`: the run was interrupted. (A budget that ends before the plan is done is a matter of coverage.) `phases_s`: seconds spent in
    each phase; the start-up of workers is apart from probing. `started_at_s` is Unix time.
    """

    run_id: str
    command: str
    started_at_s: float
    duration_s: float
    answer: Answer
    findings: tuple[Finding, ...]
    evidence: Evidence
    checks: tuple[CheckRun, ...] = ()
    coverage: Coverage = Coverage()
    environment: Environment = Environment()
    phases_s: dict[str, float] = {}
    partial: bool = False
    partial_reason: str | None = None
