"""`preflight run`: the whole pipeline."""

import contextlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from preflight.cli.exit import ExitStyle, exit_code
from preflight.cli.output import Format, exit_style_option, format_option, print_report
from preflight.cli.progress import progress_bar
from preflight.errors import UsageError, WorldError
from preflight.formats import write_atomically
from preflight.model import to_json
from preflight.model.units import parse_seconds

if TYPE_CHECKING:
    from preflight.fleet.local import Address
    from preflight.model import Report

DEFAULT_PORT = 9947  # unassigned with IANA, outside the ports that Prometheus exporters use
SHORTEST_BUDGET_S = 30.0  # importing torch takes 2 to 8 s on a busy machine, ending 8 s; the rest measures something


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

    if hosts is not None and not hosts.strip():
        raise UsageError("--hosts is empty: is a variable not set?")
    if (local is None) == (hosts is None):
        raise UsageError(
            "say where to run: either --local NxM (this machine) or --hosts LIST (agents that listen there)"
        )
    if hosts is not None and key_file is None:
        raise UsageError("--hosts needs --key-file: agents answer only to those who have their key")
    budget_s = _budget(budget)
    job = read_job(plan)
    checks = load_checks()
    check_rules(job.source, job.rules, {check.name: check.limits for check in checks})
    if state is not None and not state.parent.is_dir():
        raise UsageError(f"--state {state}: there is no folder {state.parent}")
    memory = Memory(state) if state is not None else None
    if out is not None:
        _make_folder(out)
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
            )
        if out is not None:
            _write(report, out)
        print_report(report, format_)
    return exit_code(report.answer, report.findings, exit_style)


def _budget(text: str) -> float:
    try:
        budget_s = parse_seconds(text)
    except ValueError as error:
        raise UsageError(f"--budget {error}; give for example 60s or 5m") from error
    if budget_s < SHORTEST_BUDGET_S:
        raise UsageError(
            f"--budget {text}: starting and ending workers alone takes 10 to 20 s; give at least {SHORTEST_BUDGET_S:.0f}s"
        )
    return budget_s


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


def _make_folder(out: Path) -> None:
    """Before measuring, so that a folder that can't be written to costs no measurement."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}") from error
    write_atomically(out / ".writable", b"")
    (out / ".writable").unlink(missing_ok=True)


def _write(report: "Report", out: Path) -> None:
    """A file that can't be written is said, and changes no verdict: the report is printed all the same."""
    from preflight.report.prometheus import metrics_text

    files: dict[str, bytes | str] = {"report.json": to_json(report), "preflight.prom": metrics_text(report)}
    for name, content in files.items():
        try:
            write_atomically(out / name, content)
        except WorldError as error:
            with contextlib.suppress(OSError):  # standard error may be on the same full disk
                print(f"preflight: {error}", file=sys.stderr, flush=True)
