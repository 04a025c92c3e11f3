"""A history file that somebody else made: each of its readers gives an answer or one line, whatever stands in it."""

import json
import os
import random
import sqlite3
import time

import pytest

from preflight.cli.history_text import NodeView, Runs, node_text, runs_text, trend_of
from preflight.cli.run_history import keep, past_of
from preflight.errors import ConfigError, PreflightError, WorldError
from preflight.fleet.history import History
from preflight.fleet.history_lines import bring_in, export
from preflight.model import Verdict
from preflight.model.history import NodeVerdict
from preflight.report.history_file import reading, uses_log, writing
from tests.report.pages import fabric

NODES = ("n1", "n2", "n3")
STRANGE = (
    *(None, 0, -1, 1e308, float("inf"), 2**63 - 1, "", "x" * 5000, "\x1b[2J", "\u202e", b"\xff\xfe", b"{}", "{}", "[]"),
    *("[" * 5000, "null", b"null", "nan", "n1/99999999999999999999 n2/0", '{"node": "n1"}', "go", "FAIL"),
)


def run(number):
    return fabric(NODES, slots=2, slow="n2", run_id=f"r{number}", started_at_s=time.time() - 3600 * (8 - number))


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """A history of six runs, as bytes."""
    path = tmp_path_factory.mktemp("image") / "history.sqlite"
    for number in range(6):
        keep(History(path), run(number))
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode = DELETE")
    db.close()
    return path.read_bytes()


@pytest.fixture
def history(image, tmp_path):
    path = tmp_path / "history.sqlite"
    path.write_bytes(image)
    return History(path)


def runs_of(history):
    return runs_text(Runs(file="h", kind="k", runs=history.runs()), width=80)


def node_of(history):
    lines = tuple(map(trend_of, history.node_lines("n1")))
    return node_text(NodeView(file="h", kind="k", story=history.node_story("n1"), figures=lines), width=80)


READERS = (
    runs_of,
    node_of,
    lambda history: history.baseline(run(6).evidence.plan, "gloo", now=run(6).evidence),
    lambda history: past_of(history, run(6).evidence),
    lambda history: list(export(history)),
    lambda history: (history.verdicts("n1"), history.last_verdicts(sweeps=True), history.covered()),
    lambda history: history.series([("n1", 0), ("n2", 0)]),
    lambda history: keep(history, run(6)),
)


def ask_all(history, what):
    for reader in READERS:
        try:
            told = reader(history)
        except PreflightError:
            continue
        except Exception as error:
            raise AssertionError(what) from error
        assert not isinstance(told, str) or told.replace("\n", "").isprintable(), what


def change(path, *statements):
    with sqlite3.connect(path) as db:
        for statement, values in statements:
            db.execute(statement, values)
    db.close()


@pytest.mark.parametrize("seed", range(4))
def test_values_that_no_preflight_wrote_are_one_line_and_no_traceback(history, image, seed, capsys):
    chance = random.Random(seed)
    with sqlite3.connect(history.path) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        places = [(name, row[1]) for name in names for row in db.execute(f"PRAGMA table_info({name})")]
    db.close()
    for _ in range(6):
        history.path.write_bytes(image)
        (table, column), value = chance.choice(places), chance.choice(STRANGE)
        try:
            change(history.path, (f"UPDATE {table} SET {column} = ?", (value,)))
        except (sqlite3.Error, OverflowError):
            continue
        ask_all(history, (table, column, repr(value)[:40]))
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.98])
def test_a_file_that_was_cut_or_scrambled_is_one_line(history, image, share):
    history.path.write_bytes(image[: int(len(image) * share)])
    ask_all(history, f"cut at {share}")
    chance, data = random.Random(share), bytearray(image)
    for _ in range(30):
        data[chance.randrange(100, len(data))] = chance.randrange(256)
    history.path.write_bytes(data)
    ask_all(history, f"scrambled {share}")


@pytest.mark.parametrize(
    "statements",
    [
        (
            "ALTER TABLE findings RENAME TO hidden",
            "CREATE VIEW findings AS WITH RECURSIVE q(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM q) SELECT hidden.* FROM hidden, q",
        ),
        ("CREATE TRIGGER gone AFTER INSERT ON runs BEGIN DELETE FROM verdicts; END",),
        ("ALTER TABLE runs ADD COLUMN more GENERATED ALWAYS AS (hex(zeroblob(100000000))) VIRTUAL",),
    ],
    ids=["view without end", "trigger", "computed column"],
)
def test_a_file_that_computes_is_neither_read_nor_written(history, statements):
    change(history.path, *((statement, ()) for statement in statements))
    for use in (reading, writing):
        with pytest.raises(ConfigError, match="only holds what was found"), use(history.path):
            pass


def test_a_missing_table_is_one_line(history):
    change(history.path, ("DROP TABLE facts", ()))
    with pytest.raises(WorldError, match="no such table"):
        history.baseline(run(6).evidence.plan, "gloo", now=run(6).evidence)
    ask_all(history, "no facts")


def test_figures_that_nothing_can_reach_are_no_baseline(history):
    plan, now = run(6).evidence.plan, run(6).evidence
    before = len(history.baseline(plan, "gloo", now=now).entries)
    change(history.path, ("UPDATE figures SET busbw = 9e999", ()))
    assert before
    assert history.baseline(plan, "gloo", now=now).entries == ()
    assert history.node_lines("n1") == ()


# --- what is no file of ours, and whose it is -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pipe", "folder", "/dev/zero"])
def test_what_is_no_regular_file_is_neither_waited_for_nor_read(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    history = History(tmp_path / name)
    for ask in (history.runs, history.covered, lambda: list(export(history))):
        with pytest.raises(ConfigError, match="is no regular file"):
            ask()
    assert uses_log(history.path) is None


@pytest.mark.root
def test_root_decides_by_no_history_of_a_user_and_writes_none_in_a_users_folder(history, tmp_path):
    plan = run(6).evidence.plan
    os.chown(history.path, 65534, 65534)
    assert len(history.runs()) == 6  # to look at it is another matter
    for ask in (history.covered, history.last_verdicts, lambda: history.baseline(plan, "gloo")):
        with pytest.raises(ConfigError, match="can be written by others"):
            ask()
    os.chown(history.path, 0, 0)
    os.chown(tmp_path, 65534, 65534)
    for ask in (history.covered, lambda: history.add(run(6))):
        with pytest.raises(ConfigError, match="is a folder that others can write to"):
            ask()
    os.chown(tmp_path, 0, 0)
    assert history.add(run(6))


# --- clocks ---------------------------------------------------------------------------------------------------------------


def test_a_verdict_of_the_future_does_not_stand_before_what_is_found_later(history):
    later = time.time() + 400 * 86400
    told = [NodeVerdict(node="n1", verdict=Verdict.FAIL, at_s=later, run_id="late", text="a clock was ahead")]
    history.add(fabric(NODES, slots=2, run_id="late", started_at_s=later), verdicts=told)
    assert history.last_verdicts()["n1"].run_id != "late"
    assert all(verdict.run_id != "late" for verdict in history.verdicts("n1"))
    assert max(history.covered().values(), default=0.0) < time.time() + 1


def line_of(**changes):
    record = {"schema": "preflight.history/1", "run_id": "x", "started_at_s": time.time() - 60, "duration_s": 1.0}
    return json.dumps({**record, "command": "run", "answer": "go", **changes}).encode() + b"\n"


@pytest.mark.parametrize(
    "changes",
    [
        {"started_at_s": 9e9},
        {"duration_s": 9e9},
        {"verdicts": [{"node": "n1", "verdict": "FAIL", "at_s": 9e9, "drained": True}]},
    ],
)
def test_lines_of_the_future_are_refused(tmp_path, changes):
    with pytest.raises(ConfigError, match="line 1: was begun, ended or told its verdict in the future"):
        bring_in(History(tmp_path / "h"), line_of(**changes), "lines")


def test_lines_that_are_too_old_to_be_kept_are_not_said_to_be_added(tmp_path):
    history = History(tmp_path / "h")
    old = b"".join(line_of(run_id=f"old{number}", started_at_s=1e6 + number) for number in range(2500))
    assert bring_in(history, old + line_of(), "lines") == (2501, 1)
    assert [run.run_id for run in history.runs()] == ["x"]
    # the last one stays, whatever its age
    assert bring_in(history, old.splitlines(keepends=True)[0], "lines") == (1, 1)
