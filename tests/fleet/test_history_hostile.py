"""A history file that somebody else made: each of its readers gives an answer or one line, whatever stands in it."""

import random
import sqlite3
import time

import pytest

from preflight.cli.history_text import NodeView, Runs, node_text, runs_text, trend_of
from preflight.cli.run_history import keep, past_of
from preflight.errors import ConfigError, PreflightError, WorldError
from preflight.fleet.history import History
from preflight.fleet.history_lines import export
from preflight.report.history_file import reading, writing
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
