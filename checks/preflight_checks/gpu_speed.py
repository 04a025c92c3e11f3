"""Each GPU computes, and copies from and to its host, as fast as its peers.

A slow GPU holds up every collective as a slow link does, and no test between GPUs tells the two apart. So each rank does a short matrix product and copies by itself, and is compared
with the GPUs of the same product: one that is below 90 % of their upper median (the middle value, the higher one of two) each time is slow. One slow probe blames nobody: each is made twice, and of
GPUs that are slow so often again that chance alone would blame less than a thousandth of a GPU (preflight/model/gpu_rates.py). Where all GPUs of a node are slow, the node is to blame (its cooling,
its power, its PCIe). Clocks and the reasons why they are held down are told where they were read. Without GPUs it is the processors that are compared, and nobody is blamed.

Source: DLRover's network check does the same before it looks at links (500 matrix products). Limit: like GPUs of one cluster stay within a few
per cent of one another; 10 % is what the other comparisons of this program take (a healthy H100 cluster stayed within 4 %). Noise: preflight/model/noise.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from preflight.model import Check, Clocks, Evidence, Finding, Gpu, GpuAround, Measurement, Node, Part, Plan, Verdict
from preflight.model.gpu_rates import LEAST_PEERS, SHORTFALL, Like, Own, alike, alone_of, products_of
from preflight.model.hostlist import fold_numbers
from preflight.model.noise import TOO_NOISY_REMEDY, why_too_noisy
from preflight.model.per_gpu import gpu_name, gpu_part
from preflight.model.units import show_rate

NAME = "gpu_speed"
LIMITS = {"shortfall": SHORTFALL, "least_peers": float(LEAST_PEERS)}
OPS = {"matmul": "matrix product", "host_to_device": "copies to the GPU", "device_to_host": "copies from the GPU"}
_NO_REASON = {"idle", "application clocks", "display clocks"}  # NVML's reasons that don't hold a busy GPU down


class _Slow(NamedTuple):
    """A rank that is slow in one operation each time. `sure`: often enough that it is no chance."""

    rank: int
    op: str
    text: str
    key: str
    sure: bool


def judge(evidence: Evidence) -> Iterator[Finding]:
    """For each product and operation: the slow GPUs, or one PASS; one finding for all processors where there are no GPUs."""
    assert evidence.plan is not None
    assert evidence.measurements is not None
    alone = alone_of(evidence.measurements)
    limits = evidence.limits(NAME, LIMITS)
    shortfall = limits["shortfall"]
    slow: list[_Slow] = []
    for like in alike(alone, products_of(evidence.plan, evidence.inventory)):
        noisy = why_too_noisy(like.noise, shortfall)
        few = len(like.own) - 1 < limits["least_peers"]
        behind = like.slow(shortfall)
        if few or noisy or not behind or evidence.settings.backend == "gloo":
            yield _of_all(like, few=few, noisy=noisy, behind=behind, shortfall=shortfall)
        else:
            slow += _slow(like, behind, shortfall)
    found = _gpus(evidence, {each.rank for each in slow})
    yield from _blamed([each for each in slow if each.sure], alone, evidence.plan, found, shortfall)
    yield from _unsure([each for each in slow if not each.sure], evidence.plan, found, shortfall)


def _slow(like: Like, behind: Sequence[Own], shortfall: float) -> Iterator[_Slow]:
    needed = like.repeats_needed(shortfall)
    low, probes = like.held_up(shortfall)
    others = f"; {low} of {probes} probes here were slow and not again" if low else ""
    for own in behind:
        best = max(own.rates)
        times = "once" if len(own.rates) == 1 else f"{len(own.rates)} times, slow each time"
        text = f"{OPS[like.op]} {_show(like.op, own.typical)}, {own.typical / like.reference:.0%} of {len(like.own) - 1} peers' {_show(like.op, like.reference)}"
        text += f" (measured {times}; at best {best / like.reference:.0%}{others})"
        yield _Slow(own.rank, like.op, text, own.key, len(own.rates) >= needed)


def _seen(like: Like, shortfall: float) -> str:
    slowest = min(like.own, key=lambda own: own.typical)
    text = f"slowest rank {slowest.rank} at {_show(like.op, slowest.typical)}, {slowest.typical / like.reference:.0%} of {_show(like.op, like.reference)}"
    low, probes = like.held_up(shortfall)
    return f"{text}; {low} of {probes} probes were slow and not again" if low else text


def _name(like: Like) -> str:
    return f"{OPS[like.op]}, {like.product}" if like.product else OPS[like.op]


def _gpus(evidence: Evidence, ranks: set[int]) -> dict[int, tuple[Node, Gpu]]:
    """Of these ranks those of which node and GPU are known."""
    assert evidence.plan is not None
    nodes = {node.name: node for node in evidence.inventory.nodes} if evidence.inventory else {}
    found: dict[int, tuple[Node, Gpu]] = {}
    for number in ranks:
        rank = evidence.plan.placement.ranks[number]
        node = nodes.get(rank.node)
        gpu = next((g for g in (node.gpus or () if node else ()) if g.uuid and g.uuid == rank.gpu_uuid), None)
        if node is not None and gpu is not None:
            found[number] = (node, gpu)
    return found


def _show(op: str, rate: float) -> str:
    return f"{rate / 1e12:.3g} TFLOP/s" if op == "matmul" else show_rate(rate)


def _of_all(like: Like, *, few: bool, noisy: str | None, behind: Sequence[Own], shortfall: float) -> Finding:
    """What is said of all of them together, and blames nobody."""
    what = "GPUs" if like.product else "ranks"
    if few:
        text = f"{len(like.own)} {what} measured, {_show(like.op, like.reference)} at best: too few to tell a slow one from a fast one"
        return Finding(check=NAME, subject=_name(like), verdict=Verdict.SKIP, observed=text)
    verdict, remedy = Verdict.WARN, ""
    if noisy:
        observed, remedy = f"{noisy}; {_seen(like, shortfall)}", TOO_NOISY_REMEDY
    elif behind:  # processors of a machine that other work shares
        observed = f"ranks {fold_numbers(sorted(own.rank for own in behind))} are slow; {_seen(like, shortfall)}"
        remedy = "look at what else runs there, at the cores that each rank may use, and at the governor of the clock"
    else:
        verdict, observed = Verdict.PASS, f"{len(like.own)} {what} alike; {_seen(like, shortfall)}"
    return Finding(
        check=NAME,
        subject=_name(like),
        verdict=verdict,
        observed=observed,
        expected=f"at least {1 - shortfall:.0%} of {_show(like.op, like.reference)}, the upper median of {len(like.own)} {what}",
        remedy=remedy,
    )


def _unsure(
    slow: Sequence[_Slow], plan: Plan, gpus: Mapping[int, tuple[Node, Gpu]], shortfall: float
) -> Iterator[Finding]:
    """GPUs that were slow each time, and not often enough to say that it is no chance."""
    for rank in dict.fromkeys(each.rank for each in slow):
        name, _ = _named(rank, plan.placement.ranks[rank].node, gpus.get(rank))
        yield Finding(
            check=NAME,
            subject=name,
            verdict=Verdict.UNKNOWN,
            observed=f"{'; '.join(each.text for each in slow if each.rank == rank)}: too few probes to tell a slow GPU from something passing",
            expected=f"at least {1 - shortfall:.0%} of the upper median of the GPUs of the same product",
            remedy="run again, with a larger --budget: it is measured again then",
            evidence=tuple(each.key for each in slow if each.rank == rank),
        )


def _blamed(
    slow: Sequence[_Slow],
    alone: Sequence[Measurement],
    plan: Plan,
    gpus: Mapping[int, tuple[Node, Gpu]],
    shortfall: float,
) -> Iterator[Finding]:
    """One finding for each slow GPU, or for a node all of whose GPUs are slow alike."""
    if not slow:
        return
    placed = plan.placement.ranks
    measured = {m.probe.ranks[0] for m in alone if m.samples}
    by_rank: dict[int, list[_Slow]] = {}
    for each in slow:
        by_rank.setdefault(each.rank, []).append(each)
    by_node: dict[str, list[int]] = {}
    for rank in by_rank:
        by_node.setdefault(placed[rank].node, []).append(rank)
    on_node: dict[str, set[int]] = {}
    for rank in measured:
        on_node.setdefault(placed[rank].node, set()).add(rank)
    expected = f"at least {1 - shortfall:.0%} of the upper median of the GPUs of the same product"
    for node, ranks in by_node.items():
        mates = on_node[node]
        ops = [{each.op for each in by_rank[rank]} for rank in ranks]
        common = set.intersection(*ops)
        if len(mates) > 1 and mates == set(ranks) and common:
            told = [each.text for rank in ranks for each in by_rank[rank] if each.op in common]
            yield Finding(
                check=NAME,
                subject=node,
                verdict=Verdict.FAIL,
                observed=f"all {len(ranks)} GPUs measured on {node} are slow: {told[0]}{_held(alone, ranks)}",
                expected=expected,
                remedy=f"look at the power, the cooling and the PCIe links of {node}; leave it out until then",
                blames=Part(kind="node", name=node, confidence="likely"),
                evidence=tuple(each.key for rank in ranks for each in by_rank[rank]),
            )
            continue
        for rank in ranks:
            name, part = _named(rank, placed[rank].node, gpus.get(rank))
            yield Finding(
                check=NAME,
                subject=name,
                verdict=Verdict.FAIL,
                observed=f"{'; '.join(each.text for each in by_rank[rank])}{_held(alone, [rank])}",
                expected=expected,
                remedy=f"keep the job off {name}; look at its clocks, power limit, temperature and PCIe link (`nvidia-smi -q`)",
                blames=part,
                evidence=tuple(each.key for each in by_rank[rank]),
            )


def _named(rank: int, node: str, found: tuple[Node, Gpu] | None) -> tuple[str, Part]:
    if found is not None:
        return gpu_name(*found), gpu_part(*found, confidence="likely")
    name = f"the GPU of rank {rank} on {node}"
    return name, Part(kind="gpu", name=name, confidence="likely")


def _held(alone: Sequence[Measurement], ranks: Sequence[int]) -> str:
    """The clocks around the probes, and what held them down; empty if they were not read."""
    around = [gpu for m in alone for gpu in m.gpus if gpu.rank in ranks]
    told = list(dict.fromkeys(filter(None, (_clocks(gpu) for gpu in around))))
    return f" ({'; '.join(told[:3])})" if told else ""


def _clocks(around: GpuAround) -> str:
    states: list[Clocks] = [state for state in (around.before, around.after) if state is not None]
    if not states:
        return ""
    reasons = [r for state in states for r in state.throttle_reasons or () if r not in _NO_REASON]
    last = states[-1]
    clock = f"SM clock {last.sm_mhz} MHz" if last.sm_mhz else ""
    memory = f"memory clock {last.memory_mhz} MHz" if last.memory_mhz else ""
    held = f"held down by {', '.join(dict.fromkeys(reasons))}" if reasons else ""
    return ", ".join(filter(None, (clock, memory, held)))


CHECK = Check(
    name=NAME,
    claim="Each GPU computes, and copies from and to its host, as fast as its peers.",
    why="One slow GPU holds up every step of the whole job, and looks like a slow network.",
    source="peers of the same product in the same run: at least 90 % of their upper median in one of the repeats; repeats by preflight/model/gpu_rates.py, noise by preflight/model/noise.py",
    remedy="look at clocks, power limit, temperature and PCIe link of the GPU that is named, and keep the job off it until then",
    uses=("plan", "measurements"),
    judge=judge,
    limits=LIMITS,
)
