"""No rank, and no single pair, is slower than its peers.

Peers are the pairs of one kind, inside nodes or between nodes, each compared with the pairs of its own route (like or unlike slots; NVLink or PCIe). A rank's score is its
best pair, because one good partner clears it; the reference is the median of the scores. A rank is blamed only beside two partners that are cleared, a pair only if it was
slow each time. The limit is only as good as the repeats: where they differ too much, the check says so and calls nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from preflight.model import Check, Evidence, Finding, Inventory, Part, Plan, Verdict
from preflight.model.hostlist import fold_numbers
from preflight.model.measurement import median
from preflight.model.noise import TOO_NOISY_REMEDY, by_subject, relative_noise, repeats_of, upper_median, why_too_noisy
from preflight.model.plan import Rank
from preflight.model.units import show_rate

# A healthy H100 cluster of 10 nodes stayed within 4 % of its median over 45 pairs (public nccl-tests logs); gates in use sit 4 to 13 % under typical.
LIMITS = {"shortfall": 0.10}
MANY = 0.25  # more slow pairs than this, and no single rank explains them: the cause is not a pair
CLEARED = (
    2  # good partners beside which a slow rank is blamed: with a single one, the path between the two explains as much
)

Pair = tuple[int, int]
Pairs = dict[Pair, list[float]]


class _Class(NamedTuple):
    """The pairs of one kind. `rates` in bytes per second; `share` of each pair in its route's reference; `score`: each rank's best share."""

    name: str
    rates: Pairs
    share: dict[Pair, float]
    score: dict[int, float]
    least: float  # the smallest share that is not slow
    seen: str
    expected: str

    def finding(
        self, subject: str, verdict: Verdict, observed: str, remedy: str = "", blames: Part | None = None
    ) -> Finding:
        return Finding(
            check="pair_outlier",
            subject=subject,
            verdict=verdict,
            observed=observed,
            expected=self.expected,
            remedy=remedy,
            blames=blames,
            evidence=(subject,) if subject.startswith("pair ") else (),
        )


def judge(evidence: Evidence) -> Iterator[Finding]:
    """For each class: what is slow, or one finding that all are alike, or that the noise forbids to tell."""
    assert evidence.plan is not None
    assert evidence.measurements is not None
    shortfall = evidence.limits("pair_outlier", LIMITS)["shortfall"]
    placed = evidence.plan.placement.ranks
    ranks = {m.probe.subject: m.probe.ranks for m in evidence.measurements if m.probe.axis is None}
    kinds: dict[str, Pairs] = {}
    for subject, values in by_subject(repeats_of(evidence.measurements), "alone").items():
        if subject in ranks:
            a, b = ranks[subject]
            inside = placed[a].node == placed[b].node
            kinds.setdefault("pairs inside nodes" if inside else "pairs between nodes", {})[(a, b)] = values
    for name, rates in kinds.items():
        if len(rates) < 3:
            yield Finding(
                check="pair_outlier",
                subject=name,
                verdict=Verdict.SKIP,
                observed=f"{len(rates)} measured: too few to tell a slow one from a fast one",
            )
            continue
        judged = _class(name, rates, _routes(rates, placed, evidence.inventory), shortfall)
        noisy = why_too_noisy(relative_noise(rates.values()), shortfall)
        if noisy:
            yield Finding(
                check="pair_outlier",
                subject=name,
                verdict=Verdict.WARN,
                observed=f"{noisy}; {judged.seen}",
                expected=f"repeats alike enough to see a shortfall of {shortfall:.0%}",
                remedy=TOO_NOISY_REMEDY,
            )
        else:
            yield from _judge_class(judged, evidence.plan)


def _class(name: str, rates: Pairs, routes: Mapping[Pair, str], shortfall: float) -> _Class:
    typical = {pair: median(values) for pair, values in rates.items()}
    references = {
        route: upper_median(_best({p: v for p, v in typical.items() if routes[p] == route}).values())
        for route in dict.fromkeys(routes.values())
    }
    share = {pair: value / references[routes[pair]] for pair, value in typical.items()}
    slowest = min(share, key=lambda pair: share[pair])
    shown = ", ".join(f"{show_rate(rate)} {route}".rstrip() for route, rate in references.items())
    return _Class(
        name=name,
        rates=rates,
        share=share,
        score=_best(share),
        least=1 - shortfall,
        seen=f"slowest {slowest[0]}-{slowest[1]} at {show_rate(typical[slowest])}, {share[slowest]:.0%} of the peers' {show_rate(references[routes[slowest]])}",
        expected=f"at least {1 - shortfall:.0%} of {shown}, the median of the ranks' best pairs in this run",
    )


def _best(values: Mapping[Pair, float]) -> dict[int, float]:
    """Rank -> the highest value of its pairs."""
    best: dict[int, float] = {}
    for pair, value in values.items():
        for rank in pair:
            best[rank] = max(best.get(rank, 0.0), value)
    return best


def _routes(pairs: Iterable[Pair], placed: tuple[Rank, ...], inventory: Inventory | None) -> dict[Pair, str]:
    """The route of each pair. Where some rank has no pair on some route all count as one: that a rank lacks a route is what to find, not to excuse."""
    routes = {pair: _route(placed[pair[0]], placed[pair[1]], inventory) for pair in pairs}
    everyone = {rank for pair in routes for rank in pair}
    kinds = set(routes.values())
    complete = all({rank for p, kind in routes.items() if kind == one for rank in p} == everyone for one in kinds)
    return routes if complete and len(kinds) > 1 else dict.fromkeys(routes, "")


def _route(a: Rank, b: Rank, inventory: Inventory | None) -> str:
    if a.node != b.node:
        return "between like slots" if a.local_rank == b.local_rank else "between unlike slots"
    node = inventory.node(a.node) if inventory else None
    gpus = {gpu.uuid: gpu for gpu in (node.gpus if node else None) or () if gpu.uuid}
    mine, other = gpus.get(a.gpu_uuid or ""), gpus.get(b.gpu_uuid or "")
    peer = next((p for p in mine.peers if other and p.index == other.index), None) if mine else None
    if peer is None or peer.num_nvlinks is None:
        return ""
    return f"over {peer.num_nvlinks} NVLinks" if peer.num_nvlinks else f"over PCIe ({peer.ancestor})"


def _judge_class(judged: _Class, plan: Plan) -> Iterator[Finding]:
    slow_ranks = {rank for rank, share in judged.score.items() if share < judged.least}
    slow_pairs = [p for p, share in judged.share.items() if share < judged.least and not slow_ranks.intersection(p)]
    yield from _slow_ranks(judged, slow_ranks, plan)
    split = _split(judged, slow_ranks, slow_pairs)
    across = [pair for pair in slow_pairs if not any(part.issuperset(pair) for part in split)] if split else []
    left = [pair for pair in slow_pairs if pair not in across]
    if across:
        sets = "; ".join(fold_numbers(sorted(part)) for part in split[:4])
        text = f"{len(across)} of {len(judged.rates)} pairs are slow, all of them between sets of ranks that are fast among themselves: {sets}"
        path = Part(kind="path", name=f"between ranks {sets}", confidence="possible")
        remedy = "look at the route between the sets, no rank or node is at fault: uplink, spine, firewall, interface"
        yield judged.finding(judged.name, Verdict.UNKNOWN, f"{text}; {judged.seen}", remedy, path)
    if len(left) > max(1, MANY * len(judged.rates)):
        text = f"{len(left)} of {len(judged.rates)} pairs are slow, and no rank explains them; {judged.seen}"
        remedy = "not identifiable from these pairs: compare the routes that the slow ones share"
        yield judged.finding(judged.name, Verdict.UNKNOWN, text, remedy)
    else:
        yield from (_slow_pair(judged, pair) for pair in left)
    if not slow_ranks and not slow_pairs:
        yield judged.finding(judged.name, Verdict.PASS, f"{len(judged.rates)} pairs; {judged.seen}")


def _slow_pair(judged: _Class, pair: Pair) -> Finding:
    values, (a, b) = judged.rates[pair], pair
    typical = f"{show_rate(median(values))}, {judged.share[pair]:.0%} of its peers"
    reference = median(values) / judged.share[pair]
    if len(values) > 1 and max(values) < judged.least * reference:
        text = f"{typical}, slow each of {len(values)} times; both ranks are fast with others"
        remedy = f"look at what only ranks {a} and {b} share: cable, switch port, route"
        part = Part(kind="link", name=f"pair {a}-{b}", confidence="likely")
        return judged.finding(f"pair {a}-{b}", Verdict.FAIL, text, remedy, part)
    if len(values) > 1:
        text = f"slow only in some of {len(values)} measurements, {show_rate(min(values))} to {show_rate(max(values))}"
        return judged.finding(f"pair {a}-{b}", Verdict.WARN, text, "run again; look at the pair if it happens again")
    text = f"{typical}, in its only measurement"
    return judged.finding(f"pair {a}-{b}", Verdict.UNKNOWN, text, "give a larger --budget, so that it is repeated")


def _split(judged: _Class, slow_ranks: set[int], slow_pairs: list[Pair]) -> list[set[int]]:
    """The sets of ranks that fast pairs join, of those that at least two slow pairs connect; empty if there are no such."""
    part = {rank: {rank} for rank in judged.score if rank not in slow_ranks}
    for pair in judged.share:
        if pair not in slow_pairs and not slow_ranks.intersection(pair):
            a, b = part[pair[0]], part[pair[1]]
            if a is not b:
                a |= b
                part.update(dict.fromkeys(b, a))
    across = [pair for pair in slow_pairs if part[pair[0]] is not part[pair[1]]]
    touched = {id(part[rank]): part[rank] for pair in across for rank in pair}
    return sorted(touched.values(), key=min) if len(across) > 1 else []


def _slow_ranks(judged: _Class, slow: set[int], plan: Plan) -> Iterator[Finding]:
    """A node whose ranks are all slow is one finding, not many. Ranks that met no cleared partners are suspects, nothing more."""
    placed, suspects = plan.placement.ranks, []
    for node in dict.fromkeys(placed[rank].node for rank in sorted(slow)):
        mine = sorted(rank for rank in slow if placed[rank].node == node)
        whole = len(mine) == len([rank for rank in judged.score if placed[rank].node == node]) > 1
        for group in [mine] if whole else [[rank] for rank in mine]:
            partners = {r for pair in judged.share if set(group) & set(pair) for r in pair if r not in slow}
            contained = whole and judged.name == "pairs inside nodes"  # nothing outside the node took part
            if len(partners) < CLEARED and not contained:
                suspects += group
                continue
            best = show_rate(max(max(v) for pair, v in judged.rates.items() if set(group) & set(pair)))
            who = f"all {len(group)} ranks of {node} are" if whole else f"rank {group[0]} on {node} is"
            more = "" if whole else f", or look at the GPU and NIC of its local rank {placed[group[0]].local_rank}"
            part = node if whole else f"rank {group[0]} on {node}"
            yield judged.finding(
                node if whole else f"rank {group[0]}",
                Verdict.FAIL,
                f"{who} slow with every partner {judged.name.removeprefix('pairs ')}, best {best}",
                f"leave {node} out{more}",
                Part(kind="node" if whole else "rank", name=part, confidence="likely"),
            )
    if suspects:
        yield judged.finding(
            judged.name,
            Verdict.UNKNOWN,
            f"ranks {fold_numbers(sorted(suspects))} are slow, and met fewer than {CLEARED} partners that are known to be good; {judged.seen}",
            "not identifiable from these pairs: give a larger --budget, so that they meet more partners",
        )


CHECK = Check(
    name="pair_outlier",
    claim="No rank, and no single pair, is slower than its peers.",
    why="One slow GPU, NIC or cable holds up every collective that it takes part in.",
    source="peers measured in the same run; robust statistics in preflight/model/noise.py",
    remedy="move the node or GPU out of the job, then test it by itself",
    uses=("plan", "measurements"),
    judge=judge,
    limits=LIMITS,
)
