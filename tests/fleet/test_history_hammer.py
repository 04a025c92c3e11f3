"""Two writers, one in a hurry, and a reader at one history, killed again and again: nothing that was said to be kept is lost, nothing is broken, and nobody sees half a run."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from preflight.fleet.history import History

ROOT = Path(__file__).parents[2]
FIGURES, FINDINGS = 3, 1  # of each run of report_of
_WRITER = """
import sys
from pathlib import Path
from preflight.errors import WorldError
from preflight.fleet.history import History
from preflight.report import history_file
from tests.fleet.test_history_store import report_of, verdict_of
path, name, within_s, kept = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]) or None, open(sys.argv[4], "a")
history_file.WAIT_S = 300.0  # on a machine that does much else
history, number = History(path, within_s=within_s), 0
while True:
    run = f"{name}-{number}"
    number += 1
    try:
        history.add(report_of(run), verdicts=[verdict_of(run)])
    except WorldError as error:
        if within_s is None or not ("locked" in str(error) or "interrupted" in str(error)):
            raise
        continue
    kept.write(run + "\\n")
    kept.flush()
"""
_READER = """
import sys
from pathlib import Path
from preflight.report.history_file import reading
most = 0
while True:
    with reading(Path(sys.argv[1])) as db:
        if db is None:
            continue
        runs, figures, findings, nodes, verdicts, total = db.execute(
            "SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM figures), (SELECT count(*) FROM findings),"
            " (SELECT count(*) FROM run_nodes), (SELECT count(*) FROM verdicts), (SELECT rows FROM totals)"
        ).fetchone()
    assert (figures, findings, nodes, verdicts) == (3 * runs, runs, 2 * runs, runs), (runs, figures, findings, nodes, verdicts)
    assert total == runs * (3 + 1 + 2 + 1 + 1), (runs, total)
    assert runs >= most, (runs, most)
    most = runs
    print(runs, flush=True)
"""


class Crew:
    """The processes, each of which begins anew once it was killed."""

    def __init__(self, path):
        self.path, self.count = path, 0
        self.running = {name: self.start(name) for name in ("slow", "hasty", "reader")}

    def start(self, name):
        self.count += 1
        folder = self.path.parent
        words = [_READER, str(self.path)]
        if name != "reader":
            words = [
                _WRITER,
                str(self.path),
                f"{name}{self.count}",
                "0.5" if name == "hasty" else "0",
                str(folder / f"kept-{name}"),
            ]
        with (folder / f"errors-{name}").open("ab") as errors, (folder / f"said-{name}").open("ab") as said:
            return subprocess.Popen(
                [sys.executable, "-c", *words],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=said,
                stderr=errors,
            )

    def kill(self, name, *, again):
        process = self.running[name]
        assert process.poll() is None, (self.path.parent / f"errors-{name}").read_text()[-2000:]
        process.send_signal(signal.SIGKILL)
        process.wait()
        if again:
            self.running[name] = self.start(name)

    def end(self):
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
            process.wait()


def lines(path):
    return [line for line in path.read_text().splitlines() if line] if path.exists() else []


def hammer(path, *, kills, seed):
    """Kill one of them at a random moment, so many times, each once it has done something since it was started."""
    rng, crew = random.Random(seed), Crew(path)
    try:
        for _ in range(kills):
            name = rng.choice(("slow", "hasty", "reader"))
            marks = path.parent / (f"said-{name}" if name == "reader" else f"kept-{name}")
            before, ends_at = len(lines(marks)), time.monotonic() + 120
            while len(lines(marks)) <= before and time.monotonic() < ends_at:
                assert crew.running[name].poll() is None, (path.parent / f"errors-{name}").read_text()[-2000:]
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.05))
            crew.kill(name, again=True)
        for name in ("slow", "hasty", "reader"):
            crew.kill(name, again=False)
    finally:
        crew.end()
    kept = lines(path.parent / "kept-slow") + lines(path.parent / "kept-hasty")
    there = {run.run_id for run in History(path).runs(10**6)}
    assert set(kept) <= there, sorted(set(kept) - there)[:5]
    assert len(there) - len(set(kept)) <= kills + 3  # one at most for each kill, between the commit and the word of it
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()
    return kept, lines(path.parent / "said-reader")


def test_killed_writers_and_readers_lose_and_break_nothing(tmp_path):
    kept, seen = hammer(tmp_path / "history.sqlite", kills=2, seed=1)
    assert kept
    assert seen


@pytest.mark.soak
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", range(4))
def test_many_kills_lose_and_break_nothing(tmp_path, seed):
    kept, seen = hammer(tmp_path / "history.sqlite", kills=40, seed=seed)
    assert len(kept) > 40
    assert seen


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_many_kills_with_a_rollback_journal_lose_and_break_nothing(tmp_path, monkeypatch):
    """As on a network file system, where readers keep writers; those in a hurry may get nothing in."""
    off = "from preflight.report import history_file\nhistory_file.log_is_safe = lambda _: False\n"
    monkeypatch.setattr(sys.modules[__name__], "_WRITER", off + _WRITER)
    monkeypatch.setattr(sys.modules[__name__], "_READER", off + _READER)
    kept, seen = hammer(tmp_path / "history.sqlite", kills=20, seed=9)
    assert kept
    assert seen
