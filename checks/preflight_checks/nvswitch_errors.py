"""The kernel log holds no fatal error of an NVSwitch (SXid) since boot.

After a fatal SXid the NVLink traffic of the GPU at that port stalls, and later accesses hang, until switch and GPUs are reset; GPUs look healthy meanwhile.
A non-fatal one needs no recovery, and healthy switches log some at start-up: it is only told, unless one port repeats it more than `repeats_per_port` times (our own choice: 18 links
that each log a few lines at start-up stay far below).
Those of before the driver was loaded again, which starts the switches anew, only warn.
Links that go down because a GPU fell off the bus make every switch speak: then the GPU is the cause, and `xid` blames it.

Sources: NVIDIA, Fabric Manager User Guide, "NVSwitch SXid errors" (fatal and non-fatal, impact, recovery); NVIDIA/go-nvml 166 (an SXid names a switch port);
NVIDIA/nvtrust 124 (non-fatal lines at start-up).
"""

from collections.abc import Iterator, Sequence

from preflight.model import Check, Evidence, Finding, KernelEvent, Node, Part, Verdict
from preflight.model.first_cause import first_cause
from preflight.model.per_gpu import gpu_name

NAME = "nvswitch_errors"
LIMITS = {"repeats_per_port": 100.0, "age_hours": 1e6}  # a century: all since boot
EXPECTED = "no fatal SXid since boot"
SHOWN = 4


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One PASS for each node with switches, or a finding for each switch. Nothing for nodes where no switch is known and none spoke."""
    if evidence.settings.cpu_declared:
        return
    limits = evidence.limits(NAME, LIMITS)
    for node in evidence.health or ():
        if node.gpus == ():
            continue
        log = node.kernel_log
        if log is None or log.events is None:
            if _has_switches(evidence, node) and not node.simulated:
                why = "not in this snapshot" if log is None else log.note or "no reason given"
                yield Finding(
                    check=NAME,
                    subject=node.name,
                    verdict=Verdict.UNKNOWN,
                    observed=f"kernel log unknown: {why}",
                    expected=EXPECTED,
                    remedy="run as root, or let users read the kernel log (kernel.dmesg_restrict = 0)",
                )
            continue
        young = [event for event in log.events if _age_s(node, event) <= limits["age_hours"] * 3600]
        own = [chain.cause for chain in first_cause(young) if chain.cause.kind == "sxid"]
        if own or _has_switches(evidence, node):
            yield from _judge_node(node, own, limits["repeats_per_port"])


def _age_s(node: Node, event: KernelEvent) -> float:
    now_s = node.kernel_log.read_at_s if node.kernel_log else None
    return 0.0 if now_s is None or event.at_s is None else now_s - (event.last_at_s or event.at_s)


def _has_switches(evidence: Evidence, node: Node) -> bool:
    """Whether switches stand in this node: in racks with an NVLink domain of many nodes they stand elsewhere, and log there."""
    ends = [link.peer_kind for gpu in node.gpus or () for link in gpu.links or () if link.active]
    if ends and set(ends) == {"gpu"}:  # boards of four are made without switches
        return False
    for gpu in node.gpus or ():
        profile = evidence.profile_of(gpu)
        fabric = profile.fabric if profile else None
        if fabric in {"manager", "node"}:
            return True
        if fabric is None and any(link.peer_kind == "switch" for link in gpu.links or ()):
            return True
    return False


def _judge_node(node: Node, events: Sequence[KernelEvent], repeats: float) -> Iterator[Finding]:
    by_switch: dict[str | None, list[KernelEvent]] = {}
    for event in events:
        by_switch.setdefault(event.pci_bus_id, []).append(event)
    quiet = True
    for bus_id, mine in by_switch.items():
        fatal = [event for event in mine if "fatal" in _severity(event) and not _severity(event).startswith("non")]
        odd = [event for event in mine if not _severity(event) or event.count > repeats]
        if fatal or odd:
            quiet = False
            now = [event for event in fatal if not _over(node, event)]
            yield _finding(node, bus_id, now or fatal or odd, Verdict.FAIL if now else Verdict.WARN)
    log = node.kernel_log
    if quiet and log is not None:
        harmless = sum(event.count for event in events)
        observed = f"none{f'; {harmless} non-fatal ones, which need no recovery' if harmless else ''}"
        yield Finding(
            check=NAME,
            subject=node.name,
            verdict=Verdict.UNKNOWN if log.note else Verdict.PASS,
            observed=f"{observed}; {log.note}" if log.note else observed,
            expected=EXPECTED,
        )


def _over(node: Node, event: KernelEvent) -> bool:
    """Whether the driver has been loaded again since, which starts the switches anew."""
    loaded_at_s = node.kernel_log.driver_loaded_at_s if node.kernel_log is not None else None
    return loaded_at_s is not None and event.at_s is not None and (event.last_at_s or event.at_s) < loaded_at_s


def _severity(event: KernelEvent) -> str:
    return (event.severity or "").casefold()


def _finding(node: Node, bus_id: str | None, events: Sequence[KernelEvent], verdict: Verdict) -> Finding:
    subject = f"{node.name} NVSwitch {bus_id or 'of unknown address'}"
    ends = [end for event in events if (end := _gpu_end(node, event))]
    told = "; ".join(dict.fromkeys(_told(event) for event in events[:SHOWN]))
    told += "; the driver has been loaded again since" if all(_over(node, event) for event in events) else ""
    more = f"; and {len(events) - SHOWN} more" if len(events) > SHOWN else ""
    joined = f"; these ports lead to {', '.join(dict.fromkeys(ends[:SHOWN]))}" if ends else ""
    fails = verdict is Verdict.FAIL
    return Finding(
        check=NAME,
        subject=subject,
        verdict=verdict,
        observed=told + more + joined,
        expected=EXPECTED,
        remedy="drain the node, then reset GPUs and switches together or reboot; if it comes back, have switch, baseboard and GPU tested"
        if fails
        else "look at the kernel log and at the fabric manager's log, and watch whether it goes on",
        blames=Part(kind="switch", name=subject, confidence="likely") if fails else None,
        evidence=tuple(event.text for event in events[:SHOWN]),
    )


def _told(event: KernelEvent) -> str:
    port = "" if event.port is None else f" on port {event.port}"
    times = f", {event.count} times" if event.count > 1 else ""
    return f"SXid {event.code} ({event.severity or 'of unknown severity'}){port}{times}"


def _gpu_end(node: Node, event: KernelEvent) -> str | None:
    """The GPU's link at the other end of a switch port, where the driver tells it."""
    for gpu in node.gpus or ():
        for link in gpu.links or ():
            if event.port is not None and (link.peer_pci_bus_id, link.peer_link) == (event.pci_bus_id, event.port):
                return f"{gpu_name(node, gpu)} link {link.index}"
    return None


CHECK = Check(
    name=NAME,
    claim="The kernel log holds no fatal error of an NVSwitch (SXid) since boot.",
    why="After a fatal switch error the GPU behind that port hangs at its next NVLink access, while every GPU looks healthy.",
    uses=("health",),
    judge=judge,
    source="NVIDIA, Fabric Manager User Guide, NVSwitch SXid errors.",
    remedy="Reset GPUs and switches together, or reboot the node; have the switch tested if the error comes back.",
    need="advisory",
    limits=LIMITS,
)
