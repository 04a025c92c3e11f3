"""The tables of the history, what each version changed, and what an older file looks like to a reader that may not change it."""

import sqlite3
from pathlib import Path

from preflight.errors import ConfigError
from preflight.formats import readable

SCHEMA_VERSION = 2
APPLICATION_ID = 0x50464C54  # "PFLT", in the file's header: another program's database is never written to

_VERSION_1 = (
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
# facts: texts that many rows share (a node's software and GPUs, a transport), each once. place: "" or "local 2x4". totals: how many rows there are, so that nobody needs to count them
_VERSION_2 = (
    "CREATE TABLE facts (number INTEGER PRIMARY KEY, content TEXT NOT NULL UNIQUE)",
    "ALTER TABLE runs ADD COLUMN num_nodes INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE runs ADD COLUMN place TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE runs ADD COLUMN facts INTEGER",
    "ALTER TABLE run_nodes ADD COLUMN facts INTEGER",
    "ALTER TABLE figures ADD COLUMN transport INTEGER",
    "CREATE INDEX findings_by_node ON findings (node)",
    "UPDATE runs SET num_nodes = (SELECT count(*) FROM run_nodes WHERE run = number)",
    "CREATE TABLE totals (rows INTEGER NOT NULL)",
    "INSERT INTO totals SELECT coalesce(sum(rows + 1), 0) FROM runs",
)
_STEPS = {1: _VERSION_1, 2: _VERSION_2}
# a file of version 1 that can't be changed, as its readers of today see it: temporary views hide its tables
_VERSION_1_SEEN = (
    "CREATE TEMP VIEW facts AS SELECT NULL AS number, NULL AS content WHERE 0",
    "CREATE TEMP VIEW runs AS SELECT *, (SELECT count(*) FROM main.run_nodes WHERE run = number) AS num_nodes, '' AS place, NULL AS facts FROM main.runs",
    "CREATE TEMP VIEW run_nodes AS SELECT *, NULL AS facts FROM main.run_nodes",
    "CREATE TEMP VIEW figures AS SELECT *, NULL AS transport FROM main.figures",
)
_HEADER = "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_master)"
_STRANGE = """SELECT name FROM sqlite_master AS each WHERE type IN ('view', 'trigger') OR sql LIKE 'CREATE VIRTUAL%'
    OR (type = 'table' AND EXISTS (SELECT 1 FROM pragma_table_xinfo(each.name) WHERE hidden)) LIMIT 1"""
OF_A_RUN = ("run_nodes", "findings", "figures", "verdicts")  # tables whose rows go with their run


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """0: there are no tables yet. Raises ConfigError for another program's database, for one of a newer version, and for one with parts that work something out when they are read (a view can be without end)."""
    # in one statement: between two of them another process may make the tables
    application, version, tables = connection.execute(_HEADER).fetchone()
    if not tables:
        return 0
    source = readable(str(path))
    if application != APPLICATION_ID:
        raise ConfigError(source, "is another program's database", remedy="name another file for the history")
    if not 1 <= version <= SCHEMA_VERSION:
        raise ConfigError(
            source,
            f"is a history of version {version}, and this preflight knows up to {SCHEMA_VERSION}",
            remedy="use the preflight that wrote it (its `preflight history --export -` tells all of it), or name another file for the history",
        )
    strange = connection.execute(_STRANGE).fetchone()
    if strange:
        raise ConfigError(
            source,
            f"holds {str(strange[0])[:100]!r}, which computes something, and a history only holds what was found",
            remedy="move it away: the next result begins a new one",
        )
    return int(version)


def bring_up(connection: sqlite3.Connection, path: Path) -> None:
    """The newest version, from whichever: all steps in one transaction, so that one that is interrupted leaves the file as it was."""
    if version_of(connection, path) == SCHEMA_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = version_of(connection, path)  # another writer may have done it meanwhile
        for step in range(version + 1, SCHEMA_VERSION + 1):
            for statement in _STEPS[step]:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk may have ended it already
            connection.execute("ROLLBACK")
        raise


def show_as_newest(connection: sqlite3.Connection, version: int) -> None:
    """For a reader: an older file answers the questions of today, without being changed."""
    if version == 1:
        connection.execute("PRAGMA temp_store = MEMORY")
        for statement in _VERSION_1_SEEN:
            connection.execute(statement)
