"""Changes of one flag: how the launcher deals ranks to nodes, which host is the master, what the framework does with its axes."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from preflight.model import Change, Topology
from preflight.plan.advise.files import host_list, named_lines
from preflight.plan.advise.situation import Situation
from preflight.plan.advise.trial import Candidate, with_launch, with_parallel

T = TypeVar("T")

LAYOUT_COST = 8  # other degrees are another job: last of all
MAPPING = ("tp", "cp", "ep", "pp", "dp")  # Megatron's --use-tp-pp-dp-mapping


def launcher_flags(situation: Situation) -> Iterator[Candidate]:
    """Flags of the launcher: the smallest changes of all."""
    launch = situation.job.launch
    if launch.launcher == "slurm":
        keys: dict[str, str | None] = {"launch.distribution": '"block"'}
        if launch.hostfile is not None:
            keys["launch.hostfile"] = None
        job = with_launch(situation.job, distribution="block", hostfile=None)
        title = "let consecutive ranks fill a node: Slurm's block distribution"
        change = Change(kind="distribution", title=title, paste="srun --distribution=block", keys=keys)
        yield Candidate(1, change, job, situation.nodes)
    elif launch.launcher == "mpi":
        keys = {"launch.distribution": '"by-slot"'}
        if launch.hostfile is not None:
            keys["launch.hostfile"] = None
        job = with_launch(situation.job, distribution="by-slot", hostfile=None)
        title = "let consecutive ranks fill a node: map by slot"
        change = Change(kind="distribution", title=title, paste="mpirun --map-by slot", keys=keys)
        yield Candidate(1, change, job, situation.nodes)
    yield from _master(situation)
    if launch.launcher in {"torchrun", "kubernetes"} and situation.names_known:
        yield from _rendezvous(situation)


def framework_flags(situation: Situation) -> Iterator[Candidate]:
    """Flags of the framework: expert tensor parallelism, and the order of the axes. Ranks stay where they are."""
    job, degrees = situation.job, situation.plan.degrees
    megatron = job.parallel.framework == "megatron"
    where = situation.plan.placement
    if degrees.get("etp", 1) > 1:
        default = " (it is not given and defaults to tp)" if job.parallel.etp is None else ""
        title = f"set expert tensor parallelism to 1 in place of {degrees['etp']}{default}"
        paste = "--expert-tensor-parallel-size 1" if megatron else "etp = 1"
        change = Change(kind="etp", title=title, paste=paste, keys={"parallel.etp": "1"})
        yield Candidate(2, change, with_parallel(job, etp=1), situation.nodes, placement=where)
    if job.parallel.order is not None:
        title = "leave the order of the axes at the framework's default"
        change = Change(kind="order", title=title, paste="# no parallel.order", keys={"parallel.order": None})
        yield Candidate(3, change, with_parallel(job, order=None), situation.nodes, placement=where)
    if megatron and degrees["pp"] > 1 and job.parallel.order != MAPPING:
        title = "put data parallelism outermost, pipeline stages inside"
        keys: dict[str, str | None] = {"parallel.order": f'"{"-".join(MAPPING)}"'}
        change = Change(kind="order", title=title, paste="--use-tp-pp-dp-mapping", keys=keys)
        yield Candidate(3, change, with_parallel(job, order=MAPPING), situation.nodes, placement=where)


def _master(situation: Situation) -> Iterator[Candidate]:
    """The host of MASTER_ADDR moved to where rank 0 is."""
    launch, placement = situation.job.launch, situation.plan.placement
    first = placement.nodes[placement.node_ranks[0]]
    if launch.master is None or launch.master == first or not situation.names_known:
        return
    paste = f"--rdzv-endpoint={first}:29400" if launch.rendezvous == "c10d" else f"MASTER_ADDR={first}"
    change = Change(
        kind="master",
        title=f"name {first}, where rank 0 is, as the master",
        paste=paste,
        keys={"launch.master": f'"{first}"'},
    )
    yield Candidate(1, change, with_launch(situation.job, master=first), situation.nodes)


def _rendezvous(situation: Situation) -> Iterator[Candidate]:
    """torchrun's static rendezvous, which honours node ranks; or names whose text order is their order."""
    job = situation.job
    if job.launch.rendezvous != "static":
        yield static_rendezvous(situation, situation.nodes, cost=2)
        padded = padded_names(situation.nodes)
        if padded != situation.nodes and job.launch.launcher == "torchrun":  # pods are named by their controller
            yield _padded(situation, padded)


def static_rendezvous(situation: Situation, nodes: tuple[str, ...], *, cost: int) -> Candidate:
    """Node ranks given by hand, in this order of nodes."""
    job = with_launch(situation.job, rendezvous="static", hosts=nodes, master=nodes[0])
    keys: dict[str, str | None] = {"launch.rendezvous": '"static"', "launch.master": f'"{nodes[0]}"'}
    if nodes != situation.job.launch.hosts:
        keys["launch.hosts"] = f'"{host_list(nodes)}"'
    flags = f"torchrun --rdzv-backend=static --master-addr={nodes[0]} --node-rank="
    if situation.job.launch.launcher == "kubernetes" and nodes == situation.nodes:
        change = Change(
            kind="rendezvous",
            title="number the nodes by their completion index: static rendezvous",
            paste=f'{flags}"$JOB_COMPLETION_INDEX"',
            keys=keys,
        )
        return Candidate(cost, change, job, nodes)
    change = Change(
        kind="rendezvous",
        title="number the nodes yourself: static rendezvous, which takes --node-rank, where c10d sorts names as text",
        paste=flags + _looked_up("node-ranks.txt", nodes),
        filename="node-ranks.txt",
        content=named_lines((name, str(index)) for index, name in enumerate(nodes)),
        keys=keys,
    )
    return Candidate(cost, change, job, nodes)


def padded_names(nodes: tuple[str, ...]) -> tuple[str, ...]:
    """The same names with their last number padded to one width, so that they sort as text in the order of their numbers.

    >>> padded_names(("gpu-2", "gpu-10"))
    ('gpu-02', 'gpu-10')
    """
    found = [re.search(r"([0-9]+)(?=[^0-9]*$)", name.split(".")[0]) for name in nodes]
    width = max((len(match[1]) for match in found if match), default=0)
    return tuple(
        name if match is None else name[: match.start()] + match[1].zfill(width) + name[match.end() :]
        for name, match in zip(nodes, found, strict=True)
    )


def _padded(situation: Situation, padded: tuple[str, ...]) -> Candidate:
    """Every node under its padded name, with what is known of it."""
    new = dict(zip(situation.nodes, padded, strict=True))
    job = with_launch(situation.job, hosts=padded, master=new.get(situation.job.launch.master or ""))
    change = Change(
        kind="names",
        title=f"give the nodes names of equal width ({padded[0]} ... {padded[-1]}; each must resolve), so that their text order is their order",
        paste="torchrun --local-addr=" + _looked_up("padded-names.txt", situation.nodes),
        filename="padded-names.txt",
        content=named_lines(zip(situation.nodes, padded, strict=True)),
        keys={"launch.hosts": f'"{host_list(padded)}"'},
    )
    known = situation.topology or Topology()
    topology = msgspec.structs.replace(
        known,
        **{kind: _renamed(getattr(known, kind), new) for kind in ("switches", "node_domains", "racks", "blocks")},
    )
    return Candidate(3, change, job, padded, topology=topology if situation.topology else None)


def _renamed(facts: dict[str, T] | None, new: dict[str, str]) -> dict[str, T] | None:
    return None if facts is None else {new.get(name, name): value for name, value in facts.items()}


def _looked_up(filename: str, nodes: tuple[str, ...]) -> str:
    """A shell word: what the file says of this host, whose name is short or full as the nodes' names are."""
    full = "-f" if any("." in name for name in nodes) else "-s"
    return f'"$(awk -v host="$(hostname {full})" \'$1 == host {{print $2}}\' {filename})"'


def smaller_tp(situation: Situation) -> Iterator[Candidate]:
    """Tensor parallelism of the size of an NVLink domain, where it is larger: the rest goes to the pipeline, so that a GPU holds as many weights as before."""
    job, degrees = situation.job, situation.plan.degrees
    labels = [label for label in situation.labels("domain") if label is not None]
    ranks = min(Counter(labels).values(), default=1) * min(situation.counts)
    tp = max(divisor for divisor in range(1, min(ranks, degrees["tp"]) + 1) if degrees["tp"] % divisor == 0)
    if tp == degrees["tp"] or job.parallel.framework == "fsdp":
        return
    pp = degrees["pp"] * degrees["tp"] // tp
    change = Change(
        kind="degrees",
        title=f"lower tp from {degrees['tp']} to {tp}, which an NVLink domain holds, and raise pp from {degrees['pp']} to {pp}",
        paste=f"--tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp}"
        if job.parallel.framework == "megatron"
        else f"tp = {tp}, pp = {pp}",
        keys={"parallel.tp": str(tp), "parallel.pp": str(pp)},
    )
    changed = with_parallel(job, tp=tp, pp=pp)
    yield Candidate(LAYOUT_COST, change, changed, situation.nodes, placement=situation.plan.placement)
