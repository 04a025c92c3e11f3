-- A history as version 1 wrote it (preflight 0.6): rollback journal, one run of two nodes.
PRAGMA application_id = 1346784340;
PRAGMA user_version = 1;
CREATE TABLE runs (
        number INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE, started_at_s REAL NOT NULL, duration_s REAL NOT NULL,
        command TEXT NOT NULL, answer TEXT NOT NULL, backend TEXT, plan TEXT, sweep TEXT, simulated INTEGER NOT NULL,
        rows INTEGER NOT NULL);
CREATE TABLE run_nodes (run INTEGER NOT NULL, node TEXT NOT NULL);
CREATE TABLE findings (
        run INTEGER NOT NULL, node TEXT, check_name TEXT NOT NULL, subject TEXT NOT NULL, verdict TEXT NOT NULL,
        observed TEXT NOT NULL, expected TEXT NOT NULL, remedy TEXT NOT NULL, part TEXT, part_kind TEXT);
CREATE TABLE figures (
        run INTEGER NOT NULL, axis TEXT NOT NULL, collective TEXT NOT NULL, size_bytes INTEGER NOT NULL,
        members TEXT NOT NULL, busbw REAL, expected REAL);
CREATE TABLE verdicts (
        run INTEGER NOT NULL, node TEXT NOT NULL, verdict TEXT NOT NULL, doubt INTEGER NOT NULL, drained INTEGER NOT NULL,
        at_s REAL NOT NULL, content BLOB NOT NULL);
CREATE TABLE covered (a TEXT NOT NULL, b TEXT NOT NULL, at_s REAL NOT NULL, PRIMARY KEY (a, b));
CREATE INDEX runs_by_time ON runs (started_at_s);
CREATE INDEX run_nodes_by_node ON run_nodes (node);
CREATE INDEX run_nodes_by_run ON run_nodes (run);
CREATE INDEX findings_by_run ON findings (run);
CREATE INDEX figures_by_run ON figures (run);
CREATE INDEX figures_by_members ON figures (members);
CREATE INDEX verdicts_by_node ON verdicts (node, at_s);
CREATE INDEX verdicts_by_run ON verdicts (run);
INSERT INTO runs VALUES (1, 'old', 4000000000.0, 1.0, 'scan', 'no-go', 'gloo', NULL, 's', 0, 3);
INSERT INTO run_nodes VALUES (1, 'a1'), (1, 'a2');
INSERT INTO findings VALUES (1, 'a2', 'pairs', 'pair 1-3', 'FAIL', 'timed out', '', 'look', NULL, NULL);
INSERT INTO figures VALUES (1, 'pair', 'send_recv', 67108864, 'a1/0 a2/0', 1000000000.0, NULL), (1, 'pair', 'send_recv', 67108864, 'a1/1 a2/1', NULL, NULL);
INSERT INTO verdicts VALUES (1, 'a1', 'FAIL', 0, 0, 4000000000.0, '{"node":"a1","verdict":"FAIL","at_s":4000000000.0,"run_id":"old","sweep":"s"}');
INSERT INTO covered VALUES ('a1', 'a2', 4000000000.0);
