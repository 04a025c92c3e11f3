"""Comparisons as text: one plan with another, the estimate with what a run reported."""

from collections.abc import Sequence

from preflight.model import Comparison, MemoryGap, StepGap
from preflight.model.units import show_bytes
from preflight.report.text import clean, columns, hang


def comparison_text(comparison: Comparison, *, width: int = 100) -> str:
    """The speed-up and, term by term, where the GPU-seconds go."""
    rows = [["GPU-seconds per 1000 tokens", "before", "after", "added"]]
    rows += [
        [clean(term.term), f"{term.before:.3g}", f"{term.after:.3g}", f"{term.added:+.3g}"]
        for term in comparison.terms
        if term.before or term.after
    ]
    lines = ["Comparison (predicted)"]
    for sentence in comparison.text:
        lines += hang("", sentence, width=width, indent=2)
    return "".join(f"{line}\n" for line in [*lines, *columns(rows)])


def measured_memory_text(gaps: Sequence[MemoryGap], *, width: int = 100) -> str:
    """Each line of the memory, estimated and measured; then which line explains the gap, and how."""
    rows = [["part", "estimated", "measured", "difference"]]
    for gap in gaps:
        measured = "-" if gap.measured_bytes is None else show_bytes(gap.measured_bytes)
        difference = "-" if gap.gap_bytes is None else f"{gap.gap_bytes / max(gap.estimated_bytes, 1):+.0%}"
        rows.append([gap.part, show_bytes(gap.estimated_bytes), measured, difference])
    lines = ["Memory, estimated and measured", *columns(rows)]
    for gap in gaps:
        if gap.text:
            lines += hang(f"{gap.part}: " if gap.explains else "", gap.text, width=width, indent=2)
    return "".join(f"{line}\n" for line in lines)


def measured_step_text(gap: StepGap, *, width: int = 100) -> str:
    """The gap, and each term that could explain it."""
    lines = ["Step time, predicted and measured", *hang("", gap.text, width=width, indent=2)]
    for suspect in gap.suspects:
        lines += hang("- ", suspect.text, width=width, indent=2)
    return "".join(f"{line}\n" for line in lines)
