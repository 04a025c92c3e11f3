"""torchtitan and FSDP/HSDP: data parallelism in two, dp_shard (weights sharded) inside dp_replicate (weights copied).

Weights are sharded over fsdp = dp_shard x cp. torchtitan, dense: tp, cp, dp_shard, dp_replicate, pp; expert layers: ep, efsdp,
dp_replicate, pp, with efsdp = dp_shard x cp x tp / ep. Worked example, pp 2, dp_shard 2, cp 2, tp 2, ep 4: rank 5 is in tp [4,5], cp [5,7],
dp_shard [1,5], fsdp [1,3,5,7], pp [5,13], ep [4-7], efsdp [1,5].

Sources: torchtitan, distributed/parallel_dims.py; accelerate, parallelism_config.py, which has no pipeline and no experts.
"""

from preflight.errors import ConfigError
from preflight.model import Job
from preflight.plan.frameworks.grid import Grid, GroupTable, Layout
from preflight.plan.frameworks.rules import World, complete_order, fill_world, product, refuse_axes

TORCHTITAN_ORDER = ("tp", "cp", "dp_shard", "dp_replicate", "pp")
FSDP_ORDER = ("tp", "cp", "dp_shard", "dp_replicate")


def lay_out_torchtitan(job: Job, world: World) -> Layout:
    """Raises ConfigError where torchtitan would refuse the layout."""
    degrees = _resolve(job, world, "torchtitan")
    if degrees["ep"] > 1:
        degrees |= _experts(job, degrees)
    order = complete_order(job, degrees, TORCHTITAN_ORDER, _expanded(job))
    table = _dense_groups(degrees, order, world)
    if degrees["ep"] > 1:
        table.add_axes(_expert_grid(job, degrees, order), ["ep", "etp", "efsdp"])
    return table.layout(degrees, order)


def lay_out_fsdp(job: Job, world: World) -> Layout:
    """Raises ConfigError where FSDP (as accelerate sets it up) would refuse the layout."""
    why = {"pp": "has no pipeline", "ep": "has no expert parallelism", "virtual_stages": "has no pipeline"}
    refuse_axes(job, "FSDP as accelerate sets it up", why)
    degrees = _resolve(job, world, "FSDP")
    inner = {axis: degrees[axis] for axis in ("tp", "cp") if degrees[axis] > 1}
    if inner and degrees["dp_replicate"] > 1 and degrees["dp_shard"] == 1:
        raise ConfigError(
            job.source,
            f"{product(inner)} with dp_replicate {degrees['dp_replicate']} and dp_shard 1 (accelerate: tensor or context parallelism"
            " cannot be used with pure data parallelism)",
            key="parallel.dp_shard",
            remedy="set dp_replicate = 1 and let dp_shard take the rest, or raise dp_shard above 1",
        )
    order = complete_order(job, degrees, FSDP_ORDER, _expanded(job))
    table = _dense_groups(degrees, order, world)
    return table.layout(degrees, order)


def _resolve(job: Job, world: World, framework: str) -> dict[str, int]:
    """Every axis with its degree. dp_replicate is 1 unless given; dp_shard is what is left of the world unless given."""
    parallel = job.parallel
    replicate, shard = _split_dp(job)
    factors = {"tp": parallel.tp, "cp": parallel.cp, "dp_shard": shard, "dp_replicate": replicate, "pp": parallel.pp}
    if framework == "FSDP":
        del factors["pp"]
    filled = fill_world(job, world, factors, framework)
    shard = filled["dp_shard"]
    return {
        "tp": parallel.tp,
        "cp": parallel.cp,
        "ep": parallel.ep,
        "dp": shard * replicate,
        "pp": parallel.pp,
        "dp_shard": shard,
        "dp_replicate": replicate,
        "fsdp": shard * parallel.cp,
    }


def _split_dp(job: Job) -> tuple[int, int | None]:
    """dp_replicate and dp_shard as far as they are given; dp is their product. Raises ConfigError if it isn't."""
    parallel = job.parallel
    dp, replicate, shard = parallel.dp, parallel.dp_replicate, parallel.dp_shard
    if dp is None:
        return replicate or 1, shard
    if replicate is None:
        replicate = dp // shard if shard is not None else 1
    if shard is None:
        shard = dp // replicate
    if replicate * shard != dp:
        given = {"dp_replicate": parallel.dp_replicate, "dp_shard": parallel.dp_shard}
        shown = product({axis: degree for axis, degree in given.items() if degree is not None})
        raise ConfigError(
            job.source,
            f"{dp}, but dp = dp_replicate x dp_shard, and {shown}",
            key="parallel.dp",
            remedy="leave dp out, or correct one of the three",
        )
    return replicate, shard


def _expanded(job: Job) -> tuple[str, ...] | None:
    """The plan's order, with dp as short for dp_shard-dp_replicate."""
    given = job.parallel.order
    if given is None or "dp" not in given:
        return given
    place = given.index("dp")
    return (*given[:place], "dp_shard", "dp_replicate", *given[place + 1 :])


def _dense_groups(degrees: dict[str, int], order: tuple[str, ...], world: World) -> GroupTable:
    dense = Grid(order, degrees)
    table = GroupTable(world.size)
    table.add_axes(dense, ["tp", "cp"])
    table.add("dp", dense.along("dp_shard", "dp_replicate"))
    table.add_axes(dense, ["dp_shard", "dp_replicate"])
    table.add("fsdp", dense.along("dp_shard", "cp"))
    if "pp" in dense.axes:
        table.add("pp", dense.along("pp"))
    if degrees["cp"] > 1:  # the loss is averaged over it, which carries next to nothing
        table.add_composites(dense, {"dp_cp": ("dp_shard", "dp_replicate", "cp")})
    return table


def _experts(job: Job, degrees: dict[str, int]) -> dict[str, int]:
    """etp, efsdp and edp = efsdp x dp_replicate. Raises ConfigError where ep doesn't fit.

    etp is 1 unless given: torchtitan has no expert tensor parallelism any more; its older versions had 1 (the default) and tp.
    """
    etp = 1 if job.parallel.etp is None else job.parallel.etp
    if etp not in {1, degrees["tp"]}:
        raise ConfigError(
            job.source,
            f"{etp} with tp {degrees['tp']} (torchtitan: expert_tensor_parallel_degree is 1 or the tensor parallel degree)",
            key="parallel.etp",
            remedy=f"leave etp out, or set it to 1 or {degrees['tp']}",
        )
    factors = {axis: degrees[axis] for axis in ("dp_shard", "cp", "tp")}
    total = degrees["fsdp"] * degrees["tp"]
    if total % (etp * degrees["ep"]):
        raise ConfigError(
            job.source,
            f"etp {etp} x ep {degrees['ep']} does not divide {product(factors)} (torchtitan: expert parallelism borrows from dp_shard, cp and tp,"
            " so ep must divide dp_shard x cp x tp)",
            key="parallel.ep",
            remedy=f"choose an ep that divides {total // etp}",
        )
    efsdp = total // (etp * degrees["ep"])
    return {"etp": etp, "edp": efsdp * degrees["dp_replicate"], "efsdp": efsdp}


def _expert_grid(job: Job, degrees: dict[str, int], order: tuple[str, ...]) -> Grid:
    """The order with etp, ep, efsdp in the place of tp, cp, dp_shard. Raises ConfigError where those are not neighbours in it."""
    used = [axis for axis in order if degrees[axis] > 1]
    places = [place for place, axis in enumerate(used) if axis in {"tp", "cp", "dp_shard"}]
    if places[-1] - places[0] >= len(places):
        raise ConfigError(
            job.source,
            f"{'-'.join(order)!r} tears tp, cp and dp_shard apart, and expert parallelism borrows from all three",
            key="parallel.order",
            remedy=f"keep them side by side, as in {'-'.join(TORCHTITAN_ORDER)!r}",
        )
    return Grid([*used[: places[0]], "etp", "ep", "efsdp", *used[places[-1] + 1 :]], degrees)
