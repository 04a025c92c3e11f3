"""Tasks that share a node see each other's GPUs, which peer access needs.

Slurm's --gpus-per-task and --gpu-bind (per_task, single, closest, map_gpu) put each task into a device cgroup of its own. NCCL finds NVLink by asking the driver for
all GPUs of the node: where a task sees only its own, ranks of one node talk through host memory, without an error, at a fraction of the speed; imports of another task's
CUDA memory can fail outright. No NCCL version is known that copes: seen with 2.12 (NCCL issue 1066) and with 2.26.2 (issue 1647). A mask alone
(CUDA_VISIBLE_DEVICES with one entry) is no such thing: the driver still shows all GPUs, and NCCL uses peers that CUDA hides since CUDA 10.1.
Containers of one machine that each have other GPUs are the same case (NCCL issue 324): a WARN, since each counts as a node of its own.
Source: NCCL issues 1066 and 1647; nccl-tests issue 300 (Slurm 24.05: --tres-bind=gres/gpu:none); open-mpi/ompi issue 11949; srun(1), --gpu-bind.
FAIL only where a planned group has two ranks on the node and its GPUs have NVLink; tasks that never talk to each other lose nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from preflight.model import Check, Evidence, Finding, Node, Part, Verdict
from preflight.model.hostlist import fold
from preflight.model.job_gpus import JOB_GPUS, Binding, binding_asked, parse_numbers, task_binding, tasks_on_node
from preflight.model.plan import Plan

NAME = "gpu_isolation"
EXPECTED = "each task of the step sees all GPUs that the step has on this node"
REMEDY = (
    "ask for GPUs by node (--gres=gpu:N or --gpus-per-node=N with --ntasks) in place of --gpus-per-task, or add --gpu-bind=none "
    "(with --tres-per-task: --tres-bind=gres/gpu:none), and let each rank take the device of its local rank"
)
_INVISIBLE_PEERS = (10, 1)  # CUDA from here on reaches peers that CUDA_VISIBLE_DEVICES hides


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each node whose process is a task of a Slurm step with several tasks there, or will start such; one for containers of one machine."""
    if evidence.settings.cpu_declared:
        return
    shared: dict[str, tuple[str, ...]] | None = None
    for node in evidence.health or ():
        if node.mask is None or not node.gpus:
            continue
        binding = task_binding(node)
        if binding is not None:
            shared = _shared_groups(evidence.plan) if shared is None else shared
            yield _bound(evidence, node, binding, shared.get(node.name, ()))
        elif (tasks := tasks_on_node(node.mask) or 1) > 1:
            yield _together(node, tasks)
        elif binding_asked(node.mask) and _asked_tasks(node) > 1:
            yield _will_be(node)
    yield from _containers(evidence.health or ())


def _bound(evidence: Evidence, node: Node, binding: Binding, groups: tuple[str, ...]) -> Finding:
    certain = bool(groups) and _has_nvlink(evidence, node)
    loss = "NVLink between them is not used" if certain else "peer access between them is off"
    return Finding(
        check=NAME,
        subject=node.name,
        verdict=Verdict.FAIL if certain else Verdict.WARN,
        observed=f"{binding.tasks} tasks share the node, this one sees {binding.seen} of the step's {binding.given} GPUs"
        f" ({binding.by or 'a device cgroup for each task'}): {loss}"
        + (f"; groups with several ranks here: {', '.join(groups)}" if groups else ""),
        expected=EXPECTED,
        remedy=REMEDY,
        blames=Part(
            kind="environment", name=f"GPU binding ({binding.by or 'device cgroup of each task'})", confidence="likely"
        ),
    )


def _together(node: Node, tasks: int) -> Finding:
    assert node.mask is not None
    shown = None if node.mask.gpu_uuids is None else len(node.mask.gpu_uuids)
    seen = len(node.open_gpus)
    hidden = shown is not None and shown < seen
    old = hidden and node.cuda_version is not None and _version(node.cuda_version) < _INVISIBLE_PEERS
    text = f"{tasks} tasks share the node, the driver shows this one {seen} GPUs"
    return Finding(
        check=NAME,
        subject=node.name,
        verdict=Verdict.WARN if old else Verdict.PASS,
        observed=text
        + (f", its mask {shown}, which hides no peer from NCCL" if hidden and not old else "")
        + (f", its mask {shown}, and CUDA {node.cuda_version} can't reach the peers that a mask hides" if old else ""),
        expected=EXPECTED,
        remedy=REMEDY if old else "",
        blames=Part(kind="environment", name=f"CUDA_VISIBLE_DEVICES on {node.name}") if old else None,
    )


def _will_be(node: Node) -> Finding:
    assert node.mask is not None
    asked = binding_asked(node.mask)
    return Finding(
        check=NAME,
        subject=node.name,
        verdict=Verdict.WARN,
        observed=f"{asked} is set for the steps of this job, with {_asked_tasks(node)} tasks on a node: each will see its own GPUs only",
        expected=EXPECTED,
        remedy=REMEDY,
        blames=Part(kind="environment", name=f"GPU binding ({asked})", confidence="possible"),
    )


def _containers(nodes: Sequence[Node]) -> Iterator[Finding]:
    """Nodes that are one machine by the kernel's boot id, and see different GPUs of it."""
    machines: dict[str, list[Node]] = {}
    for node in nodes:
        if node.boot_id is not None and node.open_gpus:
            machines.setdefault(node.boot_id, []).append(node)
    for parts in machines.values():
        views = [frozenset(gpu.uuid for gpu in node.open_gpus) for node in parts]
        if len(parts) > 1 and len(set().union(*views)) == sum(map(len, views)):
            yield Finding(
                check=NAME,
                subject=fold(node.name for node in parts),
                verdict=Verdict.WARN,
                observed=f"{len(parts)} containers or systems of one machine (the same boot id), each with GPUs of its own: no NVLink or peer access between them",
                expected="one container with all GPUs that a job has on a machine",
                remedy="give the job's GPUs of a machine to one container, and let it start a process for each",
                blames=Part(kind="environment", name="a container for each share of the GPUs", confidence="likely"),
            )


def _asked_tasks(node: Node) -> int:
    """How many tasks a node will have in the steps of this job, as far as its variables say: SLURM_TASKS_PER_NODE's first count, or one for each share of its GPUs."""
    variables = node.mask.variables if node.mask is not None else {}
    job, per_task = parse_numbers(variables.get(JOB_GPUS, "")), variables.get("SLURM_GPUS_PER_TASK", "")
    shares = (
        len(job) // max(int(per_task), 1)
        if job and per_task.isascii() and per_task.isdigit() and len(per_task) <= 4
        else 1
    )
    text = variables.get("SLURM_NTASKS_PER_NODE") or variables.get("SLURM_TASKS_PER_NODE", "")
    first = text.partition(",")[0].partition("(")[0]
    return max(int(first) if first.isascii() and first.isdigit() and len(first) <= 4 else 1, shares)


def _shared_groups(plan: Plan | None) -> dict[str, tuple[str, ...]]:
    """Node name -> of each axis the first group that has two ranks or more there."""
    if plan is None:
        return {}
    places, found = plan.placement.node_ranks, defaultdict[int, dict[str, str]](dict)
    for axis, groups in plan.groups.items():
        for index, ranks in enumerate(groups):
            for place, number in Counter(places[rank] for rank in ranks).items():
                if number > 1:
                    found[place].setdefault(axis, f"{axis}{index}")
    return {plan.placement.nodes[place]: tuple(names.values()) for place, names in found.items()}


def _has_nvlink(evidence: Evidence, node: Node) -> bool:
    """Whether links are active, or all boards of the product join GPUs; where neither is known, no."""
    for gpu in node.open_gpus:
        profile = evidence.profile_of(gpu)
        layouts = profile.nvlink_layouts if profile is not None else None
        if any(link.active for link in gpu.links or ()) or any(layout.kind != "bridge" for layout in layouts or ()):
            return True
    return False


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isascii() and part.isdigit() and len(part) < 10)


CHECK = Check(
    name=NAME,
    claim="Tasks that share a node see each other's GPUs.",
    why="NCCL finds NVLink only among GPUs that it sees: tasks bound to GPUs of their own talk through host memory, without an error.",
    source="NCCL issues 1066 and 1647, nccl-tests issue 300, open-mpi/ompi issue 11949; srun(1), --gpu-bind.",
    remedy=f"In Slurm, {REMEDY}.",
    uses=("health",),
    judge=judge,
)
