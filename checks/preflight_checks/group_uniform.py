"""No group of the job mixes classes: each sits on GPUs of one product and memory, on nodes of one driver and one NCCL.

A partition of several kinds is no fault, and ranks of different groups may sit on different kinds. Inside one group the slowest member sets the pace of every
collective, unlike products register different NVLink and GDR capabilities, and NCCL versions that differ refuse each other or hang.
Source: NCCL user guide (all ranks of a communicator run the same version); uniformity checks of cluster-health-scanner, cvs and gcm, which compare whole allocations.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from preflight.model import Check, Evidence, Finding, Gpu, Node, Part, Plan, Verdict
from preflight.model.classes import classify, join_near
from preflight.model.crossing import ranks_text, shortened, subject_of
from preflight.model.hostlist import fold
from preflight.model.units import show_bytes

NAME = "group_uniform"

# Drivers reserve differently much of the same product's memory, below 1 %; the next smaller product has 15 % less or more.
LIMITS = {"memory_tolerance_ratio": 0.02}

ALIKE = "one class of GPUs, one driver and one NCCL in each group"
_MAX_CLASSES = 4  # that one sentence lists


class _Fact(NamedTuple):
    """The value of each rank, None where unknown. `owed`: not to know it leaves the question open. `of_node`: nodes have it, so that one may be the odd one out."""

    label: str
    values: Sequence[Hashable | None]
    owed: bool
    of_node: bool


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One FAIL for each fact and axis with groups that mix, one UNKNOWN for nodes that don't tell a fact, and one PASS if no group mixes."""
    assert evidence.plan is not None
    assert evidence.inventory is not None
    plan = evidence.plan
    if evidence.settings.cpu_declared or not plan.groups:
        return
    by_name = {node.name: node for node in evidence.inventory.nodes}
    nodes = [by_name.get(name) for name in plan.placement.nodes]
    if not any(node is not None and node.gpus for node in nodes):
        return  # nothing to compare: gpu_count says what is missing
    mixed = False
    notes = []
    for fact in _facts(plan, nodes, evidence.limits(NAME, LIMITS)["memory_tolerance_ratio"]):
        yield from _unknown(plan, fact)
        known = dict.fromkeys(value for value in fact.values if value is not None)
        if len(known) > 1:
            found = list(_judge_fact(plan, fact))
            yield from found
            mixed = mixed or bool(found)
            notes += [] if found else [f"{len(known)} kinds of {fact.label}, no group mixes them"]
        elif known:
            notes.append(f"{fact.label} {next(iter(known))}")
    if notes and not mixed:
        yield Finding(check=NAME, subject="groups", verdict=Verdict.PASS, observed="; ".join(notes), expected=ALIKE)


def _facts(plan: Plan, nodes: Sequence[Node | None], tolerance_ratio: float) -> Iterator[_Fact]:
    gpus = _gpus(plan, nodes)
    sizes = [gpu.memory_bytes if gpu else None for gpu in gpus]
    near = join_near((size for size in sizes if size is not None), tolerance_ratio)
    shown = {size: show_bytes(near[size]) for size in near}
    places = plan.placement.node_ranks
    drivers = [node.driver_version if node else None for node in nodes]
    nccl = [node.versions.get("nccl") if node else None for node in nodes]
    yield _Fact("GPU product", [gpu.name if gpu else None for gpu in gpus], owed=True, of_node=False)
    yield _Fact("GPU memory", [None if s is None else shown[s] for s in sizes], owed=False, of_node=False)
    yield _Fact("driver version", [drivers[place] for place in places], owed=True, of_node=True)
    yield _Fact("NCCL version", [nccl[place] for place in places], owed=False, of_node=True)


def _gpus(plan: Plan, nodes: Sequence[Node | None]) -> list[Gpu | None]:
    """The GPU of each rank: by UUID where it was measured; any GPU of the node where all are of one class; else the one of its local rank."""
    placement = plan.placement
    uuids = placement.gpu_uuids or (None,) * len(placement.node_ranks)
    by_uuid = {gpu.uuid: gpu for node in nodes if node for gpu in node.open_gpus}
    of_node = [node.open_gpus if node else () for node in nodes]
    alike = [len({(gpu.name, gpu.memory_bytes) for gpu in gpus}) == 1 for gpus in of_node]
    found: list[Gpu | None] = []
    for place, local, uuid in zip(placement.node_ranks, placement.local_ranks, uuids, strict=True):
        if uuid is not None and uuid in by_uuid:
            found.append(by_uuid[uuid])
        elif alike[place]:
            found.append(of_node[place][0])
        else:
            found.append(of_node[place][local] if local < len(of_node[place]) else None)
    return found


def _unknown(plan: Plan, fact: _Fact) -> Iterator[Finding]:
    if not fact.owed or None not in fact.values:
        return
    places = dict.fromkeys(
        place for place, value in zip(plan.placement.node_ranks, fact.values, strict=True) if value is None
    )
    names = [plan.placement.nodes[place] for place in places]
    yield Finding(
        check=NAME,
        subject=shortened(fold(names)),
        verdict=Verdict.UNKNOWN,
        observed=f"{fact.label} unknown, so whether a group mixes it is not known",
        expected=ALIKE,
        remedy=f"run `preflight node` on {names[0]}: it says what can't be read there, and why",
    )


def _judge_fact(plan: Plan, fact: _Fact) -> Iterator[Finding]:
    for axis in plan.timed_axes:
        groups = plan.groups[axis]
        bad = [
            index
            for index, ranks in enumerate(groups)
            if len({value for rank in ranks if (value := fact.values[rank]) is not None}) > 1
        ]
        if bad:
            yield _mixed(plan, fact, axis, bad)


def _mixed(plan: Plan, fact: _Fact, axis: str, bad: Sequence[int]) -> Finding:
    ranks = plan.groups[axis][bad[0]]
    of_rank: dict[Hashable, list[int]] = {}
    for rank in ranks:
        of_rank.setdefault(fact.values[rank], []).append(rank)
    return Finding(
        check=NAME,
        subject=subject_of(axis, bad),
        verdict=Verdict.FAIL,
        observed=f"{len(bad)} of {len(plan.groups[axis])} groups mix {fact.label}; {subject_of(axis, bad[:1])}: "
        + _classes_text(plan, of_rank),
        expected=ALIKE,
        remedy="ask for nodes of one kind (in Slurm: a partition or --constraint)"
        + (f", or bring the nodes to one {fact.label}" if fact.of_node else ", or place the groups so that none mixes"),
        blames=_blamed(plan, fact),
    )


def _classes_text(plan: Plan, of_rank: Mapping[Hashable, list[int]]) -> str:
    parts = [
        f"{'unknown' if value is None else value} on ranks {ranks_text(ranks)} ({shortened(fold(plan.placement.nodes_of(ranks)))})"
        for value, ranks in list(of_rank.items())[:_MAX_CLASSES]
    ]
    return ", ".join(parts) + (", ..." if len(of_rank) > _MAX_CLASSES else "")


def _blamed(plan: Plan, fact: _Fact) -> Part:
    """The one node that differs from all others, if there is one; else the choice of nodes."""
    values: dict[int, Hashable | None] = {}
    kinds: dict[int, Counter[Hashable | None]] = {}
    for place, value in zip(plan.placement.node_ranks, fact.values, strict=True):
        kinds.setdefault(place, Counter())[value] += 1
    for place, counts in kinds.items():
        values[place] = next(iter(counts)) if len(counts) == 1 else tuple(sorted(map(str, counts)))
    classes = classify(values, values.get, lambda place: plan.placement.nodes[place])
    if len(classes.unlike) == 1:
        return Part(kind="node", name=classes.unlike[0], confidence="likely")
    return Part(kind="environment", name="choice of nodes", confidence="likely")


CHECK = Check(
    name=NAME,
    claim="No group of the job mixes GPU products, memory sizes, drivers or NCCL versions.",
    why="The slowest member sets the pace of every collective of its group, and NCCL versions that differ refuse each other or hang.",
    source="NCCL user guide: all ranks of a communicator run the same version; cluster-health-scanner, cvs and gcm compare whole allocations.",
    remedy="Ask for nodes of one kind (in Slurm: a partition or --constraint), bring the nodes to one driver and NCCL, or place the groups so that none mixes.",
    uses=("inventory", "plan"),
    judge=judge,
    limits=LIMITS,
)
