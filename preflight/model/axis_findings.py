"""The findings about one axis whose groups should lie inside one NVLink domain each: tp, cp and ep are judged alike (pure)."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from preflight.model.crossing import cost_of, cost_text, span_text, subject_of, where_text
from preflight.model.domains import AxisDomains, Domains, State
from preflight.model.evidence import Evidence
from preflight.model.finding import Finding, Verdict
from preflight.model.hostlist import fold
from preflight.model.plan import NODE_IN_DOUBT
from preflight.model.together import Remedy, keep_together

# groups of one state that get a finding of their own; a job of 131,072 ranks has 16,384 tp groups
MAX_SHOWN = 8
MAX_SHOWN_ALIKE = (
    1  # where it is only a warning and all groups of the axis cross alike, as experts over nodes do by design
)

Amend = Callable[[Remedy], str]


class Question(NamedTuple):
    """What a check asks: its name, the axis, the domains, the verdict for a group that leaves its domain, and what it adds to the remedy."""

    check: str
    axis: str
    domains: Domains
    crossing: Verdict
    amend: Amend

    def shown(self, states: AxisDomains) -> int:
        """How many groups of one state get a finding of their own."""
        footprint = self.domains.plan.footprints.get(self.axis)
        everywhere = footprint is not None and len(states.apart) == len(self.groups) > MAX_SHOWN
        alike = everywhere and footprint is not None and len(set(footprint.nodes)) == len(set(footprint.domains)) == 1
        return MAX_SHOWN_ALIKE if alike and self.crossing is Verdict.WARN else MAX_SHOWN

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The groups of the axis."""
        return self.domains.plan.groups[self.axis]

    def verdict(self, state: State) -> Verdict:
        """What a state of a group means."""
        doubt = self.crossing is Verdict.FAIL and self.domains.note == NODE_IN_DOUBT
        return {
            "apart": Verdict.UNKNOWN if doubt else self.crossing,
            "pcie": Verdict.WARN,  # slow, but it does not leave the node: someone should look, the job may run
            "unknown": Verdict.UNKNOWN,
            "inside": Verdict.PASS,
        }[state]

    def note(self) -> str:
        """The assumption behind the domains, in brackets; empty where they were measured."""
        return f" ({self.domains.note})" if self.domains.note else ""


def judge_axis(
    evidence: Evidence, *, check: str, axis: str, crossing: Verdict, amend: Amend = lambda change: change.text
) -> Iterator[Finding]:
    """One finding for each of the first groups that are not inside one domain and one for the rest of them; of the groups inside each its own if they
    are few, else one for all. `crossing`: the verdict for a group that leaves its domain; `amend`: the text of its remedy.
    """
    domains = Domains.of(evidence)
    if domains is None or axis not in domains.plan.groups:
        return
    asked = Question(check, axis, domains, crossing, amend)
    states = domains.along(axis)
    by_state: dict[State, tuple[int, ...]] = {
        "apart": states.apart,
        "pcie": states.pcie,
        "unknown": states.unknown,
        "inside": states.inside if len(states.inside) <= MAX_SHOWN else (),
    }
    shown = asked.shown(states)
    alone = sorted((index, state) for state, indexes in by_state.items() for index in indexes[:shown])
    for index, state in alone:
        yield _judge_one(asked, index, state)
    for state, indexes in by_state.items():
        if indexes[shown:]:
            yield _judge_rest(asked, indexes[shown:], state, like=indexes[0])
    if len(states.inside) > MAX_SHOWN:
        observed = f"{len(states.inside)} groups, each in one NVLink domain{asked.note()}"
        yield _finding(asked, states.inside, "inside", observed)


def _judge_one(asked: Question, index: int, state: State) -> Finding:
    domains, ranks = asked.domains, asked.groups[index]
    where = where_text(domains.plan, ranks, domains)
    if state == "inside":
        return _finding(asked, [index], state, f"{where}: one NVLink domain{asked.note()}")
    if state == "unknown":
        placement = domains.plan.placement
        nodes = fold({placement.nodes[placement.node_ranks[r]] for r in ranks if domains.of_rank(r) is None})
        if domains.note:
            remedy = f"complete the topology file: it doesn't tell the domain of {nodes}"
        else:
            remedy = f"run `preflight node` on {nodes} to see why NVML does not tell"
        return _finding(asked, [index], state, f"{where}: NVLink domain not known on {nodes}{asked.note()}", remedy)
    if state == "pcie":
        observed = f"{where}: NVLink does not join all of these GPUs, so they talk over PCIe"
        remedy = f"use GPUs that NVLink joins, or lower {asked.axis} below {len(ranks)}"
        return _finding(asked, [index], state, observed, remedy)
    change = keep_together(domains, asked.axis, ranks)
    joined = "whether NVLink joins them is not known" if domains.note == NODE_IN_DOUBT else "no NVLink between them"
    observed = f"{where}: {joined}{asked.note()}{_cost(asked, index)}"
    return _finding(asked, [index], state, observed, change)


def _judge_rest(asked: Question, rest: Sequence[int], state: State, *, like: int) -> Finding:
    """All groups of one state beyond the first few, together. `like`: a group of that state with a finding of its own."""
    plan = asked.domains.plan
    footprint = plan.footprints.get(asked.axis)
    span = ""
    if footprint is not None:
        span = f", each on {span_text(_chosen(footprint.nodes, rest), 'node')}"
        numbers = _chosen(footprint.domains, rest)
        if state == "apart" and plan.placement.domains is not None and all(numbers):
            span += f" in {span_text(numbers, 'NVLink domain')}"
    alike = {"apart": "no NVLink between them", "pcie": "they talk over PCIe"}.get(state, "NVLink domain not known")
    observed = f"{len(rest)} more groups of {len(asked.groups[rest[0]])} ranks{span}: {alike}{asked.note()}"
    first = f"as for {subject_of(asked.axis, [like])}"
    if state != "apart":
        return _finding(asked, rest, state, observed, first)
    change = keep_together(asked.domains, asked.axis, asked.groups[rest[0]])
    return _finding(
        asked, rest, state, observed + _cost(asked, rest[0]), change._replace(text=f"{first}: {change.text}")
    )


def _chosen(numbers: Sequence[int], indexes: Sequence[int]) -> set[int]:
    """The different numbers at these ascending places."""
    first, last = indexes[0], indexes[-1] + 1
    return set(numbers[first:last] if last - first == len(indexes) else [numbers[index] for index in indexes])


def _cost(asked: Question, index: int) -> str:
    text = cost_text(cost_of(asked.domains, asked.axis, asked.groups[index]))
    return f"; {text}" if text else ""


def _finding(
    asked: Question, indexes: Sequence[int], state: State, observed: str, change: Remedy | str = ""
) -> Finding:
    return Finding(
        check=asked.check,
        subject=subject_of(asked.axis, indexes),
        verdict=asked.verdict(state),
        observed=observed,
        expected=f"all {len(asked.groups[indexes[0]])} ranks in one NVLink domain"
        + ("" if state == "pcie" else asked.note()),
        remedy=change if isinstance(change, str) else asked.amend(change),
        blames=None if isinstance(change, str) else change.blames,
    )


def worst_allowed(evidence: Evidence, check: str, default: Verdict) -> Verdict:
    """The verdict for what this check dislikes: its default, or FAIL where the plan file says severity "fail" for it."""
    rule = evidence.plan.job.rules.get(check) if evidence.plan else None
    return Verdict.FAIL if rule is not None and rule.severity == "fail" else default
