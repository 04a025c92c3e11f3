"""Chance in a simulated fabric: noise, transients, dips, busy hosts, and collisions that last. The same seed, operation and round give the same."""

import math
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from preflight.probe.simulate.cluster import Cluster

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def factors_of(
    cluster: Cluster,
    a: "NDArray[np.int64]",
    b: "NDArray[np.int64]",
    *,
    seed: tuple[int, int, str],
    busy: "Sequence[tuple[NDArray[np.bool_], float]]",
) -> "NDArray[np.float64]":
    """What chance makes of each probe of a round, 1: nothing. `seed`: of the run, number of the round, operation. `busy`: ends on busy hosts, and by how much they slow a probe at most. shape: (probes,)"""
    import numpy as np

    run, number, op = seed
    chance = np.random.default_rng([run, number, zlib.crc32(op.encode())])
    sigma = math.sqrt(math.log1p(cluster.noise**2))  # of a log-normal with that CV
    factors: NDArray[np.float64] = np.exp(sigma * chance.standard_normal(a.size))
    if cluster.transient_rate:
        slowed = chance.random(a.size) < cluster.transient_rate
        factors *= np.where(slowed, 1 - chance.uniform(0.1, max(0.1, cluster.transient_depth), a.size), 1.0)
    if cluster.tail_rate:
        dips = np.minimum(chance.exponential(cluster.tail_depth, a.size), 0.9)
        factors *= np.where(chance.random(a.size) < cluster.tail_rate, 1 - dips, 1.0)
    for ends, depth in busy:
        slowed = (ends[a] | ends[b]) & (chance.random(a.size) < 0.5)
        factors *= np.where(slowed, 1 - depth * chance.random(a.size), 1.0)
    return factors


def collides(
    cluster: Cluster, seed: int, source: "NDArray[np.int64]", target: "NDArray[np.int64]"
) -> "NDArray[np.bool_]":
    """Which ways share a link between switches with another flow, whenever they are used: a hash of seed, source and target. shape: (flows,)

    The mixing is that of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
    """
    import numpy as np

    with np.errstate(over="ignore"):
        mixed = (source.astype(np.uint64) << np.uint64(32)) ^ target.astype(np.uint64)
        mixed += np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
    uniform: NDArray[np.bool_] = mixed.astype(np.float64) / 2.0**64 < cluster.collision_rate
    return uniform
