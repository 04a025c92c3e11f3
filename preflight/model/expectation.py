"""The formulas: what a collective reaches over parts whose links are known (pure).

Sources: ring ceiling and NVLS: NCCL's constants, confirmed by published nccl-tests of A100, H100, H200, B200. Across nodes: a ring passes each node's NICs once, so that the slower of ring and NICs
decides; an all-to-all sends (n - g) of n parts through the NIC (NVIDIA/nccl-tests issues 130 and 267, public logs of healthy clusters); two nodes may use a tree that halves what NICs carry
(AWS' published runs of two p5: 479 and 487 GB/s behind 384 GB/s of NICs).
"""

from collections.abc import Sequence
from math import log2

from preflight.model.bandwidth import Collective
from preflight.model.base import Noun, Record
from preflight.model.link_rates import NCCL_SOURCE, Rate
from preflight.model.units import GIB, MIB, show_rate

AT_LEAST = 0.9  # gates in use sit 2 to 13 % under typical inside a node, 4 to 8 % between nodes
ALMOST = (
    0.999  # of a size: each of n ranks has a whole number of elements, so that 1 GiB over 24 ranks is 64 bytes less
)
HINT_AT_LEAST = 0.5  # where the formula is a hint, half of it is worth a look
NETWORK_SOURCE = f"{NCCL_SOURCE}; NVIDIA/nccl-tests issues 130 and 267"
# An all-to-all inside a node: NVIDIA's GTC25 slides have 210, 320 and 640 GB/s for 8 A100, H100 and B200, 0.875, 0.863 and 0.886 of the ring ceiling
ALL_TO_ALL_SHARE = 0.875
ALL_TO_ALL_GPUS = 8
# All-to-all loses 10 to 30 % beyond 8 nodes: AWS' p6-b300 keep 0.88 of the formula on 16 nodes and 0.77 on 32, a healthy cluster of 10 nodes 0.96
FAN_OUT_NODES, FAN_OUT_LOSS, FAN_OUT_LEAST = 8, 0.12, 0.7
# AWS' published p5 on 4 nodes reach 0.87 of the formula, and are not ill
ALL_TO_ALL_AT_LEAST = 0.85
# NVLS all-reduce, algbw as a share of links x constant: 480 / 1.75 of 371 on 8 H100; 838 to 850 / 1.75 of 722 on 8 B200. From 5 GPUs on (H200: 414 GB/s of 5, 363 by ring of 4)
NVLS_SHARE = {"4": 0.74, "5": 0.67}
NVLS_GPUS = 5
# Published rings fill the links from four GPUs on (363 of 371 GB/s on H200); two or three may not, with as many channels: 72 of 80 GB/s between two A100 (NVIDIA/nccl-tests issue 331)
RING_GPUS = 4


class Expectation(Noun, frozen=True, kw_only=True):
    """busbw that healthy hardware reaches, in bytes per second; None: it can't be said, and `unknown` says why.

    `formula`: with the numbers put in ("ring ceiling 18 links x 20.6 GB/s = 371 GB/s"). `source`: where formula and constants come from. `at_least`: the share of it below which a
    figure is short; 0: the message is too small for the formula. `firm`: False: a hint, on which no FAIL may rest. `may_reach`: what other algorithms (NVLS, a tree over two nodes) make of the
    same hardware; None: no more. A value above is never a fault. `unknown`: what was not read, or taken for granted, in words.
    """

    bytes_per_s: float | None
    formula: str = ""
    source: str = ""
    at_least: float = AT_LEAST
    firm: bool = True
    may_reach: float | None = None
    unknown: tuple[str, ...] = ()

    @property
    def minimum_bytes_per_s(self) -> float | None:
        """Below this a figure is short; None: can't be said."""
        return None if self.bytes_per_s is None or not self.at_least else self.at_least * self.bytes_per_s


class Share(Record, frozen=True):
    """The part of a group inside one NVLink domain (mostly a node).

    `ring`: what its slowest GPU has towards the others of the part; None: not known (or a single GPU). `all_nics`: all NICs of its GPUs together; `each_nic`: of the GPU with the least. `nvlink`: the NVLink
    generation behind NVSwitches, where NVLS may work; None: no switches, or not known.
    """

    gpus: int
    nodes: int = 1
    ring: Rate | None = None
    all_nics: Rate | None = None
    each_nic: Rate | None = None
    nvlink: str | None = None


def cannot_say(*why: str) -> Expectation:
    """No expectation, and why."""
    return Expectation(bytes_per_s=None, unknown=why)


def expectation(collective: Collective, shares: Sequence[Share], size_bytes: int) -> Expectation:
    """busbw of a collective over a group that has these shares. Worked examples: H100 nodes of 8 with 8 NICs of 400 Gbit/s.

    >>> ring = Rate(18 * 20.6e9, "18 links x 20.6 GB/s = 371 GB/s")
    >>> node = Share(8, 1, ring, Rate(384e9, "8 NICs x 48.0 GB/s = 384 GB/s"), Rate(48e9, "400 Gbit/s x 0.96 = 48.0 GB/s"), "4")
    >>> expectation("all_reduce", [node], 2**33).formula
    'ring ceiling 18 links x 20.6 GB/s = 371 GB/s'
    >>> expectation("all_reduce", [node] * 8, 2**33).formula
    'the lower of ring inside a node 18 links x 20.6 GB/s = 371 GB/s and 8 NICs x 48.0 GB/s = 384 GB/s: 371 GB/s'
    >>> expectation("all_to_all", [node] * 2, 2**30).formula
    'NIC 400 Gbit/s x 0.96 = 48.0 GB/s, times (n-1)/(n-g) = 15/8: 90.0 GB/s'
    """
    number = sum(share.gpus for share in shares)
    if number < 2:
        return cannot_say("a single rank")
    if collective == "all_to_all":
        found = _all_to_all(shares, number)
    elif collective in ("send_recv", "send"):
        found = _neighbours(shares, number)
    else:
        found = _ring(collective, shares)
    if found.bytes_per_s is None:
        return found
    pair = number == 2 and collective in ("send_recv", "send")
    return _gated(found, size_bytes, _limits(shares, number, pair=pair))


def _limits(shares: Sequence[Share], number: int, *, pair: bool) -> tuple[tuple[int, float], ...]:
    """From which message size on which share of the formula is asked at most.

    Inside a node 95 % of the peak is reached at 1 GiB, and 0.72 to 0.84 at 128 MiB (8 A100; H100 and B200 do better); over two nodes 95 % at 4 GiB. Pairs are flat from 64 to 256 MiB on. A ring's
    latency grows with its members (14 us for each hop between nodes in NCCL's model, 3.4 over NVLink), so that beyond 8 GPUs or nodes, where no other figures are published, the sizes grow with them;
    a quarter of the formula at 1 GiB is asked of all.
    """
    if pair:
        return ((256 * MIB, AT_LEAST), (64 * MIB, 0.8))
    if len(shares) == 1:
        grown = max(1.0, number / 8)
        return ((round(grown * GIB), AT_LEAST), (round(grown * 128 * MIB), 0.6), (GIB, 0.25))
    grown = max(1.0, sum(share.nodes for share in shares) / 8)
    return (
        (round(grown * 4 * GIB), AT_LEAST),
        (round(grown * GIB), 0.85),
        (round(grown * 256 * MIB), 0.5),
        (GIB, 0.25),
    )


def _gated(found: Expectation, size_bytes: int, limits: Sequence[tuple[int, float]]) -> Expectation:
    at_least = next((share for size, share in limits if size_bytes >= ALMOST * size), 0.0)
    least = found.at_least if found.firm else min(found.at_least, HINT_AT_LEAST)
    notes = () if at_least else ("the message is too small to reach the formula's rate",)
    return Expectation(
        bytes_per_s=found.bytes_per_s,
        formula=found.formula,
        source=found.source,
        at_least=min(at_least, least),
        firm=found.firm,
        may_reach=found.may_reach,
        unknown=found.unknown + notes,
    )


def _ring(collective: Collective, shares: Sequence[Share]) -> Expectation:
    rings = [share.ring for share in shares if share.gpus > 1]
    if None in rings:
        return cannot_say("how these GPUs are joined inside a node is not known")
    ring = min((ring for ring in rings if ring), key=lambda rate: rate.bytes_per_s, default=None)
    if len(shares) == 1:
        assert ring is not None
        return Expectation(
            bytes_per_s=ring.bytes_per_s,
            formula=f"ring ceiling {ring.text}",
            source=NCCL_SOURCE,
            firm=ring.firm and shares[0].gpus >= RING_GPUS,
            may_reach=_nvls(shares[0], ring) if collective == "all_reduce" else None,
        )
    nics = _least([share.all_nics for share in shares])
    if nics is None:
        return cannot_say("the rate of the NICs that serve these GPUs is not known")
    lower = min([rate for rate in (ring, nics) if rate], key=lambda rate: rate.bytes_per_s)
    formula = nics.text
    if ring is not None:
        formula = f"the lower of ring inside a node {ring.text} and {nics.text}: {show_rate(lower.bytes_per_s)}"
    racks = any(share.nodes > 1 for share in shares)
    two = len(shares) == 2 and collective == "all_reduce"
    return Expectation(
        bytes_per_s=lower.bytes_per_s,
        formula=formula,
        source=NETWORK_SOURCE,
        firm=all(rate.firm for rate in (ring, nics) if rate) and not racks,
        may_reach=2 * nics.bytes_per_s if two else None,
        unknown=("over several NVLink domains of more than one node each no formula is known to hold",)
        if racks
        else (),
    )


def _nvls(share: Share, ring: Rate) -> float | None:
    """What an all-reduce in the NVSwitches reaches. Worked example, 8 H100: 0.74 x 371 x 2 x 7/8 = 480 GB/s."""
    if share.nvlink not in NVLS_SHARE or share.gpus < NVLS_GPUS:
        return None
    reached = NVLS_SHARE[share.nvlink] * ring.bytes_per_s * 2 * (share.gpus - 1) / share.gpus
    return reached if reached > ring.bytes_per_s else None


def fan_out(nodes: int) -> float:
    """What is left of an all-to-all over so many nodes.

    >>> [round(fan_out(nodes), 2) for nodes in (2, 8, 10, 16, 32, 1024)]
    [1.0, 1.0, 0.96, 0.88, 0.76, 0.7]
    """
    return 1.0 if nodes <= FAN_OUT_NODES else max(FAN_OUT_LEAST, 1 - FAN_OUT_LOSS * log2(nodes / FAN_OUT_NODES))


def _all_to_all(shares: Sequence[Share], number: int) -> Expectation:
    """Inside one part 0.875 x ring. Across, b (n-1)/(n-g) x fan-out: the rank with the fewest neighbours in its part sends most through its NIC."""
    if len(shares) == 1:
        ring = shares[0].ring
        if ring is None:
            return cannot_say("how these GPUs are joined inside a node is not known")
        rate = ALL_TO_ALL_SHARE * ring.bytes_per_s
        return Expectation(
            bytes_per_s=rate,
            formula=f"{ALL_TO_ALL_SHARE:g} x {ring.text}: {show_rate(rate)}",
            source=f"{NCCL_SOURCE}; NVIDIA's GTC25 slides of 8 A100, H100, B200",
            firm=ring.firm and shares[0].gpus >= ALL_TO_ALL_GPUS,
        )
    rates = []
    for share in shares:
        if share.each_nic is None:
            return cannot_say("the rate of the NICs that serve these GPUs is not known")
        rates.append((share.each_nic.bytes_per_s * (number - 1) / (number - share.gpus), share))
    through, slowest = min(rates, key=lambda item: item[0])
    nic = slowest.each_nic
    assert nic is not None
    nodes = sum(share.nodes for share in shares)
    left = fan_out(nodes)
    inside = [
        s.ring.bytes_per_s * ALL_TO_ALL_SHARE * (number - 1) / (s.gpus - 1) for s in shares if s.ring and s.gpus > 1
    ]
    rate = min([through * left, *inside])
    formula = f"NIC {nic.text}, times (n-1)/(n-g) = {number - 1}/{number - slowest.gpus}"
    formula += f", times {left:.2f} for {nodes} nodes" if left < 1 else ""
    return Expectation(
        bytes_per_s=rate,
        formula=f"{formula}: {show_rate(rate)}",
        source=f"{NETWORK_SOURCE}; public runs of 2 to 32 nodes",
        at_least=ALL_TO_ALL_AT_LEAST,
        firm=nic.firm and all(share.nodes == 1 for share in shares),
    )


def _neighbours(shares: Sequence[Share], number: int) -> Expectation:
    """Ranks that exchange with their neighbours: of more than two, those in the middle send two messages through one way."""
    ways = 1 if number == 2 else 2
    rates = [share.each_nic if len(shares) > 1 else share.ring for share in shares]
    slowest = _least(rates)
    if slowest is None:
        part = "NICs that serve these GPUs" if len(shares) > 1 else "links between these GPUs"
        return cannot_say(f"the rate of the {part} is not known")
    rate = slowest.bytes_per_s / ways
    across = len(shares) > 1
    shared = f", shared by two neighbours: {show_rate(rate)}" if ways > 1 else ""
    return Expectation(
        bytes_per_s=rate,
        formula=f"{'NIC ' if across else ''}{slowest.text}{shared}",
        source=NETWORK_SOURCE if across else NCCL_SOURCE,
        # between two GPUs of a node what NCCL gets depends on its channels: 80 to 180 GB/s where copies reach 260 (NVIDIA/nccl-tests issue 268)
        firm=slowest.firm and across,
    )


def _least(rates: Sequence[Rate | None]) -> Rate | None:
    """The lowest; None if one is not known."""
    known = [rate for rate in rates if rate is not None]
    return min(known, key=lambda rate: rate.bytes_per_s) if known and len(known) == len(rates) else None
