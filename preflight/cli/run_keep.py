"""`preflight run --keep N`: of an allocation with nodes to spare, measure all, keep the N best, measure the job on these, and say how to start it there."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from preflight.cli.exit import exit_code
from preflight.cli.output import print_text
from preflight.cli.run_measure import Prepared, RunOptions, conclude, measure
from preflight.errors import UsageError

if TYPE_CHECKING:
    from preflight.fleet.interrupt import Interruptions
    from preflight.fleet.keep import Kept
    from preflight.fleet.local import Address
    from preflight.model import Report

FIRST_SHARE = 0.5  # of the budget, for measuring all nodes
LEAST_S = 20.0  # of each of the two runs


def run_and_keep(
    options: RunOptions,
    prepared: Prepared,
    interruptions: "Interruptions",
    agents: "tuple[Address, ...]",
    **where: Any,
) -> int:
    """Two runs: one of all nodes, one of the job on those that are kept, whose verdict counts. The exit code: 10 if too few are good, 3 if it is not known of enough of them. Raises UsageError."""
    from preflight.fleet.keep import choose, kept_text, standings_of
    from preflight.fleet.keep_job import block_of, job_for_all, job_of_kept

    assert options.keep is not None
    wanted, job = options.keep, prepared.job
    if wanted > len(agents):
        raise UsageError(f"--keep {wanted}, but there are {len(agents)} nodes")
    job_of_kept(job, tuple(agent.name for agent in agents[:wanted]))
    first_s = max(LEAST_S, options.budget_s * FIRST_SHARE)
    for_all = prepared._replace(earlier=(), placement=None, history=None)
    every = measure(
        options, for_all, interruptions, job=job_for_all(job, len(agents)), budget_s=first_s, agents=agents, **where
    )
    kept = choose(standings_of(every), wanted, block=block_of(job))
    if not every.partial:
        _tell(options, kept_text(kept))
    if options.keep_dir is not None:
        _write_choice(options.keep_dir, kept, every)
    if not kept.enough or every.partial:
        _tell(options, _why_none(kept, every))
        conclude(options, every)
        failed = sum(standing.failed for standing in standings_of(every))
        return exit_code("no-go" if len(agents) - failed < wanted else "undecided", (), options.exit_style)
    by_name = {agent.name: agent for agent in agents}
    rest_s = max(LEAST_S, options.budget_s - every.duration_s)
    chosen = prepared._replace(job=job_of_kept(job, kept.nodes), memory=None)
    report = measure(
        options, chosen, interruptions, budget_s=rest_s, agents=tuple(by_name[name] for name in kept.nodes), **where
    )
    if options.keep_dir is not None:
        _write_ranks(options.keep_dir, report)
    _tell(options, _launch_text(options, kept, report))
    return conclude(options, report)


def _why_none(kept: "Kept", every: "Report") -> str:
    if every.partial:
        return "the run was ended before the job was measured on these nodes\n"
    return f"{kept.wanted} nodes are wanted: the job was not measured on fewer\n"


def _tell(options: RunOptions, text: str) -> None:
    """For a person; beside a report for a program it goes to standard error."""
    if options.format_ == "text":
        print_text(text)
    else:
        sys.stderr.write(text)


def _write_choice(folder: Path, kept: "Kept", every: "Report") -> None:
    """The lists, one node a line, as srun's --nodelist and --exclude read files; and the report on all nodes. Raises WorldError."""
    from preflight.formats import write_atomically
    from preflight.model import to_json

    write_atomically(
        folder / "nodes.txt", "".join(f"{name}\n" for name in kept.nodes if kept.enough and not every.partial)
    )
    write_atomically(folder / "exclude.txt", "".join(f"{name}\n" for name in kept.left_out))
    write_atomically(folder / "all-nodes.json", to_json(every))


def _write_ranks(folder: Path, report: "Report") -> None:
    """The node of each rank, in their order, as SLURM_HOSTFILE wants it: the placement that was measured, exactly. Raises WorldError."""
    from preflight.formats import write_atomically

    if report.evidence.plan is not None:
        ranks = report.evidence.plan.placement.ranks
        write_atomically(folder / "hostfile.txt", "".join(f"{rank.node}\n" for rank in ranks))


def _launch_text(options: RunOptions, kept: "Kept", report: "Report") -> str:
    """How to start the job on the kept nodes, and what the report is about."""
    from preflight.model.hostlist import fold

    plan, folder = report.evidence.plan, options.keep_dir
    about = "The report is of these nodes alone, measured a second time with the job laid out over them"
    about += f"; that of all nodes is {folder / 'all-nodes.json'}.\n" if folder else ".\n"
    if plan is None:
        return about
    launch, count = plan.job.launch, len(kept.nodes)
    nodelist = f"{folder.absolute() / 'nodes.txt'}" if folder else fold(kept.nodes)
    words = [f"srun --nodes={count}", f"--nodelist={nodelist}"]
    if launch.launcher in (None, "slurm"):
        words += [f"--ntasks={plan.world_size}", f"--ntasks-per-node={max(plan.placement.ranks_per_node)}"]
        words += [f"--distribution={launch.distribution}"] if launch.distribution else []
    else:
        words += [f"--ntasks={count}", "--ntasks-per-node=1"]
    return f"start the job there with: {' '.join(words)} ...\n{about}"
