"""Measured memory beside the estimate: the line that explains the gap is named, and a gap within the band is left alone."""

from preflight.model import MemoryGap
from preflight.plan.measured_memory import compare_memory
from tests.plan.test_memory import REFERENCE, estimate

MEMORY = estimate("llama3-70b", sequence_parallel=True, **REFERENCE)
SIZES = {line.part: line.size_bytes for line in MEMORY.lines}


def compare(**measured: int) -> dict[str, MemoryGap]:
    return {row.part: row for row in compare_memory(MEMORY, measured)}


def explaining(rows: dict[str, MemoryGap]) -> list[str]:
    return [part for part, row in rows.items() if row.explains]


def test_a_total_within_the_band_needs_no_explanation():
    rows = compare(total=round(MEMORY.total_bytes * 1.05))
    assert explaining(rows) == []
    assert rows["total"].gap_bytes == round(MEMORY.total_bytes * 1.05) - MEMORY.total_bytes
    assert "nothing to explain" in rows["total"].text


def test_a_total_that_lacks_the_optimizer_points_to_its_sharding():
    rows = compare(total=MEMORY.total_bytes - SIZES["optimizer"])
    assert explaining(rows) == ["optimizer"]
    assert "sharded over more ranks" in rows["optimizer"].text


def test_twice_the_gradients_point_to_fp32():
    rows = compare(total=MEMORY.total_bytes + SIZES["gradients"])
    assert explaining(rows) == ["gradients"]
    assert "fp32" in rows["gradients"].text


def test_a_gap_that_no_precision_explains_goes_to_the_largest_doubtful_line():
    rows = compare(total=MEMORY.total_bytes * 2)
    assert explaining(rows) == ["activations"]
    assert "times the estimate" in rows["activations"].text


def test_a_reported_line_that_is_off_explains_itself():
    rows = compare(
        activations=SIZES["activations"] + MEMORY.total_bytes // 2, total=MEMORY.total_bytes + MEMORY.total_bytes // 2
    )
    assert explaining(rows) == ["activations"]
    assert rows["activations"].gap_bytes == MEMORY.total_bytes // 2
    assert rows["gradients"].measured_bytes is None


def test_lines_that_are_reported_and_right_leave_the_gap_to_the_others():
    right = {part: SIZES[part] for part in ("parameters", "gradients", "optimizer", "activations")}
    rows = compare(**right, total=MEMORY.total_bytes + MEMORY.total_bytes // 3)
    assert explaining(rows) == ["reserve"]


def test_six_reported_lines_make_a_total():
    rows = compare(**{part: size + 1 for part, size in SIZES.items()})
    assert rows["total"].measured_bytes == MEMORY.total_bytes + 6
    assert rows["total"].gap_bytes == 6
    assert "within" in rows["total"].text


def test_the_estimate_alone_is_seven_rows():
    assert [row.part for row in compare_memory(MEMORY, {})] == [*SIZES, "total"]
