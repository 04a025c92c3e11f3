"""The child that reads RDMA devices: started by hca_run.py, says that it is ready, then writes one line of JSON for each device as soon as it is read."""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from preflight.discover.hca_run import READY
from preflight.discover.infiniband import read_hca


def main(root: str, names: Sequence[str]) -> None:
    """Read these devices, in this order."""
    sys.stdout.buffer.write(READY + b"\n")
    sys.stdout.buffer.flush()
    for name in names:
        sys.stdout.buffer.write(msgspec.json.encode(read_hca(Path(root), name)) + b"\n")
        sys.stdout.buffer.flush()
