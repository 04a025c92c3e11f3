"""The dashboards as committed: built from their descriptions, clean by every rule, and whole."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.grafana import queries
from deploy.grafana.ask import panels_of
from deploy.grafana.build import OUT, files
from preflight.formats import read_yaml
from tests.grafana import lint, lint_queries

ROOT = Path(__file__).parents[2]
NAMES = sorted(files())
RULES = (*lint.RULES, *lint_queries.RULES)


def board(name):
    return json.loads((OUT / name).read_text())


def test_the_committed_dashboards_are_what_their_descriptions_give():
    assert {path.name: path.read_text() for path in OUT.iterdir()} == files()


def test_building_twice_and_in_another_process_gives_the_same_bytes(tmp_path):
    command = [sys.executable, "-m", "deploy.grafana.build", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60, env={"PYTHONHASHSEED": "7"})
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files()


def test_a_site_puts_its_own_address_of_the_runbook_into_all_links():
    for text in files("https://wiki.example.org/preflight").values():
        assert "https://wiki.example.org/preflight#" in text
        assert "OWNER/REPOSITORY" not in text


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_keeps_the_rule(name, rule):
    assert list(rule(board(name))) == []


def test_every_metric_of_the_catalogue_is_shown_somewhere():
    assert lint_queries.not_shown([board(name) for name in NAMES]) == set()


def test_dashboards_have_addresses_and_titles_of_their_own():
    made = [board(name) for name in NAMES]
    assert len({each["uid"] for each in made}) == len({each["title"] for each in made}) == 4
    assert [f"{each['uid']}.json" for each in made] == NAMES


def test_a_label_or_metric_that_the_catalogue_lacks_cannot_be_asked_for():
    from deploy.grafana.queries import q

    for wrong in (("no_such_metric",), ("node_bandwidth_ratio", 'rack="1"')):
        with pytest.raises(ValueError, match=r"no such metric|has no label"):
            q(*wrong)


def test_the_provisioning_files_name_the_folder_and_ask_no_oftener_than_a_network_disk_bears():
    folder = ROOT / "deploy/grafana/provisioning"
    [provider] = read_yaml(folder / "dashboards/preflight.yml")["providers"]
    assert provider["type"] == "file"
    assert provider["updateIntervalSeconds"] > 10
    assert provider["allowUiUpdates"] is False
    assert provider["options"]["path"].startswith("/")
    [source] = read_yaml(folder / "datasources/preflight.yml")["datasources"]
    assert source["type"] == "prometheus"
    assert source["editable"] is False


@pytest.fixture(scope="module")
def alerts():
    groups = read_yaml(ROOT / "deploy/prometheus/rules/preflight-alerts.yml")["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def test_colours_change_where_the_alerts_begin(alerts):
    limits = {name: float(re.search(r"< (0\.\d+)", rule["expr"])[1]) for name, rule in alerts.items() if "Slow" in name}
    assert limits["PreflightNodeSlow"] == limits["PreflightLeafPathSlow"] == queries.RATIO_BAD
    assert limits["PreflightPairNewlySlow"] == queries.PAIR_BAD
    assert "> 1800" in alerts["PreflightAgentStale"]["expr"]


def test_every_alert_has_a_panel_that_links_to_the_place_in_the_runbook_where_the_alert_links_to(alerts):
    made = [board(name) for name in NAMES]
    linked = {link["url"] for each in made for panel in panels_of(each) for link in panel["links"]}
    assert linked == {rule["annotations"]["runbook_url"] for rule in alerts.values()}


def test_scrapes_that_a_dashboard_counts_are_the_jobs_that_the_alerts_know(alerts):
    jobs = {job for rule in alerts.values() for job in re.findall(r'job="(preflight-\w+)"', rule["expr"])}
    [pattern] = re.findall(r'job=~"([^"]+)"', queries.UP)
    assert jobs
    assert all(re.fullmatch(pattern, job) for job in jobs)
