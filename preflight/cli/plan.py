"""`preflight plan`: lay a job out and judge the layout. Needs no cluster."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from preflight.cli.exit import ExitStyle, exit_code
from preflight.cli.output import (
    Format,
    exit_style_option,
    format_option,
    print_report,
    print_text,
    terminal_width,
    wants_color,
)

if TYPE_CHECKING:
    from preflight.model import Job, Report


@click.command(name="plan")
@click.argument("plan", type=click.Path(path_type=Path))
@format_option
@exit_style_option
def command(plan: Path, format_: Format, exit_style: ExitStyle) -> int:
    """Lay PLAN out: groups, placement, memory, pipeline bubble; and judge the layout.

    Exit codes: 0 go, 10 no-go, 3 undecided, 64 wrong usage, 78 bad plan.
    """
    from preflight.plan.planfile import read_job

    job = read_job(plan)
    report = _judged(job)
    _hint_at_profiles(job)
    if format_ == "junit":
        print_report(report, format_)
    else:
        _print(report, format_)
    return exit_code(report.answer, report.findings, exit_style)


def _judged(job: "Job") -> "Report":
    """The plan of a job with the findings about it, as a report without measurements."""
    from preflight import __version__
    from preflight.judge.run import judge
    from preflight.model import Environment, Evidence, Report, Settings
    from preflight.plan.build import build_plan
    from preflight.plan.planfile import check_rules
    from preflight.plan.profiles import find_profile
    from preflight.registry import load_checks

    began_s, began = time.time(), time.perf_counter()
    checks = load_checks()
    check_rules(job, {check.name: check.limits for check in checks})
    evidence = Evidence(
        # "auto" may still find GPUs, so only "gloo" says for certain that there are none
        settings=Settings(cpu_declared=job.hardware.backend == "gloo"),
        plan=build_plan(job),
        profile=find_profile(job.hardware.gpu) if job.hardware.gpu else None,
    )
    findings, runs, answer = judge(evidence, checks)
    return Report(
        run_id="plan",
        command="plan",
        started_at_s=began_s,
        duration_s=time.perf_counter() - began,
        answer=answer,
        findings=findings,
        evidence=evidence,
        checks=runs,
        environment=Environment(versions={"preflight": __version__}),
    )


def _hint_at_profiles(job: "Job") -> None:
    """On stderr, where a GPU's memory stays unknown because its name has no profile."""
    from preflight.plan.build import gpu_memory
    from preflight.plan.profiles import near_profiles

    gpu = job.hardware.gpu
    if gpu is not None and gpu_memory(job) is None:
        print(f"preflight: {job.source}: hardware.gpu: {gpu!r} has no profile; {near_profiles(gpu)}", file=sys.stderr)


def _print(report: "Report", format_: Format) -> None:
    from preflight.model import to_json
    from preflight.report.console import answer_line, findings_text
    from preflight.report.plan import plan_document, plan_text

    plan = report.evidence.plan
    assert plan is not None
    if format_ == "json":
        print_text(to_json(plan_document(plan, report.findings, report.answer)).decode())
        return
    color = wants_color()
    # a check without a run was not asked: it needs a cluster, or the plan file says "off", which stays in sight
    asked = {run.check for run in report.checks} | set(plan.job.rules)
    shown = [finding for finding in report.findings if finding.check in asked]
    findings = findings_text(shown, width=terminal_width(), color=color)
    others = len(report.findings) - len(shown)
    if others:
        findings += f"{others} more checks need a cluster: preflight run\n"
    print_text(f"{plan_text(plan)}\nFindings\n{findings}\n{answer_line(report, color=color)}\n")
