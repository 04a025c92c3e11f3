"""`preflight judge --nccl-tests`: logs that somebody's nccl-tests wrote, from folder to exit code."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from preflight.cli import judge
from preflight.cli.main import run_command_line
from preflight.model import Report, from_json
from preflight.registry import load_checks
from preflight_checks import logged_runs, slow_part
from tests.fleets.real_matrices import HEALTHY, SICK, healthy_10, sick_17, sick_sets
from tests.probe.nccl_tests.families import Cluster, complete, measured, names
from tests.probe.nccl_tests.test_judged import by_size
from tests.probe.nccl_tests.writer import GIB, died, log, write_pairs

PAIRS = {("n1", "n2"): 92.0, ("n1", "n3"): 91.7, ("n2", "n3"): 91.9, ("n1", "n4"): 92.1, ("n2", "n4"): 91.8}


@pytest.fixture(autouse=True)
def _checks(monkeypatch):
    known = {check.name: check for check in (*load_checks(), slow_part.CHECK, logged_runs.CHECK)}
    monkeypatch.setattr(judge, "load_checks", lambda: tuple(known.values()))


@pytest.fixture
def healthy(tmp_path):
    rates = {pair: {GIB: rate, 4 * GIB: rate} for pair, rate in PAIRS.items()}
    return write_pairs(tmp_path / "logs", rates)


def judged(capsys, *arguments):
    code = run_command_line(["judge", *map(str, arguments), "--format", "json"])
    out, err = capsys.readouterr()
    return code, from_json(out, Report), err


def verdicts(report):
    return {(finding.check, finding.verdict.value) for finding in report.findings}


def test_the_healthy_cluster_is_go_with_nothing_above_pass(tmp_path, capsys):
    code, report, err = judged(capsys, "--nccl-tests", write_pairs(tmp_path, by_size(HEALTHY, healthy_10)))
    assert (code, report.answer, err) == (0, "go", "")
    assert verdicts(report) == {("slow_part", "PASS"), ("logged_runs", "PASS"), ("data_correct", "PASS")}
    assert (report.command, report.coverage.pairs_measured) == ("judge", 45)


def test_the_sick_cluster_is_no_go_and_blames_the_path_alone(tmp_path, capsys):
    code, report, _ = judged(capsys, "--nccl-tests", write_pairs(tmp_path, by_size(SICK, sick_17)))
    (failed,) = [finding for finding in report.findings if finding.verdict.value == "FAIL"]
    assert (code, report.answer, failed.blames.kind) == (10, "no-go", "path")
    first, second = sick_sets()
    (culprit,) = report.evidence.localisation.culprits
    assert {frozenset(culprit.nodes), frozenset(culprit.other_nodes)} == {first, second}
    assert not [f for f in report.findings if f is not failed and f.blames is not None]
    (lost,) = [finding for finding in report.findings if finding.check == "logged_runs"]
    assert (lost.verdict.value, "5 runs died, explained by the path" in lost.observed) == ("WARN", True)


def test_text_and_junit_say_the_same(healthy, capsys):
    assert run_command_line(["judge", "--nccl-tests", str(healthy)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("go")
    assert run_command_line(["judge", "--nccl-tests", str(healthy), "--format", "junit"]) == 0
    assert ET.fromstring(capsys.readouterr().out).get("failures") == "0"


def test_a_saved_report_gives_the_same_findings_again(tmp_path, capsys):
    cluster = Cluster(names(8), nodes={"node003": 0.5})
    folder = write_pairs(tmp_path / "logs", measured(cluster, complete(cluster), 1))
    code, report, _ = judged(capsys, "--nccl-tests", folder, "--save", tmp_path / "r.json")
    again, loaded, err = judged(capsys, tmp_path / "r.json")
    assert (code, again, err) == (10, 10, "")
    assert loaded.findings == report.findings


def test_wrong_data_is_a_fail_whatever_the_speed(healthy, capsys):
    (healthy / "n3_n4.log").write_text(log(("n3", "n4"), {GIB: 92.0, 4 * GIB: 92.0}, wrong=3))
    code, report, _ = judged(capsys, "--nccl-tests", healthy)
    (failed,) = [finding for finding in report.findings if finding.verdict.value == "FAIL"]
    assert (code, failed.check, failed.subject) == (10, "data_correct", "n3-n4")


def test_wrong_data_at_a_small_size_is_a_fail_too(healthy, capsys):
    text = log(("n3", "n4"), {2**20: 5.0, GIB: 92.0, 4 * GIB: 92.0})
    first = next(line for line in text.splitlines() if line.strip().startswith(f"{2**20} "))
    (healthy / "n3_n4.log").write_text(text.replace(first, first.replace("      0  ", "      7  ")))
    code, report, _ = judged(capsys, "--nccl-tests", healthy)
    assert (code, ("data_correct", "FAIL") in verdicts(report)) == (10, True)


def test_data_that_nobody_checked_is_told_and_the_answer_is_about_speed(healthy, capsys):
    for path in healthy.iterdir():
        path.write_text(path.read_text().replace("      0  ", "    N/A  "))
    code, report, _ = judged(capsys, "--nccl-tests", healthy)
    assert (code, ("data_correct", "WARN") in verdicts(report)) == (0, True)


def test_a_run_that_died_leaves_it_undecided(healthy, capsys):
    (healthy / "n3_n4.log").write_text(died(("n3", "n4")))
    code, report, _ = judged(capsys, "--nccl-tests", healthy)
    assert (code, report.answer) == (3, "undecided")
    assert ("logged_runs", "UNKNOWN") in verdicts(report)
    assert not [finding for finding in report.findings if finding.blames]


def test_only_runs_that_died_are_never_go(tmp_path, capsys):
    for number in range(3):
        (tmp_path / f"n{number}_n{number + 1}.log").write_text(died((f"n{number}", f"n{number + 1}")))
    code, _, _ = judged(capsys, "--nccl-tests", tmp_path)
    assert code == 3


def test_logs_of_which_nothing_can_be_compared_are_not_healthy(tmp_path, capsys):
    (tmp_path / "one.log").write_text(log(names(16), {GIB: 190.0}, program="all_reduce"))
    code, report, _ = judged(capsys, "--nccl-tests", tmp_path)
    (finding,) = [finding for finding in report.findings if finding.check == "slow_part"]
    assert (code, finding.verdict.value) == (3, "UNKNOWN")
    assert "node[001-016] 190 GB/s" in finding.observed


def test_logs_of_small_sizes_alone_are_not_healthy(tmp_path, capsys):
    cluster = Cluster(names(5))
    write_pairs(tmp_path, {pair: {2**20: 5.0} for pair in complete(cluster)})
    code, report, _ = judged(capsys, "--nccl-tests", tmp_path)
    assert (code, ("slow_part", "UNKNOWN") in verdicts(report)) == (3, True)


def test_files_that_are_no_logs_are_said_and_left_out(healthy, capsys):
    (healthy / "notes.txt").write_text("buy milk\n")
    (healthy / "old.log.gz").write_bytes(b"\x1f\x8b123")
    code, _, err = judged(capsys, "--nccl-tests", healthy)
    assert code == 0
    assert "notes.txt is no output of nccl-tests: left out" in err
    assert "unpack it first" in err


def test_many_files_that_are_no_logs_are_counted(healthy, capsys):
    for number in range(30):
        (healthy / f"x{number}").write_text("x")
    err = judged(capsys, "--nccl-tests", healthy)[2]
    assert "and 20 more of 35 files left out" in err
    assert len(err.splitlines()) == 11


@pytest.mark.parametrize("arguments", [["--nccl-tests", "{}"], ["--nccl-tests", "{}/none"]])
def test_a_folder_without_logs_and_a_missing_one_are_78(tmp_path, capsys, arguments):
    assert run_command_line(["judge", *(text.format(tmp_path) for text in arguments)]) == 78
    err = capsys.readouterr().err
    assert err.startswith("preflight: ")
    assert "Traceback" not in err


def test_an_empty_path_is_a_variable_that_is_not_set_and_not_the_folder_one_is_in(healthy, monkeypatch, capsys):
    monkeypatch.chdir(healthy)
    assert run_command_line(["judge", "--nccl-tests", ""]) == 64
    assert "--nccl-tests is empty" in capsys.readouterr().err


def test_a_report_and_logs_exclude_each_other(healthy, tmp_path, capsys):
    for arguments in ([str(tmp_path / "r.json"), "--nccl-tests", str(healthy)], ["--topology", "t", "r.json"], []):
        assert run_command_line(["judge", *arguments]) == 64
        assert "Traceback" not in capsys.readouterr().err


def test_rules_change_checks_of_logs(healthy, tmp_path, capsys):
    (healthy / "n3_n4.log").write_text(died(("n3", "n4")))
    rules = tmp_path / "rules.toml"
    rules.write_text('[rules]\nlogged_runs = "off"\n')
    assert judged(capsys, "--nccl-tests", healthy, "--rules", rules)[0] == 0


def test_leaves_from_a_topology_file_are_used(tmp_path, capsys):
    cluster = Cluster(names(8))
    folder = write_pairs(tmp_path / "logs", measured(cluster, complete(cluster), 1))
    topology = tmp_path / "topology.conf"
    topology.write_text(
        "SwitchName=a Nodes=node[001-004]\nSwitchName=b Nodes=node[005-008]\nSwitchName=c Switches=a,b\n"
    )
    code, report, _ = judged(capsys, "--nccl-tests", folder, "--topology", topology)
    assert code == 0
    assert report.evidence.localisation.ends.leaves == ("a",) * 4 + ("b",) * 4
    assert {reference.route for reference in report.evidence.localisation.references} == {"same leaf", "other leaf"}


def test_several_folders_and_files_are_judged_together(healthy, tmp_path, capsys):
    other = tmp_path / "single.log"
    other.write_text(log(("n9",), {GIB: 470.0}, program="all_reduce"))
    code, report, _ = judged(capsys, "--nccl-tests", healthy, "--nccl-tests", other)
    assert code == 0
    assert "n9" in report.evidence.localisation.ends.nodes


def test_metrics_are_written_of_logs_too(healthy, tmp_path, capsys):
    run_command_line(["judge", "--nccl-tests", str(healthy), "--metrics", str(tmp_path / "p.prom")])
    capsys.readouterr()
    assert 'preflight_run_answer{answer="go",command="judge"} 1.0' in (tmp_path / "p.prom").read_text()


def test_names_of_hosts_and_files_cannot_steer_a_terminal(tmp_path, capsys):
    evil = "n\x1b[31m1"
    (tmp_path / "a\x1b[2J.log").write_text(died((evil, "n2")))
    run_command_line(["judge", "--nccl-tests", str(tmp_path)])
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err


def test_bytes_of_chance_are_never_a_traceback(tmp_path, capsys):
    for number in range(5):
        (tmp_path / f"{number}.log").write_bytes(os.urandom(5000))
    (tmp_path / "a.log").write_text(
        "#  Rank 0 Group 0 Pid 1 on n1 device 0 [x] y\n" + "9" * 5000 + " 9 float sum -1 1 1 1 1 1 1 1 1\n"
    )
    assert run_command_line(["judge", "--nccl-tests", str(tmp_path)]) in {3, 78}
    assert "Traceback" not in "".join(capsys.readouterr())


def test_a_report_of_logs_is_json_that_anybody_can_read(healthy, capsys):
    run_command_line(["judge", "--nccl-tests", str(healthy), "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "preflight.report/1"
    assert len(document["evidence"]["measurements"]) == 10


def test_neither_torch_nor_a_server_is_imported(healthy):
    code = (
        "import sys; from preflight.cli.main import run_command_line; "
        f"run_command_line(['judge', '--nccl-tests', {str(healthy)!r}, '--format', 'json']); "
        "print([m for m in ('torch', 'aiohttp', 'rich', 'pynvml') if m in sys.modules], file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stderr.strip() == "[]"
