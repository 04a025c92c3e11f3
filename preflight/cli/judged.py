"""The report of a command that judges evidence without measuring: `preflight plan`, `preflight node`."""

import time
from collections.abc import Sequence

from preflight import __version__
from preflight.judge.run import judge
from preflight.model import Check, Environment, Evidence, Report


def judged_report(command: str, evidence: Evidence, checks: Sequence[Check], *, began_s: float, began: float) -> Report:
    """What the checks say of the evidence, as a report. `began_s`: Unix time, `began`: of the performance counter, both at the command's start."""
    findings, runs, answer = judge(evidence, checks)
    return Report(
        run_id=command,
        command=command,
        started_at_s=began_s,
        duration_s=time.perf_counter() - began,
        answer=answer,
        findings=findings,
        evidence=evidence,
        checks=runs,
        environment=Environment(versions={"preflight": __version__}),
    )
