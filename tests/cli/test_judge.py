"""`preflight judge`: a saved run gives the same findings and answer again, without measuring."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from preflight.cli.exit import exit_code
from preflight.cli.main import run_command_line
from preflight.judge.run import judge
from preflight.model import Evidence, Finding, Inventory, Report, Verdict, from_json
from preflight.registry import load_checks
from preflight.report.document import save_report
from tests.builders import make_evidence, make_inventory, make_measurement, make_node, make_plan


def evidence(*, driver: str = "550.54.15", gpus: int = 4) -> Evidence:
    nodes = (*make_inventory(2, 4).nodes, make_node("node2", gpus=gpus, driver_version=driver))
    return make_evidence(
        plan=make_plan(nodes=3, gpus_per_node=4, tp=4, dp=3, parameters=7 * 10**9),
        inventory=Inventory(nodes=nodes),
        measurements=(make_measurement((0, 1)),),
    )


def report_of(some: Evidence, **facts) -> Report:
    findings, runs, answer = judge(some, load_checks(), partial=facts.get("partial", False))
    base = {"run_id": "r", "command": "run", "started_at_s": 0.0, "duration_s": 1.0}
    return Report(**{**base, "answer": answer, "findings": findings, "checks": runs, "evidence": some, **facts})


@pytest.fixture
def saved(tmp_path):
    """Saves a report; gives its path as text."""

    def save(report: Report) -> str:
        save_report(report, tmp_path / "report.json")
        return str(tmp_path / "report.json")

    return save


def test_the_same_findings_come_again_with_the_exit_code_of_their_answer(saved, capsys):
    report = report_of(evidence(driver="535.1", gpus=3))
    assert run_command_line(["judge", saved(report), "--format", "json"]) == 10
    out, err = capsys.readouterr()
    again = from_json(out, Report)
    assert again.findings == report.findings
    assert (again.answer, err) == ("no-go", "")


def test_findings_are_judged_from_the_evidence_not_believed(saved, capsys):
    report = report_of(evidence(gpus=3))
    doctored = tuple(f for f in report.findings if f.verdict is not Verdict.FAIL)
    path = saved(report_of(evidence(gpus=3), findings=doctored, answer="go"))
    assert run_command_line(["judge", path]) == 10
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].startswith("no-go: ")
    assert "differ from those saved" in err


def test_findings_of_a_check_that_is_not_installed_are_kept_and_named(saved, capsys):
    site = Finding(check="site_rule", subject="s", verdict=Verdict.FAIL, observed="o")
    report = report_of(evidence())
    path = saved(report_of(evidence(), findings=(site, *report.findings), answer="no-go"))
    assert run_command_line(["judge", path]) == 10
    assert "findings kept as saved: site_rule" in capsys.readouterr().err


def test_a_partial_run_is_never_go(saved, capsys):
    path = saved(report_of(evidence(), partial=True, partial_reason="interrupted"))
    assert run_command_line(["judge", path]) == 3
    assert "PARTIAL: interrupted" in capsys.readouterr().out


def test_junit_is_well_formed(saved, capsys):
    run_command_line(["judge", saved(report_of(evidence(gpus=3))), "--format", "junit"])
    suite = ET.fromstring(capsys.readouterr().out)
    assert int(suite.get("failures", "0")) >= 1


def test_metrics_are_written_beside_the_report(saved, tmp_path, capsys):
    metrics = tmp_path / "preflight.prom"
    run_command_line(["judge", saved(report_of(evidence(gpus=3))), "--metrics", str(metrics)])
    assert 'preflight_run_answer{answer="no-go",command="run"} 1.0' in metrics.read_text()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_nagios_codes_are_given_on_request(saved, capsys):
    path = saved(report_of(evidence(gpus=3)))
    assert run_command_line(["judge", path, "--exit-style", "nagios"]) == 2


@pytest.mark.parametrize("content", ["", "{}", '{"schema": "preflight.report/9"}', "not json"])
def test_a_file_that_is_no_report_is_a_clear_error(tmp_path, capsys, content):
    path = tmp_path / "x.json"
    path.write_text(content)
    assert run_command_line(["judge", str(path)]) == 78
    err = capsys.readouterr().err
    assert err.startswith(f"preflight: {path}")
    assert "Traceback" not in err


def test_a_missing_file_and_a_missing_argument_are_told_apart(tmp_path, capsys):
    assert run_command_line(["judge", str(tmp_path / "none.json")]) == 78
    assert run_command_line(["judge"]) == 64
    capsys.readouterr()


def test_nothing_that_measures_is_imported(saved):
    path = saved(report_of(evidence()))
    code = (
        "import sys; from preflight.cli.main import run_command_line; "
        f"run_command_line(['judge', {path!r}, '--format', 'json']); "
        "print([m for m in ('torch', 'aiohttp', 'rich', 'pynvml', 'prometheus_client') if m in sys.modules],"
        " file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(run.stdout)["schema"] == "preflight.report/1"
    assert run.stderr.strip() == "[]"


def test_letters_that_the_terminal_lacks_are_spelled_out(saved):
    report = report_of(make_evidence(inventory=Inventory(nodes=(make_node("a"), make_node("b", kernel="µ")))))
    run = subprocess.run(
        [sys.executable, "-m", "preflight", "judge", saved(report)],
        capture_output=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONIOENCODING": "ascii"},
    )
    assert b"\\xb5" in run.stdout
    assert b"Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("answer", "verdicts", "preflight", "nagios"),
    [
        ("go", [Verdict.PASS], 0, 0),
        ("go", [Verdict.WARN], 0, 1),
        ("no-go", [Verdict.FAIL, Verdict.WARN], 10, 2),
        ("undecided", [Verdict.UNKNOWN, Verdict.WARN], 3, 3),
        ("undecided", [], 3, 3),
    ],
)
def test_each_answer_has_its_exit_code(answer, verdicts, preflight, nagios):
    findings = [Finding(check="c", subject="s", verdict=verdict, observed="o") for verdict in verdicts]
    assert exit_code(answer, findings) == preflight
    assert exit_code(answer, findings, "nagios") == nagios


def test_other_rules_change_the_verdict_of_a_saved_run(saved, tmp_path, capsys):
    path = saved(report_of(evidence(gpus=3)))
    rules = tmp_path / "rules.toml"
    assert run_command_line(["judge", path]) == 10
    failed = capsys.readouterr().out.splitlines()[-1].partition("(")[2].rstrip(")").split(", ")
    rules.write_text("[rules]\n" + "".join(f'{name} = "warn"\n' for name in failed))
    assert run_command_line(["judge", path, "--rules", str(rules)]) != 10
    out, err = capsys.readouterr()
    assert "lowered by the rules" in " ".join(out.split())
    assert err == ""
    rules.write_text('[rules]\nno_such_check = "off"\n')
    assert run_command_line(["judge", path, "--rules", str(rules)]) == 78
