"""One command's last run: its answer and why, what it measured of what it planned, the groups of the job, and how the runs before it went."""

from deploy.grafana.dashboard import NODE_PAGE, Board, Choice
from deploy.grafana.panels import (
    ANSWER_COLOURS,
    GOOD_IF_EMPTY,
    GREEN,
    ORANGE,
    VERDICT_COLOURS,
    VERDICTS,
    Query,
    Row,
    bars,
    lines,
    low_is_bad,
    matrix,
    stat,
    table,
    values,
)
from deploy.grafana.queries import q

_RUN = 'command="$command"'
_GROUP = "axis, collective, message_size"
_PLANNED = (
    ("pairs", "pairs"),
    ("groups", "groups"),
    ("links", "ways of GPUs out of their nodes"),
    ("uplinks", "ways of leaves to other leaves"),
    ("leaf_pairs", "pairs of leaves"),
)
_MODES = ("alone", "together", "mixed", "skewed")


def _group(figure: str, mode: str) -> Query:
    name = f"group_bus_bandwidth_{figure}_bytes_per_second"
    matchers = f'mode="{mode}"'
    return Query(f"min by ({_GROUP}) ({q(name, matchers)})", f"{figure} {mode}", "Bps")


def _share(name: str) -> str:
    """Measured over planned; nothing where nothing was planned."""
    return f"sum({q(f'{name}_measured', _RUN)}) / (sum({q(f'{name}_planned', _RUN)}) > 0)"


_SUMMARY = (
    stat(
        "Answer",
        "How many writers have which answer of their last run of this command: one for a run, one for each node for a prolog. Undecided is neither go nor no-go.",
        Query(f"sum by (answer) ({q('run_answer', _RUN)})", "{{answer}}"),
        unit="none",
        width=8,
        alerts=("PreflightPrologsFailing",),
    ),
    stat(
        "Ended",
        "Time since the newest run of this command ended. What it said ages.",
        Query(f"time() - max({q('run_completion_timestamp_seconds', _RUN)})"),
        unit="s",
    ),
    stat(
        "Last go",
        "Time since a run of this command said go. Unknown: none is known.",
        Query(f"time() - max({q('run_success_timestamp_seconds', _RUN)})"),
        unit="s",
    ),
    stat(
        "Took",
        "Wall time of the last run; the longest where each node has its own.",
        Query(f"max({q('run_duration_seconds', _RUN)})"),
        unit="s",
    ),
    stat(
        "Plan",
        "Whether the last run ended before its plan was done. What it left out is not known.",
        Query(f"max({q('run_partial', _RUN)})"),
        unit="none",
        words=values({0: ("all of it", GREEN), 1: ("in part", ORANGE)}),
    ),
)

_WHY = (
    table(
        "Worst findings",
        f"The worst few findings of the last run. A finding without a node accuses none. {GOOD_IF_EMPTY} the last run found nothing.",
        Query(f"max by (verdict, check, subject, node) ({q('worst_finding', _RUN)}) == 1"),
        columns=("verdict", "check", "subject", "node"),
        sort="verdict",
        words={"verdict": VERDICTS},
        links={"node": NODE_PAGE % "node"},
        width=14,
        height=10,
    ),
    matrix(
        "Findings by check and verdict",
        "How many findings of each verdict each check gave.",
        f"sum by (check, verdict) ({q('findings', _RUN)})",
        row="check",
        column="verdict",
        unit="none",
        sort="FAIL",
        width=10,
        height=10,
    ),
)

_MEASURED = (
    bars(
        "Measured of what was planned",
        "Share of what the last run meant to measure. The rest is not known, which is not the same as healthy. A kind that is missing was not planned.",
        Query(
            " or ".join(f'label_replace({_share(name)}, "part", "{words}", "", "")' for name, words in _PLANNED),
            "{{part}}",
        ),
        unit="percentunit",
    ),
    bars(
        "Time by phase",
        "Wall time of each phase of the last run.",
        Query(f"max by (phase) ({q('run_phase_duration_seconds', _RUN)})", "{{phase}}"),
        unit="s",
    ),
    bars(
        "Time by check",
        "Time that each check took to judge, longest first.",
        Query(f"sort_desc(topk(15, max by (check) ({q('check_duration_seconds', _RUN)})))", "{{check}}"),
        unit="s",
    ),
    stat(
        "Incidents",
        "Agents and workers that failed in the last run.",
        Query(f"sum({q('run_incidents', _RUN)})"),
        unit="none",
        steps=((0, GREEN), (1, ORANGE)),
    ),
    stat(
        "Cluster",
        "Whether the last run was on a modelled cluster.",
        Query(f"max({q('run_simulated', _RUN)})"),
        unit="none",
        words=values({0: ("real", GREEN), 1: ("SIMULATED", ORANGE)}),
    ),
    table(
        "Ran on",
        "Backend of the last run, by where it was written.",
        Query(f"max by (backend, instance) ({q('run_info', _RUN)})"),
        columns=("backend", "instance"),
        width=8,
        height=4,
    ),
    table(
        "Versions",
        "Versions that the last run used. More than one of a component: nodes differ, or files are of several runs.",
        Query(f"count by (component, version) ({q('version_info', _RUN)})", "writers"),
        columns=("component", "version"),
        sort="component",
        width=8,
        height=4,
    ),
)

_GROUPS = (
    table(
        "Groups of the job",
        "Bus bandwidth by axis, collective and size in bytes: the slowest group alone, with all groups of the axis at once, mixed with other axes, with a skewed split. Empty: not measured. Of the last run that had groups, whichever command it was.",
        *(_group("minimum", mode) for mode in _MODES),
        columns=("axis", "collective", "message_size"),
        sort="axis",
        width=24,
    ),
    table(
        "Median group",
        "The same, for the median group. Slowest far below median: one group is slow; both low: all are.",
        *(_group("median", mode) for mode in _MODES[:2]),
        columns=("axis", "collective", "message_size"),
        sort="axis",
    ),
    table(
        "Contention",
        "Bus bandwidth together over alone, of the group of each axis that loses most; 100 % is no contention.",
        Query(
            f"min by ({_GROUP}) ({q('group_contention_minimum_ratio')})",
            "together / alone",
            "percentunit",
            low_is_bad(0.5, 0.8),
        ),
        columns=("axis", "collective", "message_size"),
        sort="together / alone",
    ),
)

_BEFORE = (
    lines(
        "Answers over time",
        "How many writers have which answer of their last run of this command.",
        Query(f"sum by (answer) ({q('run_answer', _RUN)})", "{{answer}}"),
        unit="none",
        stacked=True,
        colours=ANSWER_COLOURS,
    ),
    lines(
        "Findings over time",
        "Findings of the last run by verdict.",
        Query(f"sum by (verdict) ({q('findings', _RUN)})", "{{verdict}}"),
        unit="none",
        stacked=True,
        colours=VERDICT_COLOURS,
    ),
    lines(
        "Groups over time",
        "Bus bandwidth of the slowest group of each axis, with all groups of the axis at once.",
        Query(_group("minimum", "together").expr, "{{axis}} {{collective}} {{message_size}}"),
        unit="Bps",
    ),
    lines(
        "Duration over time",
        "Wall time of each run; the longest where each node has its own.",
        Query(f"max({q('run_duration_seconds', _RUN)})", "duration"),
        unit="s",
    ),
)

RUN = Board(
    uid="preflight-run",
    title="preflight: run",
    text="The last run of one command: its answer and why, what it measured of what it planned, the groups of the job, and how the runs before it went.",
    choices=(
        Choice("command", "command", q("run_completion_timestamp_seconds"), many=False, text="Commands of preflight."),
    ),
    rows=(
        Row("Answer", _SUMMARY),
        Row("Why", _WHY),
        Row("What was measured", _MEASURED),
        Row("Groups", _GROUPS),
        Row("Before", _BEFORE),
    ),
)
