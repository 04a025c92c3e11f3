"""`preflight run`: the whole pipeline."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from preflight.cli.output import exit_style_option, format_option
from preflight.cli.run_folder import SHORTEST_BUDGET_S, read_budget
from preflight.cli.run_keep import run_and_keep
from preflight.cli.run_measure import RunOptions, conclude, measure, prepare
from preflight.config import read_config
from preflight.errors import UsageError

if TYPE_CHECKING:
    from preflight.fleet.local import Address

DEFAULT_PORT = 9947  # unassigned with IANA, outside the ports that Prometheus exporters use
_FILE = click.Path(path_type=Path)


@click.command(name="run")
@click.argument("plan", type=_FILE)
@click.option("--local", metavar="NxM", help="Start N agents with M workers each on this machine.")
@click.option(
    "--hosts",
    metavar="LIST",
    help=f"Use the agents there, in node-rank order: name, name:port or name=address:port, comma-separated (port {DEFAULT_PORT}).",
)
@click.option(
    "--key-file",
    type=_FILE,
    help="The key that the agents of --hosts have; mode 0600. Under srun also a folder that all nodes share: a key is left there for the time of the step.",
)
@click.option("--munge", is_flag=True, help="The agents of --hosts run as root and take munge credentials.")
@click.option("--interface", metavar="NAME", help="Under srun: the interface that carries the data of the workers.")
@click.option(
    "--budget", default="300s", show_default=True, help="End within this time; pairs are left out if need be."
)
@click.option(
    "--backend", type=click.Choice(["auto", "nccl", "gloo"]), help="Overrides [hardware] backend of the plan file."
)
@click.option(
    "--distribution", metavar="NAME", help="How the job's own srun deals its ranks: block, cyclic, plane=N, arbitrary."
)
@click.option(
    "--ranks", type=_FILE, help="Where the job's ranks really are: the output of `preflight ranks` under its own srun."
)
@click.option(
    "--keep",
    type=click.IntRange(1),
    metavar="N",
    help="Of the nodes of the step or of --hosts, use the N best: measure all of them first, then PLAN on those N, within one --budget.",
)
@click.option(
    "--keep-dir", type=_FILE, help="With --keep: write nodes.txt, exclude.txt, hostfile.txt for the job's own srun."
)
@click.option("--out", type=_FILE, help="Write report.json and preflight.prom into this folder.")
@click.option(
    "--state",
    type=_FILE,
    help="Remember in FILE how far the scan over all pairs of these nodes has come, and go on there next time.",
    metavar="FILE",
)
@click.option(
    "--baseline",
    type=_FILE,
    multiple=True,
    metavar="REPORT",
    help="Compare with this earlier report.json of the same nodes in place of the history; five or more tell a drop. May be given several times.",
)
@click.option(
    "--history",
    type=_FILE,
    metavar="FILE",
    help="Keep the result here, and compare with earlier ones. Default: the machine's history where you may write it, else your own (preflight history shows it).",
)
@click.option("--no-history", is_flag=True, help="Keep the result nowhere, and compare with no earlier ones.")
@format_option
@exit_style_option
def command(
    local: str | None,
    hosts: str | None,
    key_file: Path | None,
    munge: bool,
    interface: str | None,
    budget: str,
    **said: Any,
) -> int:
    """Measure every pair and every planned group of PLAN, judge, report. Where: as a task of srun on the nodes of its step, or as --local or --hosts says.

    Exit codes: 0 go, 10 no-go, 3 undecided, 64 wrong usage, 78 bad plan or configuration.
    """
    from preflight.fleet.srun import outside_hint, read_step

    step = read_step(os.environ) if local is None and hosts is None else None
    try:
        options = RunOptions(budget_s=read_budget(budget), **said)
        _check_keep(options, local)
    except UsageError:
        if step is not None and not step.leads_step:
            return 0  # the first task says it, and gives the step its code
        raise
    if step is not None:
        from preflight.cli.run_srun import run_in_step

        return run_in_step(options, step, key_file, interface)
    _check_places(local, hosts, key_file, munge=munge, hint=outside_hint(os.environ))
    return _run_elsewhere(options, local, hosts, key_file)


def _run_elsewhere(options: RunOptions, local: str | None, hosts: str | None, key_file: Path | None) -> int:
    """On this machine, or over agents that somebody started."""
    from preflight.fleet.auth import read_key
    from preflight.fleet.interrupt import Interruptions
    from preflight.fleet.munge import Munge

    prepared = prepare(options)
    agents = parse_hosts(hosts) if hosts else ()
    key = read_key(key_file) if key_file else Munge(0, read_config().agent.munge_socket) if hosts else None
    job = os.environ.get("SLURM_JOB_ID", "")
    where: dict[str, Any] = {
        "agents": agents,
        "key": key,
        "slurm_job": job if re.fullmatch("[0-9]{1,10}", job) else None,
    }
    with Interruptions() as interruptions:  # until the report is out
        if options.keep is not None:
            return run_and_keep(options, prepared, interruptions, **where)
        sizes = _local(local) if local else None
        return conclude(options, measure(options, prepared, interruptions, local=sizes, **where))


def _check_keep(options: RunOptions, local: str | None) -> None:
    """Raises UsageError."""
    if options.keep is not None and local is not None:
        raise UsageError("--keep chooses among nodes, and --local has one machine: use srun or --hosts")
    if options.keep_dir is not None and options.keep is None:
        raise UsageError("--keep-dir needs --keep")
    if options.keep is not None and options.budget_s < 2 * SHORTEST_BUDGET_S:
        raise UsageError(f"--keep measures twice: give a --budget of at least {2 * SHORTEST_BUDGET_S:.0f}s")
    if options.keep is not None and options.ranks is not None:
        raise UsageError("--keep and --ranks don't go together: where ranks are is decided by what is kept")


def _check_places(local: str | None, hosts: str | None, key_file: Path | None, *, munge: bool, hint: str = "") -> None:
    """Raises UsageError unless it is said where to run."""
    if hosts is not None and not hosts.strip():
        raise UsageError("--hosts is empty: is a variable not set?")
    if (local is None) == (hosts is None):
        raise UsageError(
            "say where to run: as a task of srun in a Slurm job, or with one of --local NxM (this machine) "
            f"and --hosts LIST (agents that listen there){hint}"
        )
    if hosts is not None and key_file is None and not munge:
        raise UsageError("--hosts needs --key-file or --munge: agents answer only to those whom they know")


def _local(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,3})", text)
    if match is None:
        raise UsageError(f"--local {text!r}: expected NxM, for example 2x4: 2 agents with 4 workers each")
    return int(match[1]), int(match[2])


def parse_hosts(text: str) -> "tuple[Address, ...]":
    """Addresses of agents from "n1,n2:7000,n3=[fd00::3]:7000". Raises UsageError."""
    from preflight.fleet.local import Address

    addresses = []
    for part in text.split(","):
        match = re.fullmatch(
            r"\s*(?:([!-<>-~]{1,253})=)?(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]{1,253})(?::([0-9]{1,5}))?\s*", part
        )
        if match is None or not 0 < int(match[3] or DEFAULT_PORT) < 65536:
            raise UsageError(
                f"--hosts: {part.strip()!r} is none of name, name:port, name=address:port, name=[IPv6]:port"
            )
        host = match[2].strip("[]")
        addresses.append(Address(name=match[1] or host, host=host, port=int(match[3] or DEFAULT_PORT)))
    doubled = {a.name for a in addresses if sum(b.name == a.name for b in addresses) > 1}
    if doubled:
        raise UsageError(f"--hosts names {', '.join(sorted(doubled))} more than once")
    return tuple(addresses)
