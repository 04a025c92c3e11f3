"""Families of logs over made-up clusters: what is wrong with a cluster, and the logs that its pairs would give."""

import random
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import NamedTuple

Pair = tuple[str, str]
GIB = 2**30
SIZES = (GIB // 4, GIB, 4 * GIB, 8 * GIB, 16 * GIB)


class Cluster(NamedTuple):
    """`nodes`: {node: share of its rate that a bad one reaches}; `pairs`: the same of pairs; `sets`: between any two of them the share `across`. `rate`: GB/s of a healthy pair; `dead`: nodes
    with which every run dies; `died`: pairs whose run dies.
    """

    names: tuple[str, ...]
    rate: float = 92.0
    noise: float = 0.01
    nodes: Mapping[str, float] = {}
    pairs: Mapping[Pair, float] = {}
    sets: tuple[frozenset[str], ...] = ()
    across: float = 0.6
    dead: frozenset[str] = frozenset()
    died: frozenset[Pair] = frozenset()


def names(number: int, prefix: str = "node") -> tuple[str, ...]:
    return tuple(f"{prefix}{place:03d}" for place in range(1, number + 1))


def complete(cluster: Cluster) -> list[Pair]:
    return list(combinations(cluster.names, 2))


def star(cluster: Cluster) -> list[Pair]:
    return [(cluster.names[0], other) for other in cluster.names[1:]]


def chain(cluster: Cluster) -> list[Pair]:
    return list(zip(cluster.names, cluster.names[1:], strict=False))


def some(cluster: Cluster, share: float, seed: int) -> list[Pair]:
    """A share of all pairs, each node in two at least."""
    chance = random.Random(seed)
    kept = [pair for pair in complete(cluster) if chance.random() < share]
    ring = [tuple(sorted(pair)) for pair in [*chain(cluster), (cluster.names[-1], cluster.names[0])]]
    return sorted({*kept, *ring})  # type: ignore[arg-type]


def measured(cluster: Cluster, pairs: Iterable[Pair], seed: int) -> dict[Pair, dict[int, float] | None]:
    """What the pairs give, by size in GB/s; None: the run died. A sick part gets worse with size, as on a public cluster with a sick path."""
    chance = random.Random(seed)
    found: dict[Pair, dict[int, float] | None] = {}
    for pair in pairs:
        share = _share(cluster, pair, chance)
        if share is None:
            found[pair] = None
            continue
        worse = (1.0, 1.0, 0.95, 0.9, 0.8) if share < 1 else (0.99, 1.0, 1.0, 1.0, 1.0)
        found[pair] = {
            size: round(cluster.rate * share * more * chance.gauss(1, cluster.noise), 2)
            for size, more in zip(SIZES, worse, strict=True)
        }
    return found


def alone(cluster: Cluster, seed: int) -> dict[str, dict[int, float]]:
    """What each node gives by itself."""
    chance = random.Random(seed)
    return {
        node: {
            size: round(cluster.rate * cluster.nodes.get(node, 1.0) * chance.gauss(1, cluster.noise), 2)
            for size in SIZES
        }
        for node in cluster.names
    }


def _share(cluster: Cluster, pair: Pair, chance: random.Random) -> float | None:
    a, b = pair
    if {a, b} & cluster.dead or pair in cluster.died:
        return None
    share = min(cluster.nodes.get(a, 1.0), cluster.nodes.get(b, 1.0), cluster.pairs.get(pair, 1.0))
    apart = any((a in one) != (b in one) for one in cluster.sets)
    return min(share, cluster.across * chance.uniform(0.85, 1.15)) if apart else share
