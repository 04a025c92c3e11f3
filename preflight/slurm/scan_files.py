"""The folders of a scan's jobs, on a file system that nodes share and that may hang: everything here has a deadline."""

import contextlib
import shutil
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from preflight.errors import ConfigError, PreflightError, WorldError
from preflight.model import Report
from preflight.slurm.state import refuse_foreign

FILE_S = 20.0
KEPT_FOLDERS = 200  # of jobs, the newest
T = TypeVar("T")


def within(what: str, work: Callable[[], T], deadline_s: float = FILE_S) -> T:
    """The work's result, or its exception. Raises WorldError when it takes longer: a file system that hangs then keeps a thread, and not us."""
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001 - given to who waits
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(deadline_s)
    if failed:
        raise failed[0]
    if not done:
        raise WorldError(f"{what}: nothing within {deadline_s:g} s")
    return done[0]


def make_out(out: Path) -> None:
    """The folder for the folders of jobs. Raises ConfigError, also where others could lay reports and scripts of theirs into it; WorldError."""
    try:
        within(str(out), lambda: out.mkdir(mode=0o700, parents=True, exist_ok=True))
        status = within(str(out), out.stat)
    except OSError as error:
        raise ConfigError(str(out), f"can't be used for the reports of jobs: {error.strerror}") from error
    try:
        refuse_foreign(status, str(out), stat.S_ISDIR)
    except WorldError as error:
        remedy = "what lies there is run and believed: name a folder that is yours alone (chmod go-w)"
        raise ConfigError(str(out), f"can't be used for the reports of jobs: {error}", remedy=remedy) from error


def read_report(folder: Path, nodes: Sequence[str]) -> Report | None:
    """The report of a job on these nodes; None: there is none (yet). Raises ConfigError, WorldError: it can't be read, or is about other nodes."""
    from preflight.report.document import load_report
    from preflight.report.runs import file_of

    path = within(str(folder), lambda: file_of(folder))
    if not within(str(path), path.exists):
        return None
    report = within(str(path), lambda: load_report(path))
    others = set(report.evidence.plan.placement.nodes if report.evidence.plan else ()) - set(nodes)
    if others:
        raise WorldError(
            f"{path}: is about {', '.join(sorted(others))[:80]}, and the job was on {', '.join(nodes)[:80]}"
        )
    return report


def last_words(folder: Path) -> str:
    """What the job's output ends with, or why there may be none; behind "left no report"."""
    log = folder / "job.log"
    with contextlib.suppress(OSError, PreflightError):
        if not within(str(log), log.exists):
            return f", and no output: is {folder.parent} on a file system that the nodes share, under the same name?"
        lines = within(str(log), lambda: log.read_bytes()[-2000:]).decode("utf-8", "replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        ours = [line for line in said if line.startswith("preflight")]  # more telling than srun's own last words
        return f"; its output ends: {(ours or said)[-1][:300]}" if said else ""
    return ""


def keep_newest(out: Path, mine: set[Path]) -> None:
    """Folders of jobs that are long over are removed; their names begin with the time of their sweep. Never raises: it is tried again next time."""
    with contextlib.suppress(OSError, PreflightError):
        found = within(str(out), lambda: sorted(out.glob("[0-9]*T[0-9]*Z-*-[0-9]*")))
        for folder in found[: max(0, len(found) - KEPT_FOLDERS)]:
            if folder not in mine and folder.is_dir() and not folder.is_symlink():
                shutil.rmtree(folder, ignore_errors=True)
