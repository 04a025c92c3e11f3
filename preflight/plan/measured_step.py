"""A measured step beside the predicted one: which term would have to be how much larger to explain the gap, and what could make it so."""

from collections.abc import Mapping

from preflight.model import Footprint, StepGap, StepTime, Suspect, Traffic
from preflight.model.units import show_seconds
from preflight.plan.compare import name_of
from preflight.plan.exposed import leaves_domain

# how near a known cause must come to the time that is needed, as a ratio either way, to be called plausible
_NEAR = 1.5


def explain(
    step_time: StepTime,
    measured_s: float,
    *,
    ledger: tuple[Traffic, ...] = (),
    footprints: Mapping[str, Footprint] | None = None,
) -> StepGap:
    """Every term as an explanation. `ledger` and `footprints` of the same plan tell what an axis would take if it left its NVLink domain.

    Worked example: 4.0 s predicted with 0.8 s of tp communication, 10 s measured: tp would have to take 6.8 s, 8.5 times as long; over the network it
    would take about that: a sign that its ranks do not share a node.
    """
    gap = measured_s - step_time.total_s
    within = step_time.low_s <= measured_s <= step_time.high_s
    suspects = [] if within else [_suspect(term, step_time, gap, ledger, footprints or {}) for term in step_time.terms]
    if gap > 0:
        suspects.sort(key=lambda suspect: (not suspect.plausible, suspect.factor))
    else:
        suspects = [suspect for suspect in suspects if suspect.needed_s >= 0]
        suspects.sort(key=lambda suspect: -suspect.factor)
    return StepGap(
        predicted_s=step_time.total_s,
        measured_s=measured_s,
        gap_s=gap,
        within_error=within,
        suspects=tuple(suspects),
        text=_summary(step_time, measured_s, within=within, suspects=suspects),
    )


def _suspect(
    term: str,
    step_time: StepTime,
    gap: float,
    ledger: tuple[Traffic, ...],
    footprints: Mapping[str, Footprint],
) -> Suspect:
    """The term if it alone were to blame."""
    predicted = step_time.terms[term]
    needed = predicted + gap
    factor = needed / predicted if predicted > 0 else float("inf")
    plausible, meaning = (
        _meaning(term, step_time, needed, ledger, footprints) if gap > 0 else (False, _faster(term, step_time, needed))
    )
    head = f"{name_of(term)} would have to take {show_seconds(max(needed, 0))} in place of {show_seconds(predicted)}"
    return Suspect(
        term=term,
        predicted_s=predicted,
        needed_s=needed,
        factor=factor,
        plausible=plausible,
        text=f"{head} ({factor:.1f} times): {meaning}",
    )


def _faster(term: str, step_time: StepTime, needed: float) -> str:
    """What it would mean if a term took less than predicted."""
    if term == "compute":
        mfu = step_time.mfu * step_time.total_s / (step_time.total_s - step_time.terms[term] + needed)
        return f"an MFU of {mfu:.0%}, so a faster GPU, another precision, or a smaller model or batch than the plan's"
    if term in {"recompute", "bubble", "optimizer"}:
        return "less of it than the plan says"
    return "a faster network, less to send, or more of it hidden behind compute"


def _meaning(
    term: str, step_time: StepTime, needed: float, ledger: tuple[Traffic, ...], footprints: Mapping[str, Footprint]
) -> tuple[bool, str]:
    """Whether something known takes about that long, and in words what."""
    predicted = step_time.terms[term]
    if term == "compute":
        mfu = step_time.mfu * step_time.total_s / (step_time.total_s - predicted + needed)
        return (
            False,
            f"an MFU of {mfu:.0%}, as with GPUs that are slowed by heat or power, small kernels, or a slow rank that all wait for",
        )
    if term == "recompute":
        return False, "more would have to be computed again than the plan says"
    if term == "bubble":
        return False, "fewer micro-batches, unequal stages, or a schedule other than the plan's"
    if term == "optimizer":
        return False, "optimizer state in host memory, or an optimizer of many small kernels"
    return _network(term, needed, ledger, footprints)


def _network(
    axis: str, needed: float, ledger: tuple[Traffic, ...], footprints: Mapping[str, Footprint]
) -> tuple[bool, str]:
    """An axis inside its domain may have left it; one outside may have lost its NICs or its overlap."""
    rows = [row for row in ledger if row.axis == axis]
    outside = [row.outside_s for row in rows if row.outside_s is not None]
    if leaves_domain(footprints.get(axis)):
        hidden = sum(row.outside_s or 0.0 for row in rows if not row.exposed)
        note = f"; without any overlap {show_seconds(hidden)} more would show" if hidden else ""
        return (
            False,
            f"its network at a fraction of the rate that the plan takes (sockets in place of RDMA, a missing NIC){note}",
        )
    if not rows or len(outside) < len(rows):
        return False, "ranks that do not share an NVLink domain, or NVLink that is not used"
    across = sum(outside)
    near = across / _NEAR <= needed <= across * _NEAR
    verb = "which is about what" if near else "while"
    return (
        near,
        f"{verb} it would take over the network, {show_seconds(across)}: its ranks may not share an NVLink domain",
    )


def _summary(step_time: StepTime, measured_s: float, *, within: bool, suspects: list[Suspect]) -> str:
    ratio = measured_s / step_time.total_s - 1
    head = f"measured {show_seconds(measured_s)}, predicted {show_seconds(step_time.total_s)}: {ratio:+.0%}"
    if within:
        return f"{head}, within the range of the estimate, {show_seconds(step_time.low_s)} to {show_seconds(step_time.high_s)}: {step_time.range_source}"
    if ratio < 0:
        return f"{head}: the run is faster than predicted; the plan file's rates are too low, or the run overlaps more"
    if suspects and suspects[0].plausible:
        return f"{head}; {name_of(suspects[0].term)} explains it"
    return f"{head}; no term explains it by itself without growing as listed, or the step waits for something outside the estimate: data, logging, stragglers"
