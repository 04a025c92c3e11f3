"""Each GPU computes, and copies from and to its host, as fast as its peers.

A slow GPU holds up every collective as a slow link does, and no test between GPUs tells the two apart. So each rank does a short matrix product and copies by itself, and is compared
with the GPUs of the same product: one below 90 % of their upper median (the middle value, the higher one of two) is slow. Where all GPUs of a node are, the node is to blame (its cooling, its
power, its PCIe). Clocks and the reasons why they are held down are told where they were read. Without GPUs it is the processors that are compared, and nobody is blamed.

Source: DLRover's network check does the same before it looks at links (500 matrix products). Limit: like GPUs of one cluster stay within a few
per cent of one another; 10 % is what the other comparisons of this program take (a healthy H100 cluster stayed within 4 %). Noise: preflight/model/noise.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from preflight.model import Check, Clocks, Evidence, Finding, Gpu, GpuAround, Measurement, Node, Part, Plan, Verdict
from preflight.model.bandwidth import ALONE
from preflight.model.hostlist import fold_numbers
from preflight.model.measurement import median
from preflight.model.noise import TOO_NOISY_REMEDY, relative_noise, upper_median, why_too_noisy
from preflight.model.per_gpu import gpu_name, gpu_part
from preflight.model.units import show_rate

NAME = "gpu_speed"
LIMITS = {"shortfall": 0.10, "least_peers": 3.0}
OPS = {"matmul": "matrix product", "host_to_device": "copies to the GPU", "device_to_host": "copies from the GPU"}
_NO_REASON = {"idle", "application clocks", "display clocks"}  # NVML's reasons that don't hold a busy GPU down


class _Own(NamedTuple):
    """One rank's figures of one operation: `rates` per second, one for each repeat."""

    rank: int
    rates: tuple[float, ...]

    @property
    def typical(self) -> float:
        return median(self.rates)


class _Slow(NamedTuple):
    """A rank that is slow in one operation."""

    rank: int
    op: str
    share: float
    text: str
    key: str


class _Like(NamedTuple):
    """The ranks that did the same on GPUs of one product."""

    op: str
    product: str
    own: tuple[_Own, ...]
    noise: float | None
    reference: float

    @property
    def name(self) -> str:
        return f"{OPS[self.op]}, {self.product}" if self.product else OPS[self.op]

    @property
    def seen(self) -> str:
        slowest = min(self.own, key=lambda own: own.typical)
        return f"slowest rank {slowest.rank} at {_show(self.op, slowest.typical)}, {slowest.typical / self.reference:.0%} of {_show(self.op, self.reference)}"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """For each product and operation: the slow GPUs, or one PASS; one finding for all processors where there are no GPUs."""
    assert evidence.plan is not None
    assert evidence.measurements is not None
    alone = [m for m in evidence.measurements if m.probe.collective in ALONE and len(m.probe.ranks) == 1]
    limits = evidence.limits(NAME, LIMITS)
    found = _gpus(evidence)
    slow: list[_Slow] = []
    for like in _alike(alone, found):
        expected = f"at least {1 - limits['shortfall']:.0%} of {_show(like.op, like.reference)}, the upper median of {len(like.own)} {'GPUs' if like.product else 'ranks'}"
        noisy = why_too_noisy(like.noise, limits["shortfall"])
        few = len(like.own) - 1 < limits["least_peers"]
        behind = [own for own in like.own if own.typical < (1 - limits["shortfall"]) * like.reference]
        if few or noisy or not behind or evidence.settings.backend == "gloo":
            yield _of_all(like, few=few, noisy=noisy, behind=behind, expected=expected)
            continue
        slow += [
            _Slow(
                own.rank,
                like.op,
                own.typical / like.reference,
                f"{OPS[like.op]} {_show(like.op, own.typical)}, {own.typical / like.reference:.0%} of {len(like.own) - 1} peers' {_show(like.op, like.reference)}",
                _key(alone, own.rank, like.op),
            )
            for own in behind
        ]
    yield from _blamed(slow, alone, evidence.plan, found, limits["shortfall"])


def _gpus(evidence: Evidence) -> dict[int, tuple[Node, Gpu]]:
    """Rank -> its node and GPU, where both are known."""
    assert evidence.plan is not None
    nodes = {node.name: node for node in evidence.inventory.nodes} if evidence.inventory else {}
    found: dict[int, tuple[Node, Gpu]] = {}
    for rank in evidence.plan.placement.ranks:
        node = nodes.get(rank.node)
        gpu = next((g for g in (node.gpus or () if node else ()) if g.uuid and g.uuid == rank.gpu_uuid), None)
        if node is not None and gpu is not None:
            found[rank.rank] = (node, gpu)
    return found


def _alike(alone: Sequence[Measurement], gpus: Mapping[int, tuple[Node, Gpu]]) -> Iterator[_Like]:
    """The measurements that may be compared: the same operation and size on the same product."""
    sorted_out: dict[tuple[str, str, int, int], dict[int, list[Measurement]]] = {}
    for m in alone:
        if m.duration_s and not m.failure and m.data_correct is not False:
            rank = m.probe.ranks[0]
            product = (gpus[rank][1].name or "") if rank in gpus else ""
            kind = (m.probe.collective, product, m.probe.size_bytes, m.probe.flops)
            sorted_out.setdefault(kind, {}).setdefault(rank, []).append(m)
    for (op, product, _, flops), by_rank in sorted_out.items():
        own = tuple(
            _Own(rank, tuple(_rate(m.duration_s, m, flops) for m in measured)) for rank, measured in by_rank.items()
        )
        noise = relative_noise([one.rates for one in own])
        if noise is None:  # each measured once: its own windows are the repeats
            noise = relative_noise([m.slowest_s for measured in by_rank.values() for m in measured])
        yield _Like(op, product, own, noise, upper_median(one.typical for one in own))


def _rate(duration_s: float | None, measured: Measurement, flops: int) -> float:
    """Operations per second of a product, bytes per second of a copy."""
    assert duration_s
    return (flops or measured.probe.size_bytes) / duration_s


def _show(op: str, rate: float) -> str:
    return f"{rate / 1e12:.3g} TFLOP/s" if op == "matmul" else show_rate(rate)


def _key(alone: Sequence[Measurement], rank: int, op: str) -> str:
    return next(m.probe.key for m in alone if m.probe.ranks == (rank,) and m.probe.collective == op)


def _of_all(like: _Like, *, few: bool, noisy: str | None, behind: Sequence[_Own], expected: str) -> Finding:
    """What is said of all of them together, and blames nobody."""
    count = f"{len(like.own)} {'GPUs' if like.product else 'ranks'}"
    if few:
        text = f"{count} measured, {_show(like.op, like.reference)} at best: too few to tell a slow one from a fast one"
        return Finding(check=NAME, subject=like.name, verdict=Verdict.SKIP, observed=text)
    if noisy:
        observed, remedy = f"{noisy}; {like.seen}", TOO_NOISY_REMEDY
    elif behind:  # processors of a machine that other work shares
        observed = f"ranks {fold_numbers(sorted(own.rank for own in behind))} are slow; {like.seen}"
        remedy = "look at what else runs there, at the cores that each rank may use, and at the governor of the clock"
    else:
        text = f"{count} alike; {like.seen}"
        return Finding(check=NAME, subject=like.name, verdict=Verdict.PASS, observed=text, expected=expected)
    return Finding(
        check=NAME, subject=like.name, verdict=Verdict.WARN, observed=observed, expected=expected, remedy=remedy
    )


def _blamed(
    slow: Sequence[_Slow],
    alone: Sequence[Measurement],
    plan: Plan,
    gpus: Mapping[int, tuple[Node, Gpu]],
    shortfall: float,
) -> Iterator[Finding]:
    """One finding for each slow GPU, or for a node all of whose GPUs are slow alike."""
    placed = {rank.rank: rank for rank in plan.placement.ranks}
    measured = {m.probe.ranks[0] for m in alone if m.samples}
    by_rank = {rank: [each for each in slow if each.rank == rank] for rank in dict.fromkeys(each.rank for each in slow)}
    by_node: dict[str, list[int]] = {}
    for rank in by_rank:
        by_node.setdefault(placed[rank].node, []).append(rank)
    expected = f"at least {1 - shortfall:.0%} of the upper median of the GPUs of the same product"
    for node, ranks in by_node.items():
        mates = {rank for rank in measured if placed[rank].node == node}
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
    source="peers of the same product in the same run: at least 90 % of their upper median; robust statistics in preflight/model/noise.py",
    remedy="look at clocks, power limit, temperature and PCIe link of the GPU that is named, and keep the job off it until then",
    uses=("plan", "measurements"),
    judge=judge,
    limits=LIMITS,
)
