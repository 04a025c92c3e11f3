"""How scans are getting on, for node_exporter's textfile collector: when the last one ended, how much it covered, what it says of how many nodes (pure)."""

from collections import Counter
from collections.abc import Iterable, Mapping

from preflight.metrics import exposition
from preflight.model.finding import Verdict
from preflight.model.history import NodeVerdict

OUTCOMES = ("measured", "no report", "not started", "gave way", "not submitted")


def scan_metrics(
    *,
    ended_s: float,
    duration_s: float,
    coverage: float | None,
    jobs: Mapping[str, int],
    last: Iterable[NodeVerdict],
    drained: int,
    failed: bool,
) -> str:
    """The text. `coverage`: share of the pairs of nodes that were measured recently, None: there are none. `jobs`: by outcome, of this sweep. `last`: the newest verdict of each node. `failed`: the sweep itself broke."""
    counts = Counter(verdict.verdict for verdict in last)
    shown = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.PASS)
    return exposition(
        (
            ("scan_completion_timestamp_seconds", [((), ended_s)]),
            ("scan_duration_seconds", [((), duration_s)]),
            ("scan_failed", [((), float(failed))]),
            ("scan_drained_nodes", [((), float(drained))]),
            ("scan_jobs", [((each,), float(jobs.get(each, 0))) for each in OUTCOMES]),
            ("scan_nodes", [((each.value,), float(counts[each])) for each in shown]),
            ("scan_coverage_ratio", [] if coverage is None else [((), coverage)]),
        ),
        {},
    )
