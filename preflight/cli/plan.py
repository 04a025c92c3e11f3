"""`preflight plan`: lay a job out, judge the layout, say what to change. Needs no cluster."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from preflight.cli.exit import ExitStyle, exit_code
from preflight.cli.output import Format, exit_style_option, format_option, print_report
from preflight.errors import UsageError
from preflight.model import Launcher

if TYPE_CHECKING:
    from preflight.model import Job

_FILE = click.Path(path_type=Path)
# what the command made, kept until the process ends: to take a million ranks apart one by one takes a tenth of its time
_kept: list[object] = []


@contextmanager
def collector_off() -> Iterator[None]:
    """Without the garbage collector. A plan of 131,072 ranks makes half a million tuples that live until the end; to search them again and again for
    cycles takes longer than to make them.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.freeze()  # else the next object made would have all of them searched once more
            gc.enable()


@click.command(name="plan")
@click.argument("plan", type=_FILE, required=False)
@click.option(
    "--from",
    "from_files",
    type=_FILE,
    multiple=True,
    help="Import the job from what the framework has: scripts, logs, configurations, hostfiles; a plan file with what they leave out may be one"
    " of them. May be repeated.",
)
@click.option("--save", type=_FILE, help="Write the plan file that --from amounts to.")
@click.option("--nodes", type=click.IntRange(1), help="Nodes of the job, where no file says how many.")
@click.option("--gpus-per-node", type=click.IntRange(1), help="GPUs of each node.")
@click.option("--gpu", metavar="NAME", help='The GPU: a profile, such as "H100-80GB", or NVML\'s product name.')
@click.option("--hosts", metavar="LIST", help='Node names in the order of the allocation, such as "n[01-08]".')
@click.option("--launcher", type=click.Choice(get_args(Launcher)), help="What starts the processes.")
@click.option("--distribution", metavar="NAME", help="Slurm: block, cyclic, plane=N, arbitrary. MPI: by-slot, by-node.")
@click.option("--tasks-per-node", metavar="COUNTS", help='Tasks on each node as Slurm prints them: "8(x3),4".')
@click.option("--hostfile", metavar="FILE", help="Slurm's arbitrary hostfile, DeepSpeed's hostfile, MPI's rankfile.")
@click.option("--segment", type=click.IntRange(1), help="Slurm's --segment.")
@click.option("--rendezvous", type=click.Choice(["c10d", "static"]), help="torchrun's.")
@click.option(
    "--topology", metavar="FILE", help="topology.conf, topology.yaml, topograph's output, or a table of nodes."
)
@click.option("--ranks", type=_FILE, help="Where the ranks really are: the output of `preflight ranks`.")
@click.option(
    "--advise",
    is_flag=True,
    help="Propose the smallest change for a bad placement; or layouts, where the plan has no degrees.",
)
@click.option("--advise-dir", type=_FILE, help="With --advise: write the proposed files into this folder.")
@click.option("--compare", type=_FILE, metavar="OTHER", help="Predict the speed-up from the plan OTHER to this one.")
@click.option(
    "--measured-memory",
    metavar="SIZES",
    help='Compare with what a run reported: "71.9GiB", or "total=71.9GiB,activations=20GB".',
)
@click.option("--measured-step-time", metavar="TIME", help='Compare with what a run took: "13.75s".')
@format_option
@exit_style_option
def command(
    plan: Path | None,
    from_files: tuple[Path, ...],
    save: Path | None,
    ranks: Path | None,
    advise: bool,
    advise_dir: Path | None,
    compare: Path | None,
    measured_memory: str | None,
    measured_step_time: str | None,
    format_: Format,
    exit_style: ExitStyle,
    **said: Any,
) -> int:
    """Lay PLAN out: groups, placement, memory, communication, step time; and judge the layout.

    Exit codes: 0 go, 10 no-go, 3 undecided, 64 wrong usage, 78 bad plan.
    """
    from preflight.cli.plan_extras import Extras, add_advice, add_comparison, add_layouts, add_measured, add_origins
    from preflight.cli.plan_input import read_input, read_surroundings
    from preflight.cli.plan_judge import PlanJudge
    from preflight.cli.plan_print import print_plan

    click.get_current_context().with_resource(collector_off())
    if advise_dir is not None and not advise:
        raise UsageError("--advise-dir needs --advise")
    if save is not None and not from_files:
        raise UsageError("--save needs --from")
    job, imported = read_input(plan, from_files, said, advise=advise)
    job, placement, topology = read_surroundings(job, ranks)
    judge = PlanJudge(job, topology)
    extras = Extras()
    if imported is not None:
        add_origins(extras, imported, save)
    if advise and _wants_layouts(job):
        report = add_layouts(extras, job, judge)
    else:
        report = judge.report(job, placement)
        if advise:
            add_advice(extras, report, judge, advise_dir)
    if compare is not None:
        add_comparison(extras, report, judge, compare)
    if measured_memory is not None or measured_step_time is not None:
        add_measured(extras, report, measured_memory, measured_step_time)
    _hint_at_profiles(job)
    _kept[:] = [report]
    if format_ not in ("text", "json"):
        print_report(report, format_)
    else:
        print_plan(report, extras, format_)
    return exit_code(report.answer, report.findings, exit_style)


def _wants_layouts(job: "Job") -> bool:
    from preflight.plan.advise import wants_layouts

    return wants_layouts(job)


def _hint_at_profiles(job: "Job") -> None:
    """On stderr, where a GPU's memory stays unknown because its name has no profile."""
    from preflight.plan.build import gpu_memory
    from preflight.plan.profiles import near_profiles
    from preflight.report.text import clean

    gpu = job.hardware.gpu
    if gpu is not None and gpu_memory(job) is None:
        print(
            f"preflight: {clean(job.source)}: hardware.gpu: {gpu!r} has no profile; {near_profiles(gpu)}",
            file=sys.stderr,
        )
