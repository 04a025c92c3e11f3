"""Public ways to find bad nodes by pairs, in simplified form: our own code after their descriptions, for comparison only.

All of them know nodes and nothing else, so a measurement is one between two whole nodes. Each gets what it needs for nothing: the rate of a healthy pair and a limit under it that fits
the noise. That is more than they have on a real cluster, so that a difference to us isn't one of the limit.

known_good    random disjoint pairs; who fails there is tried again with a node that passed, and is bad if it fails again (Google's cluster-health-scanner is like that)
two_partners  three rounds of random disjoint pairs; bad is who fails twice running, with different partners (OCI's passive checks are like that)
voting        15 random pairings; bad is who passes in less than half of them (imbue's shuffled halves are like that)
twice_median  adjacent pairs, then slowest with fastest; bad is who failed in both, or took over twice the median time in both (DLRover's network check is like that)
"""

import random
from collections.abc import Callable, Sequence

Pair = tuple[int, int]
Measure = Callable[[Sequence[Pair]], list[float | None]]
"""The rates of pairs of nodes, measured at the same time; None: it crashed."""
Scheme = Callable[[int, Measure, float, random.Random], set[int]]
"""(number of nodes, measure, limit: what is under it fails, chance) -> the accused."""


def pairing(nodes: Sequence[int], chance: random.Random) -> list[Pair]:
    """Random disjoint pairs; of an odd number one rests."""
    order = list(nodes)
    chance.shuffle(order)
    return list(zip(order[::2], order[1::2], strict=False))


def failed(pairs: Sequence[Pair], measure: Measure, limit: float) -> set[Pair]:
    return {pair for pair, rate in zip(pairs, measure(pairs), strict=True) if rate is None or rate < limit}


def known_good(nodes: int, measure: Measure, limit: float, chance: random.Random) -> set[int]:
    pairs = pairing(range(nodes), chance)
    bad = failed(pairs, measure, limit)
    suspects = [node for pair in pairs if pair in bad for node in pair]
    good = [node for pair in pairs if pair not in bad for node in pair]
    if not good:
        return set(suspects)
    # A second pass of disjoint pairs, again and again while there are more suspects than good nodes.
    accused: set[int] = set()
    while suspects:
        some, suspects = suspects[: len(good)], suspects[len(good) :]
        retests = list(zip(some, chance.sample(good, len(some)), strict=True))
        accused |= {suspect for suspect, _ in failed(retests, measure, limit)}
    return accused


def two_partners(nodes: int, measure: Measure, limit: float, chance: random.Random) -> set[int]:
    last: dict[int, int] = {}  # node -> the partner with which it failed last, gone once it passes
    accused: set[int] = set()
    for _ in range(3):
        pairs = pairing(range(nodes), chance)
        bad = failed(pairs, measure, limit)
        for a, b in (*pairs, *((b, a) for a, b in pairs)):
            if (a, b) not in bad and (b, a) not in bad:
                last.pop(a, None)
            elif last.setdefault(a, b) != b:
                accused.add(a)
    return accused


def voting(nodes: int, measure: Measure, limit: float, chance: random.Random) -> set[int]:
    passed, taken = [0] * nodes, [0] * nodes
    for _ in range(15):
        pairs = pairing(range(nodes), chance)
        bad = failed(pairs, measure, limit)
        for pair in pairs:
            for node in pair:
                taken[node] += 1
                passed[node] += pair not in bad
    return {node for node in range(nodes) if taken[node] and passed[node] < taken[node] / 2}


def twice_median(nodes: int, measure: Measure, limit: float, chance: random.Random) -> set[int]:
    """Its limit is its own: twice the median of the times of a round."""
    order, slow_in_all = list(range(nodes)), set(range(nodes))
    for _ in range(2):
        pairs = list(zip(order[::2], order[1::2], strict=False))
        times: dict[int, float] = {}
        for pair, rate in zip(pairs, measure(pairs), strict=True):
            times |= dict.fromkeys(pair, 1 / rate if rate else float("inf"))
        median = sorted(times.values())[len(times) // 2]
        slow_in_all &= {node for node, time in times.items() if time > 2 * median or time == float("inf")}
        ranked = sorted(order, key=lambda node: times.get(node, 0))
        order = [node for pair in zip(ranked, reversed(ranked), strict=True) for node in pair][: nodes // 2 * 2]
    return slow_in_all


SCHEMES: dict[str, Scheme] = {
    "two passes with a known good node": known_good,
    "two different partners": two_partners,
    "voting over 15 rounds": voting,
    "twice the median time": twice_median,
}
