"""The file of the history: where it has a write-ahead log, who can read it, and how an older one is brought up to date."""

import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from preflight.errors import ConfigError, WorldError
from preflight.fleet.history import History
from preflight.report import history_disk, history_file, history_schema
from tests.fleet.test_history_store import plan_of, report_of, verdict_of

RECENT_S = round(time.time()) + 3600.0  # in the place of a time that no test can know
VERSION_1 = (Path(__file__).parent / "history_version_1.sql").read_text().replace("4000000000.0", str(RECENT_S))
NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


def on_a_network_disk(monkeypatch):
    monkeypatch.setattr(history_file, "log_is_safe", lambda _: False)


def files(path):
    return sorted(each.name.removeprefix(path.name) for each in path.parent.glob(f"{path.name}*"))


# --- the journal ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["ext4", "xfs", "tmpfs", "nfs4", "lustre", "beegfs", "ceph", "cifs", "fuse.sshfs", "of-next-year"]
)
def test_a_log_is_used_on_known_local_disks_only(tmp_path, kind):
    folder = tmp_path / "sta te"
    folder.mkdir()
    shown = str(folder.resolve()).replace(" ", "\\040")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        f"21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\nnonsense\n40 21 0:40 / {shown} rw shared:9 - {kind} server:/x rw\n"
    )
    assert history_disk.log_is_safe(folder, mounts) is (kind in {"ext4", "xfs", "tmpfs"})
    assert history_disk.file_system_of(tmp_path, mounts) == "ext4"
    assert not history_disk.log_is_safe(folder, tmp_path / "missing")


def test_a_file_gets_a_log_on_a_local_disk_and_loses_it_on_another(path, monkeypatch):
    history = History(path)
    history.add(report_of("r1"))
    assert history_file.uses_log(path)
    on_a_network_disk(monkeypatch)
    history.add(report_of("r2"))
    assert history_file.uses_log(path) is False
    assert "-wal" not in files(path)
    assert {run.run_id for run in history.runs()} == {"r1", "r2"}
    monkeypatch.undo()
    history.add(report_of("r3"))
    assert history_file.uses_log(path)
    assert len(history.runs()) == 3


def test_a_file_that_was_moved_to_a_network_disk_with_its_log_is_not_read_in_part(path, monkeypatch):
    history = History(path, within_s=5)  # leaves what it wrote in the log
    history.add(report_of("r1"))
    on_a_network_disk(monkeypatch)
    with pytest.raises(WorldError, match="moved here with its log"):
        history.runs()
    path.with_name(f"{path.name}-wal").write_bytes(b"")
    assert history.runs() == ()  # all that was in the file by then


def test_a_file_whose_tables_another_process_makes_meanwhile_is_no_other_programs(path, monkeypatch):
    monkeypatch.setattr(history_file, "WAIT_S", 0.1)  # inside a question it has to wait, and gives up
    path.touch()
    statements = []

    def made(statement):
        statements.append(statement)
        if len(statements) == 2:  # after the first question was answered
            History(path).add(report_of("x"))

    with sqlite3.connect(path) as connection:
        connection.set_trace_callback(made)
        assert history_schema.version_of(connection, path) in {0, history_schema.SCHEMA_VERSION}


def test_a_reader_keeps_no_writer_and_sees_one_moment(path):
    history = History(path)
    history.add(report_of("r1"))
    with history_file.reading(path) as db:
        assert db.execute("SELECT count(*) FROM runs").fetchone() == (1,)
        assert History(path, within_s=0.5).add(report_of("r2"))
        assert db.execute("SELECT count(*) FROM runs").fetchone() == (1,)
    assert len(history.runs()) == 2


def test_who_is_in_a_hurry_gives_up_soon_and_leaves_nothing_behind(path):
    History(path).add(report_of("r1"))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    with pytest.raises(WorldError, match="locked"):
        History(path, within_s=0.2).add(report_of("r2"))
    assert time.monotonic() - began < 5
    other.execute("ROLLBACK")
    other.close()
    assert [run.run_id for run in History(path).runs()] == ["r1"]


def test_writing_that_takes_too_long_is_given_up_whole(path):
    History(path).add(report_of("r1"))

    def never_ends():
        with history_file.writing(path, within_s=0.1) as db:
            db.execute("DELETE FROM runs")
            db.execute("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n")

    with pytest.raises(WorldError, match="interrupted"):
        never_ends()
    assert [run.run_id for run in History(path).runs()] == ["r1"]


# --- who may read it -----------------------------------------------------------------------------------------------------

_READ = """
import os, sys
from pathlib import Path
from preflight.fleet.history import History
os.setgroups([]); os.setgid({nobody}); os.setuid({nobody})
print(*(run.run_id for run in History(Path(sys.argv[1])).runs()))
"""


def read_as_nobody(path):
    """The runs, or the last line of what went wrong. What is needed is loaded first: the interpreter may lie where others can't look."""
    done = subprocess.run(
        [sys.executable, "-c", _READ.format(nobody=NOBODY), str(path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout.split() or done.stderr.strip().splitlines()[-1:]


@pytest.fixture
def open_path(tmp_path_factory):
    """In a folder that all may look into and only we may write to."""
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="preflight-history-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder / "history.sqlite"
    for each in folder.iterdir():
        each.unlink()
    folder.rmdir()


@pytest.mark.root
def test_who_may_not_write_beside_it_reads_it_whatever_the_writers_left(open_path):
    """SQLite removes the log with its last connection, and then such a reader could not even begin: see history_file.py."""
    History(open_path).add(report_of("r1"))
    assert files(open_path) == ["", "-shm", "-wal"]
    assert read_as_nobody(open_path) == ["r1"]
    History(open_path, within_s=5).add(report_of("r2"))  # in the log only
    assert read_as_nobody(open_path) == ["r2", "r1"]
    other = sqlite3.connect(open_path)  # another program, whose end removes the log
    other.execute("SELECT count(*) FROM runs").fetchone()
    other.close()
    assert files(open_path) == [""]
    assert read_as_nobody(open_path) == ["r2", "r1"]
    assert files(open_path) == [""]


def test_a_log_of_somebody_else_is_not_taken(path, tmp_path):
    history = History(path)
    history.add(report_of("r1"))
    log = path.with_name(f"{path.name}-wal")
    log.unlink()
    log.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="-wal: is no regular file"):
        history.add(report_of("r2"))


# --- older and newer files -----------------------------------------------------------------------------------------------


def old_file(path):
    with sqlite3.connect(path) as db:
        db.executescript(VERSION_1)
    db.close()
    path.chmod(0o644)


def test_a_file_of_version_1_is_read_as_it_is_and_brought_up_by_the_first_writer(path):
    old_file(path)
    history, before = History(path), path.read_bytes()
    for _ in range(2):
        assert [(run.run_id, run.num_nodes, run.worst) for run in history.runs() if run.run_id == "old"] == [
            ("old", 2, "FAIL pairs pair 1-3: timed out")
        ]
        assert set(history.last_verdicts(sweeps=True)) == {"a1"}
        assert history.covered() == {("a1", "a2"): RECENT_S}
        assert [figure.busbw_bytes_per_s for figure in history.series([("a1", 0), ("a2", 0)])][-1] == 1e9
        assert len(history.node_story("a2").findings) == 1 + (path.read_bytes() != before)
        found = history.baseline(plan_of("a1", "a2"), "gloo").entries
        assert [entry.busbw_bytes_per_s[-1] for entry in found if entry.subject == "pair 0-2"] == [1e9]
        if path.read_bytes() == before:
            assert history.add(report_of("new"), nodes_of={0: "a2"})
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (history_schema.SCHEMA_VERSION,)
        rows = db.execute("SELECT sum(rows + 1), (SELECT rows FROM totals) FROM runs").fetchone()
    db.close()
    assert rows[0] == rows[1]


def test_a_new_file_and_one_that_was_brought_up_have_the_same_tables(path, tmp_path):
    old_file(path)
    History(path).add(report_of("r1"))
    History(tmp_path / "fresh.sqlite").add(report_of("r1"))

    def tables(file):
        with sqlite3.connect(file) as db:
            names = [name for (name,) in db.execute("SELECT name FROM sqlite_master ORDER BY name")]
            found = {name: [row[1:3] for row in db.execute(f"PRAGMA table_info({name})")] for name in names}
        db.close()
        return found

    assert tables(path) == tables(tmp_path / "fresh.sqlite")


@pytest.mark.parametrize("broken_at", [0, 7, len(history_schema._VERSION_2)])
def test_a_migration_that_is_interrupted_leaves_the_old_version(path, monkeypatch, broken_at):
    old_file(path)
    steps = list(history_schema._VERSION_2)
    steps.insert(broken_at, "SELECT raise_an_error()")
    monkeypatch.setitem(history_schema._STEPS, 2, tuple(steps))
    with pytest.raises(WorldError, match="raise_an_error"):
        History(path).add(report_of("new"))
    monkeypatch.undo()
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
    db.close()
    assert History(path).add(report_of("new"))
    assert {run.run_id for run in History(path).runs()} == {"old", "new"}


# --- where nothing can be written ----------------------------------------------------------------------------------------


@pytest.mark.root
def test_a_full_disk_costs_the_entry_and_no_more(tmp_path):
    """A real one: a tmpfs of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0755", "none", str(folder)], check=False, capture_output=True
    ).returncode:
        pytest.skip("no mount is allowed here")
    try:
        history = History(folder / "history.sqlite")
        written = []

        def fill():
            for number in range(2000):
                history.add(report_of(f"r{number}"), verdicts=[verdict_of(f"r{number}", text="x" * 200)])
                written.append(f"r{number}")

        with pytest.raises(WorldError, match="full"):
            fill()
        assert written
        assert {run.run_id for run in history.runs(5000)} == set(written)
        with sqlite3.connect(folder / "history.sqlite") as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        db.close()
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
