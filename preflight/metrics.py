"""Every metric that this program exports, in one catalogue: name, type, unit, labels, meaning, and which paths write it; and its text form.

Help texts and types are taken from here by each writer (the exporter's text-file collector refuses two helps of one name), and so is deploy/prometheus/metrics.md. Imports nothing but the
standard library, and little of that: the prolog reads it, also where an installation is broken.

Labels beside a metric's own (MORE_LABELS): `node` on everything that tells of one node alone (its agent's page, its prolog's text file, `preflight node`), `command` on everything in the text file of a run, so that files of
several commands in one folder never hold the same series, and `simulated="true"` on what a modelled cluster gave; series of real ones lack that label. No label carries a job or run id.

"Reference" of a pair: what healthy pairs over the same class of routes gave in the same run. A node's ratio is the one with the partner node that it does best with: a fast pair clears both its nodes.
Figures of a node, or of two leaves, are those of the newest run that measured them, and of that run alone; a metric beside them says when it ended.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter", "histogram"]
Path = Literal["agent", "run", "prolog", "scan", "exporter"]

PREFIX = "preflight_"
VERDICTS = ("FAIL", "UNKNOWN", "WARN", "PASS", "SKIP")
ANSWERS = ("go", "undecided", "no-go")
RATIO_BUCKETS = (0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1)  # of a pair's bandwidth over its reference
MAX_SERIES = 4800  # of a page or file: families that don't fit are left out whole, the least telling ones first
MAX_BYTES = 900_000
MAX_TIME_S = 1e11  # Unix time
MORE_LABELS: Mapping[str, tuple[str, ...]] = {
    "agent": ("node",),
    "prolog": ("command", "node"),
    "run": ("command", "node"),
    "scan": (),
    "exporter": (),
}

_COMMON = ("command", "node")  # stand last, for those who read files

Samples = Sequence[tuple[tuple[str, ...], float]]  # values of a metric's own labels, in their order -> figure


class Metric(NamedTuple):
    """One family. `name` without the prefix, with its unit; `labels`: its own. `paths`: who writes it."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ("run", "exporter")


_ALL: tuple[Path, ...] = ("agent", "run", "prolog", "exporter")
_TOLD: tuple[Path, ...] = ("agent", "run", "prolog")
_OF_RUNS: tuple[Path, ...] = ("run",)
_PAIRS = "Bus bandwidth of pairs with an end on the node, both ends inside it or between nodes"
_LEAVES = "Bus bandwidth of pairs of nodes, by their leaf switches"
_GROUPS = (
    "Bus bandwidth of the groups of an axis: each alone, all together, mixed with other axes, or with a skewed split"
)
_GROUP_LABELS = ("axis", "collective", "message_size")

CATALOGUE = (
    Metric("build_info", "gauge", "The preflight that writes this.", ("version", "python"), ("agent", "exporter")),
    # the last run of each command
    Metric("run_answer", "gauge", "1 for the answer of the last run, 0 for the others.", ("command", "answer"), _ALL),
    Metric("run_completion_timestamp_seconds", "gauge", "When the last run ended, Unix time.", ("command",), _ALL),
    Metric(
        "run_success_timestamp_seconds",
        "gauge",
        "When the last run with the answer go ended, Unix time; absent if none is known.",
        ("command",),
        _ALL,
    ),
    Metric("run_duration_seconds", "gauge", "Wall time of the last run.", ("command",), _ALL),
    Metric(
        "run_phase_duration_seconds",
        "gauge",
        "Wall time of each phase of the last run.",
        ("command", "phase"),
        _OF_RUNS,
    ),
    Metric("run_partial", "gauge", "1 if the last run ended before its plan was done.", ("command",), _OF_RUNS),
    Metric("run_simulated", "gauge", "1 if the last run was on a modelled cluster.", ("command",), _OF_RUNS),
    Metric("run_incidents", "gauge", "Agents and workers that failed in the last run.", ("command",), _OF_RUNS),
    Metric("run_info", "gauge", "What the last run was.", ("command", "backend"), _ALL),
    Metric("version_info", "gauge", "Versions the last run used.", ("command", "component", "version"), _TOLD),
    Metric(
        "findings", "gauge", "Findings of the last run by check and verdict.", ("command", "check", "verdict"), _TOLD
    ),
    Metric("check_duration_seconds", "gauge", "Time each check took.", ("command", "check"), ("agent", "run")),
    Metric(
        "worst_finding",
        "gauge",
        "1 for each of the worst few findings of the last run, FAIL before UNKNOWN; node is empty where it is about none.",
        ("command", "check", "subject", "node", "verdict"),
    ),
    Metric(
        "run_drain",
        "gauge",
        "1 for what became of the drain that the last run asked for, 0 for the others.",
        ("command", "result"),
        ("prolog",),
    ),
    # one node, as its agent sees it
    Metric(
        "check_status",
        "gauge",
        "1 for the worst verdict of a check of this node, 0 for the others.",
        ("check", "node", "verdict"),
        ("agent",),
    ),
    Metric(
        "gpu_info",
        "gauge",
        "GPUs that discovery found; joins with dcgm-exporter on UUID. From one place at most of 64 nodes.",
        ("node", "gpu", "UUID", "pci_bus_id", "model"),
        ("agent", "run"),
    ),
    Metric("agent_start_timestamp_seconds", "gauge", "When this agent started, Unix time.", ("node",), ("agent",)),
    Metric("agent_workers", "gauge", "Workers that this agent has now.", ("node",), ("agent",)),
    Metric(
        "agent_requests_total", "counter", "Requests that this agent answered.", ("node", "path", "code"), ("agent",)
    ),
    Metric("collector_duration_seconds", "gauge", "Time to gather this page.", (), ("agent", "exporter")),
    Metric("collector_success", "gauge", "1 if all that this page shows could be read.", (), ("agent", "exporter")),
    # the fabric: what the last run, or the last sweeps, measured
    Metric("pairs_planned", "gauge", "Pairs that the last run meant to measure.", ("command",), _OF_RUNS),
    Metric("pairs_measured", "gauge", "Pairs that the last run measured.", ("command",), _OF_RUNS),
    Metric(
        "pairs_withheld",
        "gauge",
        "Pairs that the last run measured and that have no series of their own.",
        ("command",),
        _OF_RUNS,
    ),
    Metric("families_withheld", "gauge", "Metrics that were left out since this page or file would be too large."),
    Metric(
        "pairs_measured_total",
        "counter",
        "Pairs that runs added to the history since this exporter started measured.",
        ("command",),
        ("exporter",),
    ),
    Metric(
        "pairs_withheld_total",
        "counter",
        "Pairs that runs added since then tried to measure, without a figure.",
        ("command",),
        ("exporter",),
    ),
    *(
        Metric(f"{name}_{end}", "gauge", f"{what} that the last run {verb}.", ("command",), _OF_RUNS)
        for name, what in (
            ("groups", "Groups"),
            ("links", "Ways of GPUs out of their nodes"),
            ("uplinks", "Ways of leaves to other leaves"),
            ("leaf_pairs", "Pairs of leaves"),
        )
        for end, verb in (("planned", "meant to measure"), ("measured", "measured"))
    ),
    Metric("pair_bus_bandwidth_minimum_bytes_per_second", "gauge", f"{_PAIRS}: slowest pair.", ("node", "route")),
    Metric("pair_bus_bandwidth_median_bytes_per_second", "gauge", f"{_PAIRS}: median pair.", ("node", "route")),
    Metric(
        "node_bandwidth_ratio",
        "gauge",
        "Bandwidth / reference of a node's pairs, median with the partner node that it does best with; 1 is as expected.",
        ("node", "route"),
    ),
    Metric(
        "node_measured_timestamp_seconds",
        "gauge",
        "When the newest run that measured pairs of the node ended, Unix time: the one that its bandwidths and ratio are of.",
        ("node", "route"),
    ),
    Metric(
        "leaf_pair_bus_bandwidth_minimum_bytes_per_second", "gauge", f"{_LEAVES}: slowest pair.", ("leaf", "other_leaf")
    ),
    Metric(
        "leaf_pair_bus_bandwidth_median_bytes_per_second", "gauge", f"{_LEAVES}: median pair.", ("leaf", "other_leaf")
    ),
    Metric(
        "leaf_pair_bandwidth_ratio",
        "gauge",
        "Median over the pairs of two leaves of bandwidth / reference, of nodes that are fast with some other partner; 1 is as expected.",
        ("leaf", "other_leaf"),
    ),
    Metric(
        "leaf_pair_measured_timestamp_seconds",
        "gauge",
        "When the newest run that measured pairs between the two leaves ended, Unix time: the one that their bandwidths and ratio are of.",
        ("leaf", "other_leaf"),
    ),
    Metric(
        "slowest_pair_bus_bandwidth_bytes_per_second",
        "gauge",
        "Bus bandwidth of the slowest pairs; slot: the GPU's place on its node.",
        ("node", "slot", "other_node", "other_slot"),
    ),
    Metric(
        "slowest_pair_bandwidth_ratio",
        "gauge",
        "Bandwidth / reference of the same pairs; 1 is as expected.",
        ("node", "slot", "other_node", "other_slot"),
    ),
    Metric(
        "pair_bandwidth_ratio",
        "histogram",
        "Pairs of the last run, or of the last sweeps, by bandwidth / reference.",
        ("route",),
    ),
    *(
        Metric(f"gpu_{name}_{low}_{unit}", "gauge", f"{text}: {which} GPU of the node.", ("node",), _OF_RUNS)
        for name, unit, text in (
            ("matmul", "operations_per_second", "Floating-point operations per second of one GPU"),
            ("host_to_device", "bytes_per_second", "Copies from host to GPU"),
            ("device_to_host", "bytes_per_second", "Copies from GPU to host"),
        )
        for low, which in (("minimum", "slowest"), ("median", "median"))
    ),
    Metric(
        "group_bus_bandwidth_minimum_bytes_per_second", "gauge", f"{_GROUPS}: slowest group.", (*_GROUP_LABELS, "mode")
    ),
    Metric(
        "group_bus_bandwidth_median_bytes_per_second",
        "gauge",
        f"{_GROUPS}: median over groups.",
        (*_GROUP_LABELS, "mode"),
    ),
    Metric(
        "group_contention_minimum_ratio",
        "gauge",
        "Bus bandwidth together / alone of the group of an axis that loses most; 1 is no contention.",
        _GROUP_LABELS,
        _OF_RUNS,
    ),
    Metric(
        "fabric_slow_parts",
        "gauge",
        "Parts of the fabric that the last run found slow, by kind; unclear: more than one explanation.",
        ("kind",),
        _OF_RUNS,
    ),
    Metric(
        "fabric_reference_bytes_per_second",
        "gauge",
        "What healthy probes of one operation give over one class of routes.",
        ("operation", "route"),
        _OF_RUNS,
    ),
    Metric(
        "fabric_expected_bytes_per_second",
        "gauge",
        "What a formula allows the same probes; far less than it on all nodes is a matter of the environment.",
        ("operation", "route"),
        _OF_RUNS,
    ),
    # scans
    Metric(
        "scan_completion_timestamp_seconds", "gauge", "When the last sweep ended, Unix time.", (), ("scan", "exporter")
    ),
    Metric("scan_duration_seconds", "gauge", "How long the last sweep took.", (), ("scan",)),
    Metric("scan_failed", "gauge", "1 if the last sweep could not be carried through.", (), ("scan",)),
    Metric("scan_drained_nodes", "gauge", "Nodes that the last sweep drained.", (), ("scan",)),
    Metric("scan_jobs", "gauge", "Jobs of the last sweep by outcome.", ("outcome",), ("scan",)),
    Metric(
        "scan_nodes",
        "gauge",
        "Nodes by the verdict of the last sweep that had them.",
        ("verdict",),
        ("scan", "exporter"),
    ),
    Metric(
        "scan_coverage_ratio",
        "gauge",
        "Share of the pairs of nodes that could be measured that were, lately enough.",
        (),
        ("scan",),
    ),
)

BY_NAME = {metric.name: metric for metric in CATALOGUE}


def exposition(families: Iterable[tuple[str, Samples]], more: Mapping[str, str]) -> str:
    """Gauges and counters in Prometheus' text format (0.0.4), each name once. `more`: labels that every series gets beside its own. What is no number is left out."""
    return "".join(line for name, series in families for line in _lines(BY_NAME[name], series, more))


def histogram(name: str, ratios: Mapping[tuple[str, ...], Sequence[float]], more: Mapping[str, str]) -> str:
    """The histogram of these values, by the values of its own labels."""
    metric, parts = BY_NAME[name], []
    for values, seen in ratios.items():
        told = {**more, **dict(zip(metric.labels, values, strict=True))}
        counts = cumulated(seen)
        parts += [
            f"{PREFIX}{name}_bucket{_braces({**told, 'le': bound})} {float(count)!r}\n" for bound, count in counts
        ]
        parts.append(f"{PREFIX}{name}_count{_braces(told)} {float(len(seen))!r}\n")
        parts.append(f"{PREFIX}{name}_sum{_braces(told)} {float(sum(seen))!r}\n")
    return "".join([*_head(metric), *parts]) if parts else ""


def cumulated(ratios: Sequence[float]) -> list[tuple[str, int]]:
    """Upper bound of each bucket -> how many are at or below it; the last is +Inf."""
    from bisect import bisect_right

    ordered, bounds = sorted(ratios), [*RATIO_BUCKETS, float("inf")]
    return [("+Inf" if b == float("inf") else repr(b), bisect_right(ordered, b)) for b in bounds]


def with_success_of(before: str, text: str) -> str:
    """The text of a run that did not succeed with the time of the last one that did, where the file before, of the same command and place, has it."""
    name, completion = f"{PREFIX}run_success_timestamp_seconds", f"{PREFIX}run_completion_timestamp_seconds"
    if f"\n{name}{{" in text:
        return text
    for line in before.splitlines():
        labels, _, figure = line.removeprefix(name).rpartition(" ")
        if line.startswith(f"{name}{{") and f"\n{completion}{labels} " in text and _is_time(figure):
            return text + "".join(_head(BY_NAME["run_success_timestamp_seconds"])) + line + "\n"
    return text


def _is_time(figure: str) -> bool:
    try:
        return 0 < float(figure) < MAX_TIME_S
    except ValueError:
        return False


def within_bounds(families: Iterable[tuple[str, Samples]], spent: int = 0) -> tuple[list[tuple[str, Samples]], int]:
    """As many of the families, which come in the order of their weight, as a page may hold, and how many were left out. `spent`: series that it has already."""
    kept, left_out, size = [], 0, 150 * spent
    for name, series in families:
        more = sum(len(name) + 60 + sum(map(len, values)) for values, _ in series)
        if spent + len(series) > MAX_SERIES or size + more > MAX_BYTES:
            left_out += 1
            continue
        kept.append((name, series))
        spent, size = spent + len(series), size + more
    return kept, left_out


def _head(metric: Metric) -> tuple[str, str]:
    return f"# HELP {PREFIX}{metric.name} {metric.text}\n", f"# TYPE {PREFIX}{metric.name} {metric.kind}\n"


def _lines(metric: Metric, series: Samples, more: Mapping[str, str]) -> Iterator[str]:
    found = {values: float(figure) for values, figure in series}
    known = {values: figure for values, figure in found.items() if figure == figure}  # noqa: PLR0124 - no NaN
    if not known:
        return
    yield from _head(metric)
    names = [*metric.labels, *(name for name in more if name not in metric.labels)]
    places = sorted(range(len(names)), key=lambda place: names[place] in _COMMON)
    start, added = f"{PREFIX}{metric.name}", tuple(more[name] for name in names[len(metric.labels) :])
    for values, figure in known.items():
        told = (*values, *added)
        braces = ",".join([f'{names[place]}="{_escaped(told[place])}"' for place in places])
        yield f"{start}{{{braces}}} {figure!r}\n" if braces else f"{start} {figure!r}\n"


def _braces(labels: Mapping[str, str], more: Mapping[str, str] = {}) -> str:
    told = {**labels, **{name: value for name, value in more.items() if name not in labels}}
    labels = {name: told[name] for name in sorted(told, key=_COMMON.__contains__)}
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}" if labels else ""


def _escaped(value: str) -> str:
    """A label's value: backslash, quote and line break are escaped (exposition format 0.0.4)."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
