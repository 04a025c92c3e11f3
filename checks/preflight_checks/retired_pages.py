"""No GPU has pages that wait to be retired, or has nearly used up the pages that it may retire (GPUs before Ampere).

V100, T4 and older take a page out of use after one double-bit or two single-bit errors at the same place, at the next load of the driver; until then it is in use. There are at
most 64 such pages: after that a bad page stays.
Source: NVIDIA, Dynamic Page Retirement, and the table of differences in GPU Memory Error Management (at most 64). `full_pages`: Azure's azhpc-diagnostics sends GPUs
back at 60 (pull request 40). `many_pages`: gcm's limit.
"""

from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Gpu, Node, RetiredPages, Verdict
from preflight.model.per_gpu import Fault, judge_gpus

NAME = "retired_pages"
LIMITS = {"full_pages": 60.0, "many_pages": 10.0}


def judge(evidence: Evidence) -> Iterator[Finding]:
    """Pending or nearly all: FAIL. More than a healthy GPU collects: WARN."""
    limits = evidence.limits(NAME, LIMITS)
    expected = f"no pages pending, at most {limits['many_pages']:.0f} retired"

    def fault(node: Node, gpu: Gpu, pages: RetiredPages) -> Fault | None:
        known = [number for number in (pages.single_bit, pages.double_bit) if number is not None]
        total = sum(known)
        counts = f"{total} pages retired, {_or_unknown(pages.double_bit)} of them for double-bit errors"
        if pages.pending:
            remedy = f"drain {node.name}, then reset GPU {gpu.index} or reboot, which retires the pages"
            return Fault(Verdict.FAIL, f"pages wait to be retired; {counts}", expected, remedy)
        if total >= limits["full_pages"]:
            remedy = f"drain {node.name} and have GPU {gpu.index} replaced, once the vendor's field diagnostic agrees"
            return Fault(Verdict.FAIL, f"{counts}; there are at most 64", expected, remedy)
        if pages.pending is None or len(known) < 2:
            return Fault(Verdict.UNKNOWN, f"retired pages in part unknown: {gpu.why_unknown('retired_pages').text}")
        if total > limits["many_pages"]:
            remedy = f"watch GPU {gpu.index} of {node.name}: replace it if the number goes on growing"
            return Fault(Verdict.WARN, counts, expected, remedy)
        return None

    yield from judge_gpus(
        NAME, evidence, "retired_pages", fault, good="no pages wait to be retired", expected=expected, note=_note
    )


def _note(_gpu: Gpu, pages: RetiredPages) -> str | None:
    total = (pages.single_bit or 0) + (pages.double_bit or 0)
    return f"{total} retired" if total else None


def _or_unknown(number: int | None) -> str:
    return "an unknown number" if number is None else str(number)


CHECK = Check(
    name=NAME,
    claim="No GPU before Ampere has pages that wait to be retired, or has nearly used up the pages that it may retire.",
    why="A page that waits is bad and in use until the driver is loaded again; after 64 pages a bad one stays in use.",
    source="NVIDIA, Dynamic Page Retirement; GPU Memory Error Management (at most 64 pages); azhpc-diagnostics pull request 40 (60 pages); gcm (10 pages).",
    remedy="Pending: drain the node and reset the GPU, or reboot. Nearly 64: have the GPU replaced.",
    uses=("health",),
    judge=judge,
    need="advisory",
    limits=LIMITS,
)
