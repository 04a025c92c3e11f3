"""Each rank has a GPU of its own.

Two ranks on one GPU share its memory and wait for one another; NCCL refuses them ("Duplicate GPU detected") after the nodes have been waited for, and
gloo doesn't notice at all. The usual causes: one CUDA_VISIBLE_DEVICES for all ranks of a node and no torch.cuda.set_device, or a launcher that binds all
tasks to GPU 0. A MIG device counts as a GPU here.
"""

from collections import Counter
from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Inventory, Part, Plan, Verdict
from preflight.model.devices import resolve_devices
from preflight.model.hostlist import fold, fold_numbers

NAME = "gpu_per_rank"
_MAX_SHOWN = 8


def judge(evidence: Evidence) -> Iterator[Finding]:
    """Of a measured placement: one finding for each GPU with more than one rank, one for ranks without a known GPU, one PASS if there is neither. Of a
    predicted one: whether the plan file's CUDA_VISIBLE_DEVICES shows each rank of a node a GPU. Where neither tells, one finding for nodes that have more
    ranks than the plan file says they have GPUs.
    """
    plan = evidence.plan
    if plan is None or evidence.settings.cpu_declared:
        return
    if plan.placement.source == "measured" and plan.placement.gpu_uuids is not None:
        yield from _judge_measured(plan, plan.placement.gpu_uuids)
    elif plan.placement.source == "predicted" and plan.job.launch.visible_devices is not None:
        yield from _judge_visible(plan, plan.job.launch.visible_devices, evidence.inventory)
    else:
        yield from _crowds(plan, plan.job.hardware.gpus_per_node)


def _crowds(plan: Plan, claimed: int | None) -> Iterator[Finding]:
    """Nodes with more ranks than GPUs by the plan file, where no GPU is known by name: two containers on one machine could have more than that between them."""
    counts = plan.placement.ranks_per_node
    most = max(counts)
    if claimed is None or most <= claimed:
        return
    names = [name for name, count in zip(plan.placement.nodes, counts, strict=True) if count > claimed]
    yield Finding(
        check=NAME,
        subject=fold(names[:_MAX_SHOWN]) + (f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""),
        verdict=Verdict.FAIL,
        observed=f"{most} ranks on one node, and the plan file says that a node has {claimed} GPU{'s' * (claimed != 1)}",
        expected=_EXPECTED,
        remedy=f"start at most {claimed} ranks on a node, or correct gpus_per_node under [hardware]",
        blames=Part(kind="plan", name="hardware.gpus_per_node", confidence="likely"),
    )


def _judge_measured(plan: Plan, uuids: tuple[str | None, ...]) -> Iterator[Finding]:
    ranks_of: dict[str, list[int]] = {}
    unknown: list[int] = []
    for rank, uuid in enumerate(uuids):
        if uuid is None:
            unknown.append(rank)
        else:
            ranks_of.setdefault(uuid, []).append(rank)
    shared = {uuid: ranks for uuid, ranks in ranks_of.items() if len(ranks) > 1}
    yield from (_shared(plan, uuid, ranks) for uuid, ranks in list(shared.items())[:_MAX_SHOWN])
    if len(shared) > _MAX_SHOWN:
        observed = f"{len(shared) - _MAX_SHOWN} more GPUs have more than one rank"
        yield Finding(check=NAME, subject="other GPUs", verdict=Verdict.FAIL, observed=observed, expected=_EXPECTED)
    if unknown:
        yield Finding(
            check=NAME,
            subject="ranks without a known GPU",
            verdict=Verdict.UNKNOWN,
            observed=f"ranks {fold_numbers(unknown)[:200]}: no GPU known",
            expected=_EXPECTED,
            remedy=f"run `preflight ranks` as rank {unknown[0]}: it says on stderr why",
        )
    elif not shared:
        observed = f"{plan.world_size} ranks on {len(ranks_of)} GPUs"
        yield Finding(check=NAME, subject="GPUs", verdict=Verdict.PASS, observed=observed, expected=_EXPECTED)


def _judge_visible(plan: Plan, text: str, inventory: Inventory | None) -> Iterator[Finding]:
    """One finding for each way in which the variable works out: nodes of one kind are folded."""
    needed = Counter(plan.placement.node_ranks)
    alike: dict[tuple[int, int, str], list[str]] = {}
    for position, name in enumerate(plan.placement.nodes):
        node = inventory.node(name) if inventory else None
        visible = resolve_devices(text, node.gpus if node else None)
        alike.setdefault((needed[position], len(visible.uuids), "; ".join(visible.problems)), []).append(name)
    for (ranks, shown, problems), names in alike.items():
        verdict = Verdict.FAIL if shown < ranks else Verdict.WARN if problems else Verdict.PASS
        note = f": {problems}" if problems else ""
        yield Finding(
            check=NAME,
            subject=fold(names),
            verdict=verdict,
            observed=f"{ranks} ranks on a node, CUDA_VISIBLE_DEVICES shows {shown} GPU{'s' * (shown != 1)}{note}",
            expected=_EXPECTED,
            remedy=""
            if verdict is Verdict.PASS
            else "name as many different GPUs as a node has ranks, or leave the variable to the launcher",
            blames=None if verdict is Verdict.PASS else Part(kind="plan", name="launch.visible_devices"),
        )


_EXPECTED = "one rank on each GPU"


def _shared(plan: Plan, uuid: str, ranks: list[int]) -> Finding:
    nodes = plan.placement.nodes_of(ranks)
    return Finding(
        check=NAME,
        subject=uuid,
        verdict=Verdict.FAIL,
        observed=f"ranks {fold_numbers(ranks)} on {', '.join(nodes)} share it",
        expected=_EXPECTED,
        remedy="call torch.cuda.set_device(LOCAL_RANK), or let the launcher give each rank a CUDA_VISIBLE_DEVICES of its own; "
        "not srun --gpus-per-task, which hides the GPUs of the other ranks from NVLink",
        blames=Part(kind="rank", name=f"rank {ranks[1]}", confidence="likely"),
    )


CHECK = Check(
    name=NAME,
    claim="Each rank has a GPU of its own.",
    why="Two ranks on one GPU share its memory and wait for one another, and NCCL refuses them after the nodes were waited for.",
    source='NCCL refuses it as "Duplicate GPU detected"; CUDA C++ Programming Guide on CUDA_VISIBLE_DEVICES',
    remedy="let each rank choose the device of its local rank, or give each task a GPU of its own",
    uses=("plan",),
    judge=judge,
)
