"""The rules: each alert has its three cases and its heading in the runbook, names only metrics and labels of the catalogue, and never speaks of a modelled cluster."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from preflight.formats import read_yaml
from preflight.metrics import BY_NAME, MORE_LABELS, PREFIX
from tests.test_pages import commands

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy/prometheus"
RULES = sorted((DEPLOY / "rules").glob("*.yml"))
CASES = sorted((Path(__file__).parent / "rules").glob("*.yml"))
promtool = pytest.mark.debian("prometheus", "promtool")

FROM_SCRAPES = {"job", "instance", "cluster"}
FOREIGN = {"up"}  # of Prometheus itself
SELECTOR = re.compile(r"\b([a-z_]\w*(?::\w+)*)(\{[^}]*\})?")
STEADY = {"fires", "does not fire", "resolves"}


def rules():
    return [rule for path in RULES for group in read_yaml(path)["groups"] for rule in group["rules"]]


ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}
RECORDED = {rule["record"] for rule in rules() if "record" in rule}


def selectors(expr):
    """(metric, matchers' text) of each selector of ours in a PromQL expression."""
    unquoted = re.sub(r'"[^"]*"', '""', expr)
    matchers = iter(re.findall(r"\{[^}]*\}", expr))
    for name, braces in SELECTOR.findall(unquoted):
        text = next(matchers) if braces else ""
        if name.startswith(PREFIX) or ":" in name or name in FOREIGN:
            yield name, text


def metric_of(name):
    return BY_NAME.get(name.removeprefix(PREFIX))


@promtool
@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_promtool_finds_no_fault_in_the_rules(path):
    done = subprocess.run(
        ["promtool", "check", "rules", "--lint=all", "--lint-fatal", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


LONG = {"fabric-weeks", "fabric-age"}  # weeks in small steps: seconds each


@promtool
@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=[pytest.mark.soak] * (path.stem in LONG), id=path.stem) for path in CASES]
)
def test_cases_of_each_alert_hold(path):
    done = subprocess.run(
        ["promtool", "test", "rules", str(path)],
        env={
            **os.environ,
            "GOGC": "400",
        },  # a third less processor time than with its own idea of when to collect garbage
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_case_in_which_it_fires_one_in_which_it_does_not_and_one_in_which_it_resolves():
    names = [test["name"] for path in CASES for test in read_yaml(path)["tests"]]
    for alert in ALERTS:
        own = [name.removeprefix(f"{alert} ") for name in names if name.startswith(f"{alert} ")]
        assert all(any(case.startswith(start) for case in own) for start in STEADY), alert


def test_each_case_has_modelled_series_beside_the_real_ones_wherever_an_alert_rests_on_ours():
    for alert, rule in ALERTS.items():
        cases = [
            t for path in CASES for t in read_yaml(path)["tests"] if t["name"].startswith(f"{alert} does not fire")
        ]
        if any(name.startswith(PREFIX) for name, _ in selectors(rule["expr"])):
            assert any('simulated="true"' in each["series"] for case in cases for each in case["input_series"]), alert


def test_every_selector_of_ours_leaves_modelled_clusters_out():
    told = [(name, text) for rule in rules() for name, text in selectors(rule["expr"])]
    assert len(told) > 30
    for name, text in told:
        if metric_of(name):
            assert 'simulated=""' in text, f"{name}{text}"


def test_metrics_and_labels_stand_in_the_catalogue_or_are_recorded():
    for rule in rules():
        for name, text in selectors(rule["expr"]):
            if name in FOREIGN or name in RECORDED:
                continue
            metric = metric_of(name)
            assert metric, f"{name} is no metric of ours"
            more = {label for path in metric.paths for label in MORE_LABELS[path]}
            labels = set(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", text)) - {"simulated"}
            assert labels <= {*metric.labels, *more, *FROM_SCRAPES}, f"{name}{text}"


def test_labels_of_an_alert_that_its_texts_use_are_labels_that_it_has():
    for alert, rule in ALERTS.items():
        grouped = re.match(r"(?:[^(]*?)(?:min|max|count) by \(([^)]*)\)", rule["expr"].strip())
        has = set(re.split(r",\s*", grouped[1])) if grouped else {"job", "instance", "node", "answer", "cluster"}
        used = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        assert used <= has | rule["labels"].keys(), alert


def test_an_alert_about_a_node_says_its_name_first():
    for alert, rule in ALERTS.items():
        if "node" in re.findall(r"\w+", rule["expr"].split(")")[0]) and "$labels.node" in str(rule["annotations"]):
            assert re.match(r"\{\{ (or )?\$labels\.node ", rule["annotations"]["summary"]), alert


def test_each_alert_has_a_severity_and_texts_and_a_heading_of_its_own_in_the_runbook():
    headings = re.findall(r"^## (Preflight\w+)$", (DEPLOY / "runbook.md").read_text(), re.MULTILINE)
    assert headings == list(ALERTS)
    for alert, rule in ALERTS.items():
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), alert
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}, alert
        assert rule["annotations"]["runbook_url"] == f"https://preflight.example/runbook.md#{alert.lower()}"


def test_each_heading_of_the_runbook_says_what_it_means_where_to_look_what_it_does_not_mean_and_how_it_ends():
    parts = re.split(r"^## ", (DEPLOY / "runbook.md").read_text(), flags=re.MULTILINE)
    for part in parts:
        if part.startswith("Preflight"):
            for said in ("**Means**", "**Look first**", "**Does not mean**", "**Ends**"):
                assert said in part, (part[:30], said)
            assert "```" in part, part[:30]


def test_the_line_that_sets_where_the_runbook_is_reaches_every_alert():
    text = (DEPLOY / "rules/preflight-alerts.yml").read_text()
    old, new = re.search(r"sed -i 's\|(\S+)\|(\S+)\|'", text).groups()
    body = text.split("groups:")[1]
    assert body.count(old) == len(ALERTS)
    assert body.replace(old, new).count(f"{new}/runbook.md#preflight") == len(ALERTS)
    assert f"s|{old}|" in (DEPLOY / "README.md").read_text()


@promtool
def test_promtool_takes_the_example_of_a_scrape_configuration(tmp_path):
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    path = tmp_path / "deploy/prometheus.yml"
    done = subprocess.run(
        ["promtool", "check", "config", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("rules found") == len(RULES)


def test_every_job_of_the_example_keeps_the_labels_that_series_bring_with_them():
    jobs = read_yaml(DEPLOY / "prometheus.yml")["scrape_configs"]
    assert all(each["honor_labels"] is True for each in jobs)
    assert {each["job_name"] for each in jobs} >= {"preflight-agent", "preflight-exporter"}


@pytest.mark.debian("prometheus-alertmanager", "amtool")
def test_amtool_takes_the_example_of_routes():
    path = DEPLOY / "alertmanager.yml"
    done = subprocess.run(
        ["amtool", "check-config", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    named = set(re.findall(r"Preflight\w+", path.read_text()))
    assert named - {"Preflight"} <= set(ALERTS)


def test_the_readme_lists_every_alert_with_its_severity():
    rows = dict(re.findall(r"^\| `(Preflight\w+)` \| (\w+) \|", (DEPLOY / "README.md").read_text(), re.MULTILINE))
    assert rows == {alert: rule["labels"]["severity"] for alert, rule in ALERTS.items()}


@pytest.mark.parametrize("page", ["README.md", "runbook.md"])
def test_commands_and_files_that_a_page_names_exist(page):
    text = (DEPLOY / page).read_text()
    for name, command, words in commands(text):
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        named = {word.split("=")[0].strip("(,.:") for word in words if re.match(r"\(?--[a-z]", word)}
        assert named <= known, f"{page}: preflight {name}"
    for name in re.findall(r"`((?:deploy|tests)/[\w./-]+)`", text):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"^\| `([\w./-]+\.(?:md|yml|py))`", text, re.MULTILINE):
        assert (DEPLOY / name).exists(), name
    assert set(re.findall(r"\(#(\w+)\)", text)) <= {alert.lower() for alert in ALERTS}


def run_targets(names, out, *options):
    return subprocess.run(
        [sys.executable, str(DEPLOY / "targets.py"), "--out", str(out), *options],
        input=names,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_list_of_targets_names_each_node_once_with_its_label(tmp_path):
    out = tmp_path / "agents.json"
    assert run_targets("gpu02\ngpu01\ngpu02\n", out, "--suffix", ".site").returncode == 0
    assert json.loads(out.read_text()) == [
        {"targets": ["gpu01.site:9947"], "labels": {"node": "gpu01"}},
        {"targets": ["gpu02.site:9947"], "labels": {"node": "gpu02"}},
    ]
    assert out.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("names", ["", "\n", 'gpu01\n"; drop\n', "slurm_load_node error: no answer\n"])
def test_a_list_that_is_empty_or_no_list_of_nodes_leaves_the_old_file(tmp_path, names):
    out = tmp_path / "agents.json"
    out.write_text("[]")
    assert run_targets(names, out).returncode == 1
    assert out.read_text() == "[]"
    assert [each.name for each in tmp_path.iterdir()] == ["agents.json"]
