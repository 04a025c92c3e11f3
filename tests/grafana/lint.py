"""Rules that our dashboards keep. Each is a function that yields what is wrong with one dashboard; the rules about queries are in lint_queries.py."""

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from deploy.grafana.ask import panels_of as panels
from deploy.grafana.ask import variables_in
from tests.grafana.promql import BUILT_IN

Json = dict[str, Any]
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
# of Grafana's list of units (packages/grafana-data, valueFormats/categories): those that we use; Bps is decimal, binBps would not be
UNITS = {"none", "short", "percentunit", "s", "Bps", "flops", "reqps", "dateTimeFromNow"}
KINDS = {"stat", "bargauge", "table", "timeseries", "state-timeline", "heatmap"}  # all of Grafana's core
COLUMNS = 24


def targets(board: Json) -> Iterator[tuple[Json, Json]]:
    """Each query with its panel."""
    return ((panel, target) for panel in panels(board) for target in panel["targets"])


def identity(board: Json) -> Iterator[str]:
    """Provisioned from a file: own address, no number, nothing that only the import dialogue fills in."""
    if board.get("id", 0) is not None:
        yield "id is not null"
    if not re.fullmatch(r"preflight-[a-z]+", board.get("uid") or ""):
        yield f"uid {board.get('uid')}"
    if not 36 <= board.get("schemaVersion", 0) <= 39:
        yield f"schemaVersion {board.get('schemaVersion')}"
    yield from (f"{key} is only for the import dialogue" for key in board if key.startswith("__"))
    yield from (f"no {key}" for key in ("title", "description", "tags") if not board.get(key))
    if board.get("editable") is not False:
        yield "editable: changes in the browser would be lost"


def datasources(board: Json) -> Iterator[str]:
    """Everything asks the data source that the variable names."""
    for panel in panels(board):
        if panel.get("datasource") != DATASOURCE:
            yield f"{panel['title']}: data source {panel.get('datasource')}"
    for panel, target in targets(board):
        if target.get("datasource") != DATASOURCE:
            yield f"{panel['title']} {target['refId']}: data source {target.get('datasource')}"
    for variable in board["templating"]["list"]:
        if variable["type"] == "query" and variable.get("datasource") != DATASOURCE:
            yield f"variable {variable['name']}: data source {variable.get('datasource')}"
    for mark in board["annotations"]["list"]:
        if not mark.get("builtIn") and mark.get("datasource") != DATASOURCE:
            yield f"annotation {mark['name']}: data source {mark.get('datasource')}"


def words(board: Json) -> Iterator[str]:
    """Every panel says what it shows and what it does not."""
    for panel in panels(board):
        if not panel.get("title"):
            yield f"panel {panel['id']} has no title"
        if len(panel.get("description") or "") < 20 or not panel["description"].endswith("."):
            yield f"{panel.get('title')}: no description in sentences"


def places(board: Json) -> Iterator[str]:
    """Numbers are unique; panels lie within the columns and not on each other."""
    everything = [each for panel in board["panels"] for each in (panel, *panel.get("panels", ()))]
    numbers = [panel["id"] for panel in everything]
    yield from (f"id {number} is there twice" for number in sorted({n for n in numbers if numbers.count(n) > 1}))
    for panel in everything:
        at = panel["gridPos"]
        if not (at["x"] >= 0 and at["w"] > 0 and at["x"] + at["w"] <= COLUMNS and at["y"] >= 0 and at["h"] > 0):
            yield f"{panel['title']}: outside of the grid: {at}"
    for one, other in combinations(everything, 2):
        a, b = one["gridPos"], other["gridPos"]
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        if not (beside or above):
            yield f"{one['title']} lies on {other['title']}"


def kinds_and_units(board: Json) -> Iterator[str]:
    """Only panels of Grafana's core, only units that Grafana has."""
    for panel in panels(board):
        if panel["type"] not in KINDS:
            yield f"{panel['title']}: panel type {panel['type']}"
        yield from (f"{panel['title']}: unit {unit}" for unit in _units(panel) if unit not in UNITS)


def _units(panel: Json) -> Iterator[Any]:
    config = panel["fieldConfig"]
    yield config["defaults"].get("unit")
    yield from (it["value"] for each in config["overrides"] for it in each["properties"] if it["id"] == "unit")


def unknown_is_neutral(board: Json) -> Iterator[str]:
    """What is not known has no colour, is no line and no number."""
    for panel in panels(board):
        config = panel["fieldConfig"]
        scales = [config["defaults"].get("thresholds")]
        scales += [it["value"] for each in config["overrides"] for it in each["properties"] if it["id"] == "thresholds"]
        for scale in scales:
            if not scale or scale["steps"][0] != {"color": "transparent", "value": None}:
                yield f"{panel['title']}: where nothing is known, the scale's first colour is not neutral"
        if config["defaults"].get("noValue") != "unknown":
            yield f"{panel['title']}: no value is not called unknown"
        if (
            panel["type"] in ("timeseries", "state-timeline")
            and config["defaults"]["custom"].get("spanNulls") is not False
        ):
            yield f"{panel['title']}: a gap is drawn over"
        for step in panel.get("transformations", ()):
            if step["id"] == "groupingToMatrix" and step["options"].get("emptyValue") != "null":
                yield f"{panel['title']}: an empty cell is not null"


def variables(board: Json) -> Iterator[str]:
    """What is used is declared; real and simulated results are never shown together."""
    listed = board["templating"]["list"]
    declared = {variable["name"] for variable in listed}
    if not listed or (listed[0]["name"], listed[0]["type"]) != ("datasource", "datasource"):
        yield "the first variable is not the data source"
    used = variables_in(str([board["panels"], board["annotations"], [v.get("query") for v in listed]]))
    own = {name for name in used if not name.startswith("__")} | (used & set(BUILT_IN))
    yield from (f"${name} is not declared" for name in sorted(own - declared - set(BUILT_IN)))
    yield from (f"${name} is declared and not used" for name in sorted(declared - used))
    simulated = [variable for variable in listed if variable["name"] == "simulated"]
    if len(simulated) != 1:
        yield "no variable for simulated results"
        return
    variable = simulated[0]
    if variable.get("multi") or variable.get("includeAll"):
        yield "real and simulated results can be chosen together"
    shown = [option["value"] for option in variable["options"]]
    matched = [{label for label in ("", "true") if re.fullmatch(value, label)} for value in shown]
    if matched != [{""}, {"true"}] or variable["current"]["value"] != shown[0]:
        yield "real results, which lack the label, are not the default, or simulated ones are not apart"
    for row in (panel for panel in board["panels"] if panel["type"] == "row"):
        if "${simulated:text}" not in row["title"]:
            yield f"row {row['title']} does not say whether it is simulated"


def links(board: Json) -> Iterator[str]:
    """Links go to dashboards of ours and to the runbook; values in addresses are encoded."""
    for panel in panels(board):
        for link in panel["links"]:
            if not re.fullmatch(r"https://\S+#preflight\w+", link["url"]):
                yield f"{panel['title']}: link to {link['url']}"
        values = [
            it["value"]
            for each in panel["fieldConfig"]["overrides"]
            for it in each["properties"]
            if it["id"] == "links"
        ]
        for link in (link for several in values for link in several):
            if not re.match(r"/d/preflight-(fleet|fabric|node|run)\?", link["url"]):
                yield f"{panel['title']}: link to {link['url']}"
            if re.search(r"\$\{__data[^}]*(?<!:percentencode)\}", link["url"]):
                yield f"{panel['title']}: a value stands in an address as it is"


RULES = (identity, datasources, words, places, kinds_and_units, unknown_is_neutral, variables, links)
