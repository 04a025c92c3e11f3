"""Writes the dashboards in deploy/grafana/dashboards/ from their descriptions in deploy/grafana/boards/. `make dashboards`.

    python -m deploy.grafana.build [--runbook URL] [--out FOLDER]

The same descriptions give the same bytes. `--runbook`: where the site keeps the runbook's page, for the panels' links.
"""

import argparse
import json
from pathlib import Path

from deploy.grafana.boards import BOARDS
from deploy.grafana.dashboard import RUNBOOK, dashboard

OUT = Path(__file__).parent / "dashboards"


def files(runbook: str = RUNBOOK) -> dict[str, str]:
    """The content of each file, by name."""
    return {
        f"{board.uid}.json": json.dumps(dashboard(board, runbook), indent=2, ensure_ascii=False) + "\n"
        for board in BOARDS
    }


def main() -> None:
    """Write them, and say so."""
    parser = argparse.ArgumentParser(description="Write the dashboards.")
    parser.add_argument("--runbook", default=RUNBOOK, help="address of the runbook's page (default: a placeholder)")
    parser.add_argument("--out", type=Path, default=OUT, help="folder (default: the one of this repository)")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for name, text in files(asked.runbook).items():
        (asked.out / name).write_text(text, encoding="utf-8")
        print(f"{asked.out / name}: {len(json.loads(text)['panels'])} panels and rows")


if __name__ == "__main__":
    main()
