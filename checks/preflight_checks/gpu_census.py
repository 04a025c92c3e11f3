"""Driver, PCI bus and device files show the same GPUs, as many as such a machine has.

A GPU that fell off the bus leaves no error in most programs: the driver counts seven, and the job fails later or runs without it. Three counts tell it
apart from GPUs that a container, a cgroup or a scheduler keeps away on purpose, and from a scheduler that only counts wrongly: Slurm's "gres count
lower than configured (0 < 8)" with eight GPUs here is a slurmd without NVML, not a broken node.
Fewer than the product's machines have is FAIL only on bare metal and with a trace of the missing one: a gap in minor or module numbers, a kernel line, the plan's
number, or other nodes of this run that are complete.
Source: cyclecloud-healthagent (three-way count); NVSentinel issues 155, 195 and gpud 1209 (lost without an Xid: count); shine-cluster 171 (`rev ff` is dead);
awsome-distributed-ai 195, SlinkyProject/containers 14, crusoecloud/slurm 13 (gres count).
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from preflight.model import Check, Evidence, Finding, Gpu, Node, Part, Profile, Verdict
from preflight.model.job_gpus import kept_from_us, num_given, task_binding, why_gone
from preflight.model.per_gpu import gpu_name

NAME = "gpu_census"
Machine = tuple[str | None, str | None]  # GPU product; vendor and product of the machine
EXPECTED = "the same GPUs by driver and PCI bus, as many as such a machine has"
_GRES = re.compile(
    r"gres.{0,40}count.{0,20}lower", re.IGNORECASE
)  # slurmctld's and slurmd's words for a node with fewer GPUs than configured


def judge(evidence: Evidence) -> Iterator[Finding]:
    """For each node: one finding for each thing that is wrong, or one PASS that names the counts. Nothing for nodes without GPUs."""
    if evidence.settings.cpu_declared:
        return
    nodes = evidence.health or ()
    fleet = Counter((_machine(node, node.gpus), len(node.gpus)) for node in nodes if node.gpus)
    for node in nodes:
        found = [*_dead(node)]
        if node.gpus:
            found += [*_not_shown(node, node.gpus), *_too_few(evidence, node, node.gpus, fleet)]
            if not found:
                found += [*_no_device_file(node, node.gpus)] or [_all_there(evidence, node, node.gpus)]
                found += _gres(node, node.gpus)
        yield from found


def _finding(node: Node, verdict: Verdict, observed: str, remedy: str = "", blames: Part | None = None) -> Finding:
    return Finding(
        check=NAME,
        subject=blames.name if blames is not None and blames.kind == "gpu" else node.name,
        verdict=verdict,
        observed=observed,
        expected=EXPECTED,
        remedy=remedy,
        blames=blames,
    )


def _dead(node: Node) -> Iterator[Finding]:
    """GPUs whose configuration space reads as all ones."""
    by_bus = {gpu.pci_bus_id: gpu for gpu in node.gpus or ()}
    for bus_id in node.dead_on_bus:
        gpu = by_bus.get(bus_id)
        name = gpu_name(node, gpu) if gpu is not None else f"{node.name} GPU at {bus_id}"
        text = "its PCI configuration space reads as all ones (lspci: rev ff)"
        if gpu is not None and gpu.uuid is not None and why_gone(gpu) is None:
            look = f"read it again: setpci -s {bus_id} VENDOR_ID"
            yield _finding(node, Verdict.UNKNOWN, f"{name}: {text}, and yet it answers the driver", look)
            continue
        remedy = (
            f"drain {node.name} and power-cycle it (a warm reset is seldom enough); replace the GPU if it is gone again"
        )
        yield _finding(node, Verdict.FAIL, f"{text}: it fell off the bus", remedy, Part(kind="gpu", name=name))


def _not_shown(node: Node, gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """GPUs of the bus that the driver doesn't show."""
    missing = _missing_ids(node, gpus)
    if not missing or _hidden_by(node, gpus) is not None:
        return
    found = f"the PCI bus has {', '.join(missing)}, the driver doesn't show {'it' if len(missing) == 1 else 'them'}"
    if node.platform is None or node.platform.container is None:
        yield _finding(
            node,
            Verdict.UNKNOWN,
            f"{found}: lost to it, or kept from this container, which can't be told from here",
            "run preflight on the host, outside of any container or job",
        )
        return
    for bus_id in missing:
        yield _finding(
            node,
            Verdict.FAIL,
            f"on the PCI bus at {bus_id}, and the driver doesn't show it; no container, cgroup or scheduler is known to hide it",
            f"look for {bus_id} in the kernel log of {node.name} (probe failed, Xid 79) and at the driver it is bound to (lspci -k -s {bus_id}); power-cycle the node",
            Part(kind="gpu", name=f"{node.name} GPU at {bus_id}", confidence="likely"),
        )


def _missing_ids(node: Node, gpus: Sequence[Gpu]) -> list[str]:
    """Bus ids without a GPU of the driver. Functions of a shown GPU's own bus are its virtual ones; GPUs that can't be opened may be the missing ones."""
    shown = {gpu.pci_bus_id for gpu in gpus if gpu.pci_bus_id is not None}
    buses = {bus_id[:-5] for bus_id in shown if bus_id.endswith(":00.0") and not bus_id.endswith(":00:00.0")}
    left = [
        bus_id
        for bus_id in node.gpus_on_bus or ()
        if bus_id not in shown and bus_id not in node.dead_on_bus and bus_id[:-5] not in buses
    ]
    nameless = sum(gpu.pci_bus_id is None for gpu in gpus)
    return left if len(left) > nameless else []


def _hidden_by(node: Node, gpus: Sequence[Gpu]) -> str | None:
    """What keeps GPUs from this process on purpose; None: nothing that is known here."""
    seen = sum(not kept_from_us(gpu) for gpu in gpus)
    given = num_given(node.mask) if node.mask is not None else None
    if given == seen:  # a cgroup shows just the GPUs that were given; without one, all are seen
        return f"the scheduler gave this job {given}"
    if task_binding(node) is not None:
        return "this task is bound to its own"
    if node.closed_devices and len(node.closed_devices) >= len(_missing_ids(node, gpus)):
        listed = ", ".join(f"/dev/nvidia{minor}" for minor in node.closed_devices)
        return f"{listed} may not be opened by this process (a job's device cgroup, or file permissions)"
    if node.platform is not None and node.platform.container not in (None, "none"):
        return f"this is a container ({node.platform.container})"
    return None


def _machine(node: Node, gpus: Sequence[Gpu]) -> Machine:
    """What is alike in machines that should have as many GPUs: a partition may hold boards of 4 and of 8."""
    return gpus[0].name, node.platform.machine if node.platform is not None else None


def _too_few(
    evidence: Evidence, node: Node, gpus: Sequence[Gpu], fleet: Counter[tuple[Machine, int]]
) -> Iterator[Finding]:
    """Fewer GPUs, by driver and bus alike, than machines of this product have. `fleet`: how many machines of a kind have how many GPUs."""
    profile = _profile(evidence, gpus)
    usual = profile.gpus_per_node if profile is not None else None
    virtual = node.platform.virtual_machine if node.platform is not None else None
    if usual is None or profile is None or virtual not in (None, "none") or _hidden_by(node, gpus) is not None:
        return
    ends = {link.peer_kind for gpu in gpus for link in gpu.links or () if link.active}
    wired = ("switched",) if "switch" in ends else ("switched", "mesh", "cube")  # small boards have no switch
    layouts = {layout.gpus for layout in profile.nvlink_layouts or () if layout.kind in wired}
    num_dead = sum(bus_id not in {gpu.pci_bus_id for gpu in gpus} for bus_id in node.dead_on_bus)
    count = len(gpus) + len(_missing_ids(node, gpus)) + num_dead
    if count >= usual or count in layouts:
        return
    bare = virtual == "none" and node.platform is not None and node.platform.container == "none"
    traces = _traces(evidence, node, gpus)
    alike = {size: number for (machine, size), number in fleet.items() if machine == _machine(node, gpus)}
    full = sum(number for size, number in alike.items() if size >= usual)
    traces += [f"{full} other nodes of this run have {usual}"] if 2 * full > sum(alike.values()) else []
    yield _finding(
        node,
        Verdict.FAIL if bare and traces else Verdict.WARN,
        f"{count} GPUs by {'driver and PCI bus' if node.gpus_on_bus is not None else 'the driver'}; machines of {profile.name} have {usual}"
        + (f"; {'; '.join(traces)}" if traces else ""),
        f"compare with the GPUs that {node.name} was delivered with; power-cycle it and look for PCIe link errors of the empty slot in its kernel log",
        Part(kind="node", name=node.name, confidence="likely") if bare and traces else None,
    )


def _traces(evidence: Evidence, node: Node, gpus: Sequence[Gpu]) -> list[str]:
    """What on the node and in the plan speaks for a GPU that was there."""
    found = [
        f"no GPU has {what} {', '.join(map(str, gaps))}"
        for what, numbers in (
            ("minor number", [gpu.minor_number for gpu in gpus]),
            ("module id", [gpu.module_id for gpu in gpus]),
        )
        if (gaps := _gaps(numbers))
    ]
    shown = {gpu.pci_bus_id for gpu in gpus}
    events = node.kernel_log.events or () if node.kernel_log is not None else ()
    fell = dict.fromkeys(
        e.pci_bus_id for e in events if e.kind == "fell off" and e.pci_bus_id not in shown and e.pci_bus_id
    )
    found += [f"the kernel saw {bus_id} fall off the bus" for bus_id in fell]
    plan = evidence.plan
    asked = plan.job.hardware.gpus_per_node if plan is not None and node.name in plan.placement.nodes else None
    if asked is not None and asked > len(gpus):
        found.append(f"the plan counts on {asked}")
    return found


def _gaps(numbers: Sequence[int | None]) -> list[int]:
    """Numbers missing between the first and the last, where each GPU has one of its own."""
    known = {number for number in numbers if number is not None}
    if len(known) != len(numbers) or max(known) - min(known) >= 2 * len(known):
        return []
    return sorted(set(range(min(known), max(known))) - known)


def _no_device_file(node: Node, gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """GPUs that answer, and that programs can't open; where no device file is seen at all, the look is blind."""
    minors = {gpu.minor_number for gpu in gpus if gpu.minor_number is not None}
    missing = sorted(minors - set(node.device_files or minors))
    if missing:
        files = ", ".join(f"/dev/nvidia{minor}" for minor in missing)
        yield _finding(
            node,
            Verdict.WARN,
            f"{len(gpus)} GPUs by the driver, and no device file for {'one' if len(missing) == 1 else len(missing)} of them: {files}",
            f"make what is missing (nvidia-modprobe -c {missing[0]}), or see why udev or the container left it out",
            Part(kind="environment", name=f"device files of {node.name}", confidence="likely"),
        )


def _all_there(evidence: Evidence, node: Node, gpus: Sequence[Gpu]) -> Finding:
    profile, hidden = _profile(evidence, gpus), _hidden_by(node, gpus)
    views = (("on the PCI bus", node.gpus_on_bus), ("device files", node.device_files))
    counts = [f"{len(gpus)} by the driver", *(f"{len(view)} {name}" for name, view in views if view)]
    # a look that shows none of the GPUs that answer (WSL, an emulated machine) is blind, it doesn't count
    blind = [name for name, view in views if view is not None and not view]
    usual = profile.gpus_per_node if profile is not None else None
    counts += [f"{profile.name} machines have {usual}"] if usual is not None and profile is not None else []
    unseen = f"; none seen: {', '.join(blind)}" if blind else ""
    if len(counts) == 1:
        return _finding(node, Verdict.SKIP, f"{counts[0]}, and nothing else to count by{unseen}")
    virtual = node.platform.virtual_machine if node.platform is not None else None
    if hidden is None and usual is not None and len(gpus) < usual:
        hidden = "a virtual machine may be given fewer" if virtual not in (None, "none") else None
    return _finding(node, Verdict.PASS, ", ".join(counts) + unseen + (f"; {hidden}" if hidden else ""))


def _gres(node: Node, gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """Slurm's complaint about its count, where all GPUs are here."""
    said = next((v for v in node.verdicts if _GRES.search(v.text) or _GRES.search(v.name)), None)
    if said is not None:
        yield _finding(
            node,
            Verdict.WARN,
            f'{said.origin} says "{said.text or said.name}", and {len(gpus)} GPUs are here by every count',
            "build slurmd with NVML (AutoDetect=nvml finds none without it), or name the GPUs in gres.conf; then resume the node",
            Part(kind="environment", name=f"GPU count of slurmd on {node.name}", confidence="likely"),
        )


def _profile(evidence: Evidence, gpus: Sequence[Gpu]) -> Profile | None:
    """The profile of the node's product; None if it has several, or none is known."""
    names = {gpu.name for gpu in gpus if gpu.name is not None}
    return next((evidence.profile_of(gpu) for gpu in gpus if gpu.name is not None), None) if len(names) == 1 else None


CHECK = Check(
    name=NAME,
    claim="Driver, PCI bus and device files show the same GPUs, as many as such a machine has.",
    why="A GPU that fell off the bus leaves no error in most programs: the driver counts seven, and the job fails later or runs without it.",
    source="cyclecloud-healthagent's three-way count; NVSentinel issues 155 and 195, gpud 1209, shine-cluster 171; gres counts: awsome-distributed-ai 195.",
    remedy="Drain the node, look for the missing GPU in the kernel log, power-cycle the node, and replace the GPU if it is gone again.",
    uses=("health",),
    judge=judge,
)
