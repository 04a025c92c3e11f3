"""The fabric: which ways between nodes are slower than their like, now and against their own past."""

from deploy.grafana.dashboard import NODE_PAGE, Board, Choice
from deploy.grafana.panels import (
    GOOD_IF_EMPTY,
    GREEN,
    RED,
    Query,
    Row,
    histogram,
    lines,
    low_is_bad,
    matrix,
    stat,
    table,
)
from deploy.grafana.queries import DRIFT_BAD, DRIFT_LOW, PAIR_BAD, RATIO_BAD, RATIO_LOW, both_ways, fresh, once, q

_RATIO = low_is_bad(RATIO_BAD, RATIO_LOW)
_PAIRS = low_is_bad(PAIR_BAD, RATIO_BAD)
_DRIFT = low_is_bad(DRIFT_BAD, DRIFT_LOW)
_RUNS, _ROUTE = 'command=~"$command"', 'route=~"$route"'
_NODES = f"min by (node, route) ({fresh('node_bandwidth_ratio', _ROUTE)})"
_NODE_MEAN = f"avg_over_time({q('node_bandwidth_ratio', _ROUTE)}[$__range])"
_EITHER_LEAF = " or ".join(fresh("leaf_pair_bandwidth_ratio", f'{end}=~"$leaf"') for end in ("leaf", "other_leaf"))
_SUM, _COUNT = (once(" by (route)", f"pair_bandwidth_ratio_{what}", _ROUTE) for what in ("sum", "count"))
_PAIR = "node, slot, other_node, other_slot"
_REFERENCE = "Reference: what healthy pairs over the same class of routes gave in the same run; 100 % is as expected."
_LINKS = {"node": NODE_PAGE % "node", "other_node": NODE_PAGE % "other_node"}


def _ago(name: str, by: str) -> str:
    """Seconds since then."""
    return f"(time() - max by ({by}) ({fresh(name)}))"


_SUMMARY = (
    stat(
        "Parts found slow",
        "Parts of the fabric that the last run names as slow, or as one of several explanations.",
        Query(f"sum(max by (kind) ({fresh('fabric_slow_parts')}))"),
        unit="none",
        steps=((0, GREEN), (1, RED)),
        alerts=("PreflightLeafPathSlow",),
    ),
    table(
        "Which kinds of parts",
        "Kinds of the parts found slow: GPU, NIC, node, leaf, uplink, path, ... Unclear: more than one explanation, so nothing is blamed. "
        f"{GOOD_IF_EMPTY} the last run names none.",
        Query(f"max by (kind) ({fresh('fabric_slow_parts')}) > 0", "parts"),
        columns=("kind",),
        sort="parts",
        descending=True,
        width=4,
        height=4,
    ),
    stat(
        "Lowest node",
        f"The node that does worst, by kind of route. A node's figure is the one with the partner that it does best with. {_REFERENCE}",
        Query(f"min by (route) ({_NODES})", "{{route}}"),
        unit="percentunit",
        steps=_RATIO,
        width=8,
        alerts=("PreflightNodeSlow",),
    ),
    stat(
        "Lowest pair of leaves",
        f"The two leaves between which pairs do worst, by median. {_REFERENCE}",
        Query(f"min({fresh('leaf_pair_bandwidth_ratio')})"),
        unit="percentunit",
        steps=_RATIO,
        alerts=("PreflightLeafPathSlow",),
    ),
    stat(
        "Pairs measured",
        "Pairs that the last runs measured, of those that they meant to. The rest is not known.",
        Query(f"sum({q('pairs_measured', _RUNS)}) / (sum({q('pairs_planned', _RUNS)}) > 0)"),
        unit="percentunit",
    ),
)

_MATRICES = (
    matrix(
        "Leaf x leaf: share of the reference",
        f"Median over the pairs of nodes between two leaves. {_REFERENCE} An empty cell was not measured.",
        both_ways("leaf_pair_bandwidth_ratio", "$leaf"),
        row="leaf",
        column="other_leaf",
        unit="percentunit",
        steps=_RATIO,
        alerts=("PreflightLeafPathSlow",),
    ),
    matrix(
        "Leaf x leaf: slowest pair",
        "Bus bandwidth of the slowest pair of nodes between two leaves. Colours are in the other matrix, since leaves far apart may be slower by design. An empty cell was not measured.",
        both_ways("leaf_pair_bus_bandwidth_minimum_bytes_per_second", "$leaf"),
        row="leaf",
        column="other_leaf",
        unit="Bps",
    ),
)

_WORST = (
    table(
        "Slowest pairs",
        f"The slowest pairs of GPUs of the last run or sweeps; slot is the GPU's place on its node. Somebody is always last: look at the share. {_REFERENCE}",
        Query(f"min by ({_PAIR}) ({fresh('slowest_pair_bandwidth_ratio')})", "of reference", "percentunit", _PAIRS),
        Query(f"min by ({_PAIR}) ({fresh('slowest_pair_bus_bandwidth_bytes_per_second')})", "bus bandwidth", "Bps"),
        columns=("node", "slot", "other_node", "other_slot"),
        sort="of reference",
        links=_LINKS,
        height=10,
        alerts=("PreflightPairNewlySlow",),
    ),
    table(
        "Lowest nodes",
        f"Share of the reference of the nodes that do worst, in the newest run that measured them. {_REFERENCE}",
        Query(f"bottomk(50, {_NODES})", "of reference", "percentunit", _RATIO),
        Query(
            f"{_ago('node_measured_timestamp_seconds', 'node, route')} and on (node, route) bottomk(50, {_NODES})",
            "measured ago",
            "s",
        ),
        columns=("node", "route"),
        sort="of reference",
        links=_LINKS,
        width=6,
        height=10,
        alerts=("PreflightNodeSlow",),
    ),
    table(
        "Lowest pairs of leaves",
        f"Median share of the reference of the pairs of leaves that do worst, in the newest run that measured them. {_REFERENCE}",
        Query(f"bottomk(50, min by (leaf, other_leaf) ({_EITHER_LEAF}))", "of reference", "percentunit", _RATIO),
        Query(
            f"{_ago('leaf_pair_measured_timestamp_seconds', 'leaf, other_leaf')} and on (leaf, other_leaf) bottomk(50, min by (leaf, other_leaf) ({_EITHER_LEAF}))",
            "measured ago",
            "s",
        ),
        columns=("leaf", "other_leaf"),
        sort="of reference",
        width=6,
        height=10,
        alerts=("PreflightLeafPathSlow",),
    ),
)

_DRIFTS = (
    table(
        "Nodes below their own mean",
        "Share of the reference now, over its mean in the time shown: 100 % is no drift. A look at what changes, not a verdict; the judge uses the history of each part.",
        Query(
            f"bottomk(20, min by (node, route) ({fresh('node_bandwidth_ratio', _ROUTE)} / {_NODE_MEAN}))",
            "of its mean",
            "percentunit",
            _DRIFT,
        ),
        columns=("node", "route"),
        sort="of its mean",
        links=_LINKS,
        width=8,
        height=9,
    ),
    lines(
        "The ten lowest nodes",
        f"Share of the reference over time, of the nodes that are lowest at the end of the time shown. {_REFERENCE}",
        Query(
            f"{_NODES} and on (node, route) bottomk(10, min by (node, route) ({fresh('node_bandwidth_ratio', _ROUTE, at_end=True)}))",
            "{{node}} {{route}}",
        ),
        unit="percentunit",
        steps=_RATIO,
        width=16,
        height=9,
        alerts=("PreflightNodeSlow",),
    ),
    lines(
        "The ten lowest pairs of leaves",
        f"Median share of the reference over time, of the pairs of leaves that are lowest at the end of the time shown. {_REFERENCE}",
        Query(
            f"min by (leaf, other_leaf) ({_EITHER_LEAF}) and on (leaf, other_leaf) "
            f"bottomk(10, min by (leaf, other_leaf) ({fresh('leaf_pair_bandwidth_ratio', at_end=True)}))",
            "{{leaf}} - {{other_leaf}}",
        ),
        unit="percentunit",
        steps=_RATIO,
        height=9,
    ),
    lines(
        "All nodes",
        f"Lowest, median and highest share of the reference over nodes. Nodes that are all slow alike do not show here, since the reference falls with them: see what healthy pairs give. {_REFERENCE}",
        *(
            Query(f"{function} by (route) ({_NODES})", f"{{{{route}}}} {word}")
            for function, word in (("min", "lowest"), ("max", "highest"))
        ),
        Query(f"quantile by (route) (0.5, {_NODES})", "{{route}} median"),
        unit="percentunit",
        height=9,
    ),
)

_WHOLE = (
    histogram(
        "Pairs by share of the reference",
        f"How many pairs of the last sweeps, or of the last run, fall into which range, over time. It is a picture of one run at a time and is not added up, so no rate is taken. {_REFERENCE}",
        Query(once(" by (le)", "pair_bandwidth_ratio_bucket", _ROUTE), "{{le}}"),
    ),
    lines(
        "Pairs per run",
        "Pairs with a figure in the picture beside, and pairs that runs planned, measured and gave no series of their own.",
        Query(once("", "pair_bandwidth_ratio_count"), "judged by ratio"),
        Query(f"sum({q('pairs_planned', _RUNS)})", "planned"),
        Query(f"sum({q('pairs_measured', _RUNS)})", "measured"),
        Query(f"sum({q('pairs_withheld', _RUNS)})", "without own series"),
        unit="none",
    ),
    lines(
        "Mean share of the reference",
        f"Over all judged pairs of the last sweeps, or of the last run, by kind of route. {_REFERENCE}",
        Query(
            _SUM + " / " + _COUNT,
            "{{route}}",
        ),
        unit="percentunit",
    ),
    lines(
        "Median pair between leaves",
        "Bus bandwidth of the median pair: the lowest and highest of all two leaves.",
        Query(f"min({fresh('leaf_pair_bus_bandwidth_median_bytes_per_second')})", "lowest"),
        Query(f"max({fresh('leaf_pair_bus_bandwidth_median_bytes_per_second')})", "highest"),
        unit="Bps",
    ),
    table(
        "What healthy pairs give",
        "Reference of each class of routes in the last run, and what a formula allows. All far below the formula: a matter of the environment, of no node.",
        Query(f"max by (operation, route) ({q('fabric_reference_bytes_per_second')})", "reference", "Bps"),
        Query(f"max by (operation, route) ({q('fabric_expected_bytes_per_second')})", "formula", "Bps"),
        columns=("operation", "route"),
        sort="route",
    ),
    lines(
        "Pairs that runs added to the history",
        "Pairs that were measured, and that were tried without a figure, in each interval. 0 while no run ended.",
        Query(
            f"sum by (command) (increase({q('pairs_measured_total', _RUNS)}[$__rate_interval]))", "{{command}} measured"
        ),
        Query(
            f"sum by (command) (increase({q('pairs_withheld_total', _RUNS)}[$__rate_interval]))",
            "{{command}} without a figure",
        ),
        unit="none",
    ),
)

FABRIC = Board(
    uid="preflight-fabric",
    title="preflight: fabric bandwidth",
    text="Which ways between nodes and leaves are slower than their like, now and against their own past.",
    choices=(
        Choice("command", "command", q("pairs_planned"), many=True, text="Commands that measure."),
        Choice("route", "route", q("node_bandwidth_ratio"), many=True, text="Inside a node, or between nodes."),
        Choice("leaf", "leaf", q("leaf_pair_bandwidth_ratio"), many=True, text="Leaf switches: rows of the matrices."),
    ),
    rows=(
        Row("Now", _SUMMARY),
        Row("Leaf x leaf", _MATRICES),
        Row("Worst", _WORST),
        Row("Drift", _DRIFTS),
        Row("All pairs", _WHOLE, closed=True),
    ),
)
