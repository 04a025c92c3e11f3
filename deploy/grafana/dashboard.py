"""A whole dashboard: places of panels, variables, annotations, links. Classic format, which servers from Grafana 10 on read and newer ones migrate when they load it."""

from collections.abc import Sequence
from typing import NamedTuple

from deploy.grafana.panels import DATASOURCE, Json, Panel, Row
from deploy.grafana.queries import q

SCHEMA_VERSION = 39  # Grafana 11; older servers of the 10 line ignore what they don't know
COLUMNS = 24
RUNBOOK = "https://preflight.example/runbook.md"  # the same placeholder as in the alert rules
REAL, SIMULATED = "(false)?", "true"  # matched against the label `simulated`, which series of real runs lack
TAG = "preflight"
COMPLETED = q("run_completion_timestamp_seconds", 'command!~"agent|node|slurm.*"')
NODE_PAGE = (
    "/d/preflight-node?${datasource:queryparam}&${cluster:queryparam}&${simulated:queryparam}"
    "&var-node=${__data.fields.%s:percentencode}"
)


class Choice(NamedTuple):
    """A variable that offers the values of a label. `many`: several at a time, and all of them."""

    name: str
    label: str
    selector: str
    many: bool
    text: str


class Board(NamedTuple):
    """One dashboard. `uid`: its address, never changed."""

    uid: str
    title: str
    text: str
    choices: tuple[Choice, ...]
    rows: tuple[Row, ...]
    span: str = "now-7d"


def dashboard(board: Board, runbook: str = RUNBOOK) -> Json:
    """The file's content. `runbook`: the address of the page that the panels link to."""
    return {
        "id": None,
        "uid": board.uid,
        "title": board.title,
        "description": board.text,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "liveNow": False,
        "refresh": "1m",
        "time": {"from": board.span, "to": "now"},
        "timepicker": {},
        "timezone": "",
        "weekStart": "",
        "fiscalYearStartMonth": 0,
        "links": [
            {
                "type": "dashboards",
                "title": "preflight",
                "tags": [TAG],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
                "targetBlank": False,
                "icon": "external link",
                "tooltip": "",
                "url": "",
            }
        ],
        "annotations": {"list": annotations()},
        "templating": {"list": variables(board.choices)},
        "panels": placed(board.rows, runbook),
    }


def placed(rows: Sequence[Row], runbook: str) -> list[Json]:
    """Panels from left to right, a new line where one does not fit; each line as high as its highest. Those of a closed row lie inside it."""
    made: list[Json] = []
    number = top = 0
    for row in rows:
        number += 1
        # the title says on every screen whether its figures are of a modelled cluster
        head: Json = {
            "id": number,
            "type": "row",
            "title": f"{row.title} (${{simulated:text}})",
            "collapsed": row.closed,
        }
        head |= {"gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": top}, "panels": []}
        made.append(head)
        top, left, high = top + 1, 0, 0
        for panel in row.panels:
            number += 1
            if left + panel.width > COLUMNS:
                top, left, high = top + high, 0, 0
            place = {"h": panel.height, "w": panel.width, "x": left, "y": top}
            (head["panels"] if row.closed else made).append(_panel(panel, number, place, runbook))
            left, high = left + panel.width, max(high, panel.height)
        top += high
    return made


def _panel(panel: Panel, number: int, place: Json, runbook: str) -> Json:
    links = [
        {"title": f"Runbook: {alert}", "url": f"{runbook}#{alert.lower()}", "targetBlank": True}
        for alert in panel.alerts
    ]
    head = {"id": number, "title": panel.title, "description": panel.description, "gridPos": place, "links": links}
    return {**head, **panel.body}


def variables(choices: Sequence[Choice]) -> list[Json]:
    """The data source first, since the others ask it; then cluster, real or simulated, and the dashboard's own."""
    source: Json = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    source |= {"current": {}, "hide": 0, "refresh": 1, "regex": "", "multi": False, "includeAll": False, "options": []}
    source["description"] = "The Prometheus that scrapes preflight."
    simulated: Json = {
        "name": "simulated",
        "label": "Results",
        "description": "Real runs, or runs on modelled clusters. Never both.",
        "type": "custom",
        "query": f"real : {REAL}, SIMULATED : {SIMULATED}",
        "current": {"selected": True, "text": "real", "value": REAL},
        "options": [
            {"selected": True, "text": "real", "value": REAL},
            {"selected": False, "text": "SIMULATED", "value": SIMULATED},
        ],
        "hide": 0,
        "multi": False,
        "includeAll": False,
        "skipUrlSync": False,
    }
    cluster = Choice(
        "cluster", "cluster", '{__name__=~"preflight_.+"}', many=True, text="As the scrape configuration names it."
    )
    return [source, _variable(cluster), simulated, *map(_variable, choices)]


def _variable(choice: Choice) -> Json:
    query = f"label_values({choice.selector},{choice.label})"
    made: Json = {
        "name": choice.name,
        "label": choice.name.replace("_", " ").capitalize(),
        "description": choice.text,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": f"Variable-{choice.name}"},
        "regex": "",
        "sort": 7,  # natural, ascending: node2 before node10
        "refresh": 2,  # when the time range changes
        "hide": 0,
        "multi": choice.many,
        "includeAll": choice.many,
        "options": [],
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]} if choice.many else {},
    }
    return made | ({"allValue": ".*"} if choice.many else {})


def annotations() -> list[Json]:
    """Marks where runs and sweeps ended, at the time that the metric tells (in milliseconds: grafana/grafana#11789)."""
    marks: Json = {
        "name": "Runs",
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": "blue",
        "expr": f"max by (command) ({COMPLETED}) * 1000",
        "step": "60s",
        "useValueForTime": True,
        "titleFormat": "preflight {{command}} ended",
        "textFormat": "",
        "tagKeys": "command",
    }
    own: Json = {
        "name": "Annotations & Alerts",
        "datasource": {"type": "grafana", "uid": "-- Grafana --"},
        "type": "dashboard",
    }
    return [own | {"builtIn": 1, "enable": True, "hide": True, "iconColor": "rgba(0, 211, 255, 1)"}, marks]
