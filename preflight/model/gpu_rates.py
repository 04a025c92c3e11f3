"""What each GPU does by itself, beside its peers: who is slow each time, and how many times it takes to say so (pure).

A GPU is slow if all its repeats are below the reference. One slow probe is none: something may have held it up. How often that happens is counted in the run itself; so many repeats are needed
that fewer than MOST_CHANCE_ALARMS healthy GPUs would be slow in all of them by chance, and at least two.

Worked example: 128 GPUs, 1 % of the probes held up: two repeats would blame 0.013 GPUs, so three are needed (0.00013).
"""

from collections.abc import Iterable, Iterator, Mapping

from preflight.model.bandwidth import ALONE
from preflight.model.base import Record
from preflight.model.evidence import Evidence
from preflight.model.inventory import Inventory
from preflight.model.localisation import Ask
from preflight.model.measurement import Measurement, median
from preflight.model.noise import (
    LEAST_TRANSIENTS,
    MOST_CHANCE_ALARMS,
    expected_chance_alarms,
    relative_noise,
    upper_median,
)
from preflight.model.plan import Plan

SHORTFALL = 0.10
LEAST_PEERS = 3
LEAST_REPEATS, MOST_REPEATS = 2, 6


class Own(Record, frozen=True):
    """One rank's figures of one operation: operations or bytes per second, one for each repeat. `key`: of its first probe."""

    rank: int
    rates: tuple[float, ...]
    key: str

    @property
    def typical(self) -> float:
        """The middle of its repeats."""
        return median(self.rates)


class Like(Record, frozen=True):
    """The ranks that did the same on GPUs of one product ("": not known which). `noise`: None: not known. `reference`: the upper median of all, per second."""

    op: str
    product: str
    own: tuple[Own, ...]
    noise: float | None
    reference: float

    def slow(self, shortfall: float) -> tuple[Own, ...]:
        """Those that are below the reference each time."""
        return tuple(own for own in self.own if max(own.rates) < (1 - shortfall) * self.reference)

    def held_up(self, shortfall: float) -> tuple[int, int]:
        """How many probes were slow, of ranks that were not slow each time; and how many there are."""
        least = (1 - shortfall) * self.reference
        low = sum(rate < least for own in self.own if max(own.rates) >= least for rate in own.rates)
        return low, sum(len(own.rates) for own in self.own)

    def repeats_needed(self, shortfall: float) -> int:
        """So many slow repeats say that a GPU is slow."""
        low, probes = self.held_up(shortfall)
        share = max(LEAST_TRANSIENTS, low / probes)
        needed = (
            repeats
            for repeats in range(LEAST_REPEATS, MOST_REPEATS)
            if expected_chance_alarms(len(self.own), repeats, share) <= MOST_CHANCE_ALARMS
        )
        return next(needed, MOST_REPEATS)


def alone_of(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Those of a GPU by itself."""
    return [m for m in measurements if m.probe.collective in ALONE and len(m.probe.ranks) == 1]


def products_of(plan: Plan, inventory: Inventory | None) -> dict[int, str]:
    """Rank -> the product of its GPU, where it is known which GPU it has; "": its name isn't."""
    names = {gpu.uuid: gpu.name or "" for node in inventory.nodes for gpu in node.gpus or ()} if inventory else {}
    uuids = plan.placement.gpu_uuids or ()
    return {rank: names[uuid] for rank, uuid in enumerate(uuids) if uuid is not None and uuid in names}


def alike(alone: Iterable[Measurement], products: Mapping[int, str]) -> Iterator[Like]:
    """The measurements that may be compared: the same operation and size on the same product. Failed and wrong ones are left out."""
    kinds: dict[tuple[str, str, int, int], dict[int, list[Measurement]]] = {}
    for m in alone:
        if m.duration_s and not m.failure and m.data_correct is not False:
            rank = m.probe.ranks[0]
            kind = (m.probe.collective, products.get(rank, ""), m.probe.size_bytes, m.probe.flops)
            kinds.setdefault(kind, {}).setdefault(rank, []).append(m)
    for (op, product, size_bytes, flops), by_rank in kinds.items():
        own = tuple(
            Own(rank, tuple((flops or size_bytes) / (m.duration_s or 1.0) for m in measured), measured[0].probe.key)
            for rank, measured in by_rank.items()
        )
        noise = relative_noise(one.rates for one in own)
        if noise is None:  # each measured once: its own windows are the repeats
            noise = relative_noise(m.slowest_s for measured in by_rank.values() for m in measured)
        yield Like(op, product, own, noise, upper_median(one.typical for one in own))


def asks_of_slow(evidence: Evidence) -> tuple[Ask, ...]:
    """The repeats that would tell slow GPUs from probes that something held up; empty: none is needed, or there are no GPUs."""
    if evidence.plan is None or evidence.settings.backend != "nccl":
        return ()
    asks: list[Ask] = []
    for like in alike(alone_of(evidence.measurements or ()), products_of(evidence.plan, evidence.inventory)):
        slow = like.slow(SHORTFALL)
        if len(like.own) <= LEAST_PEERS or not slow:
            continue
        needed = like.repeats_needed(SHORTFALL)
        asks += [
            Ask(a=own.rank, b=own.rank, op=like.op, priority=-1, reason="slow each time so far: once more")
            for own in slow
            for _ in range(needed - len(own.rates))
        ]
    return tuple(asks)
