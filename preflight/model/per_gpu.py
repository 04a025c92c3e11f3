"""What the checks of single GPUs have in common (pure): which GPUs there are to judge, what becomes of facts that are None, and how findings are put.

A check says of each GPU's fact whether something is wrong; healthy GPUs become one PASS for their node, so that a node of eight is one line.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from preflight.model.base import Record
from preflight.model.evidence import Evidence
from preflight.model.finding import Confidence, Finding, Part, Verdict
from preflight.model.gpu import Gpu
from preflight.model.inventory import Node

T = TypeVar("T")


class Fault(Record, frozen=True):
    """What is wrong with one GPU. `remedy` may be empty only for a WARN. `blames` False: nothing is blamed; `part`: what is to blame in place of the GPU (a setting,
    the node's cooling). Equal faults that don't blame the GPU itself become one finding, so their words must not name it.

    A judge may also answer UNKNOWN (the part of the fact that matters is missing) or SKIP (it doesn't apply to this GPU), with the reason as `observed`.
    """

    verdict: Verdict
    observed: str
    expected: str = ""
    remedy: str = ""
    blames: bool = True
    confidence: Confidence = "certain"
    part: Part | None = None


def gpu_name(node: Node, gpu: Gpu) -> str:
    """How a GPU is called everywhere: "node1 GPU 3 (GPU-2222aaaa-...)", with its whole UUID; without one, by its PCI id."""
    known = gpu.uuid or gpu.pci_bus_id
    return f"{node.name} GPU {gpu.index}" + (f" ({known})" if known else "")


def gpu_part(node: Node, gpu: Gpu, confidence: Confidence = "certain") -> Part:
    """The GPU as the part to blame."""
    return Part(kind="gpu", name=gpu_name(node, gpu), confidence=confidence)


def judge_gpus(
    check: str,
    evidence: Evidence,
    field: str,
    judge: Callable[[Node, Gpu, T], Fault | None],
    *,
    good: str,
    expected: str,
    note: Callable[[Gpu, T], str | None] | None = None,
    unless: Callable[[Gpu], str | None] | None = None,
) -> Iterator[Finding]:
    """Findings of every node that tells its health, about the GPU fact named `field`. Nothing where a run without GPUs is meant.

    `judge(node, gpu, value)` is called where the fact is known, and gives what is wrong or None. A fact that the product doesn't have is SKIP for that
    node; one that could not be read is UNKNOWN for that GPU. GPUs that could not be opened are passed over: `gpus_answer` says it. `good`: what is
    said of the healthy ones ("no uncorrected errors"); `note(gpu, value)`: what is worth saying of a healthy GPU all the same. `unless(gpu)`: why the fact doesn't
    apply to this GPU, asked first. Nodes without GPUs yield nothing.
    """
    if evidence.settings.cpu_declared:
        return
    for node in evidence.health or ():
        if node.gpus is None:
            continue
        sorted_out = _sort_out(node, field, judge, unless)
        yield from _node_findings(check, node, sorted_out, good=good, expected=expected, note=note, field=field)


class _Sorted(Record, frozen=True):
    """The GPUs of one node by what became of them."""

    healthy: list[Gpu]
    faults: list[tuple[Gpu, Fault]]
    shared: dict[Fault, list[Gpu]]
    unknown: dict[str, list[Gpu]]
    without: dict[str, list[Gpu]]


def _sort_out(
    node: Node, field: str, judge: Callable[[Node, Gpu, T], Fault | None], unless: Callable[[Gpu], str | None] | None
) -> _Sorted:
    found = _Sorted([], [], {}, {}, {})
    for gpu in node.open_gpus:
        reason = unless(gpu) if unless else None
        value = getattr(gpu, field)
        if reason is not None:
            found.without.setdefault(reason, []).append(gpu)
        elif value is None:
            missing = gpu.why_unknown(field)
            if missing.kind == "unsupported":
                found.without.setdefault(missing.text, []).append(gpu)
            else:
                found.unknown.setdefault(f"{field} unknown: {missing.text}", []).append(gpu)
        else:
            fault = judge(node, gpu, value)
            if fault is None:
                found.healthy.append(gpu)
            elif fault.verdict is Verdict.UNKNOWN:
                found.unknown.setdefault(fault.observed, []).append(gpu)
            elif fault.verdict is Verdict.SKIP:
                found.without.setdefault(fault.observed, []).append(gpu)
            elif fault.blames and fault.part is None:
                found.faults.append((gpu, fault))
            else:
                found.shared.setdefault(fault, []).append(gpu)
    return found


def _node_findings(
    check: str,
    node: Node,
    found: _Sorted,
    *,
    good: str,
    expected: str,
    note: Callable[[Gpu, T], str | None] | None,
    field: str,
) -> Iterator[Finding]:
    for gpu, fault in found.faults:
        yield fault_finding(check, node, gpu, fault)
    for fault, gpus in found.shared.items():
        subject = gpu_name(node, gpus[0]) if len(gpus) == 1 else gpus_subject(node, gpus)
        yield _finding(check, subject, fault, fault.part)
    for text, gpus in found.unknown.items():
        unknown = Fault(Verdict.UNKNOWN, text, expected)
        yield _finding(check, gpus_subject(node, gpus), unknown, None)
    if found.healthy:
        notes = [
            f"GPU {gpu.index}: {words}" for gpu in found.healthy if note and (words := note(gpu, getattr(gpu, field)))
        ]
        observed = f"{count(found.healthy)}: {good}" + (f" ({'; '.join(notes)})" if notes else "")
        yield _finding(check, node.name, Fault(Verdict.PASS, observed, expected), None)
    elif found.without and not (found.unknown or found.faults or found.shared):
        observed = "; ".join(f"{product_names(gpus)}: {reason}" for reason, gpus in found.without.items())
        yield _finding(check, node.name, Fault(Verdict.SKIP, observed), None)


def fault_finding(check: str, node: Node, gpu: Gpu, fault: Fault) -> Finding:
    """The finding about one GPU."""
    part = fault.part or (gpu_part(node, gpu, fault.confidence) if fault.blames else None)
    return _finding(check, gpu_name(node, gpu), fault, part)


def _finding(check: str, subject: str, fault: Fault, part: Part | None) -> Finding:
    return Finding(
        check=check,
        subject=subject,
        verdict=fault.verdict,
        observed=fault.observed,
        expected=fault.expected,
        remedy=fault.remedy,
        blames=part,
    )


def missing_fault(gpu: Gpu, *fields: str) -> Fault:
    """What a judge answers where the part of a fact that matters is None: SKIP if the product doesn't have it, else UNKNOWN with the reason. `fields`: the names under
    which a reason may be kept, the narrowest first ("throttle_reasons", "clocks").
    """
    told = [missing for field in fields if (missing := gpu.why_unknown(field)).kind != "not told"]
    missing = told[0] if told else gpu.why_unknown(fields[-1])
    if missing.kind == "unsupported":
        return Fault(Verdict.SKIP, missing.text)
    return Fault(Verdict.UNKNOWN, f"{fields[0]} unknown: {missing.text}")


def count(gpus: Sequence[Gpu]) -> str:
    """Number and, "1 GPU" or "8 GPUs"."""
    return f"{len(gpus)} GPU{'s' * (len(gpus) != 1)}"


def product_names(gpus: Iterable[Gpu]) -> str:
    """The products among these, each once."""
    return ", ".join(dict.fromkeys(gpu.name or "unknown product" for gpu in gpus))


def gpus_subject(node: Node, gpus: Sequence[Gpu]) -> str:
    """How these GPUs of a node are called in one finding: the node if it is all of them that could be opened, else each with its UUID: "node1 GPU 2 (GPU-2222aaaa-...), GPU 3 (GPU-...)"."""
    if len(gpus) == len(node.open_gpus):
        return node.name
    return f"{node.name} {', '.join(gpu_name(node, gpu).removeprefix(f'{node.name} ') for gpu in gpus)}"


def setting_part(node: Node, setting: str) -> Part:
    """A setting of the node's GPUs as the part to blame ("power limit"): no hardware is at fault."""
    return Part(kind="environment", name=f"{setting} of {node.name}")
