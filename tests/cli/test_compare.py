"""`preflight compare A B`, and the formats that every command with findings has."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from preflight.cli.main import run_command_line
from preflight.model import Evidence, Finding, Report, Settings, Verdict
from preflight.report.document import save_report
from tests.builders import make_evidence, make_measurement


def a_report(*findings, **facts):
    pairs = tuple(make_measurement((0, b), repeat=r) for b in range(1, 5) for r in range(3))
    ran = Finding(check="reachable", subject="ranks", verdict=Verdict.PASS, observed="all answered")
    base = {"run_id": "r", "command": "run", "started_at_s": 1.0, "duration_s": 1.0, "answer": "go"}
    return Report(**{**base, "evidence": make_evidence(measurements=pairs), "findings": (*findings, ran), **facts})


SICK = Finding(check="reachable", subject="node3", verdict=Verdict.FAIL, observed="no answer")


@pytest.fixture
def saved(tmp_path):
    """Saves a report as a run's folder; gives its path as text."""

    def save(name, report):
        (tmp_path / name).mkdir()
        save_report(report, tmp_path / name / "report.json")
        return str(tmp_path / name)

    return save


def test_folders_and_files_are_compared_and_nothing_worse_is_0(saved, capsys):
    old, new = saved("a", a_report()), saved("b", a_report(run_id="later"))
    assert run_command_line(["compare", old, f"{new}/report.json"]) == 0
    assert capsys.readouterr().out.startswith("no worse: ")


def test_a_new_fail_is_10(saved, capsys):
    assert run_command_line(["compare", saved("a", a_report()), saved("b", a_report(SICK, answer="no-go"))]) == 10
    assert capsys.readouterr().out.startswith("worse: reachable node3: FAIL\n")


def test_what_cannot_be_told_is_3(saved, capsys):
    partial = a_report(partial=True, partial_reason="interrupted")
    assert run_command_line(["compare", saved("a", a_report()), saved("b", partial)]) == 3
    assert capsys.readouterr().out.startswith("cannot tell: the second run is partial\n")


def test_the_same_as_json(saved, capsys):
    code = run_command_line(["compare", saved("a", a_report()), saved("b", a_report(SICK)), "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    assert (code, found["schema"], found["outcome"]) == (10, "preflight.compare/1", "worse")
    assert found["came"][0]["subject"] == "node3"


def test_a_simulated_run_beside_a_measured_one_is_wrong_usage(saved, capsys):
    modelled = a_report(evidence=Evidence(settings=Settings(simulated=True)))
    assert run_command_line(["compare", saved("a", modelled), saved("b", a_report())]) == 64
    assert "simulated and the other was measured" in capsys.readouterr().err


def test_what_is_no_run_is_78_and_one_line(saved, tmp_path, capsys):
    (tmp_path / "x.json").write_text("{")
    for wrong in ("x.json", "nothing", "."):
        assert run_command_line(["compare", saved(f"a{wrong}", a_report()), str(tmp_path / wrong)]) == 78
        assert "Traceback" not in capsys.readouterr().err


def test_a_format_for_findings_in_the_environment_does_not_reach_the_comparison(saved, monkeypatch):
    monkeypatch.setenv("PREFLIGHT_FORMAT", "junit")
    assert run_command_line(["compare", saved("a", a_report()), saved("b", a_report())]) == 0


@pytest.mark.parametrize("form", ["jsonl", "nagios", "junit"])
@pytest.mark.parametrize(
    "command", [["judge"], ["plan", "deploy/plans/llama3-70b-64gpu.toml", "--distribution", "cyclic"]]
)
def test_every_format_is_there_where_findings_are_printed(form, command, saved, capsys):
    path = [f"{saved('a', a_report())}/report.json"] if command == ["judge"] else []
    code = run_command_line([*command, *path, "--format", form])
    out = capsys.readouterr().out
    assert code in {0, 3, 10}
    if form == "jsonl":
        assert json.loads(out.splitlines()[-1])["schema"] == "preflight.run/1"
    elif form == "nagios":
        word = {0: ("OK", "WARNING"), 3: ("UNKNOWN",), 10: ("CRITICAL",)}[code]
        assert out.startswith(tuple(f"PREFLIGHT {each} - " for each in word))
        assert out.count("\n") == 1
    else:
        assert ET.fromstring(out).tag == "testsuite"


def test_commands_that_append_to_one_file_keep_their_lines_whole(saved, tmp_path):
    path, log = f"{saved('a', a_report())}/report.json", tmp_path / "log.jsonl"
    with log.open("ab") as file:
        running = [
            subprocess.Popen([sys.executable, "-m", "preflight", "judge", path, "--format", "jsonl"], stdout=file)
            for _ in range(2)
        ]
        assert {process.wait(120) for process in running} <= {0, 3, 10}
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["schema"] for line in lines].count("preflight.run/1") == 2


def test_a_full_disk_is_said_and_costs_no_verdict(saved):
    path = f"{saved('a', a_report())}/report.json"
    command = [sys.executable, "-m", "preflight", "judge", path, "--format", "jsonl"]
    with open(os.devnull, "wb") as null, open("/dev/full", "wb") as full:  # noqa: PTH123 - devices
        good = subprocess.run(command, stdout=null, stderr=subprocess.PIPE, check=False, timeout=120)
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, timeout=120)
    assert ended.returncode == good.returncode
    assert b"can't be written" in ended.stderr
    assert b"Traceback" not in ended.stderr
