"""Metrics of the last run on this node for node_exporter's textfile collector, without the client library: that takes longer to import than the prolog has to look at a GPU.

Families, help texts and labels are those of the catalogue, preflight/metrics.py (the exporter refuses two helps of one name); `command` and `node` tell the series of several writers apart. Imports
nothing that may be missing, so that a broken installation still gives its one UNKNOWN.
"""

import contextlib
import os
import stat
import time
from collections.abc import Mapping

from preflight import __version__
from preflight.metrics import ANSWERS, VERDICTS, Samples, exposition, with_success_of
from preflight.slurm.files import PARTIAL, write_whole

DRAINS = ("drained", "would-drain", "kept", "foreign", "absent", "braked", "failed")
STALE_S = 30 * 86400.0  # a file of ours that nobody has written for so long is removed
PARTIAL_S = 3600.0
MAX_BEFORE = 2**18  # bytes of the file before; one has some 20 kB


def metrics_text(
    command: str,
    node: str,
    *,
    answer: str,
    findings: Mapping[tuple[str, str], int],
    duration_s: float,
    completed_s: float | None = None,
    drain: str | None = None,
) -> str:
    """The run in Prometheus' text format. `findings`: how many by check and verdict; `drain`: one of DRAINS, None: nothing was to be drained."""
    now_s = time.time() if completed_s is None else completed_s
    checks = sorted({check for check, _ in findings})
    counted = [((command, c, v), float(findings.get((c, v), 0))) for c in checks for v in VERDICTS]
    families: list[tuple[str, Samples]] = [
        ("run_answer", [((command, each), float(each == answer)) for each in ANSWERS]),
        ("run_completion_timestamp_seconds", [((command,), now_s)]),
        ("run_success_timestamp_seconds", [((command,), now_s)] if answer == "go" else []),
        ("run_duration_seconds", [((command,), duration_s)]),
        ("run_info", [((command, ""), 1.0)]),
        ("version_info", [((command, "preflight", __version__), 1.0)]),
        ("findings", counted),
        ("run_drain", [((command, each), float(each == drain)) for each in DRAINS]),
    ]
    return exposition(families, {"node": node})


def write_metrics(textfile_dir: str, command: str, node: str, text: str) -> None:
    """The text as a file that the collector reads: by rename, mode 0644, a name of its own for each command and node, the time of the last success as the file before had it. Raises OSError.

    The folder may be the exporter's own: nothing in it is followed. Files of ours that nobody has written for STALE_S go. All is on the disk before this returns, except under a prolog, for which a job waits:
    a power cut may leave an empty file there, which the next prolog mends.
    """
    name = f"preflight-{_plain(command)}-{_plain(node)}.prom"
    folder = os.open(textfile_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        whole = with_success_of(_before(folder, name), text)
        write_whole(folder, name, whole.encode(), 0o644, durable=command != "slurm prolog")
        with contextlib.suppress(OSError):
            _remove_stale(folder)
    finally:
        with contextlib.suppress(OSError):
            os.close(folder)


def _before(folder: int, name: str) -> str:
    """What the file says now; empty: nothing, or it is not ours."""
    with contextlib.suppress(OSError):
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            if _ours(os.fstat(fd)):
                return os.read(fd, MAX_BEFORE).decode(errors="replace")
        finally:
            os.close(fd)
    return ""


def _remove_stale(folder: int) -> None:
    """Files by our names and of our user: of nodes and commands that are no more, and what a kill left half written."""
    with os.scandir(folder) as entries:
        names = [each.name for each in entries]
    now_s = time.time()
    for name in names:
        age_s = STALE_S if name.startswith("preflight-") and name.endswith(".prom") else PARTIAL_S
        if age_s == PARTIAL_S and not name.startswith(PARTIAL):
            continue
        with contextlib.suppress(OSError):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if _ours(status) and now_s - status.st_mtime > age_s:
                os.unlink(name, dir_fd=folder)


def _ours(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def _plain(text: str) -> str:
    """Fit for a file's name."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in text)[
        :200
    ]
