"""The estimated memory beside what a run reported, and the line that would explain the gap."""

import re
from collections.abc import Iterator, Mapping

from preflight.model import Memory, MemoryGap, MemoryLine
from preflight.model.units import show_bytes

# lines that are computed from formulas with room for doubt; the others follow from counts and precisions, so they are off by a factor or not at all
_DOUBTFUL = ("activations", "buffers", "reserve")
_CLOSE = 0.15  # how far from such a factor's bytes a gap may be and still be taken for it


def compare_memory(memory: Memory, measured: Mapping[str, int]) -> tuple[MemoryGap, ...]:
    """One row for each of the six lines and one for the total. `measured`: "total" or a line's name -> bytes, as many as the run reported.

    The line that explains the gap: of those reported, the one that is off most; else, if the total lies outside the estimate's band, the state line that a usual
    factor would put right (gradients in fp32, say), or the doubtful line that would have to change least.
    """
    lines: dict[str, MemoryLine] = {line.part: line for line in memory.lines}
    gaps = {part: measured[part] - line.size_bytes for part, line in lines.items() if part in measured}
    total = measured.get("total")
    if total is None and len(gaps) == len(lines):
        total = sum(measured[part] for part in lines)
    rest = None if total is None else total - memory.total_bytes - sum(gaps.values())
    part, text = _explain(memory, gaps, rest)
    rows = [
        MemoryGap(
            part=line.part,
            estimated_bytes=line.size_bytes,
            measured_bytes=measured.get(name),
            gap_bytes=gaps.get(name),
            explains=name == part,
            text=text if name == part else "",
        )
        for name, line in lines.items()
    ]
    whole = MemoryGap(
        part="total",
        estimated_bytes=memory.total_bytes,
        measured_bytes=total,
        gap_bytes=None if total is None else total - memory.total_bytes,
        text=text if part is None else "",
    )
    return (*rows, whole)


def _explain(memory: Memory, gaps: Mapping[str, int], rest: int | None) -> tuple[str | None, str]:
    """The line that explains the gap and how; None: there is nothing to explain. `rest`: of the gap, what no reported line accounts for."""
    band = memory.error_share * memory.total_bytes
    worst = max(gaps, key=lambda part: abs(gaps[part]), default=None)
    if worst is not None and (rest is None or abs(gaps[worst]) >= abs(rest)):
        if abs(gaps[worst]) <= band:
            return None, f"every line reported lies within {show_bytes(band)} of the estimate"
        return worst, f"{_signed(gaps[worst])} in this line"
    if rest is None:
        return None, "nothing was reported"
    if abs(rest) <= band:
        return None, f"within the band of {memory.error_share * 100:.0f} %: nothing to explain"
    candidates = [line for line in memory.lines if line.part not in gaps]
    for line in sorted(candidates, key=lambda line: line.part == "parameters"):  # last: their precision is the surest
        for factor, meaning in _factors(line):
            change = (factor - 1) * line.size_bytes
            if change and abs(rest - change) <= _CLOSE * abs(rest):
                return line.part, f"{_signed(rest)}, as {meaning} would make it ({_signed(change)})"
    doubtful = [line for line in candidates if line.part in _DOUBTFUL and line.size_bytes + rest >= 0] or candidates
    least = max(doubtful, key=lambda line: line.size_bytes, default=None)
    return (None, f"{_signed(rest)} that no line explains") if least is None else (least.part, _change(least, rest))


def _factors(line: MemoryLine) -> Iterator[tuple[float, str]]:
    """By what a line of the state may be off, and what that would mean: only what its own formula, "(4) x ..." or "(12/d) x ...", leaves open."""
    found = re.match(r"\(([0-9.]+)(?:/d)?\)", line.formula)
    each, sharded = found[1] if found else None, "/d" in line.formula
    if line.part == "parameters":
        yield 2.0, "weights kept in fp32, or a second copy of them" if each == "2" else "a second copy of the weights"
    elif line.part == "gradients":
        if each == "2":
            yield 2.0, "gradients kept in fp32 in place of 16 bits"
        elif each == "4":
            yield 0.5, "gradients kept in 16 bits in place of fp32"
            yield 1.5, "gradients in 16 bits beside those in fp32"
        yield 0.0, "gradients sharded, or freed before the peak"
    elif line.part == "optimizer":
        yield 0.5, "moments in 16 bits, or an optimizer with less state"
        yield 0.0, "optimizer state sharded over more ranks, or in host memory"
        if sharded:
            yield 2.0, "optimizer state sharded over half as many ranks"


def _change(line: MemoryLine, rest: int) -> str:
    factor = (line.size_bytes + rest) / line.size_bytes if line.size_bytes else float("inf")
    return f"{_signed(rest)}: the line would have to be {factor:.2f} times the estimate"


def _signed(size_bytes: float) -> str:
    return f"{'+' if size_bytes >= 0 else '-'}{show_bytes(abs(size_bytes))}"
