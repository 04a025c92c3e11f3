"""Asks a Prometheus what a dashboard would ask it: variables first, then the query of each panel, with Grafana's own variables filled in.

What Grafana does to the answers (transformations, colours) is not done here; deploy/grafana/preview.py draws something like it.
"""

import json
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from deploy.grafana.panels import Json

DEADLINE_S = 30.0
MAX_BYTES = 64 * 2**20
POINTS = 120  # of a line
_VARIABLE = re.compile(r"\$\{(\w+)(?::\w+)?\}|\$([A-Za-z_]\w*)")
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Series(NamedTuple):
    """Labels and (Unix time in seconds, figure); one point where one moment was asked for."""

    labels: dict[str, str]
    points: tuple[tuple[float, float], ...]


class Span(NamedTuple):
    """The time shown, in seconds. `rate_s`: what $__rate_interval becomes, at least four scrape intervals."""

    start_s: float
    end_s: float
    rate_s: float = 300.0

    @property
    def step_s(self) -> float:
        """Between two points of a line."""
        return max(1.0, round((self.end_s - self.start_s) / POINTS))


class Answer(NamedTuple):
    """What one query of a panel gave. `query`: as it was sent."""

    panel: Json
    target: Json
    query: str
    series: tuple[Series, ...]


def last(seconds: float, rate_s: float = 300.0) -> Span:
    """The time up to now."""
    now = time.time()
    return Span(now - seconds, now, rate_s)


def variables_in(text: str) -> set[str]:
    """Names of the variables in a text; `$1` of label_replace is none."""
    return {first or second for first, second in _VARIABLE.findall(text)}


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text with each variable's value. An unknown one stays."""
    return _VARIABLE.sub(lambda found: values.get(found[1] or found[2], found[0]), text)


def get(url: str, path: str, **query: str) -> Any:
    """`data` of Prometheus' answer. Raises OSError: it can't be reached or refuses the query; ValueError: no address of the web, no JSON, or too much of it."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url} is no http address")
    with _OPENER.open(f"{url.rstrip('/')}{path}?{urllib.parse.urlencode(query)}", timeout=DEADLINE_S) as reply:
        data = reply.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"{path}: more than {MAX_BYTES // 2**20} MiB")
    return json.loads(data)["data"]


def query(url: str, text: str, span: Span, *, instant: bool) -> tuple[Series, ...]:
    """Series of the answer, at the end of the time or over it. Raises as `get` does."""
    if instant:
        got = get(url, "/api/v1/query", query=text, time=f"{span.end_s:.3f}")
    else:
        times = {"start": f"{span.start_s:.3f}", "end": f"{span.end_s:.3f}", "step": f"{span.step_s:g}"}
        got = get(url, "/api/v1/query_range", query=text, **times)
    if got["resultType"] == "scalar":
        return (Series({}, ((float(got["result"][0]), float(got["result"][1])),)),)
    return tuple(
        Series(
            each["metric"], tuple((float(at), float(figure)) for at, figure in each.get("values") or [each["value"]])
        )
        for each in got["result"]
    )


def offered(url: str, variable: Json, values: Mapping[str, str]) -> list[str]:
    """What a variable offers: label_values(selector,label) as Grafana asks it. Raises as `get` does."""
    found = re.fullmatch(r"label_values\((.+),(\w+)\)", variable["query"]["query"])
    if found is None:
        raise ValueError(f"variable {variable['name']}: {variable['query']['query']}")
    got = get(url, f"/api/v1/label/{found[2]}/values", **{"match[]": filled(found[1], values)})
    return sorted(map(str, got), key=lambda text: [int(x) if x.isdigit() else x for x in re.split(r"(\d+)", text)])


def chosen(url: str, board: Json, span: Span, wanted: Mapping[str, str] | None = None) -> dict[str, str]:
    """A value for each variable: the wanted one, else all, else the first that is offered; "" where none is. Raises as `get` does."""
    values = {"__range": f"{span.end_s - span.start_s:.0f}s", "__rate_interval": f"{span.rate_s:.0f}s"}
    values |= {
        "__interval": f"{span.step_s:g}s",
        "__range_s": f"{span.end_s - span.start_s:.0f}",
        "__to": f"{1000 * span.end_s:.0f}",
    }
    for variable in board["templating"]["list"]:
        name = variable["name"]
        if wanted and name in wanted:
            values[name] = wanted[name]
        elif variable["type"] == "custom":
            values[name] = variable["current"]["value"]
        elif variable.get("includeAll"):
            values[name] = variable["allValue"]
        elif variable["type"] == "query":
            values[name] = next(iter(offered(url, variable, values)), "")
    return values


def panels_of(board: Json) -> list[Json]:
    """All panels, those inside folded rows too, without the rows."""
    everything = [each for panel in board["panels"] for each in (panel, *panel.get("panels", ()))]
    return [panel for panel in everything if panel["type"] != "row"]


def answers(url: str, board: Json, span: Span, values: Mapping[str, str]) -> Iterator[Answer]:
    """What each query of each panel gives. Raises as `get` does."""
    for panel in panels_of(board):
        for target in panel["targets"]:
            text = filled(target["expr"], values)
            yield Answer(panel, target, text, query(url, text, span, instant=target["instant"]))
