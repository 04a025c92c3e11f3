"""Fleet health: what is wrong now, which nodes, what the last runs and sweeps said, and whether those who say it are alive."""

from deploy.grafana.dashboard import NODE_PAGE, Board, Choice
from deploy.grafana.panels import (
    ANSWER_COLOURS,
    GOOD_IF_EMPTY,
    GREEN,
    GREY,
    LEVELS,
    ORANGE,
    RED,
    SEVERITIES,
    VERDICT_COLOURS,
    VERDICTS,
    Query,
    Row,
    lines,
    matrix,
    stat,
    table,
    timeline,
    values,
)
from deploy.grafana.queries import UP, fresh, level, q

_RUNS = 'command=~"$command"'
_OUTCOMES = {"measured": GREEN, "no report": RED, "not started": ORANGE, "gave way": "blue", "not submitted": GREY}
_STATUS = q("check_status", 'node=~"$node",verdict="%s"')
_ALL_STATUS = q("check_status", 'node=~"$node"')
_BAD_STATUS = q("check_status", 'node=~"$node",verdict=~"FAIL|UNKNOWN"')
_WORST = fresh("worst_finding", f'{_RUNS},verdict=~"FAIL|UNKNOWN|WARN"')
_JUDGED = q("run_completion_timestamp_seconds", 'command="agent",node=~"$node"')
_TEXTFILES = 'node_textfile_mtime_seconds{file=~".*preflight.*",cluster=~"$cluster"}'
_NODE_LINK = {"node": NODE_PAGE % "node"}

_SUMMARY = (
    stat(
        "Agents that answer",
        "Agents whose page holds their start time. An agent that is missing here says nothing about its node.",
        Query(f"count({q('agent_start_timestamp_seconds')})"),
        unit="none",
    ),
    stat(
        "Scrapes that fail",
        "Scrapes of jobs whose name contains preflight that fail now; what they told is no longer known. Unknown where there is no such job.",
        Query(f"count({UP} == 0) or 0 * count({UP})"),
        unit="none",
        steps=((0, GREEN), (1, RED)),
        alerts=("PreflightAgentDown", "PreflightExporterDown", "PreflightTargetsGone"),
    ),
    stat(
        "Nodes by last sweep",
        "Nodes by the verdict of the newest sweep that had them. UNKNOWN is neither healthy nor faulty.",
        Query(f"max by (verdict) ({q('scan_nodes')})", "{{verdict}}"),
        unit="none",
        width=6,
    ),
    stat(
        "Since the last sweep",
        "Time since a sweep of idle nodes ended. What a sweep said ages: nodes may have changed since. No colour, since sites begin sweeps at different intervals; the alert knows yours.",
        Query(f"time() - max({q('scan_completion_timestamp_seconds')})"),
        unit="s",
        alerts=("PreflightScanOverdue",),
    ),
    stat(
        "Last sweep",
        "Whether the last sweep was carried through. One that was not says nothing about the nodes.",
        Query(f"max({q('scan_failed')})"),
        unit="none",
        words=values({0: ("carried through", GREEN), 1: ("failed", RED)}),
        width=3,
        alerts=("PreflightScanFailed",),
    ),
    stat(
        "Pairs covered",
        "Share of the pairs of nodes that could be measured and were, lately enough. The rest is not known.",
        Query(f"min({q('scan_coverage_ratio')})"),
        unit="percentunit",
        width=3,
    ),
)

_ATTENTION = (
    table(
        "Firing alerts",
        f"Alerts of preflight that fire. {GOOD_IF_EMPTY} but only where the alert rules are loaded.",
        Query('ALERTS{alertname=~"Preflight.+",alertstate="firing",cluster=~"$cluster"}'),
        columns=("severity", "alertname", "node", "check", "other_node", "leaf", "other_leaf"),
        sort="severity",
        links=_NODE_LINK,
        words={"severity": SEVERITIES},
    ),
    table(
        "Worst findings of the last runs",
        f"The worst few findings of the last run of each command, if it ended within the time shown. A finding without a node accuses none. {GOOD_IF_EMPTY} the last runs found nothing.",
        Query(f"max by (command, verdict, check, subject, node) ({_WORST}) == 1"),
        columns=("verdict", "check", "subject", "node", "command"),
        sort="verdict",
        links=_NODE_LINK,
        words={"verdict": VERDICTS},
    ),
    table(
        "Checks that do not pass",
        "Checks of nodes whose worst verdict is FAIL or UNKNOWN, as the agents see their nodes. UNKNOWN: could not be found out. "
        f"{GOOD_IF_EMPTY} among the agents that answer.",
        Query(f"max by (node, check, verdict) ({_BAD_STATUS}) == 1"),
        columns=("node", "check", "verdict"),
        sort="verdict",
        links=_NODE_LINK,
        words={"verdict": VERDICTS},
        alerts=("PreflightCheckFailing", "PreflightCheckUnknown"),
    ),
    lines(
        "Checks by verdict",
        "Checks of all agents that answer, by their worst verdict. A fall of the total means that agents fell silent, not that nodes became better.",
        Query(f"sum by (verdict) ({_ALL_STATUS})", "{{verdict}}"),
        unit="none",
        stacked=True,
        colours=VERDICT_COLOURS,
    ),
)

_OVER_TIME = (
    timeline(
        "Nodes that were FAIL or UNKNOWN",
        "Worst verdict of each node's checks over time, for nodes that had a FAIL or UNKNOWN in this time. A gap: the agent did not answer. "
        f"{GOOD_IF_EMPTY} no node had one.",
        Query(
            f"{level(_STATUS, 'node')} and on (node) (max by (node) (max_over_time({_BAD_STATUS}[$__range] @ end())) == 1)",
            "{{node}}",
        ),
        LEVELS,
    ),
    lines(
        "Nodes by verdict of the sweeps",
        "Nodes by the verdict of the newest sweep that had them.",
        Query(f"max by (verdict) ({q('scan_nodes')})", "{{verdict}}"),
        unit="none",
        stacked=True,
        colours=VERDICT_COLOURS,
    ),
    lines(
        "Jobs of the sweeps by outcome",
        "Jobs of each sweep. Gave way: a job of a user needed the nodes.",
        Query(f"max by (outcome) ({q('scan_jobs')})", "{{outcome}}"),
        unit="none",
        stacked=True,
        colours=_OUTCOMES,
    ),
    lines(
        "Nodes drained by a sweep",
        "Nodes that each sweep drained.",
        Query(f"max({q('scan_drained_nodes')})", "drained"),
        unit="none",
    ),
    lines(
        "Duration of the sweeps",
        "How long each sweep took.",
        Query(f"max({q('scan_duration_seconds')})", "duration"),
        unit="s",
    ),
)

_RESULTS = (
    matrix(
        "Last runs by command and answer",
        "How many writers (one for each node for a prolog, one for a run) have which answer of their last run. Undecided is neither go nor no-go.",
        f"sum by (command, answer) ({q('run_answer', _RUNS)})",
        row="command",
        column="answer",
        unit="none",
        height=8,
    ),
    table(
        "Last run of each command",
        "When the newest run of each command ended, and the newest that said go. Unknown: none that said go is known.",
        Query(f"max by (command) ({q('run_completion_timestamp_seconds', _RUNS)}) * 1000", "ended", "dateTimeFromNow"),
        Query(f"max by (command) ({q('run_success_timestamp_seconds', _RUNS)}) * 1000", "last go", "dateTimeFromNow"),
        Query(f"max by (command) ({q('run_duration_seconds', _RUNS)})", "longest", "s"),
        columns=("command",),
        sort="command",
    ),
    matrix(
        "Findings of the last runs",
        "Findings by check and verdict, over the last run of each command and node.",
        f"sum by (check, verdict) ({q('findings', _RUNS)})",
        row="check",
        column="verdict",
        unit="none",
        sort="FAIL",
        height=10,
    ),
    lines(
        "Answers of the last runs",
        "How many writers have which answer of their last run. Many prologs that say no-go at once are rather one cause than many nodes.",
        Query(f"sum by (answer) ({q('run_answer', _RUNS)})", "{{answer}}"),
        unit="none",
        stacked=True,
        colours=ANSWER_COLOURS,
        height=10,
        alerts=("PreflightPrologsFailing",),
    ),
    lines(
        "Drains that prologs asked for",
        "What became of the drains that the last prolog of each node asked for. Braked: too many nodes at once, so this one was kept.",
        Query(f"sum by (result) ({q('run_drain', _RUNS)})", "{{result}}"),
        unit="none",
        stacked=True,
        width=24,
        height=6,
        alerts=("PreflightBrakeEngaged",),
    ),
)

_MACHINERY = (
    table(
        "Nodes judged longest ago",
        "Time since the agent of a node judged it, longest first. What it said then is not the node of now. Orange from half an hour on: six looks at the default of five minutes.",
        Query(f"topk(50, time() - max by (node) ({_JUDGED}))", "ago", "s", ((0, GREEN), (1800, ORANGE))),
        columns=("node",),
        sort="ago",
        descending=True,
        links=_NODE_LINK,
        width=6,
        height=6,
        alerts=("PreflightAgentStale",),
    ),
    table(
        "Versions of preflight",
        "What writes these figures. More than one version at a time: a change is under way, or was left half done.",
        Query(f"count by (version, python) ({q('build_info')})", "pages"),
        columns=("version", "python"),
        sort="version",
        width=6,
        height=6,
    ),
    table(
        "Pages that could not be gathered",
        f"Agents and exporters that could not read all that they show; figures that they lack are unknown. {GOOD_IF_EMPTY} among those that answer.",
        Query(f"{q('collector_success')} == 0"),
        columns=("instance", "job"),
        sort="instance",
        width=6,
        height=6,
        alerts=("PreflightCollectorBroken",),
    ),
    table(
        "Metrics left out",
        f"Pages and files that would have become too large, and how many metrics they left out. {GOOD_IF_EMPTY} all were written.",
        Query(f"{q('families_withheld')} > 0", "metrics"),
        columns=("instance", "command", "node"),
        sort="metrics",
        descending=True,
        width=6,
        height=6,
    ),
    table(
        "Age of text files",
        "Files of preflight that node_exporter reads, oldest first. A file that is no longer written shows the past.",
        Query(f"topk(50, time() - {_TEXTFILES})", "age", "s"),
        columns=("instance", "file"),
        sort="age",
        descending=True,
        width=8,
        height=6,
        alerts=("PreflightTextfileStale",),
    ),
    lines(
        "Requests that agents answered",
        "Requests per second over all agents, by status code.",
        Query(f"sum by (code) (rate({q('agent_requests_total')}[$__rate_interval]))", "{{code}}"),
        unit="reqps",
        width=8,
        height=6,
    ),
    lines(
        "Time to gather a page",
        "The slowest agent or exporter, by job.",
        Query(f"max by (job) ({q('collector_duration_seconds')})", "{{job}}"),
        unit="s",
        width=8,
        height=6,
    ),
)

FLEET = Board(
    uid="preflight-fleet",
    title="preflight: fleet health",
    text="What is wrong now, on which nodes, what runs and sweeps said, and whether those who say it are alive.",
    choices=(
        Choice("command", "command", q("run_completion_timestamp_seconds"), many=True, text="Commands of preflight."),
        Choice("node", "node", q("check_status"), many=True, text="Nodes that an agent judges."),
    ),
    rows=(
        Row("Now", _SUMMARY),
        Row("What needs somebody", _ATTENTION),
        Row("Over time", _OVER_TIME),
        Row("Runs and prologs", _RESULTS),
        Row("Those who measure", _MACHINERY, closed=True),
    ),
)
