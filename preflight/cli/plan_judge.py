"""Judging a job's layout without a cluster: what `preflight plan` and its advice have in common."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from preflight.cli.judged import judged_report
from preflight.judge.run import judge
from preflight.model import Evidence, Finding, Job, Placement, Plan, Report, Settings, Topology
from preflight.plan.build import build_plan
from preflight.plan.profiles import find_profile
from preflight.plan.rules import check_rules
from preflight.registry import load_checks

if TYPE_CHECKING:
    from preflight.model import Check


class PlanJudge:
    """The checks, loaded once, for any number of plans of one job. Raises ConfigError if its `[rules]` name a check that isn't there."""

    def __init__(self, job: Job, topology: Topology | None) -> None:
        self.topology = topology
        self._checks: Sequence[Check] = load_checks()
        check_rules(job.source, job.rules, {check.name: check.limits for check in self._checks})

    def evidence(self, plan: Plan) -> Evidence:
        """A plan alone, with nothing discovered."""
        job = plan.job
        return Evidence(
            # "auto" may still find GPUs, so only "gloo" says for certain that there are none
            settings=Settings(cpu_declared=job.hardware.backend == "gloo"),
            plan=plan,
            topology=self.topology,
            profile=find_profile(job.hardware.gpu) if job.hardware.gpu else None,
        )

    def findings(self, plan: Plan) -> Sequence[Finding]:
        """What the checks say of a plan: the same rules for what the user gave and for what we propose."""
        return judge(self.evidence(plan), self._checks)[0]

    def report(self, job: Job, placement: Placement | None = None) -> Report:
        """The plan of a job with the findings about it, as a report without measurements."""
        began_s, began = time.time(), time.perf_counter()
        plan = build_plan(job, topology=self.topology, placement=placement)
        if placement is not None:
            from preflight.plan.measured import predict_for

            plan = msgspec.structs.replace(plan, predicted=predict_for(job, placement, self.topology))
        evidence = self.evidence(plan)
        return judged_report("plan", evidence, self._checks, began_s=began_s, began=began)
