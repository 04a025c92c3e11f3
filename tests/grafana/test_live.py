"""Every query of every dashboard against a real Prometheus that scrapes a simulated fleet of 64 nodes: an answer where there should be one, with the labels that its panel shows."""

import json
import re
import time
from pathlib import Path

import pytest

from deploy.grafana import ask
from deploy.grafana.build import OUT
from deploy.grafana.dashboard import REAL, SIMULATED
from deploy.grafana.panels import GOOD_IF_EMPTY
from deploy.grafana.preview import page
from preflight.formats import write_atomically
from preflight.metrics import exposition
from preflight.slurm import textfile
from tests.grafana.promql import answer_labels, selectors, tree
from tests.prometheus import stack
from tests.prometheus.fleet import SLOW_NODE, simulated_fleet

pytestmark = [
    pytest.mark.soak,  # half a minute: the lint and the parser are in the default suite
    pytest.mark.debian("prometheus", "prometheus"),
    pytest.mark.debian("prometheus-node-exporter"),
]
RULES = Path(__file__).parents[2] / "deploy/prometheus/rules"
BOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(OUT.glob("*.json"))}
# what a real site tells apart by jobs; the fleet's run is a simulated one, so one job takes its mark away and another keeps it
NO_MARK = [{"action": "labeldrop", "regex": "simulated"}]
INTERVAL_S = 2.0  # 68 pages each time, on few processors
OLD = "n40"
NEEDED = 16.0  # seconds of scrapes, so that a rate and a drift can be told


def prolog(folder, node, drain):
    """The text file that a prolog leaves: it drained, or wanted to."""
    text = textfile.metrics_text(
        "slurm prolog",
        node,
        answer="no-go" if drain else "go",
        findings={("gpu_census", "FAIL" if drain else "PASS"): 1},
        duration_s=0.2,
        drain=drain,
    )
    textfile.write_metrics(str(folder), "slurm prolog", node, text)


class Site:
    """The servers, and what the dashboards ask them."""

    def __init__(self, fleet, server, textfiles):
        self.fleet, self.server, self.textfiles = fleet, server, textfiles

    def span(self):
        return ask.last(NEEDED, rate_s=4 * INTERVAL_S)

    def values(self, board, **wanted):
        return ask.chosen(self.server.url, board, self.span(), wanted)

    def answers(self, board, **wanted):
        return list(ask.answers(self.server.url, board, self.span(), self.values(board, **wanted)))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    textfiles = folder / "text"
    textfiles.mkdir()
    prolog(textfiles, "n05", None)
    with (
        simulated_fleet(folder / "fleet", history=True) as fleet,
        stack.node_exporter(folder / "node", textfiles) as node,
        stack.prometheus(
            folder / "prometheus",
            interval=f"{INTERVAL_S:g}s",
            rules=sorted(RULES.glob("*.yml")),
            scrape=[
                stack.job("preflight-agent", fleet.targets),
                stack.job("preflight-exporter", [fleet.exporter]),
                stack.job("preflight-run", [fleet.coordinator], metric_relabel_configs=NO_MARK),
                stack.job("preflight-modelled", [fleet.coordinator]),
                stack.job("node", [node.address]),
            ],
        ) as server,
    ):
        for agent in fleet.agents.values():
            agent.count("/metrics", 200)  # their pages are served by another server here
        stack.wait_until(
            lambda: all(target["health"] == "up" for target in server.targets()),
            "all targets answer",
            60,
            lambda: str({target["lastError"] for target in server.targets()}),
        )
        server.wait_for(f'count_over_time(up{{job="preflight-run"}}[1m]) > {NEEDED / INTERVAL_S:g}', deadline_s=90)
        yield Site(fleet, server, textfiles)


@pytest.fixture(scope="module")
def healthy(site):
    """All answers while the fleet is well, by dashboard."""
    wanted = {"preflight-node": {"node": SLOW_NODE}, "preflight-run": {"command": "run"}}
    return {uid: site.answers(board, **wanted.get(uid, {})) for uid, board in BOARDS.items()}


@pytest.fixture(scope="module")
def degraded(site, healthy):
    """All answers once a node is slow, a prolog was held back by the brake, and a page is broken."""
    site.fleet.degrade()
    prolog(site.textfiles, SLOW_NODE, "braked")
    # by hand: what a page that could not be gathered whole says, and modes of groups that the fleet's plan does not measure
    rates = [(("tp", "all_reduce", "1048576", mode), 4e10) for mode in ("mixed", "skewed")]
    groups = exposition(
        [("group_bus_bandwidth_minimum_bytes_per_second", rates), ("families_withheld", [((), 2.0)])],
        {"command": "run", "node": "n09"},
    )
    broken = exposition([("collector_success", [((), 0.0)])], {"node": "n09"})
    write_atomically(site.textfiles / "preflight-by-hand.prom", groups + broken)
    # and a file that is left of a run of long ago, which found a node slow
    long_ago = time.time() - 40 * 86400
    old = exposition([("node_bandwidth_ratio", [((OLD, "between"), 0.4)])], {"command": "judge"})
    old += exposition([("run_completion_timestamp_seconds", [(("judge",), long_ago)])], {})
    old += exposition([("worst_finding", [(("judge", "slow_part", OLD, OLD, "FAIL"), 1.0)])], {})
    write_atomically(site.textfiles / "preflight-judge.prom", old)
    for expr in (
        f'preflight_worst_finding{{node="{OLD}"}} == 1',
        f'preflight_node_bandwidth_ratio{{node="{SLOW_NODE}",job="preflight-run"}} < 0.85',
        f'preflight_check_status{{node="{SLOW_NODE}",verdict="FAIL"}} == 1',
        'preflight_fabric_slow_parts{job="preflight-run"} > 0',
        "preflight_collector_success == 0",
        'ALERTS{alertname="PreflightBrakeEngaged",alertstate="firing"}',
    ):
        site.server.wait_for(expr)
    wanted = {"preflight-node": {"node": SLOW_NODE}, "preflight-run": {"command": "run"}}
    return {uid: site.answers(board, **wanted.get(uid, {})) for uid, board in BOARDS.items()}


def empty(answers):
    return [f"{each.panel['title']} {each.target['refId']}: {each.query}" for each in answers if not each.series]


@pytest.mark.parametrize("uid", BOARDS)
def test_every_variable_offers_something(site, uid):
    values = site.values(BOARDS[uid])
    for variable in BOARDS[uid]["templating"]["list"]:
        if (
            variable["type"] == "query" and variable["name"] != "cluster"
        ):  # which this scrape configuration does not set
            assert ask.offered(site.server.url, variable, values), variable["name"]


BY_HAND = {"mixed", "skewed"}  # modes of groups


@pytest.mark.parametrize("uid", BOARDS)
def test_every_panel_of_a_healthy_fleet_shows_something_unless_it_says_that_nothing_is_good_news(healthy, uid):
    said = [each for each in healthy[uid] if GOOD_IF_EMPTY not in each.panel["description"]]
    assert empty(each for each in said if not any(f'mode="{mode}"' in each.query for mode in BY_HAND)) == []


@pytest.mark.parametrize("uid", BOARDS)
def test_every_panel_shows_something_when_things_are_bad(degraded, uid):
    # the fleet's page forgets the last run that said go, which the writers of text files keep
    assert empty(each for each in degraded[uid] if "run_success_timestamp" not in each.query) == []


@pytest.mark.parametrize("uid", ["preflight-fleet", "preflight-fabric"])
def test_several_values_chosen_at_a_time_are_all_shown(site, degraded, uid):
    # as Grafana puts several values in
    some = {
        "command": "(run|slurm prolog|agent)",
        "node": f"(n05|{SLOW_NODE})",
        "leaf": "(leaf0|leaf1)",
        "route": "(between|inside)",
    }
    wanted = {name: value for name, value in some.items() if f"${name}" in json.dumps(BOARDS[uid])}
    assert len(wanted) >= 2
    assert (
        empty(each for each in site.answers(BOARDS[uid], **wanted) if "run_success_timestamp" not in each.query) == []
    )


@pytest.mark.parametrize("uid", BOARDS)
def test_the_preview_draws_what_is_there(site, degraded, uid):
    wanted = {"preflight-node": {"node": SLOW_NODE}, "preflight-run": {"command": "run"}}.get(uid, {})
    html = page(site.server.url, [BOARDS[uid]], site.span(), wanted)
    assert "This is not Grafana" in html
    assert SLOW_NODE in html
    assert "(real)" in html
    assert "SIMULATED)" not in html
    assert html.count("<section") == len(ask.panels_of(BOARDS[uid]))


@pytest.mark.parametrize("uid", BOARDS)
def test_answers_have_the_labels_of_legends_and_columns(degraded, uid):
    for each in degraded[uid]:
        legend = set(re.findall(r"\{\{(\w+)\}\}", each.target.get("legendFormat", "")))
        lacking = [series.labels for series in each.series if not legend <= set(series.labels)]
        assert lacking == [], each.panel["title"]
        options = [step["options"] for step in each.panel.get("transformations", ())]
        cells = {one[key] for one in options for key in ("rowField", "columnField") if key in one}
        assert all(cells <= set(series.labels) for series in each.series), each.panel["title"]
        columns = {name for one in options for name in one.get("indexByName", ()) if not name.startswith("Value")}
        if not each.query.startswith("ALERTS"):  # one alert has a node, another has leaves
            assert columns <= {label for series in each.series for label in series.labels}, each.panel["title"]


@pytest.mark.parametrize("uid", BOARDS)
def test_answers_have_no_labels_but_those_that_the_lint_knows(degraded, uid):
    for each in degraded[uid]:
        known = answer_labels(tree(each.target["expr"])) or set()
        found = {label for series in each.series for label in series.labels}
        assert found <= known | {"__name__"}, each.panel["title"]


@pytest.mark.parametrize("uid", BOARDS)
def test_real_and_simulated_series_never_meet(site, degraded, uid):
    seen = set()
    for wanted, marks in ((REAL, {None}), (SIMULATED, {"true"})):
        values = site.values(BOARDS[uid], simulated=wanted, node=SLOW_NODE, command="run")
        for panel in ask.panels_of(BOARDS[uid]):
            for target in panel["targets"]:
                for text in re.findall(r"preflight_\w+\{[^}]*\}", target["expr"]):
                    got = ask.query(site.server.url, ask.filled(text, values), site.span(), instant=True)
                    assert {series.labels.get("simulated") for series in got} <= marks, text
                    seen |= {series.labels.get("simulated") for series in got}
    assert seen == {None, "true"}


def test_the_slow_node_is_at_the_head_of_the_tables(degraded):
    def lowest(title):
        [first, *_] = [each for each in degraded["preflight-fabric"] if each.panel["title"] == title]
        return min(first.series, key=lambda series: series.points[-1][1])

    assert lowest("Lowest nodes").labels["node"] == SLOW_NODE
    assert SLOW_NODE in {lowest("Slowest pairs").labels[end] for end in ("node", "other_node")}
    assert lowest("Nodes below their own mean").labels["node"] == SLOW_NODE


def test_a_file_that_is_left_of_an_old_run_blames_nobody(site, degraded):
    for answers in degraded.values():
        for each in answers:
            if "bandwidth_ratio" in each.query and "avg_over_time" not in each.query:
                accused = [series for series in each.series if series.labels.get("node") == OLD]
                assert all(
                    figure > 0.9 for series in accused for _, figure in series.points if "slot" not in series.labels
                )
            if "worst_finding" in each.query:
                assert OLD not in {series.labels.get("node") for series in each.series}
    long = ask.Span(time.time() - 60 * 86400, time.time())
    board = BOARDS["preflight-fabric"]
    values = ask.chosen(site.server.url, board, long)
    [lowest] = [panel["targets"][0] for panel in ask.panels_of(board) if panel["title"] == "Lowest nodes"]
    got = ask.query(site.server.url, ask.filled(lowest["expr"], values), long, instant=True)
    assert min(got, key=lambda series: series.points[0][1]).labels["node"] == OLD, (
        "somebody who looks at that time sees it"
    )


def test_runs_are_marked_at_the_time_that_they_tell_in_milliseconds(site):
    for board in BOARDS.values():
        [mark] = [each for each in board["annotations"]["list"] if not each.get("builtIn")]
        found = ask.query(site.server.url, ask.filled(mark["expr"], site.values(board)), site.span(), instant=True)
        assert found
        ended = {series.labels["command"]: series.points[0][1] / 1000 for series in found}
        assert abs(ended["run"] - time.time()) < 600
        assert all({"command"} == set(series.labels) for series in found)


def test_the_matrix_of_leaves_is_whole_and_the_same_from_both_sides(site):
    [board] = [BOARDS["preflight-fabric"]]
    [matrix] = [each for each in site.answers(board) if each.panel["title"] == "Leaf x leaf: share of the reference"]
    cells = {(series.labels["leaf"], series.labels["other_leaf"]): series.points[0][1] for series in matrix.series}
    leaves = {leaf for leaf, _ in cells}
    assert len(leaves) == 4
    assert all(cells[one, other] == cells[other, one] for one, other in cells)
    assert {(one, other) for one in leaves for other in leaves if one != other} <= set(cells)


def test_every_metric_that_the_queries_name_is_there(site, degraded):
    asked = {
        selector.name
        for board in BOARDS.values()
        for panel in ask.panels_of(board)
        for target in panel["targets"]
        for selector, _ in selectors(tree(target["expr"]))
    }
    there = set(ask.get(site.server.url, "/api/v1/label/__name__/values"))
    assert asked - there == set()
