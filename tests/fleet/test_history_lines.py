"""The history as JSON lines: all of it goes out and comes back; what others wrote is taken whole or not at all."""

import json
import time

import pytest

from preflight.errors import ConfigError
from preflight.fleet.history import History
from preflight.fleet.history_lines import bring_in, export
from tests.fleet.test_history_store import plan_of, report_of, verdict_of


@pytest.fixture
def history(tmp_path):
    found = History(tmp_path / "history.sqlite")
    now_s = time.time()
    found.add(
        report_of("r1", at_s=now_s - 20),
        verdicts=[verdict_of("r1", text="slow", sweep="s")],
        nodes_of={0: "a2"},
        sweep="s",
        plan="p",
    )
    found.add(report_of("r2", at_s=now_s - 10, rate=2e9))
    found.add(report_of("sim", simulated=True))
    found.note_drained("r1", "a1")
    return found


def test_what_goes_out_comes_back_the_same_and_twice_adds_nothing(history, tmp_path):
    lines = b"".join(export(history))
    other = History(tmp_path / "other.sqlite")
    assert bring_in(other, lines, "lines") == (3, 3)
    assert b"".join(export(other)) == lines
    assert bring_in(other, lines, "lines") == (3, 0)
    assert other.runs() == history.runs()
    assert other.node_story("a2") == history.node_story("a2")
    assert other.verdicts("a1") == history.verdicts("a1")
    assert other.verdicts("a1", sweeps=True)[0].drained
    assert other.covered() == history.covered()
    assert other.baseline(plan_of("a1", "a2"), "gloo") == history.baseline(plan_of("a1", "a2"), "gloo")


def test_only_what_is_younger_goes_out(history):
    found = [json.loads(line)["run_id"] for line in export(history, since_s=time.time() - 15)]
    assert found == ["r2", "sim"]
    assert list(export(History(history.path.with_name("missing")))) == []


def changed(line, **values):
    return json.dumps({**json.loads(line), **values}).encode()


HOSTILE = {
    "not JSON": lambda _: b"run r9",
    "another schema": lambda line: changed(line, schema="preflight.history/9"),
    "a report": lambda line: changed(line, schema="preflight.report/1"),
    "an unknown field": lambda line: changed(line, extra=1),
    "no name": lambda line: changed(line, run_id=""),
    "a long name": lambda line: changed(line, run_id="x" * 2000),
    "no answer of ours": lambda line: changed(line, answer="perhaps"),
    "a number as text": lambda line: changed(line, started_at_s="1"),
    "the future": lambda line: changed(line, started_at_s=time.time() + 1e6),
    "before all time": lambda line: changed(line, started_at_s=-1.0),
    "no number": lambda line: line.replace(b'"duration_s":1.0', b'"duration_s":NaN').replace(
        b'"duration_s":1', b'"duration_s":NaN'
    ),
    "a rate below zero": lambda line: changed(
        line,
        figures=[
            {
                "axis": "pair",
                "collective": "send_recv",
                "size_bytes": 1,
                "members": "a/0 b/0",
                "busbw_bytes_per_s": -1.0,
            }
        ],
    ),
    "a size beyond 64 bits": lambda line: changed(
        line, figures=[{"axis": "pair", "collective": "send_recv", "size_bytes": 2**70, "members": "a/0 b/0"}]
    ),
    "a verdict of another kind": lambda line: changed(line, verdicts=[{"node": "a1", "verdict": "BAD", "at_s": 1.0}]),
    "nested deeply": lambda _: b"[" * 100_000,
    "half a letter": lambda line: line.replace(b"r2", b"\xff\xfe"),
    "a surrogate": lambda line: line.replace(b'"r2"', b'"\\ud800"'),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_a_line_that_is_wrong_is_named_and_nothing_is_taken(history, tmp_path, how):
    first, second, third = export(history)
    other = History(tmp_path / "other.sqlite")
    other.add(report_of("mine"))
    with pytest.raises(ConfigError, match="line 3") as told:
        bring_in(other, b"\n".join([first, HOSTILE[how](second.strip()), third]), "lines")
    assert len(str(told.value)) < 1000
    assert [run.run_id for run in other.runs()] == ["mine"]


def test_names_that_would_be_queries_are_only_names(history, tmp_path):
    line = next(iter(export(history)))
    name = "x'); DROP TABLE runs; --"
    other = History(tmp_path / "other.sqlite")
    assert bring_in(other, changed(line, run_id=name, nodes={name: None}), "lines") == (1, 1)
    assert other.node_story(name).runs[0].run_id == name
    assert bring_in(other, b"\n\n", "lines") == (0, 0)
