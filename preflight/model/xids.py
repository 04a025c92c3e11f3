"""What the driver's error numbers (Xids) mean: what is to blame, and what has to be done. Pure.

Sources: NVIDIA, "Xid Errors": Xid Catalog (for A100 and newer: immediate and investigatory action of each number, WORKFLOW_NVLINK_ERR for 74, "XID 144-150
Decode", guidance classes) and its older listing of common Xids (13, 31, 32, 43, 45, 48, 63, 64, 74, 79, 94, 95 and who is to blame); NVIDIA, "GPU Memory Error
Management" (a failed remapping is a reason for replacement). Which numbers belong to applications in practice: NVIDIA/gpu-operator issue 1065, NVIDIA/NVSentinel 911.

A number that isn't in the table is never taken as harmless: somebody should look.
"""

import re
from typing import Literal

from preflight.model.base import Record
from preflight.model.surroundings import KernelEvent

XidClass = Literal["hardware", "reset", "link", "contained", "application", "look", "ignore"]
Action = Literal["nothing", "look", "restart the job", "reset the GPU", "reboot the node", "replace the GPU"]
ACTIONS: tuple[Action, ...] = (
    *("nothing", "look", "restart the job", "reset the GPU", "reboot the node", "replace the GPU"),
)  # weakest first


class Xid(Record, frozen=True):
    """A number's name; what it points at: "hardware" (the GPU is at fault), "reset" (unusable until it is reset; hardware, firmware or driver), "link" (an NVLink;
    its line says how bad), "contained" (a memory error that cost one process only), "application", "look" (somebody should), "ignore"; and what to do.
    """

    name: str
    kind: XidClass
    action: Action


class Weighed(Record, frozen=True):
    """One event judged. `serious`: the GPU must not be used before the action is taken. `likely`: the evidence could be explained otherwise too. `says`: in words."""

    kind: XidClass
    serious: bool
    action: Action
    says: str
    likely: bool = False


_APP: Action = "restart the job"
_RESET: Action = "reset the GPU"
TABLE: dict[int, Xid] = {
    8: Xid("a channel stopped making progress", "application", _APP),
    11: Xid("invalid command stream", "application", _APP),
    13: Xid("graphics engine exception", "application", _APP),
    14: Xid("test message of the driver", "ignore", "nothing"),
    25: Xid("invalid command stream", "application", _APP),
    31: Xid("memory page fault", "application", _APP),
    32: Xid("invalid command stream or bus error", "application", _APP),
    37: Xid("unknown firmware method", "application", "look"),
    38: Xid("driver firmware error", "look", "look"),
    43: Xid("the GPU stopped processing a faulty program", "application", _APP),
    44: Xid("fault during a context switch", "look", "look"),
    45: Xid("a program's channels were cleaned up, after a kill or an earlier error", "application", _APP),
    46: Xid("the GPU stopped processing", "reset", _RESET),
    48: Xid("uncorrectable memory error (double bit)", "hardware", _RESET),
    54: Xid("auxiliary power is missing: reduced clocks", "look", "look"),
    60: Xid("security engine error", "application", _APP),
    61: Xid("micro-controller breakpoint", "look", "look"),
    62: Xid("micro-controller halt", "hardware", _RESET),
    63: Xid("a memory row or page was taken out of use", "look", "look"),  # `row_remap` tells whether a reset is due
    64: Xid("a bad memory row or page could not be taken out of use", "hardware", "replace the GPU"),
    66: Xid("illegal access by driver", "look", "look"),
    67: Xid("illegal access by driver", "look", "look"),
    69: Xid("graphics class error", "application", _APP),
    74: Xid("NVLink error", "link", _RESET),
    78: Xid("a virtual GPU could not start", "look", "look"),
    79: Xid("the GPU has fallen off the bus", "hardware", "reboot the node"),
    80: Xid("corrupted data sent to the GPU", "application", _APP),
    92: Xid("high rate of corrected memory errors", "look", "look"),
    93: Xid("inforom wears out", "look", "look"),
    94: Xid("contained memory error", "contained", _APP),
    95: Xid("uncontained memory error", "hardware", _RESET),
    106: Xid("test message", "ignore", "nothing"),
    107: Xid("test message", "ignore", "nothing"),
    108: Xid("NVLink remote translation error", "application", _APP),
    109: Xid("context switch timeout", "reset", _RESET),
    110: Xid("security fault", "reset", _RESET),
    119: Xid("the GPU's system processor (GSP) doesn't answer", "reset", _RESET),
    120: Xid("error of the GPU's system processor (GSP)", "reset", _RESET),
    121: Xid("corrected errors of the chip-to-chip link", "ignore", "nothing"),  # "no operational impact"
    136: Xid("NVLink training failed", "reset", _RESET),
    137: Xid("illegal NVLink access by a peer", "application", _APP),
    140: Xid("unrecovered memory error", "hardware", _RESET),
    141: Xid("fast path error", "look", "look"),
    143: Xid("the GPU could not be initialised", "reset", _RESET),
    144: Xid("NVLink error (SAW)", "link", _RESET),
    145: Xid("NVLink error (RLW)", "link", _RESET),
    146: Xid("NVLink error (TLW)", "link", _RESET),
    147: Xid("NVLink error (TREX)", "link", _RESET),
    148: Xid("NVLink error (NVLPW)", "link", _RESET),
    149: Xid("NVLink port error (NETIR)", "link", _RESET),
    150: Xid("NVLink management engine error (MSE)", "link", _RESET),
    151: Xid("key rotation error", "reset", "reboot the node"),
    154: Xid("the driver asks for a recovery action", "look", "look"),
    # links that are put to sleep on purpose tell it too; where a reset is due, Xid 154 says so
    155: Xid("an NVLink went down, as software meant or not", "look", "look"),
    156: Xid("a resource was taken out of use", "reset", _RESET),
    157: Xid("a bad resource could not be taken out of use", "look", "look"),
    158: Xid("fatal timeout", "reset", _RESET),
    162: Xid("power smoothing is on again", "ignore", "nothing"),
    163: Xid("power smoothing switched itself off", "look", "look"),
    164: Xid("power smoothing will soon be worn out", "look", "look"),
    165: Xid("power smoothing is worn out", "look", "look"),
    171: Xid("more about an uncorrectable error of device memory (Xid 48)", "look", "look"),
    172: Xid("more about an uncorrectable error of on-chip memory (Xid 48)", "look", "look"),
    **dict.fromkeys(
        (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), Xid("copy engine error", "application", _APP)
    ),
    **dict.fromkeys((68, 83, 84, 88, 89, 96, 97, 98), Xid("video decoder error", "application", _APP)),
    **dict.fromkeys((82, *range(99, 106)), Xid("image decoder error", "application", _APP)),
    **dict.fromkeys((86, 139), Xid("optical flow engine error", "application", _APP)),
}
UNKNOWN_XID = Xid("not in our table", "look", "look")

# WORKFLOW_NVLINK_ERR: register (0 the first) -> meaning -> bits. Only Hopper defines the registers beside the first.
_BITS: dict[int, dict[str, frozenset[int]]] = {
    0: {
        "ignore": frozenset({0, 23, 30}),
        "secondary": frozenset({1, 20}),
        "parity": frozenset({4, 5}),
        "hardware": frozenset({8, 9, 12, 16, 17, 24, 28}),
        "signal": frozenset({21, 22}),
        "repeated": frozenset({27, 29}),
    },
    2: {"parity": frozenset({0, 1, 2, 6}), "unexpected": frozenset({13}), "repeated": frozenset({16, 17, 18, 19})},
    3: {"secondary": frozenset({16, 17, 18})},
    4: {"parity": frozenset({18, 19, 21, 22, 24, 25, 27, 28}), "corrected": frozenset({20, 23, 26, 29})},
}
_PARITY_LIMIT, _REPEATED_LIMIT = 2, 1  # "if seen more than 2 times on the same link", "if seen repeatedly"
_REGISTERS = r"(?i:\blink +(-?\d{1,3}) *\(((?:0x[0-9a-fA-F]{1,8}[, ]*){1,8})\))"
_LINK = r"(?i:\blink +(\d{1,3})\b)"
_CAUSED_BY = r"caused by previous Xid (\d{1,6})"
_RECOVERY = r"recovery action changed from 0x[0-9a-fA-F]+ \(([^)]*)\) to 0x[0-9a-fA-F]+ \(([^)]*)\)"


def describe(code: int | None) -> Xid:
    """What a number means; a number that we don't know is one to look at."""
    return TABLE.get(code, UNKNOWN_XID) if code is not None else UNKNOWN_XID


def weigh(event: KernelEvent, times: int | None = None) -> Weighed:
    """What an event of kind "xid" or "fell off" says of its GPU. `times`: how often it was seen on the same link, the event's own count if None."""
    if event.kind == "fell off":
        return Weighed("hardware", serious=True, action="reboot the node", says="the GPU has fallen off the bus")
    xid = describe(event.code)
    says = f"Xid {event.code} ({xid.name})"
    if event.code == 74:
        return _weigh_nvlink(event, says, event.count if times is None else times)
    if event.code == 154:
        return _weigh_recovery(event, says)
    if (named := named_cause(event)) is not None:
        return _weigh_named(event, named, says)
    if xid.kind == "link":
        says += f": {event.subcode} {event.severity}" if event.subcode else ""
        fatal = (event.severity or "").casefold() == "fatal"
        return Weighed("hardware" if fatal else "link", fatal, xid.action if fatal else "look", says, likely=True)
    serious = xid.kind in {"hardware", "reset"}
    return Weighed(xid.kind, serious, xid.action, says, likely=xid.kind == "reset")


def link_of(event: KernelEvent) -> int | None:
    """The NVLink of the GPU that a line names; None: none, or "-1" (all)."""
    match = re.search(_LINK, event.text)
    return int(match[1]) if match else None


def named_cause(event: KernelEvent) -> int | None:
    """The number that a line gives as its cause ("... caused by previous Xid 149": NVIDIA/open-gpu-kernel-modules 1150)."""
    match = re.search(_CAUSED_BY, event.text)
    return int(match[1]) if match else None


def stated_action(event: KernelEvent) -> Action | None:
    """What Xid 154 says has to be done: "nothing" if the driver took its request back. None: it doesn't say, or in words that we don't know."""
    match = re.search(_RECOVERY, event.text)
    if match is None:
        return None
    words = match[2].casefold()
    if words == "none":
        return "nothing"
    if "reboot" in words:
        return "reboot the node"
    return _RESET if any(word in words for word in ("reset", "flr", "drain")) else None


def decode_nvlink(event: KernelEvent) -> tuple[str, ...] | None:
    """What the registers of an Xid 74 say, each meaning once, worst first: "hardware", "signal", "parity", "unexpected", "repeated", "secondary", "corrected",
    "unknown" (bits that NVIDIA doesn't describe), "ignore". None: the line has no registers, or all are zero.
    """
    match = re.search(_REGISTERS, event.text)
    if match is None:
        return None
    found = set()
    for index, text in enumerate(re.findall(r"0x[0-9a-fA-F]+", match[2])):
        bits = {bit for bit in range(32) if int(text, 16) >> bit & 1}
        known = _BITS.get(index, {})
        found |= {meaning for meaning, those in known.items() if bits & those}
        described = frozenset().union(*known.values())
        if bits - described and index in _BITS:
            found.add("unknown")
    order = ("hardware", "signal", "parity", "unexpected", "unknown", "repeated", "secondary", "corrected", "ignore")
    return tuple(meaning for meaning in order if meaning in found) or None


_SAYS = {
    "hardware": "possibly broken: seat and connectors have to be checked",
    "signal": "marginal signal: seat and connectors have to be checked",
    "parity": "ECC or parity errors of the link",
    "unexpected": "bits that should not be seen in production",
    "unknown": "bits that NVIDIA doesn't describe",
    "repeated": "counts only if it repeats",
    "secondary": "mostly a consequence of another error",
    "corrected": "many corrected errors, none uncorrected",
    "ignore": "can be ignored",
}


def _weigh_nvlink(event: KernelEvent, says: str, times: int) -> Weighed:
    link = link_of(event)
    says += f" on link {link}" if link is not None else ""
    meanings = decode_nvlink(event)
    if meanings is None:
        fatal = "fatal error" in event.text
        words = "the driver calls it fatal" if fatal else "without registers that would tell more"
        return Weighed("link", fatal, _RESET if fatal else "look", f"{says}: {words}", likely=True)
    worst = meanings[0]
    says += f": {_SAYS[worst]}" + (f", seen {times} times" if times > 1 else "")
    serious = (
        worst in {"hardware", "signal"}
        or (worst == "parity" and times > _PARITY_LIMIT)
        or (worst == "repeated" and times > _REPEATED_LIMIT)
    )
    if worst == "ignore":
        return Weighed("ignore", serious=False, action="nothing", says=says)
    return Weighed("link", serious, _RESET if serious else "look", says, likely=True)


def _weigh_named(event: KernelEvent, named: int, says: str) -> Weighed:
    """A line that names its cause stands for it, should the cause's own line be gone. A link error that cost programs their channels was a fatal one."""
    severity = "Fatal" if named in {149, 150} else None
    cause = weigh(KernelEvent(kind="xid", code=named, severity=severity, pci_bus_id=event.pci_bus_id))
    return cause.replace(says=f"{says}, caused by {cause.says}", likely=True)


def _weigh_recovery(event: KernelEvent, says: str) -> Weighed:
    match = re.search(_RECOVERY, event.text)
    action = stated_action(event)
    says += f": {match[2]}" if match else ""
    if action == "nothing":
        return Weighed("ignore", serious=False, action="nothing", says=says)
    if action is None:
        return Weighed("look", serious=False, action="look", says=says)
    return Weighed("reset", serious=True, action=action, says=says, likely=True)
