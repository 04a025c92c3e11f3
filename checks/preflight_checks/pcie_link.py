"""PCIe links of GPUs and HCAs run at full width and generation.

A link that lost lanes halves copies and GPUDirect for good, without an error: width below what device and slot can do is FAIL. An idle GPU lowers its generation to
save power, so a low one counts only while it works, and then as a WARN. A slot or BIOS setting that allows less than the product can do is a WARN, once for
all GPUs alike. HCAs count where a port has a link. Several GPUs or HCAs of one kind that are narrow alike are the machine's way of wiring them: a WARN. So is a narrow GPU
whose slot is not in sight and that has no wider peer (NVML tells the card's width, not the slot's), and a GeForce card: boards of desktops give them what lanes are left.
Not judged: virtual functions, placeholders of virtual machines (x1 at 2.5 GT/s), and GPUs that the CPU reaches over a link of its own (Grace).
Source: nvml.h, nvmlDeviceGetMaxPcieLinkWidth and nvmlDeviceGetGpuMaxPcieLinkGeneration; slots: Linux sysfs-bus-pci, max_link_width of the port above
(club-3090 pull request 594: a card of x16 in a slot of x4); gcm's manifest and OCI's missing-lanes check; NCCL issues 256, 749 and 1205 (x1 in virtual machines); tt-smi 67 (x8 shown as x16).
"""

from collections.abc import Hashable, Iterable, Iterator

from preflight.model import Check, Evidence, Finding, Gpu, Hca, Node, Part, PcieLink, Verdict
from preflight.model.per_gpu import Fault, gpu_part, judge_gpus, missing_fault
from preflight.model.rails import on_grace

NAME = "pcie_link"
EXPECTED = "the width and generation that device and slot can do"
_C2C = "the CPU reaches it over a link of its own"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """For each node: one finding for each narrow or limited link, one PASS for its GPUs and one for its HCAs."""

    def of_gpu(node: Node, gpu: Gpu, pcie: PcieLink) -> Fault | None:
        return _judge_gpu(evidence, node, gpu, pcie)

    yield from judge_gpus(
        NAME,
        evidence,
        "pcie",
        of_gpu,
        good="PCIe at full width",
        expected=EXPECTED,
        note=_idle,
        unless=lambda gpu: _C2C if on_grace(gpu) else None,
    )
    for node in evidence.health or ():
        yield from _judge_hcas(node)


def _is_virtual(node: Node) -> bool:
    return node.platform is not None and node.platform.virtual_machine not in (None, "none")


def _is_placeholder(node: Node, pcie: PcieLink) -> bool:
    """What virtual machines show for a device that they were given: no width, or one lane of the first generation."""
    known_metal = node.platform is not None and node.platform.virtual_machine == "none"
    return not known_metal and (pcie.width or 1) == 1 and (pcie.generation or 1) == 1


def _text(pcie: PcieLink) -> str:
    """As in "x8 of x16, generation 4 of 5"."""
    return f"x{pcie.width or '?'} of x{pcie.max_width or '?'}, generation {pcie.generation or '?'} of {pcie.max_generation or '?'}"


def _judge_gpu(evidence: Evidence, node: Node, gpu: Gpu, pcie: PcieLink) -> Fault | None:
    if _is_placeholder(node, pcie):
        return Fault(Verdict.SKIP, "a virtual machine shows a placeholder for the link")
    if pcie.width is None or pcie.max_width is None:
        missing = missing_fault(gpu, "width" if pcie.width is None else "max_width", "pcie")
        return missing if missing.verdict is Verdict.SKIP else missing.replace(observed=f"PCIe {missing.observed}")
    if pcie.width < pcie.max_width:
        return _narrow(node, gpu, pcie)
    return None if _is_virtual(node) else _slot(evidence, node, gpu, pcie)


def _slot(evidence: Evidence, node: Node, gpu: Gpu, pcie: PcieLink) -> Fault | None:
    """What the slot keeps from a link at its full width, or what a working GPU makes of it."""
    profile = evidence.profile_of(gpu)
    width = profile.pcie_width.value if profile is not None and profile.pcie_width else _usual_width(node, gpu)
    generation = pcie.device_max_generation
    if profile is not None and profile.pcie_generation is not None:
        generation = round(profile.pcie_generation.value)
    if (pcie.max_width or 0) < width:
        return _limited(f"the slot allows x{pcie.max_width}, the product can do x{width:.0f}")
    if pcie.max_generation is not None and generation is not None and pcie.max_generation < generation:
        return _limited(f"the slot allows generation {pcie.max_generation}, the product can do {generation}")
    if not _works_slowly(gpu, pcie):
        return None
    return Fault(
        Verdict.WARN,
        f"PCIe {_text(pcie)} although the GPU is at work",
        EXPECTED,
        f"look for corrected PCIe errors of {gpu.pci_bus_id or 'the GPU'} in the kernel log; reseat the card or riser",
        confidence="possible",
    )


def _narrow(node: Node, gpu: Gpu, pcie: PcieLink) -> Fault:
    links = [other.pcie for other in node.open_gpus]
    all_alike = len(links) > 1 and all(link is not None and link.width == pcie.width for link in links)
    virtual = _is_virtual(node)
    in_sight = bool(gpu.pci_upstream) and not (gpu.pci_upstream or ("pci",))[0].startswith("pci")  # not a root complex
    slot_known = in_sight or _usual_width(node, gpu, now=True) > (pcie.width or 0)
    lost = slot_known and not (virtual or all_alike or "GEFORCE" in (gpu.name or "").upper())
    return Fault(
        Verdict.FAIL if lost else Verdict.WARN,
        f"PCIe {_text(pcie)}" + (" (a virtual machine may show made-up values)" if virtual else ""),
        EXPECTED,
        f"look for PCIe errors in the kernel log of {node.name}, "
        + (
            "at the BIOS's bifurcation of the slots and at the risers; if the machine is wired so, switch the rule off for it"
            if all_alike
            else "reseat the card or riser, then try it in another slot"
        ),
        blames=lost,
        part=gpu_part(node, gpu, "likely")
        if lost
        else Part(kind="environment", name=f"PCIe slots of {node.name}", confidence="possible"),
    )


def _limited(text: str) -> Fault:
    return Fault(
        Verdict.WARN,
        text,
        "a slot that allows what the product can do",
        "look at the BIOS's link speed and bifurcation of these slots; if the machine was built so, switch the rule off for it",
        blames=False,
    )


def _usual_width(node: Node, gpu: Gpu, *, now: bool = False) -> int:
    """The widest link of the same product on this node (`now`: as it runs), which stands in for a missing profile."""
    links = [other.pcie for other in node.open_gpus if other.name == gpu.name and other.pcie is not None]
    return max(((link.width if now else link.max_width) or 0 for link in links), default=0)


def _works_slowly(gpu: Gpu, pcie: PcieLink) -> bool:
    """Whether the link is below its generation while the driver gives other reasons for the clocks than idleness."""
    reasons = gpu.clocks.throttle_reasons if gpu.clocks is not None else None
    slow = pcie.generation is not None and pcie.max_generation is not None and pcie.generation < pcie.max_generation
    return slow and reasons is not None and "idle" not in reasons and bool(gpu.processes)


def _idle(_gpu: Gpu, pcie: PcieLink) -> str | None:
    if pcie.generation is None or pcie.max_generation is None or pcie.generation >= pcie.max_generation:
        return None
    return f"generation {pcie.generation} of {pcie.max_generation}, as idle GPUs do"


def _judge_hcas(node: Node) -> Iterator[Finding]:
    """HCAs with a link, by what is wrong with them; those of one kind that all share a fault are one finding."""
    used = [hca for hca in node.hcas or () if _is_judged(node, hca)]
    faults: dict[tuple[Hashable, str], list[Hca]] = {}
    for hca in used:
        text = _hca_fault(hca)
        if text:
            faults.setdefault((hca.board_id or hca.driver, text), []).append(hca)
    for (kind, text), hcas in faults.items():
        same = sum((hca.board_id or hca.driver) == kind for hca in used)
        yield from _hca_findings(node, hcas, text, all_alike=len(hcas) == same > 1)
    good = len(used) - sum(len(hcas) for hcas in faults.values())
    if good:
        observed = f"{good} HCA{'s' * (good > 1)}: PCIe at full width and generation"
        yield Finding(check=NAME, subject=node.name, verdict=Verdict.PASS, observed=observed, expected=EXPECTED)


def _is_judged(node: Node, hca: Hca) -> bool:
    if hca.is_virtual_function or hca.pcie is None or hca.pcie.width is None or hca.pcie.max_width is None:
        return False
    return any(port.up for port in hca.ports or ()) and not _is_placeholder(node, hca.pcie)


def _hca_fault(hca: Hca) -> str:
    pcie = hca.pcie or PcieLink()
    narrow = (pcie.width or 0) < (pcie.max_width or 0)
    slow = (pcie.generation or 0) < (pcie.max_generation or 0) and pcie.generation is not None
    return f"PCIe {_text(pcie)}" if narrow or slow else ""


def _hca_findings(node: Node, hcas: list[Hca], text: str, *, all_alike: bool) -> Iterable[Finding]:
    pcie = hcas[0].pcie or PcieLink()
    narrow = (pcie.width or 0) < (pcie.max_width or 0)
    fail = narrow and not all_alike and not _is_virtual(node)
    names = [", ".join(hca.name for hca in hcas)] if all_alike else [hca.name for hca in hcas]
    for name in names:
        yield Finding(
            check=NAME,
            subject=f"{node.name} {name}",
            verdict=Verdict.FAIL if fail else Verdict.WARN,
            observed=text + (": all HCAs of this kind alike" if all_alike else ""),
            expected=EXPECTED,
            remedy=f"look at the BIOS's settings of these slots on {node.name}"
            if all_alike
            else f"look for PCIe errors of {name} in the kernel log of {node.name}; reseat the card, then try it in another slot",
            blames=None if all_alike else Part(kind="nic", name=f"{node.name} {name}", confidence="likely"),
        )


CHECK = Check(
    name=NAME,
    claim="PCIe links of GPUs and HCAs run at the width and generation that device and slot can do.",
    why="A link that lost lanes halves copies and GPUDirect for good, and no program reports it.",
    source="nvml.h and Linux's sysfs-bus-pci on link width; gcm's manifest, OCI's missing-lanes check; NCCL issues 256, 749, 1205 on virtual machines.",
    remedy="Look for PCIe errors in the kernel log, reseat the card or riser, try another slot, and look at the BIOS's link speed and bifurcation.",
    uses=("health",),
    judge=judge,
)
