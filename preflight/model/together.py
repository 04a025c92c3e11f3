"""The smallest change that would keep the groups of an axis inside one NVLink domain each (pure; the placement checks need it)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from preflight.model.crossing import ranks_text
from preflight.model.domains import Domains
from preflight.model.finding import Part
from preflight.model.plan import NODE_IN_DOUBT, NODE_IS_DOMAIN, Plan

# how each launcher puts consecutive ranks on one node
BLOCK_BY = {
    "slurm": "srun -m block (--distribution=block)",
    "mpi": "mpirun --map-by slot",
    "torchrun": "one torchrun per node with --nproc-per-node of all its GPUs",
    "deepspeed": "a hostfile with one line per node",
    "kubernetes": "one pod per node",
}
# how each launcher takes an order of nodes from the user
ORDER_BY = {
    "slurm": "srun -m arbitrary with SLURM_HOSTFILE",
    "mpi": "the order of the hostfile, or a rankfile",
    "torchrun": "static rendezvous with --node-rank; c10d sorts the names as text",
    "deepspeed": "the order of the hostfile",
    "kubernetes": "the order of completion indexes",
}


TRAY_GPUS = 4  # of a compute tray of NVL36 and NVL72 (DGX GB200 user guide)


class Remedy(NamedTuple):
    """What to change, and the part of the plan that is to blame."""

    text: str
    blames: Part


def keep_together(domains: Domains, axis: str, ranks: Sequence[int]) -> Remedy:
    """What would bring this group, which lies in several domains, into one. In this order, the first that applies:

    experts strided by etp (Megatron's default is tp); ranks dealt round the nodes by the launcher; another axis inside this one; nodes with different
    numbers of ranks; domains that hold no whole number of groups; nodes of a domain scattered over the order; a degree that is too large.
    """
    plan, size, unit = domains.plan, len(ranks), len(ranks) * _step(ranks)
    smallest, largest = domains.different_sizes[0], domains.different_sizes[-1]
    workers = sorted(set(plan.placement.ranks_per_node))
    strided = plan.job.parallel.framework == "megatron" and plan.degrees.get("etp", 1) > 1 and not _inside_ep(plan)
    if axis == "ep" and strided and (plan.job.parallel.etp is None or (unit > smallest and smallest % size == 0)):
        return _etp_one(plan, ranks, fits=plan.placement.is_block and smallest % size == 0)
    if size > largest:
        inner = axis != "tp" and _step(ranks) > 1
        lower = _order_or_degree(plan, axis, ranks, smallest) if inner else _lower(axis, size, smallest)
        return lower._replace(text=lower.text + _also(plan, axis, ranks) + _or_say_domain(domains, largest))
    if not plan.placement.is_block:
        remedy = _by_launcher(plan, axis, ranks, fits=smallest % unit == 0)
    elif unit > max(size, smallest):
        remedy = _order_or_degree(plan, axis, ranks, smallest)
    elif len(workers) > 1:
        uneven = " or ".join(map(str, workers))
        text = f"start the same number of workers on every node, a multiple of {unit}: now {uneven}"
        remedy = Remedy(text, _plan_part("launch"))
    elif all(bound % unit == 0 for bound in domains.different_sizes):
        order = order_of_nodes(plan)
        remedy = order._replace(text=f"list the nodes of each NVLink domain one after another: {order.text}")
    else:
        by_degree = _order_or_degree(plan, axis, ranks, smallest) if unit > size else _lower(axis, size, smallest)
        remedy = _segment(domains, unit) or by_degree
    return remedy


def _also(plan: Plan, axis: str, ranks: Sequence[int]) -> str:
    """What a lower degree needs besides: consecutive ranks on a node, and tp innermost."""
    how = BLOCK_BY.get(plan.job.launch.launcher or "", "block placement")
    block = "" if plan.placement.is_block else f", and let consecutive ranks fill a node ({how})"
    return block + (", and put tp innermost in the order" if axis == "tp" and _step(ranks) > 1 else "")


def _or_say_domain(domains: Domains, largest: int) -> str:
    """Nodes of up to four GPUs may be trays of a rack that NVLink joins: where each node is merely taken as one domain, how to say so."""
    if domains.note not in (NODE_IS_DOMAIN, NODE_IN_DOUBT) or largest > TRAY_GPUS:
        return ""
    return "; or, if NVLink joins these nodes, say how many: nodes_per_nvlink_domain under [hardware], 18 for a whole NVL72 rack"


def order_of_nodes(plan: Plan) -> Remedy:
    """How this job's launcher takes another order of nodes, and the key that decides the present one: a hostfile, c10d's sorting of names, else the hosts."""
    launch = plan.job.launch
    how = ORDER_BY.get(launch.launcher or "", "the launcher's order of nodes")
    key = "launch.hostfile" if launch.hostfile is not None else "launch.hosts"
    if launch.rendezvous == "c10d":
        key = "launch.rendezvous"
        if launch.launcher == "kubernetes":
            how = f"{how}, with static rendezvous; c10d sorts the names as text"
    return Remedy(how, _plan_part(key))


def _inside_ep(plan: Plan) -> bool:
    """Whether data parallelism or the pipeline lies inside ep, so that its ranks are apart whatever etp is."""
    inner = plan.order[: plan.order.index("ep")] if "ep" in plan.order else ()
    return "dp" in inner or ("pp" in inner and plan.degrees["pp"] > 1)


def _etp_one(plan: Plan, ranks: Sequence[int], *, fits: bool) -> Remedy:
    etp, size, step = plan.degrees["etp"], len(ranks), _step(ranks)
    given = f"it is {etp}" if plan.job.parallel.etp is not None else f"it is not given and defaults to tp = {etp}"
    text = f"set etp = 1: {given}, so that the ranks of an ep group are {step} apart"
    inside = ", which one NVLink domain holds" if fits else ""
    return Remedy(f"{text}; with etp = 1 they are {size} consecutive ranks{inside}", _plan_part("parallel.etp"))


def _by_launcher(plan: Plan, axis: str, ranks: Sequence[int], *, fits: bool) -> Remedy:
    launcher = plan.job.launch.launcher or ""
    how = BLOCK_BY.get(launcher, "block placement")
    then = "" if fits else f", and lower {axis} if a domain still doesn't hold its groups"
    return Remedy(
        f"place ranks {ranks_text(ranks)} in one NVLink domain ({how}: consecutive ranks fill a node){then}",
        _plan_part("launch.distribution" if launcher in {"", "slurm", "mpi"} else "launch.hosts"),
    )


def _order_or_degree(plan: Plan, axis: str, ranks: Sequence[int], smallest: int) -> Remedy:
    """Other axes lie inside this one: put it innermost if it should be, else lower the product of the degrees."""
    size, step = len(ranks), _step(ranks)
    if axis == "tp":
        order = "-".join(("tp", *(name for name in plan.order if name != "tp")))
        text = f"place ranks {ranks_text(ranks)} in one NVLink domain: put tp innermost, order = {order!r}"
        return Remedy(text, _plan_part("parallel.order"))
    fits = math.gcd(size, max(1, smallest // step)) if smallest % step == 0 else 1
    experts = plan.job.parallel.framework == "megatron" and axis == "ep"
    inner = "etp" if experts else "tp" if axis in {"cp", "ep"} else "the axes inside it"
    text = f"{axis} {size} x {step} ranks of {inner} = {size * step}, but an NVLink domain has {smallest}"
    change = f"lower {axis} from {size} to {fits}" if fits > 1 else f"lower {axis} or {inner}"
    return Remedy(f"{change}: {text}", _plan_part(f"parallel.{axis}"))


def _segment(domains: Domains, unit: int) -> Remedy | None:
    """Whole segments of nodes per domain, where a domain is large enough but holds no whole number of groups. None: a group fills no whole nodes.

    Worked example: tp 8 on nodes of 4 GPUs, 17 and 15 nodes in two domains: segments of 2 nodes, and 1 node of each domain left out.
    """
    per_node = domains.plan.placement.ranks_per_node[0]
    nodes, rest = divmod(unit, per_node)
    if rest or nodes < 2:
        return None
    left_out = sum(size % unit // per_node for size in domains.sizes)
    text = f"ask for segments of {nodes} nodes (Slurm: --segment={nodes}), so that every NVLink domain gives a multiple of {nodes}"
    return Remedy(f"{text}; of these nodes {left_out} would be left out", _plan_part("launch.segment"))


def _lower(axis: str, size: int, smallest: int) -> Remedy:
    fits = math.gcd(size, smallest)
    if fits == 1:
        text = f"set {axis} = 1, or use nodes whose GPUs NVLink joins in multiples of {size}"
    else:
        text = f"lower {axis} from {size} to {fits}, which divides the {smallest} GPUs of an NVLink domain"
    return Remedy(text, _plan_part(f"parallel.{axis}"))


def _step(ranks: Sequence[int]) -> int:
    """Distance of neighbours in a group, 1 for consecutive ranks."""
    return ranks[1] - ranks[0] if len(ranks) > 1 else 1


def _plan_part(name: str) -> Part:
    return Part(kind="plan", name=name)
