"""Runs inside single nodes: each node is compared with its like, and with what a formula allows for its product.

A slow run has no partner to share the blame. Between nodes of one product the figure is the same within 1 or 2 % (H100, H200: 478 to 482 GB/s in several publications).
"""

from collections.abc import Mapping

from preflight.model.base import Record
from preflight.model.hostlist import fold
from preflight.model.localisation import Culprit, Ends, Localisation, RouteReference
from preflight.model.measurement import median
from preflight.model.noise import relative_noise
from preflight.model.units import show_rate
from preflight.probe.nccl_tests.families import Family, figures_at
from preflight.probe.nccl_tests.shots import Book, show_size

LEAST_DEPTH, SIGMAS = 0.10, 8.0  # the localiser's: below them thousands of false accusations
LEAST_NODES = 3
ROUTE = "inside nodes"


class Hint(Record, frozen=True):
    """What a formula allows, in bytes per second; below `at_least` of it something is wrong with all nodes alike."""

    bytes_per_s: float
    at_least: float
    text: str


def judge_singles(family: Family, size_bytes: int, ends: Ends, book: Book, hint: Hint | None) -> Localisation:
    """What the runs say at one size: the slow nodes, or that nothing can be compared."""
    rates: dict[str, list[float]] = {}
    keys: dict[str, str] = {}
    for run in family.runs:
        figures = figures_at(run, size_bytes)
        if figures:
            rates.setdefault(run.hosts[0], []).append(figures.busbw_bytes_per_s)
            keys[run.hosts[0]] = book.probe(family, run, size_bytes).key
    typical = {node: median(values) for node, values in rates.items()}
    where = f"{family.name} at {show_size(size_bytes)}"
    if not typical:
        return Localisation(ends=ends, unjudged=f"{where}: no run has a figure")
    best = sorted(typical.values(), reverse=True)
    reference = median(
        best[: max(1, (len(best) + 1) // 2)]
    )  # of the better half: it holds while no more than half are slow
    noise = relative_noise(rates.values())
    spread = relative_noise([[value for value in best if value >= 0.95 * reference]])
    floor = max(LEAST_DEPTH, SIGMAS * (noise if noise is not None else spread or 0.0))
    return Localisation(
        ends=ends,
        references=(_reference(where, reference, typical, noise, hint),),
        culprits=(*_slow(typical, reference, floor, where, keys), *_all_slow(typical, reference, where, hint)),
        floor=floor,
        cleared_ends=sum(value >= (1 - floor) * reference for value in typical.values()),
        shots=sum(map(len, rates.values())),
    )


def _reference(
    where: str, reference: float, typical: Mapping[str, float], noise: float | None, hint: Hint | None
) -> RouteReference:
    return RouteReference(
        op=where,
        route=ROUTE,
        bytes_per_s=reference,
        shots=len(typical),
        source=f"the better half of {len(typical)} nodes" if len(typical) > 1 else "its only node",
        noise=noise,
        expected_bytes_per_s=hint.bytes_per_s if hint else None,
        expected_source=hint.text if hint else "",
    )


def _slow(
    typical: Mapping[str, float], reference: float, floor: float, where: str, keys: Mapping[str, str]
) -> tuple[Culprit, ...]:
    slow = {node: value for node, value in typical.items() if value < (1 - floor) * reference}
    enough = len(typical) >= LEAST_NODES and 2 * len(slow) < len(typical)
    found = tuple(
        Culprit(
            kind="node",
            confidence="likely",
            nodes=(node,),
            ops=(where,),
            observed_bytes_per_s=value,
            reference_bytes_per_s=reference,
            depth=1 - value / reference,
            reference=f"like nodes by themselves ({show_rate(reference)})",
            reason=f"slow by itself, without any partner: {show_rate(value)}, {value / reference:.0%} of the {show_rate(reference)} of "
            f"{len(typical) - len(slow)} like nodes",
            evidence=(keys[node],),
        )
        for node, value in slow.items()
    )
    if enough or not found:
        return found
    reason = f"{fold(slow)} slow by {'itself' if len(slow) == 1 else 'themselves'}, but {len(typical) - len(slow)} of {len(typical)} nodes are too few to say what is usual"
    return (Culprit(kind=None, confidence="possible", ops=(where,), reason=reason, candidates=found),)


def _all_slow(typical: Mapping[str, float], reference: float, where: str, hint: Hint | None) -> tuple[Culprit, ...]:
    """All alike below what the product allows: not identifiable from logs, which don't tell how many links are up."""
    if hint is None or reference >= hint.at_least * hint.bytes_per_s:
        return ()
    reason = (
        f"all {len(typical)} nodes reach {show_rate(reference)} at most, below {hint.at_least:.0%} of what the formula allows ({hint.text}): "
        "settings, links that are down everywhere, or another product than its name says"
    )
    return (
        Culprit(
            kind=None,
            confidence="possible",
            ops=(where,),
            observed_bytes_per_s=reference,
            reference_bytes_per_s=hint.bytes_per_s,
            depth=1 - reference / hint.bytes_per_s,
            reference=f"formula: {hint.text}",
            reason=reason,
            candidates=(Culprit(kind="environment", confidence="possible", nodes=tuple(typical), ops=(where,)),),
        ),
    )
