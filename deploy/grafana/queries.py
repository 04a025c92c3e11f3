"""Queries of the dashboards. Each selects by cluster and by real or simulated, and names only metrics and labels of the catalogue."""

import re

from preflight.metrics import BY_NAME, MORE_LABELS, PREFIX, Metric

# An empty `cluster` is one that the scrape configuration does not set. `simulated`: a variable with one value at a time, so that no panel ever mixes the two.
_ALWAYS = 'cluster=~"$cluster",simulated=~"$simulated"'
SCRAPE_LABELS = frozenset(("instance", "job", "cluster", "simulated"))  # of the scrape, and of a modelled cluster
HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")

# The limits of the alerts PreflightNodeSlow and PreflightLeafPathSlow, PreflightPairNewlySlow (deploy/prometheus/rules; tests/grafana compares them).
RATIO_BAD, PAIR_BAD = 0.85, 0.7
RATIO_LOW = 0.95  # where a look begins to be worth while: healthy classes of routes differ by 5 to 12 %
# How far a node may drift from its own mean before it is coloured; no alert rests on it.
DRIFT_BAD, DRIFT_LOW = 0.85, 0.95
UP = 'up{job=~"preflight-.+",cluster=~"$cluster"}'


def metric_of(name: str) -> Metric | None:
    """The catalogue's entry for a series' name, with or without prefix; None: it is none of ours."""
    name = name.removeprefix(PREFIX)
    for suffix in HISTOGRAM_SUFFIXES:
        found = BY_NAME.get(name.removesuffix(suffix))
        if name.endswith(suffix) and found and found.kind == "histogram":
            return found
    return BY_NAME.get(name)


def labels_of(metric: Metric) -> frozenset[str]:
    """All labels that a series of it may have, from whichever path it comes."""
    more = {label for path in metric.paths for label in MORE_LABELS[path]}
    return frozenset({*metric.labels, *more, *SCRAPE_LABELS, *(("le",) if metric.kind == "histogram" else ())})


def q(name: str, matchers: str = "") -> str:
    """A selector of one metric. `name` without the prefix. Raises ValueError for a name or label that the catalogue lacks."""
    metric = metric_of(name)
    if metric is None:
        raise ValueError(f"{name}: no such metric")
    if unknown := set(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", matchers)) - labels_of(metric):
        raise ValueError(f"{name} has no label {', '.join(sorted(unknown))}")
    return f"{PREFIX}{name}{{{','.join(filter(None, (matchers, _ALWAYS)))}}}"


def fresh(name: str, matchers: str = "", *, at_end: bool = False) -> str:
    """A selector of what the exporter tells, and of what text files of runs tell that ended within the time shown before each moment: a file stays for weeks, and an old one must not blame a node of today.

    `at_end`: as of the end of the time shown, for all moments.
    """
    moment, since = (" @ end()", "$__to / 1000") if at_end else ("", "time()")
    exporter, run = (q(name, ",".join(filter(None, (one, matchers)))) for one in ('command=""', 'command!=""'))
    ended = f"{q('run_completion_timestamp_seconds')}{moment} > {since} - $__range_s"
    return f"({exporter}{moment} or {run}{moment} and on (instance, command) ({ended}))"


def once(by: str, name: str, matchers: str = "") -> str:
    """A sum over what the exporter tells; only where it tells nothing, over fresh files of runs, since both may hold the same pairs. `by`: with brackets, or empty."""
    exporter = q(name, ",".join(filter(None, ('command=""', matchers))))
    return f"(sum{by} ({exporter}) or sum{by} ({fresh(name, matchers)}))"


def both_ways(name: str, leaf: str) -> str:
    """A fresh metric of pairs of leaves, (a, b) and (b, a), so that a matrix is whole. The lower figure counts where there are two."""
    other_way = fresh(name, f'other_leaf=~"{leaf}"')
    for new, old in (("to", "leaf"), ("leaf", "other_leaf"), ("other_leaf", "to")):
        other_way = f'label_replace({other_way}, "{new}", "$1", "{old}", "(.*)")'
    leaf_matcher = f'leaf=~"{leaf}"'
    return f"min by (leaf, other_leaf) ({fresh(name, leaf_matcher)} or {other_way})"


def level(selector: str, by: str) -> str:
    """The worst verdict as a number, by labels: 4 FAIL, 3 UNKNOWN, 2 WARN, 1 PASS, 0 only SKIP. `selector` has %s where the verdict's matcher goes."""
    ranks = (("FAIL", 4), ("UNKNOWN", 3), ("WARN", 2), ("PASS", 1), ("SKIP", 0))
    terms = " or ".join(f"{selector % verdict} * {rank}" for verdict, rank in ranks)
    return f"max by ({by}) ({terms})"
