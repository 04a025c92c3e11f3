"""The file of the history: how it is opened, so that writers and readers neither lose anything nor wait for each other longer than need be. One SQLite file, with a write-ahead log where that is safe.

On a local disk: a write-ahead log. Readers never keep a writer, writers never a reader; writers wait for each other. On a network file system, and wherever the kind can't be found out: SQLite's rollback journal (history_disk.py
says why), where a reader keeps a writer for as long as it reads.

Who may read the file but not write beside it can use a write-ahead log only while its two companions (`-wal`, `-shm`) are there, and SQLite removes them with the last connection. So a writer closes while a reader of its own is still
open: then they stay. Where they are missing all the same (somebody used another program on it), such a reader takes the file as it lies there, which is whole then, and says so if it changed meanwhile. (Tried with SQLite 3.40: tests/fleet/test_history_readers.py.)
"""

import contextlib
import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from preflight.errors import ConfigError, WorldError
from preflight.formats import readable
from preflight.report.history_disk import log_is_safe
from preflight.report.history_schema import bring_up, show_as_newest, version_of

WAIT_S = 10.0  # for a writer who holds the lock; an append takes some milliseconds
COMPANIONS = ("-wal", "-shm", "-journal")
_LOG_PAGES, _HASTY_LOG_PAGES = 1000, 4000  # of 4 KiB: from so many on, the log is put into the file
_LOG_BYTES = 16 * 2**20  # what the log is cut to afterwards
_OPS, _READ_OPS = 1000, 100_000  # SQLite's operations between two looks at the clock
READ_S = 300.0  # a question to the largest history takes some seconds; a damaged one may be without end


@contextlib.contextmanager
def writing(path: Path, *, within_s: float | None = None) -> Iterator[sqlite3.Connection]:
    """One transaction, which is all there or not at all; the file is made if it is not there, and brought to the newest version.

    `within_s`: for those whom somebody waits for: it is given up after so long, and what a crash of the whole machine may cost is the newest entries (never the file, and nothing if only the process ends).
    Raises WorldError (full disk, locked for longer than WAIT_S or `within_s`, broken file), ConfigError (somebody else's file: what is written here decides what is drained).
    """
    _refuse_foreign(path)
    with _told(path):
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
        connection = _connect(path, "rw", WAIT_S if within_s is None else within_s)
        try:
            if within_s is not None:
                ends_at = time.monotonic() + within_s
                connection.set_progress_handler(lambda: time.monotonic() > ends_at, _OPS)
            _choose_journal(connection, path, hasty=within_s is not None)
            bring_up(connection, path)
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # a full disk may have ended the transaction already
                    connection.execute("ROLLBACK")
                raise
            if within_s is None:
                with contextlib.suppress(sqlite3.Error):  # so that a copy of the file alone has all; waits for nobody
                    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        finally:
            _close(connection, path)


@contextlib.contextmanager
def reading(path: Path, *, decides: bool = False) -> Iterator[sqlite3.Connection | None]:
    """A view of what is there, all of one moment; None: there is nothing yet. `decides`: a verdict will rest on it, so that it has to be as trustworthy as what is written. Raises as `writing`, and WorldError for a row that nothing of ours wrote: make of the rows what they are to be before you leave it."""
    if decides:
        _refuse_foreign(path)
    with _told(path), _rows_told(path):
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise ConfigError(readable(str(path)), "is no regular file", remedy="name a regular file for the history")
        if not path.exists() or path.stat().st_size == 0:
            yield None
            return
        connection = _open_view(path)
        if connection is None:
            with _as_it_lies(path) as still:
                yield still
            return
        try:
            yield _view(connection, path)
        finally:
            connection.close()


def uses_log(path: Path) -> bool | None:
    """Whether the file has a write-ahead log now. None: there is no file, or it can't be read."""
    with (
        contextlib.suppress(OSError),
        os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file,
    ):
        header = file.read(20) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
        return header[18] == 2 if len(header) == 20 else None  # the write version, sqlite.org/fileformat.html 1.3.3
    return None


def _connect(path: Path, mode: str, wait_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=wait_s, isolation_level=None
    )
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def _choose_journal(connection: sqlite3.Connection, path: Path, *, hasty: bool) -> None:
    """A write-ahead log where it is safe, the rollback journal elsewhere. Who finds the file in use leaves it as it is: the next one changes it."""
    has_log, wanted = uses_log(path), log_is_safe(path.parent)
    if has_log and not wanted:  # the file was moved here: alone with it, the log needs no shared memory
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = DELETE").fetchone()
        connection.execute("PRAGMA locking_mode = NORMAL")
        return
    version_of(connection, path)  # somebody else's file is not changed
    if wanted and not has_log:
        (wait_ms,) = connection.execute("PRAGMA busy_timeout").fetchone()
        connection.execute("PRAGMA busy_timeout = 50")
        with contextlib.suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
        connection.execute(f"PRAGMA busy_timeout = {int(wait_ms)}")
    if wanted and uses_log(path):
        connection.execute(f"PRAGMA synchronous = {'NORMAL' if hasty else 'FULL'}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_HASTY_LOG_PAGES if hasty else _LOG_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")


def _close(connection: sqlite3.Connection, path: Path) -> None:
    """The last to close would remove the log and its index, which readers without write permission need: so another connection, which may not, closes last."""
    connection.set_progress_handler(None, 0)
    keeper = None
    if uses_log(path):
        with contextlib.suppress(sqlite3.Error):
            keeper = _connect(path, "ro", 0.05)
            keeper.execute("BEGIN")
            keeper.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    connection.close()
    if keeper is not None:
        keeper.close()


def _open_view(path: Path) -> sqlite3.Connection | None:
    """A connection that can read; None: the file has a log, and without write permission beside it nothing can read that now."""
    if uses_log(path) and not log_is_safe(path.parent):
        return None
    connection = _connect(path, "ro", WAIT_S)
    try:
        connection.execute("BEGIN")
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        if uses_log(path) and not _log_of(path).exists():
            return None
        raise
    except BaseException:
        connection.close()
        raise
    return connection


def _view(connection: sqlite3.Connection, path: Path) -> sqlite3.Connection | None:
    ends_at = time.monotonic() + READ_S
    connection.set_progress_handler(lambda: time.monotonic() > ends_at, _READ_OPS)
    version = version_of(connection, path)
    show_as_newest(connection, version)
    return connection if version else None


@contextlib.contextmanager
def _as_it_lies(path: Path) -> Iterator[sqlite3.Connection | None]:
    """The file without its log, which must be empty or missing. Raises WorldError if somebody wrote meanwhile."""
    before = _state_of(path)
    if before[-1]:
        raise WorldError(
            f"the history {readable(str(path))} was moved here with its log (-wal), which can't be read on this file system\n"
            "  write to it once as its owner (any preflight run), or move it back"
        )
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None)
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        yield _view(connection, path)
    finally:
        connection.close()
    if _state_of(path) != before:
        raise WorldError(f"the history {readable(str(path))} was written to while it was read: try again")


def _state_of(path: Path) -> tuple[int, ...]:
    status, log = path.stat(), _log_of(path)
    return (status.st_ino, status.st_size, status.st_mtime_ns, log.stat().st_size if log.exists() else 0)


def _log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _refuse_foreign(path: Path) -> None:
    """Raises ConfigError for a link, for what is no regular file, and for a file that others may write to: the history itself, or one that SQLite would take as its log. Of root also for a folder of somebody else, who could put anything in its place meanwhile."""
    _refuse_folder(path)
    for each in (path, *(path.with_name(path.name + ending) for ending in COMPANIONS)):
        source = readable(str(each))
        try:
            status = each.lstat()
        except FileNotFoundError:
            continue
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


def _refuse_folder(path: Path) -> None:
    source = readable(str(path.parent))
    try:
        status = path.parent.stat()
    except OSError as error:
        raise WorldError(f"{source}: {error.strerror}") from error
    shared = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
    if os.geteuid() == 0 and (status.st_uid != 0 or shared):
        raise ConfigError(
            source,
            f"is a folder that others can write to (user {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o})",
            remedy="root keeps its history in a folder of its own",
        )


@contextlib.contextmanager
def _rows_told(path: Path) -> Iterator[None]:
    """What is made of rows while they are read fails if something else wrote them: SQLite holds any kind of value in any column."""
    try:
        yield
    except (msgspec.MsgspecError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
        text = readable(str(error).encode("utf-8", "replace").decode())[:200]
        raise WorldError(
            f"the history {readable(str(path))} holds what no preflight wrote: {text}\n  move it away: the next result begins a new one"
        ) from error


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """SQLite's errors as ours, with what to do."""
    source = readable(str(path))
    try:
        yield
    except sqlite3.OperationalError as error:
        raise WorldError(f"the history {source}: {error}") from error
    except (
        sqlite3.DatabaseError,
        UnicodeDecodeError,
    ) as error:  # SQLite's message quotes the file, which may be no text
        raise WorldError(
            f"the history {source} is broken: {error}\n  move it away: the next result begins a new one"
        ) from error
    except OSError as error:
        raise WorldError(f"the history {source}: {error.strerror}") from error
