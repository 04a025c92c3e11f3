"""The result of a program of this node goes into the history of this machine, after the verdict is out. Whatever happens here changes no verdict and no exit code, costs half a second at most, and one log line.

Loads SQLite only here.
"""

import time
from typing import TYPE_CHECKING

from preflight.errors import PreflightError
from preflight.slurm.beside import in_child
from preflight.slurm.limits import EndedError, TimeIsUpError, allow
from preflight.slurm.logline import joined

if TYPE_CHECKING:
    from preflight.config import Site
    from preflight.model import Report
    from preflight.slurm.telling import Telling

WITHIN_S = 0.5  # a lock that another writer has, and the writing
HARD_S = 1.0  # all of it
AFTER_S = 30.0
MAX_ROWS = 200_000  # of a node, some 50 MB


def remember(
    report: "Report",
    node: str,
    site: "Site",
    telling: "Telling",
    *,
    guilty: bool,
    drained: bool = False,
    changes_only: bool = False,
) -> None:
    """Append it, `changes_only`: unless the newest of the kind says the same and is of the last day. Never raises, whatever ends it."""
    if not site.history.node_results:
        return
    try:
        try:
            allow(HARD_S)
            in_child(lambda: _append(report, node, site, guilty=guilty, drained=drained, changes_only=changes_only))
        finally:
            allow(AFTER_S)  # what is left is to give the exit code, which no alarm of ours may change
    except (TimeIsUpError, EndedError, KeyboardInterrupt):
        telling.note("not in the history: it took too long", "warning")
    except PreflightError as error:
        telling.note(f"not in the history: {joined(str(error))}", "warning")
    except Exception as error:  # noqa: BLE001 - the verdict is out
        telling.note(f"not in the history: {type(error).__name__}: {error}", "warning")


def _append(report: "Report", node: str, site: "Site", *, guilty: bool, drained: bool, changes_only: bool) -> None:
    """Raises PreflightError."""
    import msgspec

    from preflight.errors import WorldError
    from preflight.model.history import node_verdict
    from preflight.report.history_append import Limits, append, append_if_changed, entry_of
    from preflight.report.history_disk import log_is_safe
    from preflight.report.history_file import writing

    path = site.history_file
    if not log_is_safe(path.parent):
        raise WorldError(f"{path.parent} is on no local disk, and the nodes would wait for each other there")
    began = time.monotonic()
    number = f"{report.started_at_s:.3f}"  # the same job may be started here twice
    named = msgspec.structs.replace(
        report, run_id=f"{report.run_id}@{number}", duration_s=max(0.0, time.time() - report.started_at_s)
    )
    verdict = node_verdict(named, node, guilty=guilty, drained=drained)
    entry = entry_of(named, verdicts=[verdict], nodes_of=dict.fromkeys(range(len(report.findings)), node))
    limits = Limits(site.keep_history_s, MAX_ROWS, MAX_ROWS // 100)
    with writing(path, within_s=max(0.05, WITHIN_S - (time.monotonic() - began))) as db:
        (append_if_changed if changes_only else append)(db, entry, limits)
