"""Rules about queries: they parse, select by cluster and by real or simulated, name what the catalogue has, and are shown in the right unit with labels that are there."""

import re
from collections.abc import Iterator
from typing import Any

import promql_parser as parser

from deploy.grafana.ask import panels_of as panels
from preflight.metrics import CATALOGUE, PREFIX
from tests.grafana.lint import Json, targets
from tests.grafana.promql import (
    FOREIGN,
    answer_labels,
    labels,
    metric_of,
    name_of,
    parts,
    selectors,
    tree,
    unknown_labels,
)

_COUNTING = ("rate", "increase")
_UNIT_OF = (("_bytes_per_second", "Bps"), ("_operations_per_second", "flops"), ("_ratio", "percentunit"))


def expressions(board: Json) -> Iterator[tuple[str, str]]:
    """Every query with where it stands: of panels, of annotations, and the selectors of variables."""
    yield from ((f"{panel['title']} {target['refId']}", target["expr"]) for panel, target in targets(board))
    yield from (
        (f"annotation {mark['name']}", mark["expr"]) for mark in board["annotations"]["list"] if not mark.get("builtIn")
    )
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+),(\w+)\)", variable["query"]["query"])
            yield f"variable {variable['name']}", found[1] if found else variable["query"]["query"]


def parsed(board: Json) -> Iterator[tuple[str, Any]]:
    """The queries that parse."""
    for where, text in expressions(board):
        try:
            yield where, tree(text)
        except ValueError:
            continue


def syntax(board: Json) -> Iterator[str]:
    """Every query is PromQL once variables are filled in."""
    for where, text in expressions(board):
        try:
            tree(text)
        except ValueError as error:
            yield f"{where}: {error}"


def names(board: Json) -> Iterator[str]:
    """Series and labels are those of the catalogue, or of the few others that we know."""
    for where, query in parsed(board):
        for selector, _ in selectors(query):
            pattern = name_of(selector) if not selector.name else ""
            if not pattern.startswith(PREFIX) and labels(selector) is None:
                yield f"{where}: {selector.name or pattern}: nobody exports it"
                break
            words = re.findall(r"\w{6,}", pattern.removeprefix(PREFIX))
            yield from (f"{where}: {word}: no such metric" for word in words if metric_of(word) is None)
        else:
            yield from (f"{where}: {fault}" for fault in unknown_labels(query))


def selection(board: Json) -> Iterator[str]:
    """Every selector keeps to the chosen cluster; every one of ours to real or to simulated results."""
    for where, text in expressions(board):
        if where == "variable cluster":
            continue
        for found in re.findall(r"([A-Za-z_]\w*)?\{([^}]*)\}", text):
            wanted = ['cluster=~"$cluster"', *(['simulated=~"$simulated"'] if found[0] not in FOREIGN else [])]
            yield from (f"{where}: {found[0]} is not selected by {each}" for each in wanted if each not in found[1])
        bare = [name for name in re.findall(rf"({PREFIX}\w+)(?!\w*\{{)", text) if f"{name}{{" not in text]
        yield from (f"{where}: {name} is not selected by anything" for name in bare if '__name__=~"' not in text)


def counters(board: Json) -> Iterator[str]:
    """Counters only inside rate or increase, and nothing else in there; over Grafana's own interval."""
    for where, query in parsed(board):
        for selector, around in selectors(query):
            inside = any(isinstance(each, parser.Call) and each.func.name in _COUNTING for each in around)
            metric = metric_of(name_of(selector))
            counts = metric is not None and metric.kind == "counter"
            if counts and not inside:
                yield f"{where}: the counter {selector.name} stands outside of rate and increase"
            if inside and not counts:
                yield f"{where}: {selector.name} is no counter, so it has no rate"
    for where, text in expressions(board):
        yield from (
            f"{where}: rate over [{span}]"
            for span in re.findall(r"(?:rate|increase)\([^\[]*\[([^\]]*)\]", text)
            if span != "$__rate_interval"
        )


def no_zero_for_unknown(board: Json) -> Iterator[str]:
    """Nothing is put in the place of series that are not there, unless from series that are."""
    for where, query in parsed(board):
        for part, _ in parts(query):
            if isinstance(part, parser.Call) and part.func.name in ("vector", "absent", "absent_over_time"):
                yield f"{where}: {part.func.name}() makes a number where nothing is known"


def shown_labels(board: Json) -> Iterator[str]:
    """Legends, columns, rows of matrices and links name labels that the answer has."""
    for panel in panels(board):
        for target in panel["targets"]:
            try:
                known = answer_labels(tree(target["expr"])) or set()
            except ValueError:
                continue
            wanted = set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")))
            for step in panel.get("transformations", ()):
                wanted |= {name for name in step["options"].get("indexByName", ()) if not name.startswith("Value")}
                wanted |= {step["options"][key] for key in ("rowField", "columnField") if key in step["options"]}
            yield from (f"{panel['title']}: {label} is no label of the answer" for label in sorted(wanted - known))
            if panel["type"] == "table" and target.get("legendFormat"):
                yield f"{panel['title']}: a legend would become the head of every column"
            if panel["type"] in ("table", "stat", "bargauge") and not target.get("instant"):
                yield f"{panel['title']}: asks for a range and shows one moment"
            if panel["type"] == "table" and target.get("format") != "table":
                yield f"{panel['title']}: labels become no columns"


def fitting_units(board: Json) -> Iterator[str]:
    """A figure is shown in the unit that its metric's name tells."""
    for panel, target in targets(board):
        unit = _unit(panel, target["refId"])
        query = re.sub(
            r" and on \(instance, command\) \([^()]*(?:time\(\))?[^()]*\)", "", target["expr"]
        )  # whether it is fresh
        if panel["type"] == "heatmap" or re.search(r" / |^count|_timestamp_seconds|quantile\(0|_bucket|_mtime_", query):
            continue
        for ending, wanted in (*_UNIT_OF, ("_seconds", "s")):
            if re.search(rf"{PREFIX}\w+{ending}\{{", query):
                if unit != wanted:
                    yield f"{panel['title']} {target['refId']}: unit {unit}, the metric has {wanted}"
                break


def _unit(panel: Json, ref: str) -> str:
    """Of a query's figures: the panel's, or in a table the one of its column."""
    config = panel["fieldConfig"]
    renamed = {}
    for step in panel.get("transformations", ()):
        renamed |= step["options"].get("renameByName", {})
    column = renamed.get("Value" if len(panel["targets"]) == 1 else f"Value #{ref}")
    for each in config["overrides"]:
        if column and each["matcher"]["options"] == column:
            return next((it["value"] for it in each["properties"] if it["id"] == "unit"), config["defaults"]["unit"])
    return str(config["defaults"]["unit"])


def marks(board: Json) -> Iterator[str]:
    """Runs are marked at the time that they tell, in milliseconds."""
    runs = [mark for mark in board["annotations"]["list"] if not mark.get("builtIn")]
    if not any("run_completion_timestamp_seconds" in mark["expr"] for mark in runs):
        yield "no marks where runs ended"
    for mark in runs:
        if not mark.get("useValueForTime") or not mark["expr"].endswith("* 1000"):
            yield f"annotation {mark['name']}: not at the time that the metric tells, in milliseconds"


RULES = (syntax, names, selection, counters, no_zero_for_unknown, shown_labels, fitting_units, marks)


def not_shown(boards: list[Json]) -> set[str]:
    """Metrics of the catalogue that no panel asks for."""
    asked = {
        metric.name
        for board in boards
        for _, target in targets(board)
        for selector, _ in selectors(tree(target["expr"]))
        if (metric := metric_of(name_of(selector)))
    }
    return {metric.name for metric in CATALOGUE} - asked
