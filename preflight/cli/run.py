"""`preflight run`: the whole pipeline."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from preflight.cli.exit import ExitStyle, exit_code
from preflight.cli.output import Format, exit_style_option, format_option, print_report
from preflight.cli.progress import progress_bar
from preflight.cli.run_folder import make_folder, read_budget, write_report
from preflight.errors import UsageError

if TYPE_CHECKING:
    from preflight.fleet.local import Address

DEFAULT_PORT = 9947  # unassigned with IANA, outside the ports that Prometheus exporters use


@click.command(name="run")
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--local", metavar="NxM", help="Start N agents with M workers each on this machine.")
@click.option(
    "--hosts",
    metavar="LIST",
    help=f"Use the agents there, in node-rank order: name, name:port or name=address:port, comma-separated (port {DEFAULT_PORT}).",
)
@click.option("--key-file", type=click.Path(path_type=Path), help="The key that the agents of --hosts have; mode 0600.")
@click.option(
    "--budget", default="300s", show_default=True, help="End within this time; pairs are left out if need be."
)
@click.option(
    "--backend", type=click.Choice(["auto", "nccl", "gloo"]), help="Overrides [hardware] backend of the plan file."
)
@click.option("--out", type=click.Path(path_type=Path), help="Write report.json and preflight.prom into this folder.")
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="Remember in FILE how far the scan over all pairs of these nodes has come, and go on there next time.",
    metavar="FILE",
)
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="REPORT",
    help="Compare with this earlier report.json of the same nodes too; three or more tell a drop. May be given several times.",
)
@format_option
@exit_style_option
def command(
    plan: Path,
    local: str | None,
    hosts: str | None,
    key_file: Path | None,
    budget: str,
    backend: str | None,
    out: Path | None,
    state: Path | None,
    baseline: tuple[Path, ...],
    format_: Format,
    exit_style: ExitStyle,
) -> int:
    """Measure every pair and every planned group of PLAN, judge, report.

    Exit codes: 0 go, 10 no-go, 3 undecided, 64 wrong usage, 78 bad plan or configuration.
    """
    from preflight.fleet.auth import read_key
    from preflight.fleet.interrupt import Interruptions
    from preflight.fleet.memory import Memory
    from preflight.fleet.run import run
    from preflight.plan.planfile import read_job
    from preflight.plan.rules import check_rules
    from preflight.registry import load_checks
    from preflight.report.document import load_report

    _check_places(local, hosts, key_file)
    budget_s = read_budget(budget)
    job = read_job(plan)
    checks = load_checks()
    check_rules(job.source, job.rules, {check.name: check.limits for check in checks})
    if state is not None and not state.parent.is_dir():
        raise UsageError(f"--state {state}: there is no folder {state.parent}")
    memory = Memory(state) if state is not None else None
    earlier = [load_report(path) for path in baseline]
    if out is not None:
        make_folder(out)
    with Interruptions() as interruptions:  # until the report is out
        with progress_bar() as progress:
            report = run(
                job,
                checks,
                progress=progress,
                budget_s=budget_s,
                backend=backend,
                local=_local(local) if local else None,
                agents=parse_hosts(hosts) if hosts else (),
                key=read_key(key_file) if key_file else None,
                interruptions=interruptions,
                memory=memory,
                earlier=earlier,
            )
        if out is not None:
            write_report(report, out)
        print_report(report, format_)
    return exit_code(report.answer, report.findings, exit_style)


def _check_places(local: str | None, hosts: str | None, key_file: Path | None) -> None:
    """Raises UsageError unless it is said where to run."""
    if hosts is not None and not hosts.strip():
        raise UsageError("--hosts is empty: is a variable not set?")
    if (local is None) == (hosts is None):
        raise UsageError(
            "say where to run: either --local NxM (this machine) or --hosts LIST (agents that listen there)"
        )
    if hosts is not None and key_file is None:
        raise UsageError("--hosts needs --key-file: agents answer only to those who have their key")


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
