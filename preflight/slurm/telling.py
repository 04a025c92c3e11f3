"""Where a run on this node is told: one log line, metrics, a report. What can't be told is told elsewhere, and is never a reason to fail.

Imports nothing that may be missing: also a broken installation is told.
"""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.slurm.logline import joined, one_line, say
from preflight.slurm.textfile import metrics_text, write_metrics

if TYPE_CHECKING:
    from preflight.model import Report

REPORTS = "reports"
KEPT_REPORTS = 64  # of each kind; one of eight GPUs has some 60 kB
LEVEL = {"go": "info", "undecided": "warning", "no-go": "error"}


class Telling:
    """One run of one command. `node`: as Slurm calls it; `about`: begins the log line, such as "prolog, job 4711". `textfile_dir` None: no metrics."""

    def __init__(self, command: str, node: str, about: str = "", *, textfile_dir: str | None = None) -> None:
        self.command, self.node, self.about = command, node, about or command
        self.textfile_dir = textfile_dir
        self.began_s, self._began = time.time(), time.perf_counter()

    @property
    def spent_s(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._began

    def note(self, text: str, level: str = "info") -> None:
        """A log line, and nothing else."""
        say(f"{self.about} on {self.node}: {text}", level)

    def fault(self, text: str) -> None:
        """A fault of ours or of the set-up: nothing was decided about the node. One UNKNOWN among the metrics."""
        self._metrics("undecided", {(self.command.replace(" ", "_").replace("-", "_"), "UNKNOWN"): 1}, None)
        self.note(f"undecided, nothing was decided: {joined(text)}", "warning")

    def result(self, report: "Report", text: str, *, drain: str | None = None, answer: str | None = None) -> None:
        """What came out, in metrics and a log line that ends with the text. `drain`: what became of the drain (textfile.DRAINS), None: none was asked for. `answer`: what was decided, None: the report's own."""
        answer = answer or report.answer
        counts = Counter((finding.check, finding.verdict.value) for finding in report.findings)
        self._metrics(answer, counts, drain)
        self.note(f"{answer} in {self.spent_s:.2f} s; {text}", LEVEL[answer])

    def keep(self, report: "Report", state_dir: str) -> None:
        """The report in the state folder, among the newest of its kind. Raises WorldError: the folder can't be used."""
        from preflight.model import to_json
        from preflight.slurm.state import StateFolder

        kind = report.run_id.partition("-")[0]
        with StateFolder(state_dir, REPORTS) as folder:
            folder.write(f"{report.run_id}.json", to_json(report))
            folder.keep_newest(KEPT_REPORTS, beginning=f"{kind}-")

    def _metrics(self, answer: str, findings: Mapping[tuple[str, str], int], drain: str | None) -> None:
        if self.textfile_dir is None:
            return
        text = metrics_text(
            self.command, self.node, answer=answer, findings=findings, duration_s=self.spent_s, drain=drain
        )
        try:
            write_metrics(self.textfile_dir, self.command, self.node, text)
        except OSError as error:
            self.note(f"metrics can't be written to {self.textfile_dir}: {error.strerror or error}", "warning")


def lenient_textfile_dir(config: str | None) -> str | None:
    """Where metrics go, from a configuration that is otherwise refused, so that the refusal can be told; None: not to be found out, or the file is not root's."""
    with contextlib.suppress(Exception):
        from preflight.config import DEFAULT_PATH, VARIABLE
        from preflight.formats import read_toml
        from preflight.slurm.state import refuse_foreign

        path = Path(config or os.environ.get(VARIABLE) or DEFAULT_PATH)
        refuse_foreign(path.stat(), str(path))
        told = read_toml(path)["slurm"]["textfile_dir"]
        return told if isinstance(told, str) and told.startswith("/") and one_line(told) == told else None
    return None
