"""One node: what its checks say, how its links and GPUs do beside others, and which pairs with it are slow."""

from deploy.grafana.dashboard import NODE_PAGE, Board, Choice
from deploy.grafana.panels import (
    ANSWERS,
    GOOD_IF_EMPTY,
    LEVELS,
    VERDICTS,
    Query,
    Row,
    lines,
    low_is_bad,
    stat,
    table,
    timeline,
)
from deploy.grafana.queries import PAIR_BAD, RATIO_BAD, RATIO_LOW, fresh, level, q

_RATIO = low_is_bad(RATIO_BAD, RATIO_LOW)
_PAIRS = low_is_bad(PAIR_BAD, RATIO_BAD)
_NODE, _OTHER = 'node="$node"', 'other_node="$node"'
_STATUS = q("check_status", f'{_NODE},verdict="%s"')
_PAIR = "node, slot, other_node, other_slot"
_AGENT = 'command="agent",node="$node"'


def _either(name: str) -> str:
    """Pairs with the node at either end."""
    return f"min by ({_PAIR}) ({fresh(name, _NODE)} or {fresh(name, _OTHER)})"


def _beside(figure: str, unit: str) -> tuple[Query, ...]:
    """The node's slowest and median GPU, and the median over all nodes."""
    low, middle = f"gpu_{figure}_minimum_{unit}", f"gpu_{figure}_median_{unit}"
    return (
        Query(f"min({fresh(low, _NODE)})", "slowest GPU"),
        Query(f"min({fresh(middle, _NODE)})", "median GPU"),
        Query(f"quantile(0.5, {fresh(middle)})", "median of all nodes"),
    )


_SUMMARY = (
    stat(
        "Checks by verdict",
        "This node's checks by their worst verdict, as its agent sees them. Unknown: its agent does not answer or has not judged yet.",
        Query(f"sum by (verdict) ({q('check_status', _NODE)})", "{{verdict}}"),
        unit="none",
        width=8,
        alerts=("PreflightCheckFailing", "PreflightCheckUnknown"),
    ),
    stat(
        "Share of the reference",
        "Bandwidth over reference of this node's pairs, with the partner that it does best with; 100 % is as expected.",
        Query(f"min by (route) ({fresh('node_bandwidth_ratio', _NODE)})", "{{route}}"),
        unit="percentunit",
        steps=_RATIO,
        width=8,
        alerts=("PreflightNodeSlow",),
    ),
    stat(
        "Agent up for",
        "Time since the agent of this node started.",
        Query(f"time() - max({q('agent_start_timestamp_seconds', _NODE)})"),
        unit="s",
    ),
    stat(
        "Since its agent judged",
        "Time since the agent judged its node. What it said ages.",
        Query(f"time() - max({q('run_completion_timestamp_seconds', _AGENT)})"),
        unit="s",
        alerts=("PreflightAgentDown", "PreflightAgentStale"),
    ),
)

_CHECKS = (
    timeline(
        "Checks over time",
        "Worst verdict of each check. A gap: the agent did not answer, so nothing is known.",
        Query(level(_STATUS, "check"), "{{check}}"),
        LEVELS,
        width=16,
        height=12,
    ),
    table(
        "Checks now",
        "Worst verdict of each check. The report of the node tells why, and what to do: preflight node.",
        Query(f"max by (check, verdict) ({q('check_status', _NODE)}) == 1"),
        columns=("check", "verdict"),
        sort="verdict",
        words={"verdict": VERDICTS},
        width=8,
        height=12,
    ),
    table(
        "What runs, sweeps and prologs found",
        f"The worst findings about this node of the last runs, if they ended within the time shown. {GOOD_IF_EMPTY} the last runs found nothing about it.",
        Query(f"max by (command, verdict, check, subject) ({fresh('worst_finding', _NODE)}) == 1"),
        columns=("verdict", "check", "subject", "command"),
        sort="verdict",
        words={"verdict": VERDICTS},
        width=16,
    ),
    table(
        "Last answers on this node",
        "The answer of the last run of each command that runs on this node alone: agent, prolog, node.",
        Query(f"max by (command, answer) ({q('run_answer', _NODE)}) == 1"),
        columns=("command", "answer"),
        sort="command",
        words={"answer": ANSWERS},
        width=8,
    ),
)

_LINKS = (
    lines(
        "Share of the reference",
        "Bandwidth over reference of this node's pairs; 100 % is as expected.",
        Query(f"min by (route) ({fresh('node_bandwidth_ratio', _NODE)})", "{{route}}"),
        unit="percentunit",
        steps=_RATIO,
        alerts=("PreflightNodeSlow",),
    ),
    lines(
        "Bus bandwidth of its pairs",
        "Slowest and median pair with an end on this node. One slow pair may be the other end's matter.",
        Query(f"min by (route) ({fresh('pair_bus_bandwidth_minimum_bytes_per_second', _NODE)})", "{{route}} slowest"),
        Query(f"min by (route) ({fresh('pair_bus_bandwidth_median_bytes_per_second', _NODE)})", "{{route}} median"),
        unit="Bps",
    ),
    table(
        "Slow pairs with this node",
        f"Of the slowest pairs of the last run or sweeps, those with this node at an end. {GOOD_IF_EMPTY} this node is not among them.",
        Query(_either("slowest_pair_bandwidth_ratio"), "of reference", "percentunit", _PAIRS),
        Query(_either("slowest_pair_bus_bandwidth_bytes_per_second"), "bus bandwidth", "Bps"),
        columns=("node", "slot", "other_node", "other_slot"),
        sort="of reference",
        links={"node": NODE_PAGE % "node", "other_node": NODE_PAGE % "other_node"},
        width=24,
        alerts=("PreflightPairNewlySlow",),
    ),
)

_GPUS = (
    lines(
        "Compute",
        "Floating-point operations per second of a GPU of this node alone, beside the median of all nodes.",
        *_beside("matmul", "operations_per_second"),
        unit="flops",
        width=8,
    ),
    lines(
        "Host to GPU",
        "Copies from host to GPU, beside the median of all nodes.",
        *_beside("host_to_device", "bytes_per_second"),
        unit="Bps",
        width=8,
    ),
    lines(
        "GPU to host",
        "Copies from GPU to host, beside the median of all nodes.",
        *_beside("device_to_host", "bytes_per_second"),
        unit="Bps",
        width=8,
    ),
    table(
        "GPUs",
        "GPUs that discovery found. The UUID joins with dcgm-exporter's series. A GPU that is missing here was not found.",
        Query(f"max by (gpu, UUID, pci_bus_id, model) ({q('gpu_info', _NODE)})"),
        columns=("gpu", "UUID", "pci_bus_id", "model"),
        sort="gpu",
        width=16,
    ),
    table(
        "Versions",
        "Versions that the last run of each command on this node used.",
        Query(f"max by (command, component, version) ({q('version_info', _NODE)})"),
        columns=("component", "version", "command"),
        sort="component",
        width=8,
    ),
)

_AGENT_ROW = (
    lines(
        "Workers",
        "Workers that the agent of this node has: none, unless a run is under way.",
        Query(f"max({q('agent_workers', _NODE)})", "workers"),
        unit="none",
    ),
    lines(
        "Requests",
        "Requests per second that the agent of this node answered.",
        Query(f"sum by (path, code) (rate({q('agent_requests_total', _NODE)}[$__rate_interval]))", "{{path}} {{code}}"),
        unit="reqps",
    ),
)

NODE = Board(
    uid="preflight-node",
    title="preflight: node",
    text="One node: what its checks say, how its links and GPUs do beside others, and which pairs with it are slow.",
    choices=(
        Choice(
            "node",
            "node",
            '{__name__=~"preflight_(agent_start_timestamp_seconds|node_bandwidth_ratio|run_answer)",'
            'cluster=~"$cluster",simulated=~"$simulated",node!=""}',
            many=False,
            text="Nodes that anything is known of.",
        ),
    ),
    rows=(
        Row("Now", _SUMMARY),
        Row("Checks", _CHECKS),
        Row("Links", _LINKS),
        Row("GPUs", _GPUS),
        Row("Agent", _AGENT_ROW, closed=True),
    ),
)
