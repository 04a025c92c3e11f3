"""Trying a change: the plan is built again with it, and judged again by the same rules."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from preflight.errors import ConfigError
from preflight.model import Change, Finding, Job, Placement, Plan, Tally, Topology, Verdict
from preflight.plan.advise.situation import Situation, situation_of
from preflight.plan.build import build_plan

Judged = Callable[[Plan], Sequence[Finding]]

NEEDS_NVLINK = ("tp", "cp", "ep", "etp")
FASTER = 0.98  # an advice that repairs nothing must save at least 2 % of the step: less is not worth a change


class Candidate(NamedTuple):
    """A change and what the job is with it. `cost`: smaller is tried first. `placement`: None, the launcher's own. `topology`: None, that of the situation."""

    cost: int
    change: Change
    job: Job
    nodes: tuple[str, ...]
    placement: Placement | None = None
    topology: Topology | None = None


class Outcome(NamedTuple):
    """A plan and what the rules say of it. `problems`: check -> how many FAIL, UNKNOWN and WARN it says."""

    plan: Plan
    topology: Topology | None
    findings: tuple[Finding, ...]
    problems: dict[str, tuple[int, int, int]]
    tally: Tally

    @property
    def step_s(self) -> float | None:
        """The estimated step, if it is known."""
        time = self.plan.estimate.step_time
        return None if time is None else time.total_s


def try_candidate(situation: Situation, candidate: Candidate, judged: Judged) -> Outcome | None:
    """What becomes of the job with the change; None if the framework or the launcher would refuse it."""
    topology = candidate.topology or situation.topology
    job = candidate.job
    known = (None, None) if candidate.placement else (job.hardware.gpus_per_node, job.hardware.nodes)
    try:
        plan = build_plan(
            job,
            node_names=candidate.nodes,
            gpus_per_node=situation.per_node if known[0] is None else None,
            gpu_uuids=situation.uuids or None,
            topology=topology,
            placement=candidate.placement,
        )
    except ConfigError:
        return None
    return outcome_of(plan, topology, judged)


def outcome_of(plan: Plan, topology: Topology | None, judged: Judged) -> Outcome:
    """Judge a plan."""
    findings = tuple(judged(plan))
    problems: dict[str, list[int]] = {}
    for finding in findings:
        if finding.verdict in _COUNTED:
            problems.setdefault(finding.check, [0, 0, 0])[_COUNTED.index(finding.verdict)] += 1
    total = Counter(finding.verdict for finding in findings)
    tally = Tally(
        fail=total[Verdict.FAIL],
        unknown=total[Verdict.UNKNOWN],
        warn=total[Verdict.WARN],
        split_groups=_split_groups(plan),
    )
    return Outcome(plan, topology, findings, {check: (c[0], c[1], c[2]) for check, c in problems.items()}, tally)


def helped_checks(before: Outcome, after: Outcome) -> frozenset[str]:
    """The checks that say less against the job than before."""
    return frozenset(check for check, counts in before.problems.items() if after.problems.get(check, _NONE) < counts)


def repairs(before: Outcome, after: Outcome) -> bool:
    """Whether the change makes something better, and no check worse."""
    if any(counts > before.problems.get(check, _NONE) for check, counts in after.problems.items()):
        return False
    if after.tally.split_groups > before.tally.split_groups:
        return False
    if helped_checks(before, after) or after.tally.split_groups < before.tally.split_groups:
        return True
    steps = before.step_s, after.step_s
    return steps[0] is not None and steps[1] is not None and steps[1] < FASTER * steps[0]


def is_complete(after: Outcome, wanted: frozenset[str]) -> bool:
    """Whether nothing fails any more and each of these checks is content."""
    return after.tally.fail == 0 and not any(check in after.problems for check in wanted)


def contented_checks(before: Outcome, after: Outcome) -> frozenset[str]:
    """The checks that had something to say and have nothing any more."""
    return frozenset(before.problems) - frozenset(after.problems)


def badness(outcome: Outcome) -> tuple[float, ...]:
    """Smaller is better: failures, groups apart, unknown, warnings, seconds."""
    tally = outcome.tally
    return (tally.fail, tally.split_groups, tally.unknown, tally.warn, outcome.step_s or 0.0)


def left_over(outcome: Outcome) -> tuple[str, ...]:
    """What is still wrong, worst first: "check: subject"."""
    bad = sorted((f for f in outcome.findings if f.verdict in _COUNTED), key=lambda finding: finding.verdict.rank)
    return tuple(f"{finding.verdict.value} {finding.check}: {finding.subject}" for finding in bad)


def moved(situation: Situation, candidate: Candidate, outcome: Outcome) -> Situation:
    """The situation after a change, to look for the next one."""
    # a hostfile that the change proposes is not written yet: the candidate's placement tells the order
    job = candidate.job if candidate.placement is None else with_launch(candidate.job, hostfile=None)
    after = situation_of(job, outcome.plan, outcome.topology)._replace(job=candidate.job)
    nodes = candidate.nodes if set(candidate.nodes) == set(after.nodes) else after.nodes
    if candidate.placement is not None:
        nodes = candidate.placement.nodes  # the order that the change sets
    counts = dict(zip(after.nodes, after.counts, strict=True))
    return after._replace(nodes=nodes, counts=tuple(counts[name] for name in nodes), names_known=situation.names_known)


def with_launch(job: Job, **changes: object) -> Job:
    """The job with other launch keys."""
    return msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, **changes))


def with_parallel(job: Job, **changes: object) -> Job:
    """The job with other keys of `[parallel]`."""
    return msgspec.structs.replace(job, parallel=msgspec.structs.replace(job.parallel, **changes))


def _split_groups(plan: Plan) -> int:
    return sum(
        sum(1 for domains in footprint.domains if domains > 1)
        for axis, footprint in plan.footprints.items()
        if axis in NEEDS_NVLINK
    )


_COUNTED = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN)
_NONE = (0, 0, 0)
