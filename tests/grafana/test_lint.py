"""Each rule of the lint catches the fault that it is there for: a dashboard that is made sick in one place."""

import copy
import json

import pytest

from deploy.grafana.ask import panels_of as panels
from deploy.grafana.build import OUT
from tests.grafana import lint, lint_queries

RULES = {rule.__name__: rule for rule in (*lint.RULES, *lint_queries.RULES)}


@pytest.fixture(scope="module")
def healthy():
    return json.loads((OUT / "preflight-fabric.json").read_text())


def panel(board, title):
    return next(each for each in panels(board) if each["title"] == title)


def with_expr(text, title="Lowest pair of leaves"):
    """A dashboard one query of which is another."""

    def change(board):
        panel(board, title)["targets"][0]["expr"] = text

    return change


def set_at(title, *path):
    """A dashboard where the last of `path` stands at the place that the others name."""

    def change(board):
        place = panel(board, title) if title else board
        for key in path[:-2]:
            place = place[key]
        place[path[-2]] = path[-1]

    return change


def variable(which, /, **changes):
    def change(board):
        next(each for each in board["templating"]["list"] if each["name"] == which).update(changes)

    return change


MATRIX, STAT, LINES, TABLE = (
    "Leaf x leaf: share of the reference",
    "Lowest pair of leaves",
    "The ten lowest nodes",
    "Slowest pairs",
)
ALL = 'cluster=~"$cluster",simulated=~"$simulated"'
SICK = [
    ("identity", set_at("", "id", 7), "id is not null"),
    ("identity", set_at("", "uid", ""), "uid"),
    ("identity", set_at("", "schemaVersion", 22), "schemaVersion 22"),
    ("identity", set_at("", "__inputs", []), "import dialogue"),
    ("identity", set_at("", "editable", True), "editable"),
    ("datasources", set_at(STAT, "datasource", "Prometheus"), "data source Prometheus"),
    ("datasources", set_at(STAT, "targets", 0, "datasource", {"type": "prometheus", "uid": "P1809F7CD0C75ACF3"}), "P1809"),
    ("datasources", variable("leaf", datasource={"uid": "${DS_PROMETHEUS}"}), "DS_PROMETHEUS"),
    ("datasources", set_at("", "annotations", "list", 1, "datasource", None), "annotation Runs"),
    ("words", set_at(STAT, "description", ""), "no description"),
    ("words", set_at(STAT, "title", ""), "no title"),
    ("places", set_at(STAT, "id", 1), "id 1 is there twice"),
    ("places", set_at(STAT, "gridPos", "w", 20), "outside of the grid"),
    ("places", set_at(STAT, "gridPos", "h", 9), "lies on"),
    ("kinds_and_units", set_at(STAT, "fieldConfig", "defaults", "unit", "GB/s"), "unit GB/s"),
    ("kinds_and_units", set_at(TABLE, "fieldConfig", "overrides", 0, "properties", 0, "value", "binBps"), "unit binBps"),
    ("kinds_and_units", set_at(STAT, "type", "graph"), "panel type graph"),
    ("unknown_is_neutral", set_at(MATRIX, "fieldConfig", "defaults", "thresholds", "steps", 0, "color", "red"), "not neutral"),
    ("unknown_is_neutral", set_at(MATRIX, "transformations", 0, "options", "emptyValue", "zero"), "not null"),
    ("unknown_is_neutral", set_at(LINES, "fieldConfig", "defaults", "custom", "spanNulls", True), "a gap is drawn over"),
    ("unknown_is_neutral", set_at(STAT, "fieldConfig", "defaults", "noValue", "0"), "not called unknown"),
    ("variables", with_expr(f'preflight_node_bandwidth_ratio{{node="$host",{ALL}}}'), "$host is not declared"),
    ("variables", variable("leaf", name="blade"), "$blade is declared and not used"),
    ("variables", variable("simulated", multi=True), "chosen together"),
    ("variables", variable("simulated", current={"value": "true"}), "not the default"),
    ("variables", variable("simulated", options=[{"value": ".*"}, {"value": "true"}]), "not the default"),
    ("variables", lambda board: board["templating"]["list"].pop(2), "no variable for simulated"),
    ("variables", lambda board: board["templating"]["list"].pop(0), "first variable is not the data source"),
    ("variables", lambda board: board["panels"][0].update(title="Now"), "does not say whether it is simulated"),
    ("links", set_at(STAT, "links", 0, "url", "runbook.md"), "link to runbook.md"),
    ("links", set_at(TABLE, "fieldConfig", "overrides", 2, "properties", 0, "value", 0, "url", "/d/preflight-node?var-node=${__data.fields.node}"), "as it is"),
    ("links", set_at(TABLE, "fieldConfig", "overrides", 2, "properties", 0, "value", 0, "url", "/d/other?a=b"), "link to /d/other"),
    ("syntax", with_expr(f"sum by (leaf (preflight_leaf_pair_bandwidth_ratio{{{ALL}}})"), "Lowest pair of leaves A"),
    ("syntax", with_expr("preflight_leaf_pair_bandwidth_ratio{leaf=$leaf}"), "Lowest pair of leaves A"),
    ("names", with_expr(f"preflight_no_such_thing{{{ALL}}}"), "nobody exports it"),
    ("names", with_expr(f'preflight_node_bandwidth_ratio{{leaf="$leaf",{ALL}}}'), "has no label leaf"),
    ("names", with_expr(f"sum by (rail) (preflight_node_bandwidth_ratio{{{ALL}}})"), "by rail"),
    ("names", with_expr(f"preflight_node_bandwidth_ratio{{{ALL}}} / on (leaf) preflight_leaf_pair_bandwidth_ratio{{{ALL}}}"), "on leaf"),
    ("names", variable("leaf", query={"query": f'label_values({{__name__=~"preflight_(leaf_ratios|run_answer)",{ALL}}},leaf)'}), "leaf_ratios: no such metric"),
    ("selection", with_expr('min(preflight_leaf_pair_bandwidth_ratio{cluster=~"$cluster"})'), "simulated"),
    ("selection", with_expr('min(preflight_leaf_pair_bandwidth_ratio{simulated=~"$simulated"})'), "cluster"),
    ("selection", with_expr("min(preflight_leaf_pair_bandwidth_ratio)"), "not selected by anything"),
    ("selection", with_expr("up{}"), "cluster"),
    ("counters", with_expr(f"sum(preflight_pairs_measured_total{{{ALL}}})"), "outside of rate"),
    ("counters", with_expr(f"rate(preflight_leaf_pair_bandwidth_ratio{{{ALL}}}[$__rate_interval])"), "is no counter"),
    ("counters", with_expr(f"rate(preflight_pair_bandwidth_ratio_bucket{{{ALL}}}[$__rate_interval])"), "is no counter"),
    ("counters", with_expr(f"sum(rate(preflight_pairs_measured_total{{{ALL}}}[5m]))"), "rate over [5m]"),
    ("no_zero_for_unknown", with_expr(f"min(preflight_leaf_pair_bandwidth_ratio{{{ALL}}}) or vector(0)"), "where nothing is known"),
    ("shown_labels", set_at(LINES, "targets", 0, "legendFormat", "{{rail}}"), "rail is no label"),
    ("shown_labels", set_at(MATRIX, "transformations", 0, "options", "rowField", "other_rail"), "other_rail is no label"),
    ("shown_labels", set_at(TABLE, "transformations", 1, "options", "indexByName", {"rank": 0}), "rank is no label"),
    ("shown_labels", set_at(MATRIX, "targets", 0, "legendFormat", "{{leaf}}"), "head of every column"),
    ("shown_labels", set_at(MATRIX, "targets", 0, "format", "time_series"), "become no columns"),
    ("shown_labels", set_at(STAT, "targets", 0, "instant", False), "shows one moment"),
    ("fitting_units", set_at(STAT, "fieldConfig", "defaults", "unit", "s"), "unit s, the metric has percentunit"),
    ("fitting_units", set_at(TABLE, "fieldConfig", "overrides", 1, "properties", 0, "value", "short"), "the metric has Bps"),
    ("marks", lambda board: board["annotations"]["list"].pop(), "no marks where runs ended"),
    ("marks", set_at("", "annotations", "list", 1, "useValueForTime", False), "not at the time"),
    ("marks", set_at("", "annotations", "list", 1, "expr", "preflight_run_completion_timestamp_seconds"), "milliseconds"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "change", "said"), SICK, ids=[f"{rule}-{said}" for rule, _, said in SICK])
def test_a_sick_dashboard_is_caught(healthy, rule, change, said):
    sick = copy.deepcopy(healthy)
    change(sick)
    assert any(said in fault for fault in RULES[rule](sick)), list(RULES[rule](sick))


def test_each_rule_has_a_sick_dashboard():
    assert {rule for rule, _, _ in SICK} == set(RULES)


def test_a_metric_that_no_panel_shows_is_found(healthy):
    assert "gpu_info" in lint_queries.not_shown([healthy])
    assert "leaf_pair_bandwidth_ratio" not in lint_queries.not_shown([healthy])
