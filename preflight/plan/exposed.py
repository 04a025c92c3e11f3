"""Seconds of communication that compute does not hide, by axis: from the ledger, from where the groups lie, and from what can hide them."""

from collections.abc import Mapping

from preflight.model import Footprint, Traffic
from preflight.plan.rates import Rates

# Axes whose traffic belongs to a micro-batch, so that the bubble is made of it too
PER_MICRO_BATCH = ("tp", "cp", "ep", "etp")
# Ring collectives of S bytes run at S / (S + 20 MiB) of the rate they reach with large messages. Published all-reduce rates of eight GPUs give 18 MiB
# at 16 MiB and 29 MiB at 128 MiB on A100 (110 and 188 of 231 GB/s), 17 MiB and 26 MiB on H100 (236 and 400 of 480 GB/s); at 1 GiB nothing is left of it.
HALF_RATE_BYTES = 20 * 2**20
_RINGS = ("all_reduce", "all_gather", "reduce_scatter")

Cover = Mapping[str, float]  # what hides communication -> its seconds in one step


def leaves_domain(footprint: Footprint | None) -> bool:
    """Whether some group of the axis spans several NVLink domains, or may (0: not known). No footprint: it stays inside."""
    if footprint is None or not footprint.domains:
        return False
    return max(footprint.domains) > 1 or min(footprint.domains) == 0  # of up to 65,536 groups


def traffic_seconds(row: Traffic, footprint: Footprint | None, size: int, rates: Rates) -> float | None:
    """Seconds of all calls of one row, hidden or not; None: the rate is unknown. `size`: ranks of the group.

    Outside its domain a ring of n ranks, at least g of them in each domain, enters and leaves each domain once for all g, over g NICs: g times the rate of one NIC, at
    most NVLink's. Of an all-to-all the share (n-g)/(n-1) crosses, over each rank's own NIC. Send-recv crosses one NIC.
    """
    wire = row.wire_bytes
    if row.collective in _RINGS and row.message_bytes:
        wire = round(wire * (1 + HALF_RATE_BYTES / row.message_bytes)) if row.calls > 0 else wire
    nvlink, nic = rates.nvlink_bytes_per_s, rates.nic_bytes_per_s
    if footprint is None or not leaves_domain(footprint):
        return None if nvlink is None else wire / nvlink
    if nic is None:
        return None
    together = max(1, min(footprint.chunk, default=1))
    if row.collective == "all_to_all":
        crossing = wire * (size - together) / max(1, size - 1)
        if row.copies:
            crossing = _once_per_domain(row, max(2, *footprint.domains))
        inside = 0.0 if nvlink is None else (wire if row.copies else wire - crossing) / nvlink
        return max(crossing / nic, inside)
    if row.collective == "send_recv":
        return wire / nic
    rate = nic * together
    return wire / (rate if nvlink is None else min(rate, nvlink))


def _once_per_domain(row: Traffic, domains: int) -> float:
    """Bytes that one rank sends to other domains if each of a token's k copies falls on a domain at random and a domain gets one: of D domains
    (D-1)(1 - (1-1/D)^k) are reached besides one's own. Worked example, D = 2, k = 8: 0.996 of 8 copies, where else 4 would cross.
    """
    reached = (domains - 1) * (1 - (1 - 1 / domains) ** row.copies)
    return row.calls * row.message_bytes / row.copies * reached


def exposed_seconds(
    ledger: tuple[Traffic, ...],
    footprints: Mapping[str, Footprint],
    degrees: Mapping[str, int],
    rates: Rates,
    cover: Cover,
) -> dict[str, float] | None:
    """Axis -> seconds on the critical path. Rows that hide behind the same compute share it, in the order of the ledger. None: a rate is unknown."""
    left, seconds = dict(cover), dict.fromkeys((row.axis for row in ledger), 0.0)
    for row in ledger:
        time = traffic_seconds(row, footprints.get(row.axis), degrees.get(row.axis, 2), rates)
        if time is None:
            return None
        hidden = min(time, left.get(row.hides_behind, 0.0)) if row.hides_behind else 0.0
        if row.hides_behind:
            left[row.hides_behind] -= hidden
        seconds[row.axis] += time - hidden
    return seconds
