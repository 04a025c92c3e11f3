"""What two runs differ in beside their results: versions, variables, NCCL's settings, software and GPUs of nodes, plan, placement, rules (pure). What only one of them tells is told as such."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from preflight.model import Plan, Report
from preflight.model.hostlist import fold
from preflight.model.node_facts import facts_of
from preflight.report.difference import SetupChange

MAX_TEXT = 200  # characters of a value
NOT_OURS = {"source"}  # where the plan file lay


def compare_setup(before: Report, after: Report) -> tuple[SetupChange, ...]:
    """Everything that differs, the plan first."""
    return (
        *_plan(before.evidence.plan, after.evidence.plan),
        *_placement(before.evidence.plan, after.evidence.plan),
        *_named("settings", _settings(before), _settings(after)),
        *_named("version", before.environment.versions, after.environment.versions),
        *_named("variable", before.environment.variables, after.environment.variables),
        *_named("NCCL", _nccl(before), _nccl(after)),
        *_of_nodes(before, after),
        *_named("rules", _flat(before.evidence.rules), _flat(after.evidence.rules)),
    )


def nodes_apart(before: Report, after: Report) -> list[str]:
    """Nodes that only one run had."""
    old, new = _nodes(before), _nodes(after)
    if not old or not new:
        return []
    apart = (("first", tuple(n for n in old if n not in new)), ("second", tuple(n for n in new if n not in old)))
    return [f"only the {name} run had {fold(nodes)} ({len(nodes)} nodes)" for name, nodes in apart if nodes]


def _nodes(report: Report) -> dict[str, None]:
    plan, inventory = report.evidence.plan, report.evidence.inventory
    return dict.fromkeys(
        (*(plan.placement.nodes if plan else ()), *(n.name for n in (inventory.nodes if inventory else ())))
    )


def _named(kind: Any, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[SetupChange]:
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            yield SetupChange(kind=kind, name=name, before=_short(old.get(name)), after=_short(new.get(name)))


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."


def _settings(report: Report) -> dict[str, str]:
    settings = report.evidence.settings
    return {"backend": settings.backend} if settings.backend else {}


def _plan(old: Plan | None, new: Plan | None) -> Iterator[SetupChange]:
    if old is None or new is None:
        if (old is None) != (new is None):
            told = [None if plan is None else "given" for plan in (old, new)]
            yield SetupChange(kind="plan", name="plan", before=told[0], after=told[1])
        return
    flat = [
        {
            **_flat(plan.job),
            "ranks": str(plan.world_size),
            "order": "-".join(plan.order),
            **{f"degree of {a}": str(d) for a, d in plan.degrees.items()},
        }
        for plan in (old, new)
    ]
    yield from _named("plan", *flat)


def _flat(value: object, path: str = "") -> dict[str, str]:
    """Nested settings as "parallel.tp" -> "8"; what is not known is left out."""
    inner: dict[str, object] | None = None
    if isinstance(value, msgspec.Struct):
        inner = {name: getattr(value, name) for name in value.__struct_fields__}
    elif isinstance(value, dict):
        inner = {str(name): each for name, each in value.items()}
    if inner is None:
        return {} if value is None else {path: str(value)}
    return {
        name: text
        for key, each in inner.items()
        if path or key not in NOT_OURS
        for name, text in _flat(each, f"{path}.{key}" if path else key).items()
    }


def _placement(old: Plan | None, new: Plan | None) -> Iterator[SetupChange]:
    """How many ranks sit elsewhere, with the first of them."""
    if old is None or new is None:
        return
    places = [
        [
            (plan.placement.nodes[node], slot)
            for node, slot in zip(plan.placement.node_ranks, plan.placement.local_ranks, strict=True)
        ]
        for plan in (old, new)
    ]
    moved = [rank for rank, (was, now) in enumerate(zip(*places, strict=False)) if was != now]
    if moved:
        was, now = (f"{node} GPU {slot}" for node, slot in (places[0][moved[0]], places[1][moved[0]]))
        name = f"rank {moved[0]}" + (f", and {len(moved) - 1} more ranks" if len(moved) > 1 else "")
        yield SetupChange(kind="placement", name=name, before=was, after=now)
    methods = [plan.placement.method for plan in (old, new)]
    if methods[0] != methods[1]:
        yield SetupChange(kind="placement", name="method", before=methods[0], after=methods[1])


def _nccl(report: Report) -> dict[str, str]:
    """What NCCL said of itself: versions, networks, settings in force; each value once."""
    found: dict[str, set[str]] = defaultdict(set)
    for measurement in report.evidence.measurements or ():
        for told in measurement.transports:
            for name, value in (("version", told.version), ("network", told.network), *told.settings.items()):
                if value is not None:
                    found[name].add(value)
    return {name: ", ".join(sorted(values)) for name, values in found.items()}


def _of_nodes(before: Report, after: Report) -> Iterator[SetupChange]:
    """Software of nodes and GPUs in their places, of what both runs tell; equal changes of many nodes as one."""
    old, new = facts_of(before.evidence), facts_of(after.evidence)
    changes: dict[tuple[str, str, str], list[str]] = {}
    for node in old.keys() & new.keys():
        was, now = old[node].software, new[node].software
        for name in was.keys() & now.keys():
            if was[name] != now[name]:
                changes.setdefault((name, was[name], now[name]), []).append(node)
    for (name, was_text, now_text), nodes in sorted(changes.items()):
        yield SetupChange(kind="software", name=name, before=was_text, after=now_text, nodes=fold(nodes))
    for node in sorted(old.keys() & new.keys()):
        gpus, later = old[node].gpus, new[node].gpus
        for slot in sorted(gpus.keys() & later.keys(), key=lambda text: (len(text), text)):
            if gpus[slot] != later[slot]:
                yield SetupChange(
                    kind="GPU", name=f"{node} GPU {slot}", before=gpus[slot], after=later[slot], nodes=node
                )
