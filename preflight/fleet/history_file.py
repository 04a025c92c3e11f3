"""The database file of the history: its tables, and how it is opened. One SQLite file, read and written on this machine only.

It keeps to SQLite's rollback journal: a write-ahead log needs memory that the machines of a network file system don't share, and readers who may write beside the file.
"""

import contextlib
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from preflight.errors import ConfigError, WorldError
from preflight.formats import readable

SCHEMA_VERSION = 1
APPLICATION_ID = 0x50464C54  # "PFLT", in the file's header: another program's database is never written to
WAIT_S = 10.0  # for a writer who holds the lock; an append takes some milliseconds

_TABLES = (
    """CREATE TABLE runs (
        number INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE, started_at_s REAL NOT NULL, duration_s REAL NOT NULL,
        command TEXT NOT NULL, answer TEXT NOT NULL, backend TEXT, plan TEXT, sweep TEXT, simulated INTEGER NOT NULL,
        rows INTEGER NOT NULL)""",
    "CREATE TABLE run_nodes (run INTEGER NOT NULL, node TEXT NOT NULL)",
    """CREATE TABLE findings (
        run INTEGER NOT NULL, node TEXT, check_name TEXT NOT NULL, subject TEXT NOT NULL, verdict TEXT NOT NULL,
        observed TEXT NOT NULL, expected TEXT NOT NULL, remedy TEXT NOT NULL, part TEXT, part_kind TEXT)""",
    """CREATE TABLE figures (
        run INTEGER NOT NULL, axis TEXT NOT NULL, collective TEXT NOT NULL, size_bytes INTEGER NOT NULL,
        members TEXT NOT NULL, busbw REAL, expected REAL)""",
    """CREATE TABLE verdicts (
        run INTEGER NOT NULL, node TEXT NOT NULL, verdict TEXT NOT NULL, doubt INTEGER NOT NULL, drained INTEGER NOT NULL,
        at_s REAL NOT NULL, content BLOB NOT NULL)""",
    "CREATE TABLE covered (a TEXT NOT NULL, b TEXT NOT NULL, at_s REAL NOT NULL, PRIMARY KEY (a, b))",
    "CREATE INDEX runs_by_time ON runs (started_at_s)",
    "CREATE INDEX run_nodes_by_node ON run_nodes (node)",
    "CREATE INDEX run_nodes_by_run ON run_nodes (run)",
    "CREATE INDEX findings_by_run ON findings (run)",
    "CREATE INDEX figures_by_run ON figures (run)",
    "CREATE INDEX figures_by_members ON figures (members)",
    "CREATE INDEX verdicts_by_node ON verdicts (node, at_s)",
    "CREATE INDEX verdicts_by_run ON verdicts (run)",
)
OF_A_RUN = ("run_nodes", "findings", "figures", "verdicts")  # tables whose rows go with their run


@contextlib.contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """One transaction, which is all there or not at all; the file is made if it is not there.

    Raises WorldError (full disk, locked for longer than WAIT_S, broken file), ConfigError (somebody else's file: what is written here decides what is drained).
    """
    _refuse_foreign(path)
    with _told(path):
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
        with closing(_connect(path, "rw")) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                if not _has_schema(connection, path):
                    _make_schema(connection)
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # a full disk may have ended the transaction already
                    connection.execute("ROLLBACK")
                raise


@contextlib.contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection | None]:
    """A view of what is there; None: there is nothing yet. Raises as `writing`."""
    with _told(path):
        if not path.exists() or path.stat().st_size == 0:
            yield None
            return
        with closing(_connect(path, "ro")) as connection:
            connection.execute("BEGIN")
            yield connection if _has_schema(connection, path) else None


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=WAIT_S, isolation_level=None
    )
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def _has_schema(connection: sqlite3.Connection, path: Path) -> bool:
    """False: the file is empty. Raises ConfigError for another program's database, and for one of a newer version."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not tables:
        return False
    source = readable(str(path))
    if application != APPLICATION_ID:
        raise ConfigError(source, "is another program's database", remedy="name another file for the history")
    if version != SCHEMA_VERSION:
        raise ConfigError(
            source,
            f"is a history of version {version}, and this preflight knows {SCHEMA_VERSION}",
            remedy="use the preflight that wrote it, or name another file for the history",
        )
    return True


def _make_schema(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    for statement in _TABLES:
        connection.execute(statement.replace(")", ")"))


def _refuse_foreign(path: Path) -> None:
    """Raises ConfigError for a link, for what is no regular file, and for a file that others may write to."""
    source = readable(str(path))
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise WorldError(f"{source}: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(source, "is no regular file", remedy="name a regular file for the history")
    if status.st_uid not in {0, os.geteuid()} or stat.S_IMODE(status.st_mode) & 0o022:
        raise ConfigError(
            source,
            f"can be written by others (user {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o})",
            remedy="it decides what is drained: make it yours, mode 0644",
        )


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """SQLite's errors as ours, with what to do."""
    source = readable(str(path))
    try:
        yield
    except sqlite3.OperationalError as error:
        raise WorldError(f"the history {source}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise WorldError(
            f"the history {source} is broken: {error}\n  move it away: the next result begins a new one"
        ) from error
    except OSError as error:
        raise WorldError(f"the history {source}: {error.strerror}") from error
