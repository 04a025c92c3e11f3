"""`preflight scan`: a sweep over the idle nodes of a Slurm cluster."""

import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal

import click

from preflight.cli.output import print_text

if TYPE_CHECKING:
    from preflight.config import Site
    from preflight.fleet.history import History
    from preflight.slurm.scan_nouns import Swept


@click.command(name="scan")
@click.option("--partition", help="Sweep this partition only.")
@click.option("--plan", type=click.Path(path_type=Path), help="Lay this plan out over each set of nodes.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where jobs leave their reports: on a file system that the nodes share. Default: scan/ in the state folder.",
)
@click.option("--limit", type=click.IntRange(1, 100_000), help="Begin at most so many jobs.")
@click.option("--once", is_flag=True, help="Begin at once, and measure each node in one job at most.")
@click.option("--dry-run", is_flag=True, help="Say which nodes would be measured together, and begin nothing.")
@click.option(
    "--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How to print."
)
def command(
    partition: str | None,
    plan: Path | None,
    out: Path | None,
    limit: int | None,
    once: bool,
    dry_run: bool,
    format_: Literal["text", "json"],
) -> int:
    """Measure pairs of idle nodes in small jobs that give way to users, and keep what was found in the history.

    The site's file says how ([scan]). A node is drained only if the site enforces, and only when several sweeps agree.

    Exit codes: 0 all that was measured is well, 10 something is not, 3 nothing was measured or not all could be told, 64 wrong usage, 78 bad plan or configuration.
    """
    from preflight.config import read_config
    from preflight.fleet.history import History
    from preflight.model import to_json
    from preflight.slurm.commands import Slurm
    from preflight.slurm.logline import say
    from preflight.slurm.scan import Sweep
    from preflight.slurm.scan_files import make_out
    from preflight.slurm.scan_nouns import Wishes

    site = _changed(read_config(), partition, plan)
    state = Path(site.slurm.state_dir)
    history = History(site.scan_history_file, keep_s=site.keep_history_s)
    folder = (out or (Path(site.scan.out) if site.scan.out else state / "scan")).absolute()
    wishes = Wishes(out=folder, limit=limit, once=once, dry=dry_run)
    with _stopped_by_signals() as stop, _alone(site, dry=dry_run):
        if not dry_run:
            make_out(folder)
            if not once and site.scan.jitter_s > 0:
                stop.wait(random.uniform(0, site.scan.jitter_s))
        began = time.monotonic()
        sweep = Sweep(
            Slurm(site.slurm.bin_dir), site, history, wishes, stop=stop, say=lambda t, level: say(f"scan: {t}", level)
        )
        swept = sweep.run()
        if not dry_run:
            _write_metrics(site, history, swept, time.monotonic() - began)
    print_text(to_json(swept).decode() if format_ == "json" else _text(swept, dry=dry_run))
    return 0 if dry_run and not swept.problem else _exit_code(swept)


def _changed(site: "Site", partition: str | None, plan: Path | None) -> "Site":
    """The site's settings with what the command line says instead. Raises ConfigError: the plan can't be read, or is none."""
    import msgspec

    scan = site.scan
    if partition is not None:
        scan = msgspec.structs.replace(scan, partition=partition)
    if plan is not None:
        scan = msgspec.structs.replace(scan, plan=str(plan.absolute()))
    if scan.plan is not None:
        from preflight.plan.planfile import read_job

        read_job(scan.plan)
    return msgspec.structs.replace(site, scan=scan)


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set: the sweep then cancels its jobs and ends."""
    stop = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        del number, frame
        stop.set()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if stop.is_set() else handler)


@contextmanager
def _alone(site: "Site", *, dry: bool) -> Iterator[None]:
    """One sweep at a time. Raises WorldError: another one is under way, or the state folder can't be used."""
    from preflight.errors import WorldError
    from preflight.slurm.state import StateFolder

    if dry:
        yield
        return
    with StateFolder(site.slurm.state_dir) as folder, folder.lock("scan.lock") as alone:
        if not alone:
            raise WorldError("another sweep is under way (scan.lock in the state folder is held)")
        yield


def _write_metrics(site: "Site", history: "History", swept: "Swept", duration_s: float) -> None:
    from collections import Counter

    from preflight.errors import PreflightError
    from preflight.slurm.logline import say
    from preflight.slurm.scan_files import within
    from preflight.slurm.scan_metrics import scan_metrics
    from preflight.slurm.textfile import write_metrics

    if site.slurm.textfile_dir is None:
        return
    try:
        last = within("the history", lambda: history.last_verdicts(sweeps=True))
    except PreflightError:
        last = {verdict.node: verdict for verdict in swept.verdicts}
    text = scan_metrics(
        ended_s=time.time(),
        duration_s=duration_s,
        coverage=swept.coverage,
        jobs=Counter(outcome for _, outcome, _ in swept.jobs),
        last=[verdict for verdict in last.values() if time.time() - verdict.at_s <= site.scan.age_s],
        drained=len(swept.drained),
        failed=bool(swept.problem),
    )
    try:
        write_metrics(site.slurm.textfile_dir, "scan", "fleet", text)
    except OSError as error:
        say(f"scan: metrics can't be written: {error.strerror}", "warning")


def _text(swept: "Swept", *, dry: bool) -> str:
    from preflight.model import Verdict
    from preflight.model.hostlist import fold

    lines = []
    for nodes, outcome, answer in swept.jobs:
        lines.append(f"{fold(nodes)}: {'would be measured' if dry else outcome}{f', {answer}' if answer else ''}")
    for verdict in (Verdict.FAIL, Verdict.UNKNOWN):
        lines += [f"{verdict.value} {each.node}: {each.text}" for each in swept.verdicts if each.verdict is verdict]
    passed = [each.node for each in swept.verdicts if each.verdict is Verdict.PASS]
    if passed:
        lines.append(f"PASS {fold(passed)}")
    if swept.drained:
        lines.append(f"drained {fold(swept.drained)}")
    if not swept.jobs:
        lines.append("nothing to measure: no two idle nodes of a kind have a pair that is due")
    if swept.coverage is not None:
        lines.append(f"{100 * swept.coverage:.0f} % of the pairs of nodes were measured lately")
    if swept.problem:
        lines.append(f"ended early: {swept.problem}")
    return "\n".join(lines) + "\n"


def _exit_code(swept: "Swept") -> int:
    """10: a job says no-go. 3: nothing was measured, not all of it could be told, or the sweep ended early. Else 0."""
    answers = {answer for _, _, answer in swept.jobs if answer}
    if "no-go" in answers:
        return 10
    return 0 if answers == {"go"} and not swept.problem and not swept.lost else 3
