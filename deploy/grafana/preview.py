"""A preview of the dashboards: the same queries, asked of a Prometheus, and drawn by us on one page without scripts. It is no Grafana and shows nothing about Grafana's own drawing.

python -m deploy.grafana.preview http://127.0.0.1:9090 --out preview.html [--board preflight-fabric] [--span 21600] [--set node=n17]
"""

import argparse
import json
import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path

from deploy.grafana import ask
from deploy.grafana.build import OUT
from deploy.grafana.drawing import drawn
from deploy.grafana.panels import Json

STYLE = """
:root { color-scheme: light dark; --back: #f4f5f5; --panel: #fff; --ink: #24292e; --soft: #6b7075; --line: #d8dbde; }
@media (prefers-color-scheme: dark) { :root { --back: #111217; --panel: #181b1f; --ink: #d5d6da; --soft: #9a9ca3; --line: #2e3136; } }
body { margin: 0; padding: 12px; background: var(--back); color: var(--ink); font: 13px/1.35 system-ui, sans-serif; }
.banner { border: 1px solid var(--line); border-left: 4px solid #e0701a; padding: 6px 10px; background: var(--panel); }
h1 { font-size: 18px; margin: 18px 0 4px; } h2 { font-size: 14px; margin: 14px 0 6px; } h3 { font-size: 13px; margin: 0 0 4px; }
.row { display: grid; grid-template-columns: repeat(24, minmax(0, 1fr)); gap: 8px; }
section { background: var(--panel); border: 1px solid var(--line); padding: 8px; overflow: auto; min-width: 0; box-sizing: border-box; }
small, .none, footer { color: var(--soft); } footer { font-size: 11px; margin-top: 4px; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: 2px 6px; border-bottom: 1px solid var(--line); white-space: nowrap; }
.matrix td { text-align: center; padding: 1px; } .matrix td:first-child { text-align: left; } .matrix td span { display: block; padding: 3px 6px; } .matrix td span[style] { color: #fff; }
.stat { display: flex; flex-wrap: wrap; gap: 12px; } .stat small { display: block; } .stat b { font-size: 22px; }
.plot { display: grid; grid-template-columns: 80px 1fr minmax(120px, 34%); gap: 6px; } .plot svg { width: 100%; height: 150px; border: 1px solid var(--line); }
.axis { height: 150px; display: flex; flex-direction: column; justify-content: space-between; text-align: right; } .plot ul { margin: 0; padding: 0; list-style: none; overflow: auto; max-height: 150px; }
.plot i { display: inline-block; width: 10px; height: 3px; margin-right: 4px; vertical-align: middle; } path { vector-effect: non-scaling-stroke; }
.state, .bar { display: grid; grid-template-columns: 130px 1fr 70px; gap: 6px; align-items: center; } .state svg { width: 100%; height: 14px; }
.bar { grid-template-columns: 45% 1fr 80px; } .bar i { display: block; height: 12px; background: #3274d9; }
"""


def page(url: str, boards: list[Json], span: ask.Span, wanted: Mapping[str, str]) -> str:
    """The whole page. Raises OSError or ValueError: Prometheus can't be asked, or refuses a query."""
    parts = [_board(url, board, span, wanted) for board in boards]
    banner = "Preview drawn by preflight of what the dashboards' queries give now. This is not Grafana."
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>preflight: preview of dashboards</title><style>{STYLE}</style>'
    policy = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    return f'{head}{policy}<p class="banner" role="note">{banner}</p>{"".join(parts)}</html>\n'


def _board(url: str, board: Json, span: ask.Span, wanted: Mapping[str, str]) -> str:
    values = ask.chosen(url, board, span, wanted)
    results = next(v for v in board["templating"]["list"] if v["name"] == "simulated")["options"]
    text = {option["value"]: option["text"] for option in results}.get(values["simulated"], values["simulated"])
    found: dict[int, list[ask.Answer]] = {}
    for answer in ask.answers(url, board, span, values):
        found.setdefault(answer.panel["id"], []).append(answer)
    said = ", ".join(f"{name}: {value or 'none'}" for name, value in values.items() if not name.startswith("__"))
    out = [f"<h1>{escape(board['title'])}</h1><p>{escape(board['description'])} <small>{escape(said)}</small></p>"]
    rows: list[tuple[Json, list[Json]]] = []
    for panel in board["panels"]:
        if panel["type"] == "row":
            rows.append((panel, list(panel["panels"])))
        else:
            rows[-1][1].append(panel)
    for row, panels in rows:
        drawings = "".join(_panel(panel, found[panel["id"]], span) for panel in panels)
        out.append(f"<h2>{escape(row['title'].replace('${simulated:text}', text))}</h2><div class=row>{drawings}</div>")
    return "".join(out)


def _panel(panel: Json, answers: list[ask.Answer], span: ask.Span) -> str:
    place = panel["gridPos"]
    style = f"grid-column:span {place['w']};height:{place['h'] * 38}px"
    links = "; ".join(link["title"] for link in panel["links"])
    foot = f"<footer>{escape(panel['description'])} {escape(links)}</footer>"
    return f'<section style="{style}"><h3>{escape(panel["title"])}</h3>{drawn(panel, answers, span)}{foot}</section>'


def main() -> None:
    """Ask and write; a fault is one line and status 1."""
    parser = argparse.ArgumentParser(description="Draw a preview of the dashboards.")
    parser.add_argument("url", help="Prometheus, as http://127.0.0.1:9090")
    parser.add_argument("--out", type=Path, required=True, help="the page to write")
    parser.add_argument("--board", action="append", help="uid of a dashboard (default: all)")
    parser.add_argument("--span", type=float, default=6 * 3600.0, help="seconds up to now (default: six hours)")
    parser.add_argument("--rate", type=float, default=300.0, help="seconds of $__rate_interval (default: 300)")
    parser.add_argument("--set", action="append", default=[], metavar="VARIABLE=VALUE")
    asked = parser.parse_args()
    boards = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(OUT.glob("*.json"))]
    boards = [board for board in boards if not asked.board or board["uid"] in asked.board]
    wanted = dict(each.partition("=")[::2] for each in asked.set)
    try:
        text = page(asked.url, boards, ask.last(asked.span, asked.rate), wanted)
        asked.out.write_text(text, encoding="utf-8")
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"preview: {error}")
    print(f"{asked.out}: {len(text)} bytes")


if __name__ == "__main__":
    main()
