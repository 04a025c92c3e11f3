"""What every `preflight run` does, wherever its agents come from: read what the command line names, measure, judge, write and print."""

import contextlib
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from preflight.cli.exit import ExitStyle, exit_code
from preflight.cli.output import Format, print_report
from preflight.cli.run_folder import make_folder, write_report
from preflight.cli.run_history import keep, opened, past_of
from preflight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fleet.history import History
    from preflight.fleet.interrupt import Interruptions
    from preflight.fleet.memory import Memory
    from preflight.model import Check, Job, Placement, Report


class RunOptions(NamedTuple):
    """The command line, without the question where."""

    plan: Path
    budget_s: float
    backend: str | None
    out: Path | None
    state: Path | None
    baseline: tuple[Path, ...]
    ranks: Path | None
    distribution: str | None
    keep: int | None
    keep_dir: Path | None
    format_: Format
    exit_style: ExitStyle
    history: Path | None = None
    no_history: bool = False


class Prepared(NamedTuple):
    """What was read before anything is started."""

    job: "Job"
    checks: "tuple[Check, ...]"
    memory: "Memory | None"
    earlier: "Sequence[Report]"
    placement: "Placement | None"
    history: "History | None" = None


def prepare(options: RunOptions) -> Prepared:
    """Read all files. Raises UsageError, ConfigError: nothing has been started then."""
    import msgspec

    from preflight.fleet.memory import Memory
    from preflight.plan.planfile import read_job
    from preflight.plan.rules import check_rules
    from preflight.registry import load_checks
    from preflight.report.document import load_report

    job = read_job(options.plan)
    checks = load_checks()
    check_rules(job.source, job.rules, {check.name: check.limits for check in checks})
    if options.distribution is not None:
        launcher = job.launch.launcher or "slurm"
        launch = msgspec.structs.replace(job.launch, launcher=launcher, distribution=options.distribution)
        job = msgspec.structs.replace(job, launch=launch)
    if options.state is not None and not options.state.parent.is_dir():
        raise UsageError(f"--state {options.state}: there is no folder {options.state.parent}")
    memory = Memory(options.state) if options.state is not None else None
    earlier = [load_report(path) for path in options.baseline]
    placement = None
    if options.ranks is not None:
        from preflight.plan.measured import launch_of, measured_placement, read_ranks

        facts = read_ranks(options.ranks)
        placement, job = measured_placement(facts), launch_of(job, facts)
    for folder in (options.out, options.keep_dir):
        if folder is not None:
            make_folder(folder)
    history = opened(options.history, off=options.no_history)
    return Prepared(job, checks, memory, earlier, placement, history)


def measure(options: RunOptions, prepared: Prepared, interruptions: "Interruptions", **where: Any) -> "Report":
    """One run. `where`: what fleet.run.run needs to know of the agents, and what is other than the options say."""
    from preflight.cli.progress import progress_bar
    from preflight.fleet.run import run

    said = {
        "budget_s": options.budget_s,
        "backend": options.backend,
        "interruptions": interruptions,
        "memory": prepared.memory,
        "earlier": prepared.earlier,
        "placement": prepared.placement,
        "past": partial(past_of, prepared.history),
    }
    with progress_bar() as progress:
        return run(where.pop("job", prepared.job), prepared.checks, progress=progress, **{**said, **where})


def conclude(options: RunOptions, report: "Report") -> int:
    """Write and print the report, then keep it in the history; the exit code."""
    if options.out is not None:
        write_report(report, options.out)
    print_report(report, options.format_)
    with contextlib.suppress(OSError):  # a reader that went away; what can't be written is said at the end
        sys.stdout.flush()
    keep(opened(options.history, off=options.no_history), report)
    return exit_code(report.answer, report.findings, options.exit_style)
