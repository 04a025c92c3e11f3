"""No rank, and no single pair, is slower than its peers.

Peers are the pairs of one class: inside a node, or between nodes. A rank's score is its best pair, because one good partner clears it; the reference is the median of the
scores. The limit is only as good as the repeats: where they differ too much, the check says so and calls nothing.
"""

from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Part, Plan, Verdict
from preflight.model.measurement import median
from preflight.model.noise import by_subject, callable_shortfall, relative_noise, repeats_of, upper_median
from preflight.model.units import show_rate

# A healthy H100 cluster of 10 nodes stayed within 4 % of its median over 45 pairs (public nccl-tests logs); gates in use sit 4 to 13 % under typical.
LIMITS = {"shortfall": 0.10}
MANY = 0.25  # more slow pairs than this, and no single rank explains them: the cause is not a pair

Pairs = dict[tuple[int, int], list[float]]


def judge(evidence: Evidence) -> Iterator[Finding]:
    """For each class: what is slow, or one finding that all are alike, or that the noise forbids to tell."""
    assert evidence.plan is not None
    assert evidence.measurements is not None
    shortfall = evidence.limits("pair_outlier", LIMITS)["shortfall"]
    ranks = {m.probe.subject: m.probe.ranks for m in evidence.measurements if m.probe.axis is None}
    classes: dict[str, Pairs] = {}
    for subject, values in by_subject(repeats_of(evidence.measurements), "alone").items():
        if subject in ranks:
            a, b = ranks[subject]
            inside = evidence.plan.placement.ranks[a].node == evidence.plan.placement.ranks[b].node
            classes.setdefault("pairs inside nodes" if inside else "pairs between nodes", {})[(a, b)] = values
    for name, pairs in classes.items():
        if len(pairs) > 2:
            yield from _judge_class(name, pairs, shortfall, evidence.plan)


def _judge_class(name: str, pairs: Pairs, shortfall: float, plan: Plan) -> Iterator[Finding]:
    typical = {pair: median(values) for pair, values in pairs.items()}
    score: dict[int, float] = {}
    for pair, value in typical.items():
        for rank in pair:
            score[rank] = max(score.get(rank, 0.0), value)
    reference = upper_median(score.values())
    slowest = min(typical, key=lambda pair: typical[pair])
    seen = f"slowest {slowest[0]}-{slowest[1]} at {show_rate(typical[slowest])}, {typical[slowest] / reference:.0%} of the peers' {show_rate(reference)}"
    noise = relative_noise(pairs.values())
    if noise is None or callable_shortfall(noise) > shortfall:
        yield _too_noisy(name, noise, seen, shortfall)
        return
    cut = (1 - shortfall) * reference
    expected = (
        f"at least {1 - shortfall:.0%} of {show_rate(reference)}, the median of the ranks' best pairs in this run"
    )
    slow_ranks = {rank for rank, value in score.items() if value < cut}
    slow_pairs = [p for p, values in pairs.items() if max(values) < cut and not slow_ranks.intersection(p)]
    yield from _slow_ranks(slow_ranks, score, expected, plan)
    if len(slow_pairs) > max(1, MANY * len(pairs)):
        yield Finding(
            check="pair_outlier",
            subject=name,
            verdict=Verdict.UNKNOWN,
            observed=f"{len(slow_pairs)} of {len(pairs)} pairs are slow, and no rank explains them; {seen}",
            expected=expected,
            remedy="not identifiable from these pairs: compare the routes that the slow ones share",
        )
    else:
        for a, b in slow_pairs:
            yield Finding(
                check="pair_outlier",
                subject=f"pair {a}-{b}",
                verdict=Verdict.FAIL,
                observed=f"{show_rate(typical[a, b])} each time; both ranks are fast with others",
                expected=expected,
                remedy=f"look at what only ranks {a} and {b} share: cable, switch port, route",
                blames=Part(kind="link", name=f"pair {a}-{b}", confidence="likely"),
                evidence=(f"pair {a}-{b}",),
            )
    if not slow_ranks and not slow_pairs:
        yield Finding(
            check="pair_outlier",
            subject=name,
            verdict=Verdict.PASS,
            observed=f"{len(pairs)} pairs; {seen}",
            expected=expected,
        )


def _slow_ranks(slow: set[int], score: dict[int, float], expected: str, plan: Plan) -> Iterator[Finding]:
    """A node whose ranks are all slow is one finding, not many."""
    placed = plan.placement.ranks
    for node in dict.fromkeys(placed[rank].node for rank in sorted(slow)):
        mine = sorted(rank for rank in slow if placed[rank].node == node)
        scored = [rank for rank in score if placed[rank].node == node]
        whole = len(mine) == len(scored) > 1
        best = show_rate(max(score[rank] for rank in mine))
        for rank in mine[:1] if whole else mine:
            part = Part(kind="node", name=node, confidence="likely") if whole else None
            yield Finding(
                check="pair_outlier",
                subject=node if whole else f"rank {rank}",
                verdict=Verdict.FAIL,
                observed=f"all {len(mine)} ranks of {node} are slow with every partner, best {best}"
                if whole
                else f"rank {rank} on {node} is slow with every partner, best {show_rate(score[rank])}",
                expected=expected,
                remedy=f"leave {node} out"
                + ("" if whole else f", or look at the GPU and NIC of its local rank {placed[rank].local_rank}"),
                blames=part or Part(kind="rank", name=f"rank {rank} on {node}", confidence="likely"),
            )


def _too_noisy(name: str, noise: float | None, seen: str, shortfall: float) -> Finding:
    if noise is None:
        text = "measured once each, so the noise is unknown and nothing is called slow"
    else:
        least = 1 - callable_shortfall(noise)
        level = f"below {least:.0%} of the peers" if least > 0 else "any shortfall"
        text = f"too noisy to judge {level}: repeats of one pair differ by {noise:.0%} (standard deviation)"
    return Finding(
        check="pair_outlier",
        subject=name,
        verdict=Verdict.WARN,
        observed=f"{text}; {seen}",
        expected=f"repeats alike enough to see a shortfall of {shortfall:.0%}",
        remedy="run when the nodes are idle, or with a larger --budget",
    )


CHECK = Check(
    name="pair_outlier",
    claim="No rank, and no single pair, is slower than its peers.",
    why="One slow GPU, NIC or cable holds up every collective that it takes part in.",
    uses=("plan", "measurements"),
    judge=judge,
    limits=LIMITS,
)
