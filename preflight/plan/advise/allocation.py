"""Other nodes: an allocation in whole segments, or the present one without the nodes that no block needs."""

from collections import Counter
from collections.abc import Iterator

import msgspec

from preflight.model import Change, Job, Topology
from preflight.model.hostlist import fold
from preflight.plan.advise.blocks import TIGHT_AXES, block_size, find_blocks
from preflight.plan.advise.files import host_list
from preflight.plan.advise.nodes import reorder
from preflight.plan.advise.situation import Situation
from preflight.plan.advise.trial import Candidate, with_launch

SEGMENT_COST, EXCLUDE_COST = 5, 6
MAX_LEFT_OUT = 0.25  # of the nodes: a job that is smaller still is another job


def allocations(situation: Situation) -> Iterator[Candidate]:
    """Segments for the scheduler to ask for, and nodes to leave out."""
    yield from _without_odd_nodes(situation)
    if not situation.even:
        return  # ranks of a group are then not so many nodes apart
    size = _block_nodes(situation)
    if size is None or size < 2:
        return
    launcher = situation.job.launch.launcher
    if launcher in {"slurm", "kubernetes"}:
        yield _segments(situation, size)
    if situation.names_known:
        yield from _without_leftovers(situation, size)


def _block_nodes(situation: Situation) -> int | None:
    """Nodes that belong into one domain: of the widest block of tp, cp and ep that some domain can hold. None: no such block."""
    domains = situation.labels("domain")
    largest = max(Counter(label for label in domains if label is not None).values(), default=1)
    axes: list[str] = []
    best = None
    for more in TIGHT_AXES:
        axes += more
        blocks = find_blocks(situation.plan.groups, axes, situation.per_node, len(situation.nodes))
        size = block_size(blocks)
        if size is not None and size <= largest:
            best = size
    return best


def _segments(situation: Situation, size: int) -> Candidate:
    """Another allocation, made of whole segments. Which nodes it gets is the scheduler's choice: the trial takes it at its word."""
    nodes = tuple(f"segment{i // size}-node{i % size}" for i in range(len(situation.nodes)))
    launch: dict[str, object] = {"hosts": None, "hostfile": None, "master": None, "topology": None}
    keys: dict[str, str | None] = {
        f"launch.{key}": None for key in launch if getattr(situation.job.launch, key) is not None and key != "topology"
    }
    if situation.job.launch.launcher == "slurm":
        launch |= {"segment": size}
        keys |= {"launch.segment": str(size)}
        title = f"ask for an allocation in whole segments of {size} nodes, each inside one block"
        paste = f"sbatch --segment={size}"
    else:
        title = f"ask Kueue for slices of {size} pods, each inside one NVLink domain"
        paste = (
            'kueue.x-k8s.io/podset-slice-required-topology: "nvidia.com/gpu.clique"\n'
            f'kueue.x-k8s.io/podset-slice-size: "{size}"'
        )
    change = Change(kind="segment", title=title, paste=paste, keys=keys)
    topology = Topology(
        node_domains={name: name.partition("-")[0] for name in nodes}, source=f"a promise: segments of {size} nodes"
    )
    return Candidate(SEGMENT_COST, change, with_launch(situation.job, **launch), nodes, topology=topology)


def _without_leftovers(situation: Situation, size: int) -> Iterator[Candidate]:
    """Whole blocks only: the nodes that a domain has beyond a multiple of the block are left out, then blocks until the degrees divide."""
    bins: dict[str | None, list[str]] = {}
    for name, label in zip(situation.nodes, situation.labels("domain"), strict=True):
        bins.setdefault(label, []).append(name)
    kept: list[list[str]] = []
    for members in bins.values():
        whole = len(members) // size * size
        kept += [members[i : i + size] for i in range(0, whole, size)]
    least = (1 - MAX_LEFT_OUT) * len(situation.nodes) / size
    for blocks in range(len(kept), 0, -1):
        staying = {name for block in kept[:blocks] for name in block}
        nodes = tuple(name for name in situation.nodes if name in staying)
        if blocks < least or len(nodes) == len(situation.nodes):
            return
        job = _smaller(situation, nodes)
        if job is not None:
            yield _excluded(situation, nodes, job, f"so that each domain holds whole blocks of {size} nodes")
            return


def _without_odd_nodes(situation: Situation) -> Iterator[Candidate]:
    """Only the nodes that have as many ranks as most."""
    if situation.even or not situation.names_known:
        return
    pairs = zip(situation.nodes, situation.counts, strict=True)
    nodes = tuple(name for name, count in pairs if count == situation.per_node)
    job = _smaller(situation, nodes)
    if job is not None:
        yield _excluded(situation, nodes, job, f"so that every node starts {situation.per_node} workers")


def _smaller(situation: Situation, nodes: tuple[str, ...]) -> Job | None:
    """The job on fewer nodes, dp made smaller; None if the degrees or the global batch don't divide what is left."""
    job = situation.job
    parallel, launch, training = job.parallel, job.launch, job.training
    inner = parallel.tp * parallel.cp * parallel.pp
    world_size = len(nodes) * situation.per_node
    if world_size == 0 or world_size % inner:
        return None
    dp = world_size // inner
    if training.global_batch_size is not None and training.global_batch_size % ((training.micro_batch_size or 1) * dp):
        return None
    if parallel.dp is not None:
        job = msgspec.structs.replace(job, parallel=msgspec.structs.replace(parallel, dp=dp))
    if job.hardware.nodes is not None:
        job = msgspec.structs.replace(job, hardware=msgspec.structs.replace(job.hardware, nodes=len(nodes)))
    changes: dict[str, object] = {"hostfile": None, "tasks_per_node": None}
    if launch.hosts is not None:
        changes["hosts"] = nodes
    if launch.master is not None and launch.master not in nodes:
        changes["master"] = nodes[0]
    return with_launch(job, **changes)


def _excluded(situation: Situation, nodes: tuple[str, ...], job: Job, why: str) -> Candidate:
    """The candidate without the nodes that are not among `nodes`: by a flag, or by the launcher's file where it reads one."""
    out = fold(name for name in situation.nodes if name not in set(nodes))
    before, after = situation.plan.degrees["dp"], len(nodes) * situation.per_node
    after //= job.parallel.tp * job.parallel.cp * job.parallel.pp
    title = f"leave out {out}, {why} (dp {before} -> {after})"
    keys = _changed_keys(situation.job, job, nodes, after)
    launcher = situation.job.launch.launcher
    if launcher == "deepspeed" or situation.job.launch.hostfile is not None:
        candidate = reorder(situation, nodes, job=job, title=title)
        keys |= candidate.change.keys
        change = msgspec.structs.replace(candidate.change, kind="exclude", keys=keys)
        return candidate._replace(cost=EXCLUDE_COST, change=change)
    pastes = {
        "slurm": f"srun --exclude={out} --nodes={len(nodes)}",
        "mpi": "mpirun --host " + ",".join(f"{name}:{situation.per_node}" for name in nodes),
        "torchrun": f"torchrun --nnodes={len(nodes)}  # on {fold(nodes)}",
    }
    change = Change(kind="exclude", title=title, paste=pastes.get(launcher or "", fold(nodes)), keys=keys)
    return Candidate(EXCLUDE_COST, change, job, nodes)


def _changed_keys(old: Job, new: Job, nodes: tuple[str, ...], dp: int) -> dict[str, str | None]:
    """The keys of the plan file that differ."""
    keys: dict[str, str | None] = {}
    if new.hardware.nodes is not None:
        keys["hardware.nodes"] = str(len(nodes))
    if new.parallel.dp is not None:
        keys["parallel.dp"] = str(dp)
    if new.launch.hosts is not None:
        keys["launch.hosts"] = f'"{host_list(nodes)}"'
    if old.launch.tasks_per_node is not None:
        keys["launch.tasks_per_node"] = None
    if new.launch.master != old.launch.master:
        keys["launch.master"] = f'"{new.launch.master}"'
    return keys
