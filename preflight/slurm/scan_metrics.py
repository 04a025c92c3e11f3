"""How scans are getting on, for node_exporter's textfile collector: when the last one ended, how much it covered, what it says of how many nodes (pure)."""

from collections import Counter
from collections.abc import Iterable, Mapping

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
    families: list[tuple[str, str, list[tuple[str, float]]]] = [
        ("completion_timestamp_seconds", "When the last sweep ended, Unix time.", [("", ended_s)]),
        ("duration_seconds", "How long the last sweep took.", [("", duration_s)]),
        ("failed", "1 if the last sweep could not be carried through.", [("", float(failed))]),
        ("drained_nodes", "Nodes that the last sweep drained.", [("", float(drained))]),
        (
            "jobs",
            "Jobs of the last sweep by outcome.",
            [(f'{{outcome="{each}"}}', float(jobs.get(each, 0))) for each in OUTCOMES],
        ),
        (
            "nodes",
            "Nodes by the verdict of the last sweep that had them.",
            [
                (f'{{verdict="{each.value}"}}', float(counts[each]))
                for each in (Verdict.FAIL, Verdict.UNKNOWN, Verdict.PASS)
            ],
        ),
    ]
    if coverage is not None:
        text = "Share of the pairs of nodes that could be measured that were, lately enough."
        families.append(("coverage_ratio", text, [("", coverage)]))
    lines = []
    for name, text, series in families:
        lines += [f"# HELP preflight_scan_{name} {text}", f"# TYPE preflight_scan_{name} gauge"]
        lines += [f"preflight_scan_{name}{labels} {value!r}" for labels, value in series]
    return "\n".join(lines) + "\n"
