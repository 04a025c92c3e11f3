"""Panels of Grafana's classic dashboards as dictionaries. A panel's figures are neutral where they are unknown: the lowest colour of every scale is none.

Grafana colours an empty cell with a scale's lowest colour (grafana/grafana, packages/grafana-data, displayProcessor: no colour -> scale(-Infinity)); red there would blame what was never measured.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Json = dict[str, Any]

DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
GOOD_IF_EMPTY = (
    "No rows is good news:"  # begins the last sentence of the description of a panel that a healthy fleet leaves empty
)
NEUTRAL, GREEN, ORANGE, RED, BLUE, GREY = "transparent", "green", "orange", "red", "blue", "#808080"
UNKNOWN: Json = {
    "type": "special",
    "options": {"match": "null+nan", "result": {"text": "not measured", "color": NEUTRAL, "index": 99}},
}
VERDICT_COLOURS = {"FAIL": RED, "UNKNOWN": "purple", "WARN": ORANGE, "PASS": GREEN, "SKIP": GREY}
ANSWER_COLOURS = {"no-go": RED, "undecided": "purple", "go": GREEN}
Steps = Sequence[tuple[float, str]]


class Query(NamedTuple):
    """`legend`: the series' name, with {{label}}; in a table the name of the value's column. `unit`: of that column."""

    expr: str
    legend: str = ""
    unit: str = ""
    steps: Steps = ()


class Panel(NamedTuple):
    """One panel without its place. `width` of 24 columns. `alerts`: the runbook's headings that it links to."""

    title: str
    description: str
    body: Json
    width: int
    height: int
    alerts: tuple[str, ...] = ()


class Row(NamedTuple):
    """Panels under a heading. `closed`: folded until somebody opens it."""

    title: str
    panels: tuple[Panel, ...]
    closed: bool = False


def scale(*steps: tuple[float, str]) -> Json:
    """Colours from each value on; below the first, and where there is no value, none."""
    first: Json = {"color": NEUTRAL, "value": None}
    return {"mode": "absolute", "steps": [first, *({"color": colour, "value": value} for value, colour in steps)]}


def low_is_bad(bad: float, low: float) -> Steps:
    """Red below `bad`, orange below `low`, else green."""
    return (0, RED), (bad, ORANGE), (low, GREEN)


def values(words: Mapping[float, tuple[str, str]]) -> Json:
    """Words and colours in place of numbers."""
    options = {
        f"{number:g}": {"text": word, "color": colour, "index": index}
        for index, (number, (word, colour)) in enumerate(words.items())
    }
    return {"type": "value", "options": options}


def named(colours: Mapping[str, str]) -> Json:
    """Colours of words, which stay as they are."""
    return {
        "type": "value",
        "options": {word: {"color": it, "index": index} for index, (word, it) in enumerate(colours.items())},
    }


VERDICTS, ANSWERS = named(VERDICT_COLOURS), named(ANSWER_COLOURS)
SEVERITIES = named({"critical": RED, "warning": ORANGE, "info": BLUE})
LEVELS = values(
    {4: ("FAIL", RED), 3: ("UNKNOWN", "purple"), 2: ("WARN", ORANGE), 1: ("PASS", GREEN), 0: ("SKIP", GREY)}
)


def stat(
    title: str,
    description: str,
    *queries: Query,
    unit: str = "short",
    steps: Steps = (),
    words: Json | None = None,
    width: int = 4,
    height: int = 4,
    alerts: tuple[str, ...] = (),
    overrides: Sequence[Json] = (),
) -> Panel:
    """One figure, or one for each series."""
    body = _body("stat", queries, unit=unit, steps=steps, words=words, overrides=overrides, instant=True)
    body["options"] = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "orientation": "auto",
        "textMode": "auto" if len(queries) == 1 and "{{" not in queries[0].legend else "value_and_name",
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
    }
    return Panel(title, description, body, width, height, alerts)


def bars(title: str, description: str, query: Query, *, unit: str, width: int = 8, height: int = 8) -> Panel:
    """One bar for each series."""
    body = _body("bargauge", (query,), unit=unit, instant=True)
    body["options"] = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "orientation": "horizontal",
        "displayMode": "basic",
        "valueMode": "text",
        "minVizWidth": 8,
        "minVizHeight": 16,
        "showUnfilled": True,
    }
    body["fieldConfig"]["defaults"] |= {"color": {"mode": "fixed", "fixedColor": BLUE}, "min": 0}
    return Panel(title, description, body, width, height)


def lines(
    title: str,
    description: str,
    *queries: Query,
    unit: str,
    steps: Steps = (),
    stacked: bool = False,
    width: int = 12,
    height: int = 8,
    colours: Mapping[str, str] | None = None,
    alerts: tuple[str, ...] = (),
) -> Panel:
    """Figures over time; a gap stays a gap. `colours` by legend."""
    overrides = [_override(name, color={"mode": "fixed", "fixedColor": it}) for name, it in (colours or {}).items()]
    body = _body("timeseries", queries, unit=unit, steps=steps, overrides=overrides)
    defaults = body["fieldConfig"]["defaults"]
    defaults["color"] = {"mode": "palette-classic"}
    defaults["custom"] = {
        "drawStyle": "line",
        "lineInterpolation": "stepAfter",
        "lineWidth": 1,
        "fillOpacity": 30 if stacked else 0,
        "showPoints": "auto",
        "pointSize": 4,
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "dashed" if steps else "off"},
    }
    body["options"] = {
        "legend": {"displayMode": "table", "placement": "right", "showLegend": True, "calcs": ["lastNotNull", "min"]},
        "tooltip": {"mode": "multi", "sort": "asc"},
    }
    return Panel(title, description, body, width, height, alerts)


def timeline(
    title: str,
    description: str,
    query: Query,
    words: Json,
    *,
    width: int = 24,
    height: int = 9,
    alerts: tuple[str, ...] = (),
) -> Panel:
    """A state over time, one line for each series."""
    body = _body("state-timeline", (query,), unit="none", words=words)
    body["fieldConfig"]["defaults"]["custom"] = {"lineWidth": 0, "fillOpacity": 80, "spanNulls": False}
    body["options"] = {
        "mergeValues": True,
        "showValue": "never",
        "alignValue": "left",
        "rowHeight": 0.9,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return Panel(title, description, body, width, height, alerts)


def histogram(title: str, description: str, query: Query, *, width: int = 12, height: int = 8) -> Panel:
    """Buckets over time."""
    body = _body("heatmap", (query,), unit="percentunit")
    body["targets"][0]["format"] = "heatmap"
    body["options"] = {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Blues", "steps": 64, "exponent": 0.5},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "le"},
        "tooltip": {"show": True, "yHistogram": True},
        "yAxis": {"axisPlacement": "left", "unit": "percentunit"},
    }
    return Panel(title, description, body, width, height)


def table(
    title: str,
    description: str,
    *queries: Query,
    columns: Sequence[str],
    sort: str = "",
    descending: bool = False,
    links: Mapping[str, str] | None = None,
    words: Mapping[str, Json] | None = None,
    width: int = 12,
    height: int = 8,
    alerts: tuple[str, ...] = (),
) -> Panel:
    """Series as rows; several queries are joined over equal labels. `columns`: labels in order, the value columns follow. `links` and `words` by column."""
    body = _body("table", queries, unit="none", instant=True)
    many = len(queries) > 1
    named = {f"Value #{chr(65 + i)}" if many else "Value": query.legend for i, query in enumerate(queries)}
    hidden = [] if all(query.legend for query in queries) else ["Value"]
    order = [*columns, *named]
    organise = {
        "excludeByName": dict.fromkeys(["Time", *hidden], True),
        "includeByName": {},
        "indexByName": {name: index for index, name in enumerate(order)},
        "renameByName": {old: new for old, new in named.items() if new},
    }
    body["transformations"] = [
        *([{"id": "merge", "options": {}}] if many else []),
        {"id": "organize", "options": organise},
    ]
    overrides = [
        *(
            _override(query.legend, **_column(query))
            for query in queries
            if query.legend and (query.unit or query.steps)
        ),
        *(_override(name, links=[{"title": "Open", "url": url}]) for name, url in (links or {}).items()),
        *(
            _override(name, mappings=[it], **{"custom.cellOptions": {"type": "color-text"}})
            for name, it in (words or {}).items()
        ),
    ]
    body["fieldConfig"]["overrides"] = overrides
    body["options"] = {
        "showHeader": True,
        "cellHeight": "sm",
        "sortBy": [{"displayName": sort, "desc": descending}] if sort else [],
    }
    return Panel(title, description, body, width, height, alerts)


def matrix(
    title: str,
    description: str,
    expr: str,
    *,
    row: str,
    column: str,
    unit: str,
    steps: Steps = (),
    sort: str = "",
    width: int = 12,
    height: int = 12,
    alerts: tuple[str, ...] = (),
) -> Panel:
    """A table of row by column with coloured cells. A cell without a figure is empty and says so; it is never 0. `sort`: a column, highest first; empty: by the rows' names."""
    body = _body("table", (Query(expr),), unit=unit, steps=steps, words=UNKNOWN, instant=True)
    options = {"rowField": row, "columnField": column, "valueField": "Value", "emptyValue": "null"}
    body["transformations"] = [{"id": "groupingToMatrix", "options": options}]
    body["fieldConfig"]["defaults"]["custom"] = {
        "align": "center",
        "cellOptions": {"type": "color-background", "mode": "basic"} if steps else {"type": "auto"},
    }
    body["fieldConfig"]["overrides"] = [
        _override(f"{row}\\{column}", mappings=[], **{"custom.cellOptions": {"type": "auto"}, "custom.align": "left"})
    ]
    body["options"] = {
        "showHeader": True,
        "cellHeight": "sm",
        "sortBy": [{"displayName": sort or f"{row}\\{column}", "desc": bool(sort)}],
    }
    return Panel(title, description, body, width, height, alerts)


def _column(query: Query) -> Json:
    """What differs in one value column of a table."""
    colour = {"thresholds": scale(*query.steps), "color": {"mode": "thresholds"}}
    cells = {"custom.cellOptions": {"type": "color-text"}}
    return {**({"unit": query.unit} if query.unit else {}), **({**colour, **cells} if query.steps else {})}


def _override(name: str, **properties: Any) -> Json:
    """For the field of that name."""
    listed = [{"id": key, "value": value} for key, value in properties.items()]
    return {"matcher": {"id": "byName", "options": name}, "properties": listed}


def _body(
    kind: str,
    queries: Sequence[Query],
    *,
    unit: str,
    steps: Steps = (),
    words: Json | None = None,
    overrides: Sequence[Json] = (),
    instant: bool = False,
) -> Json:
    targets = []
    for index, query in enumerate(queries):
        target: Json = {"refId": chr(65 + index), "datasource": DATASOURCE, "expr": query.expr, "editorMode": "code"}
        target |= {"instant": instant, "range": not instant}
        # a table takes its columns from the labels; a name of the series would become the head of a matrix' columns (grafana/grafana#106631)
        target |= {"format": "table"} if kind == "table" else {"format": "time_series", "legendFormat": query.legend}
        targets.append(target)
    defaults: Json = {"unit": unit, "mappings": [words] if words else [], "thresholds": scale(*steps)}
    defaults |= {"color": {"mode": "thresholds"}, "noValue": "unknown"}
    return {
        "type": kind,
        "datasource": DATASOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": list(overrides)},
    }
