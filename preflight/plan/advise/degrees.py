"""The degrees of every axis by arithmetic alone, as the frameworks resolve them (plan/frameworks), without building groups: for comparing hundreds of layouts.

What is printed is laid out by the frameworks' own rules afterwards; a test holds both against each other.
"""

from preflight.model import Job
from preflight.plan.layout import ORDERS


def quick_degrees(job: Job, world_size: int) -> dict[str, int] | None:
    """Axis -> degree, as lay_out would give them; None where they don't divide."""
    parallel = job.parallel
    inner = parallel.tp * parallel.cp * parallel.pp
    if world_size % inner:
        return None
    dp = world_size // inner
    degrees = {"tp": parallel.tp, "cp": parallel.cp, "ep": parallel.ep, "dp": dp, "pp": parallel.pp}
    if parallel.framework in {"torchtitan", "fsdp"}:
        more = _sharded(job, degrees)
    elif parallel.framework == "megatron":
        more = _megatron(job, degrees)
    else:
        more = _deepspeed(job, degrees)
    return None if more is None else degrees | more


def quick_orders(job: Job) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The axes of the dense and of the expert layers, innermost first."""
    framework = job.parallel.framework
    order = job.parallel.order or ORDERS[framework]
    if framework in {"torchtitan", "fsdp"}:
        place = order.index("dp") if "dp" in order else None
        if place is not None:
            order = (*order[:place], "dp_shard", "dp_replicate", *order[place + 1 :])
        return order, ("etp", "ep", "efsdp", "dp_replicate", "pp")
    if framework == "deepspeed":
        return order, ("etp", "edp", "ep", "pp") if job.parallel.data_before_expert else ("etp", "ep", "edp", "pp")
    names = {"tp": "etp", "dp": "edp"}
    return tuple(axis for axis in order if axis != "ep"), tuple(names.get(axis, axis) for axis in order if axis != "cp")


def _megatron(job: Job, degrees: dict[str, int]) -> dict[str, int] | None:
    parallel, more = job.parallel, {}
    stage = degrees["tp"] * degrees["cp"] * degrees["dp"]
    if degrees["cp"] > 1:
        more["dp_cp"] = degrees["cp"] * degrees["dp"]
    if job.model.tied_embeddings and degrees["pp"] > 1:
        more["embedding"] = 2
    etp = degrees["tp"] if parallel.etp is None else parallel.etp
    if parallel.ep > 1 or etp != degrees["tp"]:
        if stage % (etp * parallel.ep):
            return None
        more |= {"etp": etp, "edp": stage // (etp * parallel.ep)}
        pp_inside = parallel.order is not None and parallel.order[-1] != "pp" and degrees["pp"] > 1
        if pp_inside and more["edp"] != degrees["dp"]:
            return None  # Megatron-Core refuses an order that does not end in pp then
    return more


def _sharded(job: Job, degrees: dict[str, int]) -> dict[str, int] | None:
    replicate = job.parallel.dp_replicate or 1
    if degrees["dp"] % replicate:
        return None
    shard = degrees["dp"] // replicate
    more = {"dp_shard": shard, "dp_replicate": replicate, "fsdp": shard * degrees["cp"]}
    if degrees["ep"] > 1:
        etp = job.parallel.etp or 1
        total = more["fsdp"] * degrees["tp"]
        if total % (etp * degrees["ep"]):
            return None
        efsdp = total // (etp * degrees["ep"])
        more |= {"etp": etp, "edp": efsdp * replicate, "efsdp": efsdp}
    return more


def _deepspeed(job: Job, degrees: dict[str, int]) -> dict[str, int] | None:
    if degrees["cp"] > 1:
        return None
    if degrees["ep"] == 1:
        return {}
    etp = degrees["tp"] if job.parallel.etp is None else job.parallel.etp
    total = degrees["dp"] * (degrees["tp"] if etp == 1 else 1)
    return None if total % degrees["ep"] else {"etp": etp, "edp": total // degrees["ep"]}
