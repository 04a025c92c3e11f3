"""A plan with its findings, as text for a person and as the document `preflight.plan/1`. Nothing was measured for either."""

from collections.abc import Sequence
from typing import Any

import msgspec

from preflight.model import AXES, Answer, Finding, Plan
from preflight.model.hostlist import fold, fold_numbers
from preflight.model.units import show_bytes
from preflight.report.text import clean, columns

SCHEMA = "preflight.plan/1"
SHARE_DIGITS = 4  # of the two bubble figures: 0.0938


def plan_document(plan: Plan, findings: Sequence[Finding], answer: Answer) -> dict[str, Any]:
    """The document, of plain dicts and lists; unknown is null."""
    return {
        "schema": SCHEMA,
        "answer": answer,
        "source": plan.job.source,
        "world_size": plan.world_size,
        "degrees": {axis: plan.degrees[axis] for axis in AXES if axis in plan.degrees},
        "order": "-".join(plan.order),
        "placement": _placement(plan),
        "estimate": _estimate(plan),
        "groups": {axis: plan.groups[axis] for axis in AXES if axis in plan.groups},
        "findings": [_finding(finding) for finding in findings],
    }


def plan_text(plan: Plan) -> str:
    """Layout, groups and estimate as tables; the findings and the answer are the caller's."""
    placement = _placement(plan)
    size = f"{plan.world_size} ranks on {placement['num_nodes']} nodes x {placement['ranks_per_node']}"
    lines = [
        f"plan {clean(plan.job.source)}: {size}, order {'-'.join(plan.order)}",
        f"placement {placement['source']}, {placement['method']}: {clean(placement['nodes'])}",
        "",
        "Groups",
    ]
    rows = [["axis", "first group", "degree", "groups", "nodes per group"]]
    rows += [_axis_row(plan, axis) for axis in AXES if axis in plan.groups]
    lines += columns(rows, left=2) if len(rows) > 1 else ["  none: every axis has degree 1"]
    lines += ["", "Estimate", *columns(_estimate_rows(plan), left=2)]
    return "".join(f"{line}\n" for line in lines)


def _axis_row(plan: Plan, axis: str) -> list[str]:
    groups = plan.groups[axis]
    touched = sorted({len(plan.placement.nodes_of(ranks)) for ranks in groups})
    first = fold_numbers(groups[0]) if len(groups[0]) <= 8 or _consecutive(groups[0]) else _in_steps(groups[0])
    return [axis, first, str(plan.degrees[axis]), str(len(groups)), fold_numbers(touched)]


def _consecutive(ranks: Sequence[int]) -> bool:
    return ranks[-1] - ranks[0] == len(ranks) - 1


def _in_steps(ranks: Sequence[int]) -> str:
    return f"{ranks[0]},{ranks[1]},...,{ranks[-1]}"


def _estimate_rows(plan: Plan) -> list[list[str]]:
    """What is known, a row each: name, figure with its formula."""
    estimate, degrees = plan.estimate, plan.degrees
    rows = []
    if estimate.state_bytes_per_gpu is not None:
        state = f"{show_bytes(estimate.state_bytes_per_gpu)} per GPU (16 bytes x parameters / (tp x pp))"
        rows.append(["training state", state])
    if estimate.gpu_memory_bytes is not None and estimate.free_bytes_per_gpu is not None:
        free = f"{show_bytes(estimate.free_bytes_per_gpu)} of {show_bytes(estimate.gpu_memory_bytes)}"
        rows.append(["left for the rest", free])
    else:
        rows.append(["left for the rest", "unknown: the plan file doesn't tell the memory of a GPU"])
    if degrees["pp"] > 1:
        idle, overhead = estimate.bubble_idle_share, estimate.bubble_overhead
        if idle is None or overhead is None:
            bubble = "unknown: the number of micro-batches is not given"
        else:
            bubble = f"{idle:.1%} of the time idle, {overhead:.1%} over the ideal time ({estimate.micro_batches} micro-batches)"
        rows.append(["pipeline bubble", bubble])
    if degrees["tp"] > 1 and estimate.tp_collectives_per_stage_forward is not None:
        number = f"{estimate.tp_collectives_per_stage_forward:g} per stage and forward pass of a micro-batch"
        rows.append(["tp collectives", number])
    sizes = estimate.message_bytes
    rows += [[f"{axis} message", show_bytes(sizes[axis])] for axis in AXES if axis in sizes]
    return rows


def _placement(plan: Plan) -> dict[str, Any]:
    per_node: dict[str, int] = {}
    for rank in plan.placement.ranks:
        per_node[rank.node] = per_node.get(rank.node, 0) + 1
    return {
        "source": plan.placement.source,
        "method": plan.placement.method,
        "num_nodes": len(per_node),
        "ranks_per_node": max(per_node.values()),
        "nodes": fold(per_node),
    }


def _estimate(plan: Plan) -> dict[str, Any]:
    document = {name: getattr(plan.estimate, name) for name in plan.estimate.__struct_fields__}
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
