"""Metrics of the last run on this node for node_exporter's textfile collector, without the client library: that takes longer to import than the prolog has to look at a GPU.

Families, help texts and labels are those of report/prometheus.py (the exporter refuses two helps of one name); `command` and `node` tell the series of several writers apart. Imports
nothing that may be missing, so that a broken installation still gives its one UNKNOWN.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence

from preflight import __version__
from preflight.slurm.files import write_whole

ANSWERS = ("go", "undecided", "no-go")
VERDICTS = ("FAIL", "UNKNOWN", "WARN", "PASS", "SKIP")
DRAINS = ("drained", "would-drain", "kept", "foreign", "absent", "braked", "failed")

Series = Sequence[tuple[Mapping[str, str], float]]


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
    marks = {"command": command, "node": node}
    checks = sorted({check for check, _ in findings})
    counted = [({"check": c, "verdict": v}, float(findings.get((c, v), 0))) for c in checks for v in VERDICTS]
    families: tuple[tuple[str, str, Series], ...] = (
        (
            "run_answer",
            "1 for the answer of the last run, 0 for the others.",
            [({"answer": each}, float(each == answer)) for each in ANSWERS],
        ),
        ("run_completion_timestamp_seconds", "When the last run ended, Unix time.", [({}, now_s)]),
        ("run_duration_seconds", "Wall time of the last run.", [({}, duration_s)]),
        ("run_info", "What the last run was.", [({}, 1.0)]),
        (
            "version_info",
            "Versions the last run used.",
            [({"component": "preflight", "version": __version__}, 1.0)],
        ),
        ("findings", "Findings of the last run by check and verdict.", counted),
        (
            "run_drain",
            "1 for what became of the drain that the last run asked for, 0 for the others.",
            [({"result": each}, float(each == drain)) for each in DRAINS],
        ),
    )
    return "".join(
        line for name, text, series in families for line in _family(f"preflight_{name}", text, series, marks)
    )


def write_metrics(textfile_dir: str, command: str, node: str, text: str) -> None:
    """The text as a file that the collector reads: by rename, mode 0644, a name of its own for each command and node. Raises OSError.

    The folder may be the exporter's own: nothing in it is followed.
    """
    folder = os.open(textfile_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        write_whole(folder, f"preflight-{_plain(command)}-{_plain(node)}.prom", text.encode(), 0o644)
    finally:
        with contextlib.suppress(OSError):
            os.close(folder)


def _family(name: str, text: str, series: Series, marks: Mapping[str, str]) -> Iterator[str]:
    if not series:
        return
    yield f"# HELP {name} {text}\n# TYPE {name} gauge\n"
    for labels, value in series:
        shown = ",".join(f'{key}="{_escaped(given)}"' for key, given in {**labels, **marks}.items())
        yield f"{name}{{{shown}}} {value!r}\n"


def _escaped(value: str) -> str:
    """A label's value: backslash, quote and line break are escaped (exposition format 0.0.4)."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _plain(text: str) -> str:
    """Fit for a file's name."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in text)[
        :200
    ]
