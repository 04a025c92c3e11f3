"""Judging one placement of a plan's job: given, derived from the launcher's variables, or gathered."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from preflight.discover.rank import facts_without_gpu, place_of
from preflight.errors import ConfigError, PreflightError
from preflight.in_job import facts
from preflight.model import Evidence, Finding, Job, Placement, Plan, RankFacts, Settings, Topology, Verdict

MAX_SHOWN = 5  # broken rules that the text names

PlanLike = str | Path | Job | Plan


class Outcome(NamedTuple):
    """`reason` empty: every rule holds."""

    reason: str
    fingerprint: str


def judged(plan: PlanLike, placement: Placement) -> Outcome:
    """The verdict on one placement of the plan's job. Raises PreflightError (the plan can't be read, or is at odds with the placement)."""
    from preflight.judge.run import judge
    from preflight.plan.build import build_plan
    from preflight.plan.fingerprint import fingerprint
    from preflight.plan.measured import predict_for
    from preflight.plan.rules import check_rules
    from preflight.registry import load_checks

    job = job_in(plan)
    topology = topology_of(job)
    checks = load_checks()
    check_rules(job.source, job.rules, {check.name: check.limits for check in checks})
    built = build_plan(job, placement=placement, topology=topology)
    if placement.source == "measured":
        built = msgspec.structs.replace(built, predicted=predict_for(job, placement, topology))
    evidence = Evidence(settings=Settings(cpu_declared=job.hardware.backend == "gloo"), topology=topology, plan=built)
    findings, _, _ = judge(evidence, [check for check in checks if check.of_placement and set(check.uses) <= {"plan"}])
    return Outcome(_reason(job, findings), fingerprint(built))


def _reason(job: Job, findings: Sequence[Finding]) -> str:
    """The broken rules as one text, empty if there are none."""
    broken = [finding for finding in findings if finding.verdict is Verdict.FAIL]
    if not broken:
        return ""
    lines = [f"{job.source}: the placement of this job breaks {len(broken)} rule{'s' * (len(broken) > 1)}"]
    for finding in broken[:MAX_SHOWN]:
        lines.append(f"  {finding.check}, {finding.subject}: {finding.observed}")
        lines += [f"    {finding.remedy}"] if finding.remedy else []
    if len(broken) > MAX_SHOWN:
        lines.append(f"  and {len(broken) - MAX_SHOWN} more")
    return "\n".join(lines)


def outcome_of(judgement: Callable[[], Outcome]) -> Outcome:
    """The outcome, whatever happens: what can't be found out is a reason too."""
    try:
        return judgement()
    except PreflightError as error:
        return Outcome(str(error), "")
    except Exception as error:  # noqa: BLE001 - a fault of ours on rank 0 must not leave the others waiting
        return Outcome(f"the placement could not be judged: {type(error).__name__}: {error}", "")


def job_in(plan: PlanLike) -> Job:
    """The job of a plan in any form. Raises ConfigError."""
    if isinstance(plan, Plan):
        return plan.job
    if isinstance(plan, Job):
        return plan
    from preflight.plan.planfile import read_job

    return read_job(plan)


def topology_of(job: Job) -> Topology | None:
    """What the plan's topology file says; None: it names none."""
    if job.launch.topology is None:
        return None
    from preflight.discover.topology_files import read_topology

    return read_topology(Path(job.launch.topology))


def given(ranks: str | Path | Sequence[RankFacts]) -> Placement:
    """The placement that these facts, or this file or folder of them, amount to."""
    from preflight.plan.measured import measured_placement, read_ranks

    return measured_placement(read_ranks(ranks) if isinstance(ranks, str | Path) else ranks)


def derived(plan: PlanLike) -> Outcome:
    """Judge what this process's launcher tells it, without a word to the others."""
    from preflight.plan.derived import SOURCE, Seat, derive_placement

    place = place_of(os.environ)
    if place.world_size is None:
        raise ConfigError(
            SOURCE,
            f"{place.numbered_by} is set, but no variable tells the number of ranks",
            key="WORLD_SIZE",
            remedy="call assert_placement after torch.distributed.init_process_group, or set WORLD_SIZE",
        )
    own = facts_without_gpu(os.environ, place, facts.ROOT)
    names = tuple(name for name in (own.node, own.host) if name)
    job = job_in(plan)
    seat = Seat(place.rank, place.world_size, place.local_rank, names)
    return judged(job, derive_placement(job, os.environ, seat, topology_of(job)))
