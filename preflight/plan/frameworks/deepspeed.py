"""DeepSpeed: a pipeline topology of pipe x data x model, model innermost; experts inside the data-parallel groups or across a stage.

Experts are laid out in one of three ways:
- without tensor parallelism, and in the MoE layer with it unless enable_expert_tensor_parallelism: ep groups are consecutive ranks of a
  pipeline stage, expert replicas lie ep apart (`data_before_expert` swaps the two);
- with enable_expert_tensor_parallelism (etp = tp): inside each data-parallel group, so ranks of an ep group lie tp apart;
- AutoEP with AutoTP: consecutive ranks of a stage once those are listed tp lane by tp lane.
Worked example, 16 ranks, tp 2, ep 4, etp 2: ep [0,2,4,6] [8,10,12,14] [1,3,5,7] [9,11,13,15], replicas [0,8] [2,10] ...

Sources: DeepSpeed, runtime/pipe/topology.py, utils/groups.py, moe/layer.py, module_inject/auto_ep_folding.py.
"""

from preflight.errors import ConfigError
from preflight.model import Job
from preflight.plan.frameworks.grid import Grid, GroupTable, Layout
from preflight.plan.frameworks.rules import World, complete_order, fill_world, product, refuse_axes

ORDER = ("tp", "dp", "pp")


def lay_out(job: Job, world: World) -> Layout:
    """Raises ConfigError where DeepSpeed would refuse the layout."""
    why = "has the axes pipe, data and model, and no place for context parallelism"
    refuse_axes(job, "DeepSpeed's topology", {"cp": why})
    parallel = job.parallel
    factors = {"tp": parallel.tp, "dp": parallel.dp, "pp": parallel.pp}
    filled = fill_world(job, world, factors, "DeepSpeed")
    degrees = {"tp": filled["tp"], "cp": 1, "ep": parallel.ep, "dp": filled["dp"], "pp": filled["pp"]}
    order = complete_order(job, degrees, ORDER, parallel.order)
    grid = Grid(order, degrees)
    table = GroupTable(world.size)
    table.add_axes(grid, order)
    table.add_composites(grid, {"tp_pp": ("tp", "pp")})  # what DeepSpeed calls the slice group
    if parallel.ep > 1:
        _refuse_order(job, degrees, order)
        _add_experts(job, degrees, table)
    return table.layout(degrees, order)


def _add_experts(job: Job, degrees: dict[str, int], table: GroupTable) -> None:
    """ep, edp and etp into degrees and groups. Raises ConfigError where the experts don't fit."""
    tp, ep, dp = degrees["tp"], degrees["ep"], degrees["dp"]
    etp = _expert_tp(job)
    ranks = {"dp": dp} if etp > 1 else {"tp": tp, "dp": dp}
    total = dp * (tp if etp == 1 else 1)
    if total % ep:
        raise ConfigError(
            job.source,
            f"ep {ep} does not divide {product(ranks)} (DeepSpeed: {total} is not divisible by {ep})",
            key="parallel.ep",
            remedy=f"choose an ep that divides {total}",
        )
    degrees |= {"etp": etp, "edp": total // ep}
    inner = ["edp", "ep"] if job.parallel.data_before_expert else ["ep", "edp"]
    if etp == 1 and tp > 1 and job.parallel.auto_ep:
        _refuse_folding(job, degrees)
        # lane by lane: position = lane x dp + replica; its rank = replica x tp + lane
        positions = [rank for lane in range(tp) for rank in range(lane, tp * dp, tp)]
        table.add_groups("ep", (positions[i : i + ep] for i in range(0, tp * dp, ep)))
        table.add_groups("edp", (positions[i::ep] for i in range(ep)))
        return
    expert = Grid(["etp", *inner, "pp"], degrees)
    table.add_axes(expert, ["ep", "etp", "edp"])


def _expert_tp(job: Job) -> int:
    """The tensor parallelism inside an expert: 1, or tp. Raises ConfigError where DeepSpeed has no such thing, or two that differ.

    Not given with tp above 1: AutoEP has 1, the MoE layer (auto_ep = false) has 1; where neither is said, tp, and plan_consistent says so.
    """
    parallel = job.parallel
    if parallel.tp == 1 and parallel.etp in {None, 1}:
        return 1
    if parallel.etp is None:
        return parallel.tp if parallel.auto_ep is None else 1
    if parallel.etp not in {1, parallel.tp} or (parallel.auto_ep and parallel.etp != 1):
        rule = "AutoEP has no expert tensor parallelism yet" if parallel.auto_ep else "experts have all of tp, or none"
        raise ConfigError(
            job.source,
            f"{parallel.etp} with tp {parallel.tp} (DeepSpeed: {rule})",
            key="parallel.etp",
            remedy="set etp = 1" if parallel.auto_ep else f"set etp to 1 or {parallel.tp}",
        )
    if parallel.etp == 1 and parallel.auto_ep is None:
        raise ConfigError(
            job.source,
            f"1 with tp {parallel.tp}: DeepSpeed's MoE layer puts an expert group on consecutive ranks then, and AutoEP on ranks {parallel.tp} apart",
            key="parallel.etp",
            remedy="say which one with auto_ep = true or auto_ep = false under [parallel]",
        )
    return parallel.etp


def _refuse_folding(job: Job, degrees: dict[str, int]) -> None:
    """Raises ConfigError where AutoEP doesn't take tensor parallelism."""
    broken = None
    if degrees["pp"] > 1:
        broken = f"pp {degrees['pp']}: AutoEP with AutoTP supports pp 1 only"
    elif job.parallel.data_before_expert:
        broken = "data_before_expert is not supported by AutoEP with AutoTP"
    elif job.parallel.zero_stage == 3:
        broken = "zero_stage 3: AutoEP with AutoTP takes ZeRO stage 0, 1 or 2"
    if broken:
        raise ConfigError(
            job.source, f"{broken} (DeepSpeed)", key="parallel", remedy="change it, or set tp = 1 or auto_ep = false"
        )


def _refuse_order(job: Job, degrees: dict[str, int], order: tuple[str, ...]) -> None:
    """Raises ConfigError where experts are laid out over an order that DeepSpeed's arithmetic doesn't know."""
    used = [axis for axis in order if degrees[axis] > 1]
    if used != [axis for axis in ORDER if axis in used]:
        raise ConfigError(
            job.source,
            f"{'-'.join(order)!r}, but DeepSpeed lays experts out as if tp were innermost and pp outermost",
            key="parallel.order",
            remedy=f"leave order out, or write {'-'.join(ORDER)!r}",
        )
