"""What a sweep is asked for, its jobs, and what came of it."""

from pathlib import Path

import msgspec

from preflight.model.base import Noun
from preflight.model.history import NodeVerdict
from preflight.slurm.scan_nodes import Kind


class Wishes(Noun, frozen=True, kw_only=True):
    """What the caller wants of this sweep. `out`: where jobs leave their reports. `limit`: at most so many jobs, None: no limit. `once`: each node in one job at most. `dry`: jobs are named, and not begun."""

    out: Path
    limit: int | None = None
    once: bool = False
    dry: bool = False


class ScanJob(msgspec.Struct, kw_only=True):
    """One job. `outcome`: see scan_metrics.OUTCOMES, empty while it is not known. `gone_at`: when it had left the queue, by the monotonic clock. `done`: nothing more comes of it."""

    id: str
    nodes: tuple[str, ...]
    kind: Kind
    folder: Path
    begun_at: float
    ran: bool = False
    gone_at: float | None = None
    outcome: str = ""
    answer: str | None = None
    done: bool = False


class Swept(Noun, frozen=True, kw_only=True):
    """What came of it. `jobs`: nodes, outcome and answer (None: no report) of each. `coverage`: share of the pairs of nodes that were measured lately, None: not known. `problem`: why it ended early, empty: it did not."""

    sweep: str
    jobs: tuple[tuple[tuple[str, ...], str, str | None], ...] = ()
    verdicts: tuple[NodeVerdict, ...] = ()
    drained: tuple[str, ...] = ()
    coverage: float | None = None
    lost: int = 0
    problem: str = ""
