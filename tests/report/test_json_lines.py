"""JSON lines: one for each finding and one for the run, safe to append by several processes, whatever the texts hold."""

import json
import multiprocessing
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.model import Evidence, Finding, Part, Report, Settings, Verdict
from preflight.report.json_lines import json_lines, write_lines
from tests.builders import make_evidence, make_plan

HOSTILE = 'a\x1b[31m\u202e\u2028\u2029\x85\x7f\x9b"\\\r\nb</script>節\U0001f600'


def make_report(*findings, **facts):
    base = {"run_id": "r1", "command": "run", "started_at_s": 1.5, "duration_s": 2.0, "answer": "no-go"}
    return Report(**{**base, "evidence": Evidence(), "findings": findings, **facts})


def finding(**facts):
    return Finding(**{"check": "c", "subject": "n1", "verdict": Verdict.FAIL, "observed": "bad", **facts})


def read(report):
    return [json.loads(line) for line in json_lines(report)]


def test_each_finding_is_a_line_and_the_run_is_the_last():
    one, two, run = read(make_report(finding(), finding(verdict=Verdict.PASS)))
    assert [one["schema"], two["schema"], run["schema"]] == ["preflight.finding/1"] * 2 + ["preflight.run/1"]
    assert (one["check"], one["subject"], one["verdict"], two["verdict"]) == ("c", "n1", "FAIL", "PASS")
    assert run["answer"] == "no-go"
    assert run["findings"] == {"FAIL": 1, "UNKNOWN": 0, "WARN": 0, "PASS": 1, "SKIP": 0}
    assert {line["run_id"] for line in (one, two, run)} == {"r1"}


def test_what_is_not_known_is_null_and_never_missing():
    one, run = read(make_report(finding()))
    assert (one["remedy"], one["expected"], one["blames"], one["origin"]) == (None, None, None, None)
    assert (run["backend"], run["fingerprint"], run["nodes"]) == (None, None, None)
    told = read(make_report(finding(blames=Part(kind="node", name="n1")), evidence=make_evidence(plan=make_plan())))
    assert told[0]["blames"] == {"kind": "node", "name": "n1", "confidence": "certain"}
    assert len(told[1]["nodes"]) == 8


def test_a_simulated_run_says_so_on_every_line():
    lines = read(make_report(finding(), evidence=Evidence(settings=Settings(simulated=True))))
    assert [line["simulated"] for line in lines] == [True, True]


@given(st.text(st.characters(exclude_categories=("Cs",))))
@settings(max_examples=60)
def test_any_text_is_one_printable_line_and_comes_back_whole(text):
    line = next(json_lines(make_report(finding(observed=text, subject=HOSTILE))))
    assert line.endswith("\n")
    assert line[:-1].isascii()
    assert line[:-1].isprintable()
    assert len(line.splitlines()) == 1
    assert (json.loads(line)["observed"], json.loads(line)["subject"]) == (text, HOSTILE)


def _append(path, name):
    report = make_report(*(finding(subject=f"{name}-{i}", observed="x" * 6000) for i in range(40)), run_id=name)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    write_lines(descriptor, report)
    os.close(descriptor)


def test_processes_that_append_to_one_file_never_mix_within_a_line(tmp_path):
    path = tmp_path / "log.jsonl"
    path.touch()
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_append, args=(path, f"p{i}")) for i in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 4 * 41
    for name in ("p0", "p1", "p2", "p3"):
        own = [line for line in lines if line["run_id"] == name]
        assert [line.get("subject") for line in own] == [*(f"{name}-{i}" for i in range(40)), None]


def test_a_full_disk_is_an_error_for_the_caller_and_no_half_of_a_silence():
    descriptor = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError, match="No space"):
        write_lines(descriptor, make_report(finding()))
    os.close(descriptor)
