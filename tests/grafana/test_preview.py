"""The preview draws every panel, escapes what comes from elsewhere, says unknown where nothing is known, and never says that it is Grafana."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.grafana import ask, drawing
from deploy.grafana.build import OUT
from deploy.grafana.preview import STYLE
from tests.grafana.promql import answer_labels, tree

BOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(OUT.glob("*.json"))}
SPAN = ask.Span(1000.0, 1060.0)
HOSTILE = "<script>alert(1)</script>\"'&\u202e"


def series(target, figure, text=HOSTILE):
    labels = dict.fromkeys(answer_labels(tree(target["expr"])) or (), text)
    if "le" in labels:
        return [ask.Series({"le": bound}, ((1000.0, figure), (1010.0, figure))) for bound in ("0.5", "1.0", "+Inf")]
    return [ask.Series(labels, ((1000.0, figure), (1010.0, figure)))]


def panel(uid, title):
    return next(each for each in ask.panels_of(BOARDS[uid]) if each["title"] == title)


def drawn(each, *, figure=0.5, text=HOSTILE):
    answers = [ask.Answer(each, target, "", tuple(series(target, figure, text))) for target in each["targets"]]
    return drawing.drawn(each, answers, SPAN)


@pytest.mark.parametrize("uid", BOARDS)
@pytest.mark.parametrize("figure", [0.0, 1.0, 0.613, 4.6e10, -3.0, float("nan"), float("inf")])
def test_every_panel_is_drawn_and_texts_are_escaped(uid, figure):
    for each in ask.panels_of(BOARDS[uid]):
        html = drawn(each, figure=figure)
        assert "<script" not in html, each["title"]
        assert not re.search(r"=\"[^\"]*<", html), each["title"]


@pytest.mark.parametrize("uid", BOARDS)
def test_a_panel_without_an_answer_says_so(uid):
    for each in ask.panels_of(BOARDS[uid]):
        answers = [ask.Answer(each, target, "", ()) for target in each["targets"]]
        assert "No data" in drawing.drawn(each, answers, SPAN)


def test_a_cell_that_was_not_measured_is_no_figure_and_has_no_colour():
    matrix = panel("preflight-fabric", "Leaf x leaf: share of the reference")
    pairs = [("leaf0", "leaf0", 1.0), ("leaf0", "leaf1", 0.6), ("leaf1", "leaf0", 0.6)]
    found = [ask.Series({"leaf": one, "other_leaf": other}, ((1000.0, ratio),)) for one, other, ratio in pairs]
    html = drawing.drawn(matrix, [ask.Answer(matrix, matrix["targets"][0], "", tuple(found))], SPAN)
    assert html.count("not measured") == 1
    assert f"background:{drawing.COLOURS['red']}" in html
    assert '<span class="none">not measured</span>' in html


def test_tables_join_queries_and_a_missing_figure_is_unknown():
    table = panel("preflight-fleet", "Last run of each command")
    one, two, _ = table["targets"]
    answers = [
        ask.Answer(table, one, "", (ask.Series({"command": "run"}, ((1000.0, 1e12),)),)),
        ask.Answer(table, two, "", ()),
    ]
    html = drawing.drawn(table, answers, SPAN)
    assert ">run<" in html
    assert "unknown" in html


@pytest.mark.parametrize(
    ("figure", "unit", "said"),
    [
        (46.7e9, "Bps", "46.7 GB/s"),
        (0.603, "percentunit", "60.3 %"),
        (90.0, "s", "1.5 min"),
        (0.002, "s", "2 ms"),
        (7.9e14, "flops", "790 TFLOP/s"),
        (1500.0, "none", "1500"),
        (float("nan"), "Bps", "unknown"),
        (0.0, "s", "0 s"),
    ],
)
def test_figures_are_shown_in_their_unit(figure, unit, said):
    assert drawing.shown(figure, unit) == said


def test_a_colour_begins_at_its_threshold_and_what_is_below_the_first_has_none():
    config = {"thresholds": panel("preflight-fabric", "Lowest pair of leaves")["fieldConfig"]["defaults"]["thresholds"]}
    colours = [drawing.colour(figure, config) for figure in (-1.0, 0.84, 0.85, 0.96)]
    assert colours == ["", *(drawing.COLOURS[each] for each in ("red", "orange", "green"))]


def test_the_page_reaches_for_nothing():
    assert "http" not in STYLE
    assert "url(" not in STYLE


@pytest.mark.parametrize("url", ["file:///etc/passwd", "127.0.0.1:9090", "http://127.0.0.1:9"])
def test_a_server_that_cannot_be_asked_gives_one_line(tmp_path, url):
    command = [sys.executable, "-m", "deploy.grafana.preview", url, "--out", str(tmp_path / "page.html")]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("preview: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "page.html").exists()
