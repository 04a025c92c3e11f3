"""The history: what it keeps, what it forgets, and what a broken file, a full disk or another writer costs."""

import os
import resource
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from preflight.errors import ConfigError, WorldError
from preflight.fleet.history import History
from preflight.model import Environment, Failure, Finding, Measurement, Report, Settings, Verdict
from preflight.model.baseline import baseline_of
from preflight.model.history import NodeVerdict
from preflight.report import history_file, history_schema
from tests.builders import make_evidence, make_measurement, make_plan, make_probe

NODES = ("a1", "a2")
DAY_S = 86400.0


def plan_of(*nodes: str):
    plan = make_plan(tp=2, dp=len(nodes), nodes=len(nodes), gpus_per_node=2, gpu=None, backend="gloo")
    return msgspec.structs.replace(plan, placement=msgspec.structs.replace(plan.placement, nodes=nodes))


def report_of(
    name: str, *, at_s: float | None = None, rate: float = 1e9, nodes: tuple[str, ...] = NODES, simulated: bool = False
) -> Report:
    """Pairs 0-2 and 1-3 between two nodes, the first of which works, and group tp0."""
    failed = Measurement(probe=make_probe((1, 3)), failure=Failure(kind="timed_out", text="no answer"))
    measured = (
        make_measurement((0, 2), algbw_bytes_per_s=rate),
        failed,
        make_measurement((0, 1), subject="tp0", axis="tp", collective="all_reduce", algbw_bytes_per_s=2 * rate),
    )
    settings = Settings(backend="gloo", simulated=simulated)
    return Report(
        run_id=name,
        command="scan",
        started_at_s=time.time() if at_s is None else at_s,
        duration_s=1,
        answer="no-go",
        findings=(
            Finding(check="pairs", subject="pair 1-3", verdict=Verdict.FAIL, observed="timed out", remedy="look"),
            Finding(check="groups", subject="tp0", verdict=Verdict.PASS, observed="fine"),
        ),
        evidence=make_evidence(plan=plan_of(*nodes), measurements=measured, settings=settings),
        environment=Environment(),
    )


def verdict_of(name: str, node: str = "a1", verdict: Verdict = Verdict.FAIL, **changes: object) -> NodeVerdict:
    return NodeVerdict(**{"node": node, "verdict": verdict, "at_s": time.time(), "run_id": name, **changes})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


def test_a_run_is_told_again_by_node_by_pair_and_in_the_list_of_runs(path):
    history = History(path)
    report = report_of("r1")
    assert history.add(report, plan="pf1-x", sweep="s", verdicts=[verdict_of("r1", text="slow")], nodes_of={0: "a2"})
    (line,) = history.runs()
    assert (line.run_id, line.answer, line.plan, line.sweep, line.simulated) == ("r1", "no-go", "pf1-x", "s", False)
    story = history.node_story("a2")
    assert [run.run_id for run in story.runs] == ["r1"]
    assert [(finding.check, finding.verdict) for finding in story.findings] == [("pairs", Verdict.FAIL)]
    assert story.verdicts == ()
    (figure,) = history.series([("a2", 0), ("a1", 0)])
    assert figure.busbw_bytes_per_s == pytest.approx(1e9)
    (failed,) = history.series([("a1", 1), ("a2", 1)])
    assert failed.busbw_bytes_per_s is None
    assert history.verdicts("a1")[0].text == "slow"
    assert path.stat().st_mode & 0o777 == 0o644


def test_the_baseline_is_that_of_the_reports_themselves(path):
    history, plan = History(path), plan_of(*NODES)
    reports = [report_of("r1", rate=1e9, at_s=time.time() - 2), report_of("r2", rate=2e9, at_s=time.time() - 1)]
    reports.append(report_of("r3", nodes=("a1", "elsewhere")))  # of which tp0 is the same
    for report in reports:
        history.add(report)
    told, known = history.baseline(plan, "gloo"), baseline_of(reports, plan, "gloo")
    assert sorted(told.entries, key=str) == sorted(known.entries, key=str)
    (pair,) = [entry for entry in told.entries if entry.subject == "pair 0-2"]
    assert [round(rate / 1e9, 3) for rate in pair.busbw_bytes_per_s] == [1.0, 2.0]
    assert history.baseline(plan, "nccl").entries == ()


def test_a_pair_of_nodes_is_covered_by_its_newest_measurement_and_by_a_failed_one_too(path):
    history = History(path)
    history.add(report_of("r2", at_s=time.time() - 10))
    history.add(report_of("r1", at_s=time.time() - 100))
    assert history.covered() == {("a1", "a2"): pytest.approx(time.time() - 10, abs=5)}


def test_a_simulated_run_is_listed_and_counts_for_nothing(path):
    history = History(path)
    history.add(report_of("r1", simulated=True), verdicts=[verdict_of("r1")])
    assert [run.simulated for run in history.runs()] == [True]
    assert history.covered() == {}
    assert history.last_verdicts() == {}
    assert history.series([("a1", 0), ("a2", 0)]) == ()


def test_the_last_verdict_of_a_node_is_its_newest_and_knows_that_it_was_drained(path):
    history = History(path)
    now_s = time.time()
    history.add(report_of("r1"), verdicts=[verdict_of("r1", at_s=now_s - 5), verdict_of("r1", "a2", Verdict.PASS)])
    history.add(report_of("r2"), verdicts=[verdict_of("r2", verdict=Verdict.UNKNOWN, at_s=now_s, doubt=True)])
    history.note_drained("r1", "a1")
    last = history.last_verdicts()
    assert {node: (v.run_id, v.verdict, v.doubt) for node, v in last.items()} == {
        "a1": ("r2", Verdict.UNKNOWN, True),
        "a2": ("r1", Verdict.PASS, False),
    }
    assert [(v.run_id, v.drained) for v in history.verdicts("a1")] == [("r2", False), ("r1", True)]
    assert set(history.last_verdicts(["a2"])) == {"a2"}


def test_a_run_that_is_added_twice_is_there_once(path):
    history = History(path)
    assert history.add(report_of("r1"))
    assert not history.add(report_of("r1"))
    assert len(history.runs()) == 1


def test_what_is_too_old_or_too_much_is_forgotten_and_the_newest_run_never(path):
    history = History(path, keep_s=10 * DAY_S, max_rows=8)
    history.add(report_of("old", at_s=time.time() - 11 * DAY_S), verdicts=[verdict_of("old")])
    assert [run.run_id for run in history.runs()] == ["old"]
    for number in range(5):
        history.add(report_of(f"r{number}"), verdicts=[verdict_of(f"r{number}")])
    left = [run.run_id for run in history.runs()]
    assert left == ["r4"]  # each has 3 figures, 1 finding and itself
    assert {v.run_id for v in history.verdicts("a1")} == set(left)
    with sqlite3.connect(path) as db:
        for table in history_schema.OF_A_RUN:
            assert db.execute(
                f"SELECT count(*) FROM {table} WHERE run NOT IN (SELECT number FROM runs)"
            ).fetchone() == (0,)


def test_a_history_that_is_not_there_yet_is_empty(path):
    history = History(path)
    assert (history.runs(), history.covered(), history.last_verdicts(), history.verdicts("a1")) == ((), {}, {}, ())
    assert history.node_story("a1").runs == ()
    assert not path.exists()


def test_a_full_disk_costs_the_entry_and_neither_the_file_nor_what_was_in_it(path):
    history = History(path)
    history.add(report_of("r1"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
    try:
        with pytest.raises(WorldError, match="history"):
            history.add(report_of("more"), verdicts=[verdict_of("x", text="y" * 900)] * 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "r1" in {run.run_id for run in history.runs()}
    assert history.add(report_of("afterwards"))


def test_a_file_that_another_has_locked_is_said_after_a_while(path, monkeypatch):
    history = History(path)
    history.add(report_of("r1"))
    monkeypatch.setattr(history_file, "WAIT_S", 0.2)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(WorldError, match="locked"):
        history.add(report_of("r2"))
    other.execute("ROLLBACK")
    other.close()
    assert history.add(report_of("r2"))


@pytest.mark.parametrize("damage", ["not a database, but a text\n" * 400, None])
def test_a_broken_file_is_said_with_what_to_do_and_is_left_alone(path, damage):
    history = History(path)
    for number in range(20):
        history.add(report_of(f"r{number}"))
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    if damage is None:
        data = bytearray(path.read_bytes())
        data[4096:] = b"\xee" * len(data[4096:])
        path.write_bytes(data)
    else:
        path.write_text(damage)
    before = path.read_bytes()
    with pytest.raises(WorldError, match="broken"):
        history.add(report_of("new"))
    with pytest.raises(WorldError, match="move it away"):
        history.last_verdicts()
    assert path.read_bytes() == before


def test_another_programs_database_is_not_written_to(path):
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE theirs (x)")
    with pytest.raises(ConfigError, match="another program"):
        History(path).add(report_of("r1"))


def test_a_history_of_a_newer_preflight_is_refused(path):
    History(path).add(report_of("r1"))
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigError, match="version 99"):
        History(path).runs()


def test_a_link_or_a_file_that_others_can_write_to_is_refused(path, tmp_path):
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="regular file"):
        History(path).add(report_of("r1"))
    path.unlink()
    path.touch()
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="others"):
        History(path).add(report_of("r1"))


_WRITER = """
import sys
from pathlib import Path
from preflight.fleet.history import History
from tests.fleet.test_history_store import report_of
for number in range(15):
    History(Path(sys.argv[1])).add(report_of(f"{sys.argv[2]}-{number}"))
"""


def test_two_writers_at_once_lose_nothing(path):
    root = Path(__file__).parents[2]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path), name],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
            stderr=subprocess.PIPE,
        )
        for name in ("one", "two")
    ]
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0, errors.decode()
    assert len(History(path).runs()) == 30
