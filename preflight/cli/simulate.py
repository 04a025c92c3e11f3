"""`preflight simulate`: a run on a modelled cluster."""

from pathlib import Path

import click

from preflight.cli.exit import ExitStyle, exit_code
from preflight.cli.output import Format, exit_style_option, format_option, print_report
from preflight.cli.progress import progress_bar
from preflight.cli.run_folder import make_folder, read_budget, write_report


@click.command(name="simulate")
@click.argument("cluster", type=click.Path(path_type=Path))
@click.argument("plan", type=click.Path(path_type=Path))
@click.option(
    "--seed",
    type=click.IntRange(0, 2**31),
    default=0,
    show_default=True,
    help="Other noise, other chance; same faults.",
)
@click.option(
    "--budget",
    default="300s",
    show_default=True,
    help="Simulated seconds, as for `run`; pairs are left out if need be.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Write report.json and preflight.prom into this folder.")
@format_option
@exit_style_option
def command(
    cluster: Path,
    plan: Path,
    seed: int,
    budget: str,
    out: Path | None,
    format_: Format,
    exit_style: ExitStyle,
) -> int:
    """Rehearse a run of PLAN on the modelled cluster of CLUSTER, a TOML file that may plant faults: the coordinator and the judge are those of `run`.

    Nothing is measured: what is shown was computed, and is marked SIMULATED. Exit codes as of `run`: 0 go, 10 no-go, 3 undecided, 64 wrong usage, 78 bad plan
    or cluster file.
    """
    from preflight.fleet.cluster_file import read_cluster
    from preflight.fleet.interrupt import Interruptions
    from preflight.fleet.run import run
    from preflight.fleet.simulated import simulated_world
    from preflight.plan.planfile import read_job
    from preflight.plan.rules import check_rules
    from preflight.registry import load_checks

    budget_s = read_budget(budget)
    modelled = read_cluster(cluster)
    job = read_job(plan)
    checks = load_checks()
    check_rules(job.source, job.rules, {check.name: check.limits for check in checks})
    if out is not None:
        make_folder(out)
    world, agents = simulated_world(modelled, seed, str(cluster))
    with Interruptions() as interruptions:  # until the report is out
        with progress_bar() as progress:
            report = run(
                job,
                checks,
                progress=progress,
                budget_s=budget_s,
                agents=agents,
                interruptions=interruptions,
                world=world,
                command="simulate",
            )
        if out is not None:
            write_report(report, out)
        print_report(report, format_)
    return exit_code(report.answer, report.findings, exit_style)
