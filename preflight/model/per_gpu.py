"""What the checks of single GPUs have in common (pure): which GPUs there are to judge, what becomes of facts that are None, and how findings are put.

A check says of each GPU's fact whether something is wrong; healthy GPUs become one PASS for their node, so that a node of eight is one line.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from preflight.model.evidence import Evidence
from preflight.model.finding import Confidence, Finding, Part, Verdict
from preflight.model.gpu import Gpu
from preflight.model.inventory import Node

T = TypeVar("T")


class Fault(NamedTuple):
    """What is wrong with one GPU. `remedy` may be empty only for a WARN. `blames` False: the GPU is not to blame (a setting, another part)."""

    verdict: Verdict
    observed: str
    expected: str
    remedy: str = ""
    blames: bool = True
    confidence: Confidence = "certain"


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
) -> Iterator[Finding]:
    """Findings of every node that tells its health, about the GPU fact named `field`.

    `judge(node, gpu, value)` is called where the fact is known, and gives what is wrong or None. A fact that the product doesn't have is SKIP for that
    node; one that could not be read is UNKNOWN for that GPU. GPUs that could not be opened are passed over: `gpus_answer` says it. `good`: what is
    said of the healthy ones ("no uncorrected errors"). Nodes without GPUs yield nothing.
    """
    for node in evidence.health or ():
        if node.gpus is None:
            continue
        yield from _judge_node(check, node, field, judge, good=good, expected=expected)


def _judge_node(
    check: str, node: Node, field: str, judge: Callable[[Node, Gpu, T], Fault | None], *, good: str, expected: str
) -> Iterator[Finding]:
    healthy: list[Gpu] = []
    without: list[Gpu] = []
    unknown: dict[str, list[Gpu]] = {}
    for gpu in node.open_gpus:
        value = getattr(gpu, field)
        if value is None:
            missing = gpu.why_unknown(field)
            if missing.kind == "unsupported":
                without.append(gpu)
            else:
                unknown.setdefault(missing.text, []).append(gpu)
            continue
        fault = judge(node, gpu, value)
        if fault is None:
            healthy.append(gpu)
        else:
            yield fault_finding(check, node, gpu, fault)
    for text, gpus in unknown.items():
        yield Finding(
            check=check,
            subject=node.name if len(gpus) == len(node.open_gpus) else _names(node, gpus),
            verdict=Verdict.UNKNOWN,
            observed=f"{field} unknown: {text}",
            expected=expected,
        )
    if healthy:
        yield Finding(
            check=check,
            subject=node.name,
            verdict=Verdict.PASS,
            observed=f"{count(healthy)}: {good}",
            expected=expected,
        )
    elif without and not unknown and len(without) == len(node.open_gpus):
        yield Finding(
            check=check,
            subject=node.name,
            verdict=Verdict.SKIP,
            observed=f"{product_names(without)}: this product or driver doesn't have it",
        )


def fault_finding(check: str, node: Node, gpu: Gpu, fault: Fault) -> Finding:
    """The finding about one GPU."""
    return Finding(
        check=check,
        subject=gpu_name(node, gpu),
        verdict=fault.verdict,
        observed=fault.observed,
        expected=fault.expected,
        remedy=fault.remedy,
        blames=gpu_part(node, gpu, fault.confidence) if fault.blames else None,
    )


def count(gpus: Sequence[Gpu]) -> str:
    """Number and, "1 GPU" or "8 GPUs"."""
    return f"{len(gpus)} GPU{'s' * (len(gpus) != 1)}"


def product_names(gpus: Iterable[Gpu]) -> str:
    """The products among these, each once."""
    return ", ".join(dict.fromkeys(gpu.name or "unknown product" for gpu in gpus))


def _names(node: Node, gpus: Sequence[Gpu]) -> str:
    return (
        gpu_name(node, gpus[0]) if len(gpus) == 1 else f"{node.name} GPUs {', '.join(str(gpu.index) for gpu in gpus)}"
    )
