"""Megatron-Core: a dense and an expert arrangement of the same ranks.

Dense layers: tp, cp, dp, pp. Expert layers put etp x ep x edp in the place of tp x cp x dp within each pipeline stage, in the same
order, so the world size is tp x cp x dp x pp, whatever ep is. Worked example, 16 ranks, tp 2, pp 2, ep 4, etp 1: dp 4 and edp 2;
ep groups [0-3] [4-7] [8-11] [12-15].

Source: Megatron-Core, parallel_state.py (RankGenerator, initialize_model_parallel). `--use-tp-pp-dp-mapping` is order = "tp-cp-ep-pp-dp".
"""

import math
from collections.abc import Sequence

from preflight.errors import ConfigError
from preflight.model import Job
from preflight.plan.frameworks.grid import Grid, GroupTable, Layout, Pattern
from preflight.plan.frameworks.rules import World, complete_order, fill_world, product

ORDER = ("tp", "cp", "ep", "dp", "pp")
_EXPERT_NAMES = {"tp": "etp", "dp": "edp"}


def lay_out(job: Job, world: World) -> Layout:
    """Raises ConfigError where Megatron-Core would refuse the layout."""
    degrees = _resolve(job, world)
    order = complete_order(job, degrees, ORDER, job.parallel.order)
    dense = Grid([axis for axis in order if axis != "ep"], degrees)
    table = GroupTable(world.size)
    table.add_axes(dense, [axis for axis in dense.axes if axis != "pp"])
    if "dp_cp" in degrees:
        table.add("dp_cp", dense.along("dp", "cp"))
    stages = dense.along("pp")
    table.add("pp", stages)
    if "embedding" in degrees:
        table.add("embedding", stages.only_ends())
    if job.parallel.hierarchical_cp is not None:
        for level, pattern in enumerate(dense.along("cp").split(job.parallel.hierarchical_cp), start=1):
            table.add(f"hcp{level}", pattern)
    _add_instances(table, degrees, "dp", dense.along("dp", "cp"))
    names = {"tp_pp": ("tp", "pp"), "tp_cp": ("tp", "cp"), "tp_dp": ("tp", "dp"), "tp_dp_cp": ("tp", "dp", "cp")}
    table.add_composites(dense, names)
    if "etp" in degrees:
        expert = Grid([_EXPERT_NAMES.get(axis, axis) for axis in order if axis != "cp"], degrees)
        _refuse_order(job, degrees, order, dense, expert)
        table.add_axes(expert, [axis for axis in expert.axes if axis != "pp"])
        _add_instances(table, degrees, "edp", expert.along("edp"))
        table.add_composites(expert, {"tp_ep": ("etp", "ep"), "tp_ep_pp": ("etp", "ep", "pp")})
    return table.layout(degrees, order)


def _resolve(job: Job, world: World) -> dict[str, int]:
    """Every axis with its degree: dp filled in, etp defaulted to tp; etp and edp only where the experts have a layout of their own."""
    parallel = job.parallel
    factors = {"tp": parallel.tp, "cp": parallel.cp, "dp": parallel.dp, "pp": parallel.pp}
    filled = fill_world(job, world, factors, "Megatron-Core")
    degrees = {"tp": filled["tp"], "cp": filled["cp"], "ep": parallel.ep, "dp": filled["dp"], "pp": filled["pp"]}
    replicas = degrees["dp"] * degrees["cp"]
    if degrees["cp"] > 1:
        degrees["dp_cp"] = replicas
    if job.model.tied_embeddings and degrees["pp"] > 1:
        degrees["embedding"] = 2
    etp = parallel.tp if parallel.etp is None else parallel.etp
    if parallel.ep > 1 or etp != parallel.tp:
        degrees |= {"etp": etp, "edp": _expert_dp(job, degrees, etp, world)}
    _add_levels(job, degrees)
    instances = parallel.optimizer_instances
    if instances > 1:
        _refuse_instances(job, degrees, instances)
        degrees |= {"dp_intra": replicas // instances, "dp_inter": instances}
        if "edp" in degrees:
            degrees |= {"edp_intra": degrees["edp"] // instances, "edp_inter": instances}
    return degrees


def _expert_dp(job: Job, degrees: dict[str, int], etp: int, world: World) -> int:
    """edp = tp x cp x dp / (etp x ep). Raises ConfigError if that is no whole number."""
    ep, pp = degrees["ep"], degrees["pp"]
    factors = {axis: degrees[axis] for axis in ("tp", "cp", "dp")}
    stage = math.prod(factors.values())
    if stage % (etp * ep) == 0:
        return stage // (etp * ep)
    default = " (etp is not given and defaults to tp)" if job.parallel.etp is None else ""
    fits = " etp = 1 would fit." if etp > 1 and stage % ep == 0 else ""
    raise ConfigError(
        job.source,
        f"{product({'etp': etp, 'ep': ep})} does not divide {product(factors)}, the ranks of one pipeline stage{default}"
        f"; Megatron-Core: the world size must divide by etp x ep x pp, and {world.size} does not divide by {etp * ep * pp}",
        key="parallel.ep",
        remedy=f"change ep or etp so that their product divides {stage}.{fits}",
    )


def _add_levels(job: Job, degrees: dict[str, int]) -> None:
    """hcp1, hcp2, ...: the levels of hierarchical context parallelism. Raises ConfigError if their product isn't cp."""
    sizes = job.parallel.hierarchical_cp
    if sizes is None:
        return
    levels = {f"hcp{level}": size for level, size in enumerate(sizes, start=1)}
    if math.prod(sizes) != degrees["cp"]:
        raise ConfigError(
            job.source,
            f"{list(sizes)} multiplies to {math.prod(sizes)}, but cp is {degrees['cp']} (Megatron-Core: the product of"
            " hierarchical_context_parallel_sizes is the context parallel size)",
            key="parallel.hierarchical_cp",
            remedy=f"choose sizes, innermost first, whose product is {degrees['cp']}, or leave it out",
        )
    degrees |= levels


def _refuse_instances(job: Job, degrees: dict[str, int], instances: int) -> None:
    """Raises ConfigError where the replicas can't be divided among the instances of the distributed optimizer."""
    dense = {axis: degrees[axis] for axis in ("dp", "cp")}
    expert = {"edp": degrees.get("edp", math.prod(dense.values()))}  # without experts it is dp x cp
    for what, factors in (("data", dense), ("expert data", expert)):
        if math.prod(factors.values()) % instances:
            raise ConfigError(
                job.source,
                f"{instances} instances, but {product(factors)} does not divide by it (Megatron-Core: the {what} parallel size must"
                " divide by num_distributed_optimizer_instances)",
                key="parallel.optimizer_instances",
                remedy=f"choose a divisor of {math.gcd(math.prod(dense.values()), *expert.values())}",
            )


def _add_instances(table: GroupTable, degrees: dict[str, int], name: str, replicas: Pattern) -> None:
    """The replicas of each gradient group cut into optimizer instances: inside one, and one of each. Nothing with a single instance."""
    instances = degrees.get(f"{name}_inter", 1)
    if instances > 1:
        size = degrees[f"{name}_intra"]
        groups = table.made(replicas)
        table.add_groups(f"{name}_intra", (ranks[i : i + size] for ranks in groups for i in range(0, len(ranks), size)))
        table.add_groups(f"{name}_inter", (ranks[i::size] for ranks in groups for i in range(size)))


def _refuse_order(job: Job, degrees: dict[str, int], order: Sequence[str], dense: Grid, expert: Grid) -> None:
    """Raises ConfigError where dense and expert layers would disagree about which ranks form a pipeline."""
    given = job.parallel.order or ORDER
    pp, dp, edp = degrees["pp"], degrees["dp"], degrees["edp"]
    if pp == 1 or given[-1] == "pp":
        return
    strides = dense.stride("pp"), expert.stride("pp")
    if edp == dp and strides[0] == strides[1]:
        return
    shown = "-".join(given)
    nanotron = (
        "; nanotron, whose order has ep outermost, checks a world size without ep and then fails to lay the ranks out"
        if degrees["ep"] > 1 and order.index("ep") > order.index("pp")
        else ""
    )
    raise ConfigError(
        job.source,
        f"{shown!r} does not end in pp, and then Megatron-Core wants expert data parallelism to equal data parallelism: edp {edp}, dp {dp}."
        f" Neighbours in a pipeline are {strides[0]} ranks apart in dense layers and {strides[1]} in expert layers{nanotron}",
        key="parallel.order",
        remedy=f"let pp be the outermost axis of the order, as in {'-'.join(ORDER)!r}, or choose degrees with etp x ep = tp x cp",
    )
