"""Groups with one rank per node sit on the same GPU slot of each node, so that they keep to one rail.

On a rail-optimised network the n-th NIC of every node hangs on the n-th leaf: a ring over equal slots crosses one switch, one over different slots goes
up to the spine and shares its links. Slot: the local rank, which names the same GPU on every node as long as all nodes show the same devices.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from preflight.model import Check, Evidence, Finding, Part, Plan, Verdict
from preflight.model.axis_findings import worst_allowed
from preflight.model.crossing import ranks_text, subject_of, where_text
from preflight.model.together import BLOCK_BY

NAME = "same_slot"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each axis that has such groups."""
    plan = evidence.plan
    if plan is None or evidence.settings.cpu_declared:
        return
    for axis, footprint in plan.footprints.items():
        size, number = len(plan.groups[axis][0]), len(plan.groups[axis])
        if footprint.nodes.count(size) == footprint.slots.count(1) == number:
            if size > 1:
                yield _same(axis, range(number))  # the usual case, and there may be 65,536
            continue
        if max(footprint.nodes) < size:
            continue  # no group has one rank per node, and there may be 65,536
        judged = [i for i, nodes in enumerate(footprint.nodes) if nodes == len(plan.groups[axis][i]) > 1]
        if judged:
            bad = [index for index in judged if footprint.slots[index] > 1]
            verdict = worst_allowed(evidence, NAME, Verdict.WARN)
            yield _different(plan, axis, bad, len(judged), verdict) if bad else _same(axis, judged)


def _same(axis: str, judged: Sequence[int]) -> Finding:
    observed = f"{len(judged)} groups with one rank per node, each on one GPU slot"
    return Finding(check=NAME, subject=subject_of(axis, judged), verdict=Verdict.PASS, observed=observed)


def _different(plan: Plan, axis: str, bad: list[int], num_judged: int, verdict: Verdict) -> Finding:
    slots = plan.placement.local_ranks
    others: list[int] = []
    for index in bad:
        ranks = plan.groups[axis][index]
        usual = Counter(slots[rank] for rank in ranks).most_common(1)[0][0]
        others += [rank for rank in ranks if slots[rank] != usual]
    first = plan.groups[axis][bad[0]]
    shown = ", ".join(f"rank {rank} slot {slots[rank]}" for rank in first[:4]) + (", ..." if len(first) > 4 else "")
    return Finding(
        check=NAME,
        subject=subject_of(axis, bad),
        verdict=verdict,
        observed=f"{len(bad)} of {num_judged} groups with one rank per node change the GPU slot at ranks "
        f"{ranks_text(sorted(set(others)))}; {subject_of(axis, bad[:1])}: {where_text(plan, first)}: {shown}",
        expected="one GPU slot per group, so that its traffic keeps to one rail",
        remedy=_remedy(plan, first),
        blames=Part(kind="plan", name="launch", confidence="likely"),
    )


def _remedy(plan: Plan, ranks: Sequence[int]) -> str:
    """What would bring the ranks of a group to one slot: as many ranks on every node, consecutive ranks on a node, or a distance that is whole nodes."""
    placement, launcher = plan.placement, plan.job.launch.launcher or ""
    per_node = max(placement.ranks_per_node)
    if min(placement.ranks_per_node) < per_node:
        return "give every node the same number of ranks (DeepSpeed: the same slots on every line of the hostfile), in the same order of GPUs"
    if not placement.is_block:
        return f"let consecutive ranks fill a node: {BLOCK_BY.get(launcher, 'block placement')}"
    apart = ranks[1] - ranks[0]
    if apart % per_node:
        return f"choose degrees so that the ranks of the group are whole nodes apart: now {apart}, with {per_node} ranks on a node"
    return "let every node list its GPUs in the same order"


CHECK = Check(
    name=NAME,
    claim="Groups with one rank per node sit on the same GPU slot of each node.",
    why="On a rail-optimised network different slots hang on different leaves: the group's traffic goes over the spine.",
    source="rail-optimised designs: the n-th NIC of every node on the n-th leaf (NVIDIA DGX SuperPOD reference architecture)",
    remedy="the same number of ranks on every node, in the same order of GPUs",
    uses=("plan",),
    judge=judge,
    need="advisory",
)
