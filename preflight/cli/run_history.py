"""Where a run's result is remembered, and what earlier ones say of it. A history that can't be used costs no result: one line says so."""

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.errors import ConfigError, PreflightError, UsageError

if TYPE_CHECKING:
    from preflight.config import Site
    from preflight.fleet.history import History
    from preflight.model import Baseline, Evidence, Report


def site_or_defaults() -> "Site":
    """The site's settings; where they can't be read the defaults, since a run by hand has to do without them too."""
    from preflight.config import Site, read_config

    try:
        return read_config()
    except ConfigError:
        return Site()


def file_to_write(named: Path | None) -> Path | None:
    """The history of this run: the one that is named; else the machine's, where this user may write it; else the user's own, whose folder is made. None: there is no place for one. Raises UsageError."""
    if named is not None:
        if not named.parent.is_dir():
            raise UsageError(f"--history {named}: there is no folder {named.parent}")
        return named
    shared = site_or_defaults().history_file
    if _is_ours(shared):
        return shared
    own = own_history()
    if own is None:
        return None
    try:
        own.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return own


def file_to_read(named: Path | None) -> Path:
    """The history to show: the one that is named; else the machine's, where this user can read it; else the user's own. Raises UsageError: there is no place for one."""
    if named is not None:
        return named
    shared = site_or_defaults().history_file
    with contextlib.suppress(OSError):
        if shared.is_file() and os.access(shared, os.R_OK):
            return shared
    own = own_history()
    if own is None:
        raise UsageError("there is no home folder to look for a history in: give --file")
    return own


def opened(named: Path | None, *, off: bool) -> "History | None":
    """The history of this run; None: it has none. Raises UsageError."""
    if off:
        return None
    path = file_to_write(named)
    if path is None:
        return None
    from preflight.fleet.history import History

    return History(path, keep_s=site_or_defaults().keep_history_s)


def past_of(history: "History | None", evidence: "Evidence") -> "Baseline | None":
    """What earlier runs say of the parts of this one; None: nothing, which is said where the history can't be read."""
    if history is None or evidence.plan is None or not evidence.measurements or evidence.settings.simulated:
        return None
    try:
        found = history.baseline(evidence.plan, evidence.settings.backend, now=evidence)
    except PreflightError as error:
        _say(f"no earlier runs are looked at: {error}")
        return None
    return found if found.entries else None


def keep(history: "History | None", report: "Report") -> None:
    """Append the run, with a verdict of each node."""
    if history is None:
        return
    from preflight.plan.fingerprint import fingerprint
    from preflight.slurm.guilty import guilty_node, guilty_nodes, known_nodes
    from preflight.slurm.scan_verdicts import verdicts_of

    known = known_nodes(report.evidence)
    nodes_of = {
        i: node
        for i, finding in enumerate(report.findings)
        if (node := guilty_node(finding, known) or (finding.subject if finding.subject in known else None))
    }
    plan = report.evidence.plan
    try:
        guilty = {} if report.partial else guilty_nodes(report.findings, report.evidence)
        history.add(
            report,
            plan=fingerprint(plan) if plan else None,
            verdicts=verdicts_of(report, guilty, None),
            nodes_of=nodes_of,
        )
    except PreflightError as error:
        _say(f"this run is not in the history: {error}")
    except Exception as error:  # noqa: BLE001 - the result is out
        _say(f"this run is not in the history: {type(error).__name__}: {error}")


def own_history() -> Path | None:
    """Where a user's own results are kept: history.sqlite in preflight/ of XDG_STATE_HOME, else of ~/.local/state (XDG Base Directory Specification 0.8). None: there is no home."""
    said = os.environ.get("XDG_STATE_HOME", "")
    if said.startswith("/"):  # "all paths must be absolute": others are to be ignored
        return Path(said, "preflight", "history.sqlite")
    try:
        return Path.home() / ".local/state/preflight/history.sqlite"
    except RuntimeError:
        return None


def _is_ours(path: Path) -> bool:
    """Whether this user may write to the machine's history: its folder is there already, and so may be the file."""
    try:
        status = path.parent.stat()
        mine = status.st_uid == os.geteuid() and os.access(path.parent, os.W_OK | os.X_OK)
        return mine and (not path.exists() or os.access(path, os.W_OK))
    except OSError:
        return False


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # standard error may be on the same full disk
        print(f"preflight: {text}", file=sys.stderr, flush=True)
