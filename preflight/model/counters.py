"""Counters of a node, and what became of them between two snapshots (pure).

Totals since some unknown day say little; what grew while we watched says much. Three things look like growth or its absence and are neither: a counter that starts
over (the driver was loaded again, somebody cleared it), one that stands at its ceiling, and one that is missing on a side. None of them counts as zero.

Names of NVLink counters (`Link.counters`), with the NVML fields that they come from (nvml.h: NVML_FI_DEV_NVLINK_...): up to Hopper "replay" (161), "recovery" (162),
"crc" (163); NVLink 5 "malformed" (206), "overrun" (207), "received_errors" (208), "received_remote_errors" (209), "general" (210), "local_integrity" (211), "discards"
(212), "recovery_ok" (213), "recovery_failed" (214), "recovery_events" (215), "effective_errors" (219), "symbol_errors" (221). Ports of HCAs keep the kernel's names.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Literal

from preflight.model.base import Record
from preflight.model.gpu import Gpu
from preflight.model.inventory import Node

# What one more event of a counter means: "failed": a link went down, or a bit was lost for good; "lost": data had to be thrown away and sent again by a higher layer;
# "recovered": the link had to train anew and came back; "corrected": repaired at once, nobody noticed; "path": somewhere between the two ends packets got lost or late, not
# necessarily here; "normal": traffic, waiting, or something that another part is to blame for.
Meaning = Literal["failed", "lost", "recovered", "corrected", "path", "normal"]

LINK_COUNTERS: dict[str, Meaning] = {
    "replay": "corrected",
    "recovery": "recovered",
    "crc": "corrected",
    "malformed": "lost",
    "overrun": "lost",
    "received_errors": "lost",
    "received_remote_errors": "normal",  # marked as bad by a part before this link: nothing of this link
    "general": "lost",
    "local_integrity": "lost",
    "discards": "lost",
    "recovery_ok": "recovered",
    "recovery_failed": "failed",
    "recovery_events": "normal",  # the sum of the two above; counted there
    "symbol_errors": "corrected",
    "effective_errors": "normal",  # NVLink 5 repairs these in its lower layers all the time
}

# Source of meanings: Linux, Documentation/ABI/stable/sysfs-class-infiniband; of "failed" for link_downed: NVSentinel, pull request 752.
PORT_COUNTERS: dict[str, Meaning] = {
    "link_downed": "failed",
    "link_error_recovery": "recovered",
    "symbol_error": "corrected",
    "port_rcv_errors": "lost",
    "local_link_integrity_errors": "lost",
    "excessive_buffer_overrun_errors": "lost",
    "rx_icrc_encapsulated": "lost",
    "port_xmit_discards": "path",
    "local_ack_timeout_err": "path",
    "packet_seq_err": "path",
    "implied_nak_seq_err": "path",
    "rnr_nak_retry_err": "path",
    "out_of_sequence": "path",
}

# Counters that InfiniBand defines with these widths stop at their ceiling (IBTA specification, PortCounters; the widths also in Linux, drivers/infiniband/core/sysfs.c).
# A driver may give wider ones: a value above the ceiling is an ordinary one.
_CEILING_OF_BITS = {4: 15, 8: 255, 16: 65_535, 32: 4_294_967_295}
CEILINGS: dict[str, int] = {
    name: _CEILING_OF_BITS[bits]
    for bits, names in {
        4: ("local_link_integrity_errors", "excessive_buffer_overrun_errors"),
        8: ("link_error_recovery", "link_downed", "port_xmit_constraint_errors", "port_rcv_constraint_errors"),
        16: (
            "symbol_error",
            "port_rcv_errors",
            "port_rcv_remote_physical_errors",
            "port_rcv_switch_relay_errors",
            "port_xmit_discards",
            "VL15_dropped",
        ),
    }.items()
    for name in names
}
_SMALLEST_CEILING = _CEILING_OF_BITS[4]
_CEILING_OF_OTHERS = _CEILING_OF_BITS[32]  # port_xmit_wait and the kernel's 32-bit counters

_LIFELONG = ("corrected_aggregate", "uncorrected_aggregate")  # kept on the board, over resets and reboots
_BLANK = (
    0x7FFF_FFFF_FFFF_FFF0  # and above: DCGM's words for "no value", which have been seen in counters (dcgm_structs.h)
)
_WRAPS_AT = {"replays": 2**32}  # NVML's type is an unsigned int, which begins again at 0
_NEAR_WRAP = 2**20


class Counter(Record, frozen=True):
    """Which counter: `owner` is a GPU's UUID or an HCA's name, `part` "memory", "PCIe", "clock", "link 14" or "port 1", `name` as in the nouns."""

    owner: str
    part: str
    name: str


State = Literal["compared", "absent before", "absent after", "reset", "saturated"]


class Growth(Record, frozen=True):
    """One counter at two times. `delta` is None unless it could be compared; `at_least`: it reached its ceiling meanwhile, so that more may have happened."""

    counter: Counter
    before: int | None
    after: int | None
    state: State
    delta: int | None = None
    at_least: bool = False


class Compared(Record, frozen=True):
    """All counters of a node at two times. `seconds` between them, None if either snapshot has no time. `restarted`: why counters that start over with node or
    driver can't be compared, None if they can.
    """

    seconds: float | None
    restarted: str | None
    growths: tuple[Growth, ...]

    def by_owner(self) -> dict[str, list[Growth]]:
        """The counters of each GPU and HCA."""
        owners: dict[str, list[Growth]] = {}
        for growth in self.growths:
            owners.setdefault(growth.counter.owner, []).append(growth)
        return owners

    def per_second(self, growth: Growth) -> float | None:
        """How fast it grew; None if it couldn't be compared, or the time between is unknown."""
        return None if growth.delta is None or not self.seconds else growth.delta / self.seconds


def owner_of(gpu: Gpu) -> str:
    """The name under which a GPU's counters are found again: the UUID, since the index may change over a reboot."""
    return gpu.uuid or gpu.pci_bus_id or f"GPU {gpu.index}"


def counters_of(node: Node) -> dict[Counter, int]:
    """All counters of a node that were read: memory errors, PCIe replays, time under each throttle reason (ns), NVLinks, ports of HCAs. An absent one isn't here."""
    return {
        counter: value
        for gpu in node.open_gpus
        for counter, value in _of_gpu(gpu)
        if value is not None and 0 <= value < _BLANK
    } | {
        Counter(hca.name, f"port {port.number}", name): value
        for hca in node.hcas or ()
        for port in hca.ports or ()
        for name, value in port.counters.items()
        if 0 <= value < _BLANK
    }


def _of_gpu(gpu: Gpu) -> Iterator[tuple[Counter, int | None]]:
    owner = owner_of(gpu)
    if gpu.ecc is not None:
        for name in ("corrected_volatile", "uncorrected_volatile", *_LIFELONG):
            yield Counter(owner, "memory", name), getattr(gpu.ecc, name)
    if gpu.pcie is not None:
        yield Counter(owner, "PCIe", "replays"), gpu.pcie.replays
    if gpu.clocks is not None:
        for name, value in gpu.clocks.throttled_ns.items():
            yield Counter(owner, "clock", name), value
    for link in gpu.links or ():
        for name, value in link.counters.items():
            yield Counter(owner, f"link {link.index}", name), value


def saturated(counter: Counter, value: int) -> bool:
    """Whether a port's counter stands at its ceiling, where it says nothing of new events: at least that many, at any time since it was cleared."""
    if value < _SMALLEST_CEILING or not counter.part.startswith("port "):
        return False
    return value in {_CEILING_OF_OTHERS, CEILINGS.get(counter.name)}


def held_down_by_fault(reason: str) -> bool:
    """Whether a throttle reason is hardware's own: heat, the power brake, or a draw that is too high. Idle, power caps and locked clocks are normal."""
    return reason.startswith("hw ") or "thermal" in reason or "brake" in reason


def tells_errors(counter: Counter) -> bool:
    """Whether growth of the counter may mean that something is wrong; not so for traffic, waiting and what another part is to blame for."""
    if counter.part.startswith("link "):
        return LINK_COUNTERS.get(counter.name, "normal") != "normal"
    if counter.part.startswith("port "):
        return PORT_COUNTERS.get(counter.name, "normal") != "normal"
    return counter.part != "clock" or held_down_by_fault(counter.name)


def half_of_others(values: Sequence[int], own: int) -> int:
    """What half of the other counters have at most, `values` being all of them in order, `own` among them. 0 if there are no others."""
    if len(values) < 2:
        return 0
    middle = (len(values) - 2) // 2
    return values[middle + 1] if bisect_left(values, own) <= middle else values[middle]


def compare(before: Node, after: Node) -> Compared:
    """What became of each counter that either snapshot has.

    Counters start over with the node and with the driver: `restarted` says so, and then only those that the boards keep for life are compared; none if the
    snapshots are in the wrong order. If one counter of a GPU or port went backwards, all of that GPU or port count as reset.
    """
    seconds = None
    if before.taken_at_s is not None and after.taken_at_s is not None:
        seconds = after.taken_at_s - before.taken_at_s
    backwards = seconds is not None and seconds <= 0
    restarted = "the earlier snapshot is not earlier than this one" if backwards else _why_restarted(before, after)
    old, new = counters_of(before), counters_of(after)
    reset = {_group(counter) for counter, was in old.items() if _went_back(counter, was, new.get(counter))}

    def started_over(counter: Counter) -> bool:
        if backwards or counter.name in _LIFELONG:
            return backwards
        return restarted is not None or (bool(reset) and _group(counter) in reset)

    growths = [_growth(counter, was, new.get(counter), reset=started_over(counter)) for counter, was in old.items()]
    growths += [Growth(counter, None, now, "absent before") for counter, now in new.items() if counter not in old]
    return Compared(seconds=seconds, restarted=restarted, growths=tuple(growths))


def _why_restarted(before: Node, after: Node) -> str | None:
    if before.boot_id and after.boot_id and before.boot_id != after.boot_id:
        return "the node was rebooted between the two snapshots"
    if before.driver_version and after.driver_version and before.driver_version != after.driver_version:
        return f"the driver was changed between the two snapshots ({before.driver_version} to {after.driver_version})"
    return None


def _group(counter: Counter) -> tuple[str, str]:
    """What starts over together: all of a GPU, since reloading its driver clears all; one port of an HCA."""
    return counter.owner, counter.part if counter.part.startswith("port ") else ""


def _went_back(counter: Counter, was: int, now: int | None) -> bool:
    return now is not None and now < was and not _wrapped(counter, was, now)


def _wrapped(counter: Counter, was: int, now: int) -> bool:
    if now >= was:
        return False
    limit = _WRAPS_AT.get(counter.name)
    return limit is not None and was >= limit - _NEAR_WRAP and now < _NEAR_WRAP


def _growth(counter: Counter, was: int, now: int | None, *, reset: bool) -> Growth:
    if now is None:
        return Growth(counter, was, now, "absent after")
    if reset or _went_back(counter, was, now):
        return Growth(counter, was, now, "reset")
    if saturated(counter, was):
        return Growth(counter, was, now, "saturated")
    wrapped = _WRAPS_AT[counter.name] if _wrapped(counter, was, now) else 0
    return Growth(counter, was, now, "compared", now - was + wrapped, at_least=now != was and saturated(counter, now))
