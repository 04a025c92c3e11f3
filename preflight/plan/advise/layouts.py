"""A ranked list of layouts for a model and a cluster: what fits, fastest first, and why the next one loses."""

import math
from collections.abc import Callable, Sequence
from itertools import groupby

from preflight.errors import ConfigError
from preflight.model import Job, LayoutAdvice, Topology
from preflight.plan.advise.options import idle_target, layout_options, wants_layouts
from preflight.plan.advise.paste import framework_words
from preflight.plan.advise.score import Cluster, Score, score_layout
from preflight.plan.advise.situation import block_placement
from preflight.plan.advise.trial import Judged, left_over, outcome_of
from preflight.plan.advise.why import strength, why_behind
from preflight.plan.build import build_plan, gpu_memory
from preflight.plan.footprint import add_topology
from preflight.plan.placement import launch_hosts
from preflight.plan.profiles import find_profile, near_profiles
from preflight.plan.rates import rates_of

MAX_BUILT = 3  # whole plans per layout to print: those that the checks refuse are passed over
SAFE, TIGHT, TOO_LARGE = 0, 1, 2  # fits with room; by less than the estimate's error; not

__all__ = ["advise_layouts", "cluster_of", "rank_layouts", "wants_layouts"]

Merit = Callable[[Score], tuple[float, ...]]


def advise_layouts(
    job: Job, judged: Judged, *, limit: int = 8, topology: Topology | None = None
) -> tuple[LayoutAdvice, ...]:
    """Layouts of the job's model on its cluster, best first, at most `limit`.

    Open are the degrees, virtual stages, ZeRO stage and micro-batches; what the plan file gives besides stays. Layouts that
    the checks refuse are left out; where they refuse all, the list shows what they refuse, the smallest first where none fits into memory. The list ends with what would be faster but may not or does not fit
    into memory, to show what memory costs. `topology`: which nodes share an NVLink domain, beyond what the plan file says. Raises ConfigError where the plan file doesn't tell the
    number of GPUs or their memory, or no layout is possible at all.
    """
    cluster = cluster_of(job, topology)
    if cluster.memory_bytes is None:
        gpu = job.hardware.gpu
        raise ConfigError(
            job.source,
            "is missing"
            + ("" if gpu is None else f", and no profile tells the memory of {gpu!r}")
            + ": no layout can be said to fit",
            key="hardware.gpu_memory",
            remedy='write gpu_memory = "48GB" under [hardware], or a gpu that has a profile'
            + ("" if gpu is None else f"; {near_profiles(gpu)}"),
        )
    scores = rank_layouts(job, cluster)
    if not scores:
        raise ConfigError(
            job.source,
            f"no layout of {job.model.layers} layers on {cluster.nodes} nodes x {cluster.per_node} GPUs is possible"
            + (f" with a global batch of {job.training.global_batch_size}" if job.training.global_batch_size else ""),
            key="parallel",
            remedy="raise training.global_batch_size, or change the number of nodes",
        )
    rooms = [[score for score in scores if room(score) == kind] for kind in (SAFE, TIGHT, TOO_LARGE)]
    safe = next((rank for rank in rooms[:TOO_LARGE] if rank), [])
    tempting = [rank[0] for rank in rooms if rank and rank is not safe and _faster(rank[0], safe)][: limit - 1]
    advices: list[LayoutAdvice] = []
    before = None
    for score in safe[: MAX_BUILT * limit]:
        if len(advices) == limit - len(tempting):
            break
        made = _judged(score, before, judged, topology)
        if made is not None and not made.tally.fail:
            advices.append(made)
            before = score
    if not advices:
        return _refused(safe or rank_layouts(job, cluster, by=smallness), judged, topology, limit)
    for score in tempting:
        made = _judged(score, before, judged, topology)
        if made is not None:
            advices.append(made)
            before = score
    return tuple(advices)


def _faster(score: Score, others: Sequence[Score]) -> bool:
    """Whether a layout would be faster than the best of the others, or there is no telling."""
    if not others:
        return False
    return (score.tokens_per_s or 0.0) >= (others[0].tokens_per_s or 0.0)


def _refused(
    scores: Sequence[Score], judged: Judged, topology: Topology | None, limit: int
) -> tuple[LayoutAdvice, ...]:
    """The best layouts although the checks refuse them, since they refuse every one."""
    advices: list[LayoutAdvice] = []
    before = None
    for score in scores[:limit]:
        made = _judged(score, before, judged, topology)
        if made is not None:
            advices.append(made)
            before = score
    return tuple(advices)


def cluster_of(job: Job, topology: Topology | None = None) -> Cluster:
    """The cluster that the plan file describes. Raises ConfigError where it doesn't tell nodes or GPUs."""
    hardware, hosts = job.hardware, launch_hosts(job)
    nodes = hardware.nodes if hosts is None else len(hosts)
    if nodes is None or hardware.gpus_per_node is None:
        key = "gpus_per_node" if nodes is not None else "nodes"
        raise ConfigError(
            job.source,
            "is missing, and no layout can be found without it",
            key=f"hardware.{key}",
            remedy=f"write {key} = ... under [hardware]",
        )
    names = hosts or tuple(f"node{i}" for i in range(nodes))
    placement = block_placement(names, hardware.gpus_per_node, method="block", uuids={})
    known = add_topology(placement, topology, hardware.nodes_per_nvlink_domain, gpu=hardware.gpu)
    return Cluster(
        nodes=nodes,
        per_node=hardware.gpus_per_node,
        per_domain=hardware.gpus_per_node * nodes_per_domain(known.domains),
        memory_bytes=gpu_memory(job),
        rates=rates_of(hardware, find_profile(hardware.gpu) if hardware.gpu else None),
    )


def nodes_per_domain(domains: Sequence[str | None] | None) -> int:
    """The most nodes such that every run of so many, in this order, lies in one domain. Example: a a a a b b gives 2. 1 where domains are not known."""
    if domains is None or None in domains:
        return 1
    runs = [len(list(members)) for _, members in groupby(domains)]
    return math.gcd(*runs)


def rank_layouts(job: Job, cluster: Cluster, *, by: Merit | None = None) -> list[Score]:
    """For each set of degrees its best variant, and the best that is short of memory if it is faster; best first. `by`: None, merit."""
    by = by or merit
    best: dict[tuple[int, ...], Score] = {}
    for option in layout_options(job, cluster):
        score = score_layout(job, *option, cluster)
        if score is None:
            continue
        key = (room(score), *(score.degrees[axis] for axis in ("tp", "cp", "pp", "ep")))
        if key not in best or by(score) < by(best[key]):
            best[key] = score
    return sorted(best.values(), key=by)


def room(score: Score) -> int:
    """SAFE, TIGHT or TOO_LARGE; SAFE where the memory of a GPU is not known."""
    return TOO_LARGE if score.fits is False else TIGHT if score.tight else SAFE


def merit(score: Score) -> tuple[float, ...]:
    """Smaller is better: room in memory; then tokens per second where they are known, else: within the bubble target, fewest stages, fewest ranks per layer."""
    degrees, parallel = score.degrees, score.job.parallel
    simple = (degrees["pp"], degrees["tp"], degrees["cp"], degrees["ep"], parallel.virtual_stages)
    if score.tokens_per_s is None:
        idle = score.idle_share > idle_target(score.job)
        return (room(score), 0.0, idle, *simple, score.idle_share, score.memory_bytes)
    return (room(score), -score.tokens_per_s, *simple)


def smallness(score: Score) -> tuple[float, ...]:
    """Smaller is better: bytes per GPU, then merit."""
    return (score.memory_bytes, *merit(score))


def _judged(score: Score, before: Score | None, judged: Judged, topology: Topology | None) -> LayoutAdvice | None:
    """A layout built as a whole plan, and what is said of it; None if it can't be built."""
    try:
        plan = build_plan(score.job, topology=topology)
    except ConfigError:
        return None
    outcome = outcome_of(plan, None, judged)
    step = score.step
    return LayoutAdvice(
        parallel=score.job.parallel,
        training=score.job.training,
        degrees=plan.degrees,
        memory_bytes=score.memory_bytes,
        gpu_memory_bytes=score.capacity,
        fits=score.fits,
        micro_batches=score.micro_batches,
        global_batch_size=score.global_batch_size,
        idle_share=score.idle_share,
        memory=score.memory,
        step_s=None if step is None else step.total_s,
        terms_s={} if step is None else step.terms,
        tokens_per_s=score.tokens_per_s,
        mfu=None if step is None else step.mfu,
        strength=strength(score),
        why_behind="" if before is None else why_behind(before, score),
        paste=framework_words(score.job.parallel, score.job.training, score.micro_batches, score.degrees["dp"]),
        tally=outcome.tally,
        left=left_over(outcome),
    )
