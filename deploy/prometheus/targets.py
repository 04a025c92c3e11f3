"""Prometheus' list of agents (file_sd) from names of nodes, one a line: sinfo -h -N -o %N | python3 targets.py --out /etc/prometheus/preflight-agents.json

Each target has the label `node`, so that alerts of an agent that is down carry the node's name. Needs nothing but Python 3.10. Nothing is written if no name came: a list that was emptied by a controller that gave no answer would
look like a fleet without nodes.
"""

import argparse
import json
import os
import re
import sys
import tempfile
from pathlib import Path

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


def targets(lines: list[str], port: int, suffix: str) -> list[dict[str, object]]:
    """One entry for each node, in the order of names. Raises ValueError: a line is no name of a node."""
    names = sorted({line.strip() for line in lines if line.strip()})
    for name in names:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a node")
    return [{"targets": [f"{name}{suffix}:{port}"], "labels": {"node": name}} for name in names]


def main() -> int:
    """0, or 1 with the reason; then the old file stays."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, type=Path, help="the file; replaced in one step")
    parser.add_argument("--port", type=int, default=9947, help="of the agents [9947]")
    parser.add_argument("--suffix", default="", help="behind each name, such as .cluster.site")
    given = parser.parse_args()
    try:
        found = targets(sys.stdin.readlines(), given.port, given.suffix)
    except ValueError as error:
        print(f"targets.py: {error}; nothing was written", file=sys.stderr)
        return 1
    if not found:
        print("targets.py: no name came; nothing was written", file=sys.stderr)
        return 1
    fd, partial = tempfile.mkstemp(dir=given.out.parent, prefix=f".{given.out.name}.")
    try:
        with os.fdopen(fd, "w") as file:
            json.dump(found, file, indent=1)
            os.fchmod(file.fileno(), 0o644)
            file.flush()
            os.fsync(file.fileno())
        Path(partial).replace(given.out)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
