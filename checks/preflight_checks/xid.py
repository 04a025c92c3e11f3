"""The kernel log holds no error of a GPU (Xid) since boot that makes it unfit for work.

An Xid is how the driver tells of hardware faults, and of faults of programs too: only the first are the GPU's. One fault makes a GPU and its peers speak many times, so the
first cause is looked for, and what only follows from it is not blamed: one Xid 149 let 63 other GPUs of a rack report Xid 145.
A node that was repaired without a reboot keeps its old Xids in the log. Those of before the driver was loaded again only warn, if the GPU answers; where a GPU was
reset by itself, which no line tells, `age_hours` sets how old one may be and still count.

Sources: meanings and actions are in `preflight/model/xids.py` (NVIDIA, "Xid Errors" with the Xid Catalog), causes in `preflight/model/first_cause.py`;
marin-community/marin 9086 and NVIDIA/open-gpu-kernel-modules 1150 (first cause); Azure/azurehpc-health-checks 648 (old Xids); NVIDIA/gpu-operator 1065 and NVIDIA/NVSentinel 911 (programs'
Xids left nodes cordoned); NVIDIA/NVSentinel 195 and leptonai/gpud 1209 (lost GPUs without an Xid).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from preflight.model import Check, Evidence, Finding, Gpu, KernelEvent, KernelLog, Node, Part, Record, Verdict
from preflight.model.finding import Confidence
from preflight.model.first_cause import Chain, first_cause, only_follows
from preflight.model.job_gpus import why_gone
from preflight.model.per_gpu import gpu_name
from preflight.model.units import show_seconds
from preflight.model.xids import ACTIONS, Action, Weighed, decode_nvlink, link_of, stated_action, weigh

NAME = "xid"
LIMITS = {"age_hours": 1e6}  # a century: all since boot
EXPECTED = "no Xid of the hardware since boot"
MENDED_S = 3600.0  # ours: by then a driver has said which recovery it wants
SAME_FAULT_S = 600.0  # clocks of nodes may differ by minutes
SHOWN = 4

_REMEDY: Mapping[Action, str] = {
    "nothing": "",
    "look": "look at the kernel log around it (`dmesg`), and at `nvidia-smi -q` for this GPU",
    "restart the job": "look at the program that was under way; run it under compute-sanitizer if it happens again",
    "reset the GPU": "drain the node and reset the GPU (`nvidia-smi --gpu-reset`) or reboot; if it comes back, have the GPU tested and replaced",
    "reboot the node": "drain the node and reboot it; if it comes back, have seat, power and GPU checked",
    "replace the GPU": "drain the node and have the GPU replaced: a bad memory row or page stays in use",
}


class _Case(Record, frozen=True):
    """A chain of a node, with what it weighs and how many peers only followed. `over`: why it is a thing of the past, "" if it isn't."""

    node: Node
    chain: Chain
    worst: Weighed
    peers: int = 0
    over: str = ""


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One PASS for each node, or a finding for each GPU that has an error of its own. Nothing where a run without GPUs is meant."""
    if evidence.settings.cpu_declared:
        return
    age_s = evidence.limits(NAME, LIMITS)["age_hours"] * 3600
    cases = {}
    for node in evidence.health or ():
        if node.gpus == () or (node.simulated and node.kernel_log is None):
            continue
        log = node.kernel_log or KernelLog(note="not in this snapshot")
        if log.events is None:
            yield Finding(
                check=NAME,
                subject=node.name,
                verdict=Verdict.UNKNOWN,
                observed=f"kernel log unknown: {log.note or 'no reason given'}",
                expected=EXPECTED,
                remedy="run as root, or let users read the kernel log (kernel.dmesg_restrict = 0)",
            )
            continue
        cases[node.name] = [_case(node, chain) for chain in first_cause(_recent(log, age_s)) if _of_gpu(node, chain)]
    everything = [case for found in cases.values() for case in found]
    for node in evidence.health or ():
        if node.name in cases:
            yield from _judge_node(node, cases[node.name], everything)


def _recent(log: KernelLog, age_s: float) -> list[KernelEvent]:
    """Events that are young enough; of unknown age counts as young."""
    now_s = log.read_at_s
    return [
        event
        for event in log.events or ()
        if now_s is None or event.at_s is None or now_s - (event.last_at_s or event.at_s) <= age_s
    ]


def _of_gpu(node: Node, chain: Chain) -> bool:
    """Whether it is this check's business: errors of switches have their own check, PCIe errors count where a GPU sits."""
    if chain.cause.kind == "aer":
        below = {bus_id for gpu in node.gpus or () for bus_id in (gpu.pci_bus_id, *(gpu.pci_upstream or ()))}
        return chain.cause.pci_bus_id in below and not (chain.cause.severity or "").startswith("Corrected")
    return chain.cause.kind != "sxid"


def _case(node: Node, chain: Chain) -> _Case:
    own = [event for event in chain.events if event.pci_bus_id == chain.cause.pci_bus_id]
    weighed = [_weigh(node, event, own) for event in own]
    worst = max(weighed, key=lambda one: (one.serious, ACTIONS.index(one.action)))
    stated = [action for event in own if event.code == 154 and (action := stated_action(event))]
    if (
        stated and worst.action != "replace the GPU"
    ):  # NVIDIA: Xid 154 overrides the action of the Xid that it comes with
        taken_back = stated[-1] == "nothing"
        worst = worst.replace(action="look" if taken_back else stated[-1], serious=not taken_back)
    over = _over(node, own) if worst.serious and worst.action != "replace the GPU" else ""
    if over:
        worst = worst.replace(serious=False, action="look")
    others = {event.pci_bus_id for event in chain.follows if event.kind == "xid"} - {chain.cause.pci_bus_id, None}
    return _Case(node, chain, worst, len(others), over)


def _over(node: Node, own: Sequence[KernelEvent]) -> str:
    if _driver_loaded_since(node, own):
        return "the driver has been loaded again since"
    return "the driver asks for no recovery any more" if _mended(node, own) else ""


def _driver_loaded_since(node: Node, own: Sequence[KernelEvent]) -> bool:
    """Whether all these events are of before the driver was loaded last, which starts a GPU anew, and the GPU answers."""
    loaded_at_s = node.kernel_log.driver_loaded_at_s if node.kernel_log is not None else None
    gpu = _gpu(node, own[0].pci_bus_id)
    if loaded_at_s is None or gpu is None or gpu.uuid is None or why_gone(gpu) is not None:
        return False
    return all(event.at_s is not None and (event.last_at_s or event.at_s) < loaded_at_s for event in own)


def _mended(node: Node, own: Sequence[KernelEvent]) -> bool:
    """Whether the driver, which keeps the recovery that a GPU needs until it was done, has long asked for none: it was reset since."""
    gpu, log = _gpu(node, own[0].pci_bus_id), node.kernel_log
    if (
        gpu is None
        or gpu.recovery_action != "none"
        or why_gone(gpu) is not None
        or log is None
        or log.read_at_s is None
    ):
        return False
    last_s = [event.last_at_s or event.at_s for event in own]
    return all(at_s is not None and log.read_at_s - at_s > MENDED_S for at_s in last_s)


def _weigh(node: Node, event: KernelEvent, own: Sequence[KernelEvent]) -> Weighed:
    if event.kind in {"xid", "fell off"}:
        same = [other for other in own if other.code == 74 and link_of(other) == link_of(event)]
        times = sum(other.count for other in same if decode_nvlink(other) == decode_nvlink(event))
        return weigh(event, times or None)
    if event.kind == "driver":
        gpu = _gpu(node, event.pci_bus_id)
        dead = event.pci_bus_id is not None and (gpu is None or (gpu.uuid is None and gpu.name is None))
        return Weighed(
            "reset", dead, "reboot the node" if dead else "look", "the driver could not start it", likely=True
        )
    return Weighed("look", serious=False, action="look", says=f"PCIe error, {event.severity}")


def _is_root(case: _Case) -> bool:
    return case.worst.serious and not only_follows(case.chain)


def _judge_node(node: Node, cases: Sequence[_Case], everything: Sequence[_Case]) -> Iterator[Finding]:
    roots = [case for case in everything if _is_root(case)]
    blamed: dict[str | None, list[_Case]] = {}
    for case in cases:
        if case.worst.kind != "ignore" and not _explained(case, roots):
            blamed.setdefault(_owner(node, case.chain.cause), []).append(case)
    alike = sum(any(case.worst.serious and only_follows(case.chain) for case in mine) for mine in blamed.values())
    for pci_bus_id, mine in blamed.items():
        serious = [case for case in mine if case.worst.serious] or mine
        either_end = alike > 1 and all(only_follows(case.chain) for case in serious)
        yield _finding(node, pci_bus_id, serious, everything, either_end=either_end)
    if not blamed:
        yield _clean(node, len(cases))


def _explained(case: _Case, roots: Sequence[_Case]) -> bool:
    """Whether a fault on another node of the same NVLink domain is the cause."""
    return only_follows(case.chain) and any(_same_fault(root, case) for root in roots)


def _same_fault(root: _Case, case: _Case) -> bool:
    gpu, other = _gpu(case.node, case.chain.cause.pci_bus_id), _gpu(root.node, root.chain.cause.pci_bus_id)
    if gpu is None or other is None or root.node.name == case.node.name:
        return False
    if gpu.nvlink_domain in {None, "none"} or gpu.nvlink_domain != other.nvlink_domain:
        return False
    at_s, root_at_s = _unix_s(case), _unix_s(root)
    return at_s is None or root_at_s is None or abs(at_s - root_at_s) <= SAME_FAULT_S


def _unix_s(case: _Case) -> float | None:
    log, at_s = case.node.kernel_log, case.chain.cause.at_s
    if log is None or log.read_at_s is None or case.node.taken_at_s is None or at_s is None:
        return None
    return case.node.taken_at_s - log.read_at_s + at_s


def _finding(
    node: Node, pci_bus_id: str | None, cases: Sequence[_Case], everything: Sequence[_Case], *, either_end: bool
) -> Finding:
    """About one GPU. `either_end`: several GPUs report a fault of a link, and none of them more than that."""
    gpu = _gpu(node, pci_bus_id)
    worst = max((case.worst for case in cases), key=lambda one: (one.serious, ACTIONS.index(one.action)))
    hidden = gpu is None and (node.platform is not None and node.platform.container not in {None, "none"})
    fails = worst.serious and not hidden
    what = "PCIe bridge" if all(case.chain.cause.kind == "aer" for case in cases) else "GPU at"
    subject = gpu_name(node, gpu) if gpu else f"{node.name} {what} {pci_bus_id}" if pci_bus_id else node.name
    told = [_told(case) for case in cases[:SHOWN]]
    if len(cases) > SHOWN:
        told.append(f"and {len(cases) - SHOWN} more")
    if hidden:
        told.append("the GPU is not among those shown in this container")
    peers = sum(_explained(case, [root for root in cases if _is_root(root)]) for case in everything)
    if peers:
        told.append(f"{peers} GPU{'s' * (peers != 1)} of other nodes only reported what followed from it")
    likely = worst.likely or (gpu is not None and gpu.recovery_action == "none")
    confidence: Confidence = "possible" if either_end else "likely" if likely else "certain"
    remedy = _REMEDY[worst.action]
    if either_end:
        told.append("the other end of its links reports the same")
    elif not fails and all(only_follows(case.chain) for case in cases):
        remedy = f"look for a fatal Xid 149 or a lost GPU elsewhere in its NVLink domain; {remedy}"
    if fails and gpu and gpu.recovery_action == "none":
        told.append("the driver asks for no recovery now")
        remedy += f"; if it was done since, set age_hours under [rules.{NAME}.limits]"
    return Finding(
        check=NAME,
        subject=subject,
        verdict=Verdict.FAIL if fails else Verdict.WARN,
        observed="; ".join(told),
        expected=EXPECTED,
        remedy=remedy,
        blames=Part(kind="gpu", name=subject, confidence=confidence) if fails else None,
        evidence=tuple(case.chain.cause.text for case in cases[:SHOWN]),
    )


def _told(case: _Case) -> str:
    """A chain in words: cause, when, whose, and what followed."""
    cause = case.chain.cause
    own = [event for event in case.chain.follows if event.pci_bus_id == cause.pci_bus_id]
    weighed = _weigh(case.node, cause, [cause, *own])
    text = weighed.says
    if cause.at_s is not None:
        text += f", {show_seconds(cause.at_s)} after boot"
    if cause.count > 1:
        text += f", {cause.count} times"
    if cause.process or cause.pid is not None:
        text += f", while {cause.process or 'a process'} (pid {cause.pid}) ran"
    codes = Counter(f"Xid {event.code}" if event.kind == "xid" else event.kind for event in own)
    if codes:
        text += "; then " + ", ".join(codes)
    stated = [event for event in (cause, *own) if event.code == 154]
    if stated and stated[-1] is not cause:
        text += f" ({weigh(stated[-1]).says.rpartition(': ')[2]})"
    if case.over:
        text += f"; {case.over}"
    if case.peers:
        text += f"; {case.peers} other GPU{'s' * (case.peers != 1)} only reported what followed from it"
    return text


def _clean(node: Node, ignored: int) -> Finding:
    log = node.kernel_log
    assert log is not None
    since = "since boot"
    if log.starts_at_s is None:
        since = "as far as the log reaches"
    elif log.starts_at_s > 0:
        since = f"since {show_seconds(log.starts_at_s)} after boot, where the log begins"
    observed = f"none {since}" + (
        "; what is there can be ignored, or follows from a fault elsewhere" if ignored else ""
    )
    return Finding(
        check=NAME,
        subject=node.name,
        verdict=Verdict.UNKNOWN if log.note else Verdict.PASS,
        observed=f"{observed}; {log.note}" if log.note else observed,
        expected=EXPECTED,
        remedy="read the rest with `dmesg` or `journalctl -k -b`" if log.note else "",
    )


def _owner(node: Node, cause: KernelEvent) -> str | None:
    """The device that an event is about: of a bridge with one GPU below it, that GPU."""
    below = [gpu.pci_bus_id for gpu in node.gpus or () if cause.pci_bus_id in (gpu.pci_upstream or ())]
    return below[0] if cause.kind == "aer" and len(below) == 1 else cause.pci_bus_id


def _gpu(node: Node, pci_bus_id: str | None) -> Gpu | None:
    return next((gpu for gpu in node.gpus or () if pci_bus_id is not None and gpu.pci_bus_id == pci_bus_id), None)


CHECK = Check(
    name=NAME,
    claim="The kernel log holds no error of a GPU (Xid) since boot that makes it unfit for work.",
    why="A GPU with a hardware Xid fails the job or corrupts its numbers; blaming every GPU that speaks drains the good ones with it.",
    uses=("health",),
    judge=judge,
    source="NVIDIA, Xid Errors and Xid Catalog; first causes after public reports (marin-community/marin 9086, NVIDIA/open-gpu-kernel-modules 1150).",
    remedy="Reset the GPU or reboot the node where the finding says so; replace a GPU whose Xid comes back. Look at the program where it names one.",
    need="advisory",
    limits=LIMITS,
)
