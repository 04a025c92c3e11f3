"""A plan with its findings, as text for a person and as the document `preflight.plan/1`. Nothing was measured for either."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from preflight.model import Answer, Finding, Plan
from preflight.model.hostlist import fold, fold_numbers, natural_key
from preflight.report.estimate import estimate_lines
from preflight.report.text import clean, columns, hang, in_reading_order

SCHEMA = "preflight.plan/1"
MAX_RUNS = 8  # of nodes out of their natural order
MANY_RANKS = 16384
SHARE_DIGITS = 4  # of the two bubble figures: 0.0938


def plan_document(plan: Plan, findings: Sequence[Finding], answer: Answer) -> dict[str, Any]:
    """The document, of plain dicts and lists; unknown is null."""
    return {
        "schema": SCHEMA,
        "answer": answer,
        "source": plan.job.source,
        "fingerprint": plan.fingerprint,
        "world_size": plan.world_size,
        "degrees": {axis: plan.degrees[axis] for axis in in_reading_order(plan.degrees)},
        "order": "-".join(plan.order),
        "placement": _placement(plan),
        "estimate": _estimate(plan),
        "groups": {axis: plan.groups[axis] for axis in in_reading_order(plan.groups)},
        "composite_groups": plan.composites,
        "findings": [_finding(finding) for finding in findings],
    }


def plan_json(document: dict[str, Any]) -> Iterator[bytes]:
    """The document as JSON (ASCII) in parts, indented for people, but each group on one line; from MANY_RANKS on, which nobody reads, all groups of an axis."""
    lists = ("groups", "composite_groups")
    between = b"],[" if document["world_size"] >= MANY_RANKS else b"],\n   ["
    rest = msgspec.json.format(msgspec.json.encode({k: v for k, v in document.items() if k not in lists}), indent=1)
    yield rest[:-2]  # without the end of the object
    for name in lists:
        yield f',\n "{name}": {{'.encode()
        for number, (axis, groups) in enumerate(document[name].items()):
            yield f'{"," if number else ""}\n  "{axis}": [\n   '.encode()
            lines = msgspec.json.encode(groups)
            yield (lines if between == b"],[" else lines.replace(b"],[", between))[1:-1]
            yield b"\n  ]"
        yield b"\n }"
    yield b"\n}\n"


def plan_text(plan: Plan, *, width: int = 100) -> str:
    """Layout, groups and estimate as tables; the findings and the answer are the caller's."""
    placement = _placement(plan)
    shown = " or ".join(map(str, sorted(set(plan.placement.ranks_per_node), reverse=True)))
    size = f"{plan.world_size} ranks on {placement['num_nodes']} node{'s' if placement['num_nodes'] != 1 else ''} x {shown}"
    lines = [
        f"plan {clean(plan.job.source)}: {size}, {plan.job.parallel.framework} order {'-'.join(plan.order)}",
        f"placement {placement['source']}, {clean(placement['method'])}: {clean(_by_node_rank(plan.placement.nodes))}",
    ]
    if plan.placement.doubt:
        lines += hang("not certain: ", plan.placement.doubt, width=width)
    if plan.fingerprint:
        lines.append(f"fingerprint {plan.fingerprint}")
    lines += ["", "Groups"]
    rows = [["axis", "first group", "degree", "groups", "nodes per group", "NVLink domains per group"]]
    rows += [_axis_row(plan, axis) for axis in in_reading_order(plan.groups)]
    if len(rows) > 1:
        lines += [*columns(rows, left=2), f"  domains: {clean(plan.placement.domain_source)}"]
    else:
        lines.append("  none: every axis has degree 1")
    lines += ["", *estimate_lines(plan, width=width)]
    return "".join(f"{line}\n" for line in lines)


def _by_node_rank(nodes: Sequence[str]) -> str:
    """The nodes folded, in the order of their ranks: "n[0-1,10-11,2-9]" would read as sorted, so it is "n[0-1],n[10-11],n[2-9]"."""
    if list(nodes) == sorted(nodes, key=natural_key):
        return fold(nodes)
    runs: list[list[str]] = []
    for name in nodes:
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    return ",".join(map(fold, runs[:MAX_RUNS])) + (f",... ({len(nodes)} nodes)" if len(runs) > MAX_RUNS else "")


def _follows(before: str, name: str) -> bool:
    """Whether two names differ in their last number alone, by one: n9, n10."""
    one, two = (re.fullmatch(r"(.*?)(\d{1,18})", text) for text in (before, name))
    return one is not None and two is not None and one[1] == two[1] and int(two[2]) == int(one[2]) + 1


def _axis_row(plan: Plan, axis: str) -> list[str]:
    groups, footprint = plan.groups[axis], plan.footprints[axis]
    size = len(groups[0])
    first = fold_numbers(groups[0]) if size <= 8 or _consecutive(groups[0]) else _in_steps(groups[0])
    domains = {*footprint.domains}
    unknown = "?" if 0 in domains else ""
    return [
        axis,
        first,
        str(size),
        str(len(groups)),
        fold_numbers(footprint.nodes),
        ",".join(part for part in (fold_numbers(domains - {0}) if domains - {0} else "", unknown) if part),
    ]


def _consecutive(ranks: Sequence[int]) -> bool:
    return ranks[-1] - ranks[0] == len(ranks) - 1


def _in_steps(ranks: Sequence[int]) -> str:
    return f"{ranks[0]},{ranks[1]},...,{ranks[-1]}"


def _placement(plan: Plan) -> dict[str, Any]:
    placement = plan.placement
    return {
        "source": placement.source,
        "method": placement.method,
        "doubt": placement.doubt,
        "num_nodes": len(placement.nodes),
        "ranks_per_node": max(placement.ranks_per_node),
        "nodes": fold(placement.nodes),
        "domains": placement.domain_source,
    }


def _estimate(plan: Plan) -> dict[str, Any]:
    document: dict[str, Any] = {
        name: msgspec.to_builtins(getattr(plan.estimate, name)) for name in plan.estimate.__struct_fields__
    }
    if plan.estimate.memory is not None:
        document["memory"]["total_bytes"] = plan.estimate.memory.total_bytes
    for name in ("bubble_overhead", "bubble_idle_share"):
        if document[name] is not None:
            document[name] = round(document[name], SHARE_DIGITS)
    number = document["tp_collectives_per_stage_forward"]
    if number is not None and number == int(number):
        document["tp_collectives_per_stage_forward"] = int(number)
    return document


def _finding(finding: Finding) -> dict[str, Any]:
    """All of it, empty texts included, so that a reader needs no defaults."""
    return {name: msgspec.to_builtins(getattr(finding, name)) for name in finding.__struct_fields__}
