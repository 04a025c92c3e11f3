"""Draws one panel's answers as HTML, something like what Grafana does with them: figures in their unit, colours by threshold, tables, matrices, lines, states, buckets. Every text is escaped."""

import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

from deploy.grafana.ask import Answer, Series, Span
from deploy.grafana.panels import Json

MAX_LINES, MAX_ROWS = 24, 60
WIDE, HIGH = 600, 140  # of a drawing, in its own units
LINE_COLOURS = (
    "#5794f2",
    "#ff9830",
    "#73bf69",
    "#f2495c",
    "#b877d9",
    "#fade2a",
    "#8ab8ff",
    "#ffb357",
    "#96d98d",
    "#ff7383",
)
COLOURS = {
    "red": "#c4162a",
    "orange": "#e0701a",
    "green": "#37872d",
    "blue": "#3274d9",
    "purple": "#8f3bb8",
    "transparent": "",
}
_LARGE = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SI = {"Bps": "B/s", "flops": "FLOP/s", "reqps": "req/s", "none": "", "short": ""}
_TIMES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def shown(figure: float, unit: str) -> str:
    """A figure in words of its unit."""
    if math.isnan(figure):
        return "unknown"
    if unit == "percentunit":
        return f"{100 * figure:.1f} %"
    if unit == "dateTimeFromNow":
        return f"{shown(time.time() - figure / 1000, 's')} ago"
    if unit == "s":
        size, word = next((each for each in _TIMES if abs(figure) >= each[0]), (1.0, "s"))
        return f"{figure / size:.3g} {word}"
    size, prefix = next((each for each in _LARGE if abs(figure) >= each[0]), (1.0, "")) if unit != "none" else (1.0, "")
    return f"{figure / size:.4g} {prefix}{_SI.get(unit, unit)}".strip()


def colour(figure: float, config: Json) -> str:
    """By a word's colour if the figure has a word, else by threshold; empty: none."""
    for mapping in config.get("mappings", ()):
        word = mapping["options"].get(f"{figure:g}") if mapping["type"] == "value" else None
        if word:
            return str(COLOURS.get(word["color"], word["color"]))
    steps = (config.get("thresholds") or {"steps": []})["steps"]
    reached = [step["color"] for step in steps if step["value"] is None or figure >= step["value"]]
    return COLOURS.get(reached[-1], reached[-1]) if reached else ""


def word(figure: float, config: Json) -> str:
    """The figure's word, else the figure."""
    for mapping in config.get("mappings", ()):
        found = mapping["options"].get(f"{figure:g}") if mapping["type"] == "value" else None
        if found:
            return str(found["text"])
    return shown(figure, config.get("unit", "none"))


def name(series: Series, legend: str) -> str:
    """The legend with labels filled in; a label that is not there gives nothing."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: series.labels.get(found[1], ""), legend)


def drawn(panel: Json, answers: Sequence[Answer], span: Span) -> str:
    """The panel's inside as HTML."""
    kinds: dict[str, Callable[[Json, Sequence[Answer], Span], str]] = {
        "stat": _stat,
        "bargauge": _bars,
        "table": _table,
        "timeseries": _lines,
        "state-timeline": _states,
        "heatmap": _buckets,
    }
    if not any(answer.series for answer in answers):
        return '<p class="none">No data</p>'
    return kinds[panel["type"]](panel, answers, span)


def _named(answers: Sequence[Answer]) -> list[tuple[str, Series]]:
    return [(name(s, answer.target.get("legendFormat", "")), s) for answer in answers for s in answer.series]


def _painted(text: str, paint: str, kind: str = "color") -> str:
    style = f' style="{kind}:{escape(paint)}"' if paint else ""
    return f"<span{style}>{escape(text)}</span>"


def _stat(panel: Json, answers: Sequence[Answer], _: Span) -> str:
    config = panel["fieldConfig"]["defaults"]
    cells = []
    for title, series in sorted(_named(answers), key=lambda each: each[0]):
        figure = series.points[-1][1]
        cells.append(
            f"<div><small>{escape(title)}</small><b>{_painted(word(figure, config), colour(figure, config))}</b></div>"
        )
    return f'<div class="stat">{"".join(cells)}</div>'


def _bars(panel: Json, answers: Sequence[Answer], _: Span) -> str:
    config, found = panel["fieldConfig"]["defaults"], _named(answers)
    top = max([series.points[-1][1] for _, series in found] + [1e-12])
    rows = [
        f'<div class="bar"><span>{escape(title)}</span><i style="width:{60 * max(0.0, s.points[-1][1]) / top:.1f}%"></i>'
        f"<span>{escape(shown(s.points[-1][1], config['unit']))}</span></div>"
        for title, s in found
    ]
    return "".join(rows)


def _overrides(panel: Json, column: str) -> Json:
    """What holds for one column."""
    config: Json = dict(panel["fieldConfig"]["defaults"])
    for each in panel["fieldConfig"]["overrides"]:
        if each["matcher"]["options"] == column:
            config |= {it["id"]: it["value"] for it in each["properties"]}
    return config


def _table(panel: Json, answers: Sequence[Answer], span: Span) -> str:
    steps = {step["id"]: step["options"] for step in panel["transformations"]}
    if "groupingToMatrix" in steps:
        return _matrix(panel, answers, steps["groupingToMatrix"], span)
    organise = steps["organize"]
    columns = [it for it in organise["indexByName"] if it not in organise["excludeByName"]]
    columns = [it for it in columns if not it.startswith("Value")]
    heads = {f"Value #{answer.target['refId']}" if "merge" in steps else "Value": answer for answer in answers}
    rows: dict[tuple[str, ...], dict[str, float]] = {}
    for head, answer in heads.items():
        for series in answer.series:
            key = tuple(series.labels.get(label, "") for label in columns)
            rows.setdefault(key, {})[head] = series.points[-1][1]
    named = {head: organise["renameByName"][head] for head in heads if head in organise["renameByName"]}
    lines = [[*key, *(figures.get(head) for head in named)] for key, figures in rows.items()]
    titles = [*columns, *named.values()]
    by, down = (panel["options"]["sortBy"] or [{"displayName": titles[0], "desc": False}])[0].values()
    at = titles.index(by)
    lines.sort(key=lambda line: (line[at] is None, line[at]), reverse=down)
    return _grid(
        titles, [[_cell(value, _overrides(panel, titles[i])) for i, value in enumerate(line)] for line in lines]
    )


def _cell(value: str | float | None, config: Json, kind: str = "color") -> str:
    words = {key: it for mapping in config.get("mappings", ()) for key, it in mapping["options"].items()}
    if value is None:
        return f'<span class="none">{"not measured" if "match" in words else "unknown"}</span>'
    if isinstance(value, str):
        paint = words.get(value, {}).get("color", "")
        return _painted(value, COLOURS.get(paint, paint))
    return _painted(word(value, config), colour(value, config), kind)


def _grid(titles: Iterable[Any], lines: list[list[str]]) -> str:
    head = "".join(f"<th scope=col>{escape(str(title))}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines[:MAX_ROWS])
    more = f'<p class="none">and {len(lines) - MAX_ROWS} more</p>' if len(lines) > MAX_ROWS else ""
    return f"<table><tr>{head}</tr>{body}</table>{more}"


def _matrix(panel: Json, answers: Sequence[Answer], options: Json, _: Span) -> str:
    config = panel["fieldConfig"]["defaults"]
    row, column = options["rowField"], options["columnField"]
    cells = {(s.labels.get(row, ""), s.labels.get(column, "")): s.points[-1][1] for s in answers[0].series}
    rows, columns = (sorted({key[i] for key in cells}) for i in (0, 1))
    by, down = panel["options"]["sortBy"][0].values()
    if down:
        rows.sort(key=lambda each: -cells.get((each, by), -math.inf))
    lines = [[escape(r), *(_cell(cells.get((r, c)), config, "background") for c in columns)] for r in rows]
    return f'<div class="matrix">{_grid([f"{row} and {column}", *columns], lines)}</div>'


def _lines(panel: Json, answers: Sequence[Answer], span: Span) -> str:
    config, found = panel["fieldConfig"]["defaults"], _named(answers)
    figures = [figure for _, series in found for _, figure in series.points if math.isfinite(figure)]
    low, high = min(figures, default=0.0), max(figures, default=1.0)
    low, high = (low, high) if high > low else (low - 0.5 * abs(low or 1), high + 0.5 * abs(high or 1))
    drawn_lines, legend = [], []
    for i, (title, series) in enumerate(found[:MAX_LINES]):
        paint = _fixed(panel, title) or LINE_COLOURS[i % len(LINE_COLOURS)]
        places = [(_across(at, span), HIGH * (high - y) / (high - low)) for at, y in series.points if math.isfinite(y)]
        drawn_lines.append(
            f'<path fill="none" stroke="{paint}" d="M{" L".join(f"{x:.1f} {y:.1f}" for x, y in places)}"/>'
            if places
            else ""
        )
        last = word(series.points[-1][1], config)
        legend.append(f'<li><i style="background:{paint}"></i>{escape(title)} <b>{escape(last)}</b></li>')
    axis = f"<small>{escape(shown(high, config['unit']))}</small><small>{escape(shown(low, config['unit']))}</small>"
    svg = f'<svg viewBox="0 -2 {WIDE} {HIGH + 4}" preserveAspectRatio="none" role="img" aria-label="lines">{"".join(drawn_lines)}</svg>'
    return f'<div class="plot"><div class="axis">{axis}</div>{svg}<ul>{"".join(legend)}</ul></div>'


def _fixed(panel: Json, title: str) -> str:
    paint = _overrides(panel, title).get("color", {})
    return (
        str(COLOURS.get(paint.get("fixedColor", ""), paint.get("fixedColor", "")))
        if paint.get("mode") == "fixed"
        else ""
    )


def _across(at_s: float, span: Span) -> float:
    return WIDE * (at_s - span.start_s) / (span.end_s - span.start_s)


def _states(panel: Json, answers: Sequence[Answer], span: Span) -> str:
    config, rows = panel["fieldConfig"]["defaults"], []
    width = WIDE * span.step_s / (span.end_s - span.start_s) + 0.5
    for title, series in sorted(_named(answers), key=lambda each: each[0])[:MAX_LINES]:
        boxes = "".join(
            f'<rect x="{_across(at, span):.1f}" width="{width:.1f}" height="10" fill="{colour(figure, config)}"/>'
            for at, figure in series.points
        )
        svg = f'<svg viewBox="0 0 {WIDE} 10" preserveAspectRatio="none" role="img" aria-label="states">{boxes}</svg>'
        rows.append(
            f'<div class="state"><span>{escape(title)}</span>{svg}<b>{escape(word(series.points[-1][1], config))}</b></div>'
        )
    return "".join(rows)


def _buckets(panel: Json, answers: Sequence[Answer], span: Span) -> str:
    """Cumulative buckets, taken apart."""
    bounds = {float(s.labels["le"]): dict(s.points) for s in answers[0].series}
    order = sorted(bounds)
    parts = {
        le: {at: count - bounds[order[i - 1]].get(at, 0.0) if i else count for at, count in bounds[le].items()}
        for i, le in enumerate(order)
    }
    most = max((count for each in parts.values() for count in each.values()), default=1.0) or 1.0
    rows = []
    for le in reversed(order):
        boxes = "".join(
            f'<rect x="{_across(at, span):.1f}" width="{WIDE * span.step_s / (span.end_s - span.start_s) + 0.5:.1f}" height="10" fill="#3274d9" opacity="{math.sqrt(max(0.0, count) / most):.2f}"/>'
            for at, count in parts[le].items()
        )
        title = "above" if math.isinf(le) else f"to {shown(le, panel['fieldConfig']['defaults']['unit'])}"
        last = list(parts[le].values())[-1]
        svg = f'<svg viewBox="0 0 {WIDE} 10" preserveAspectRatio="none" role="img" aria-label="pairs">{boxes}</svg>'
        rows.append(f'<div class="state"><span>{escape(title)}</span>{svg}<b>{last:g}</b></div>')
    return "".join(rows)
