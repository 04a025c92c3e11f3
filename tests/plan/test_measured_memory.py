"""Measured memory beside the estimate: the line that explains the gap is named, and a gap within the band is left alone."""

import msgspec
import pytest

from preflight.cli.plan_input import parse_measured_memory
from preflight.errors import UsageError
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


def gap_of_gradients(size_bytes: int, factor: float) -> MemoryGap:
    """The row that explains it where a run's gradients take `factor` times what is planned for them, at `size_bytes` for each weight."""
    memory = estimate(
        "llama3-70b", sequence_parallel=True, zero_stage=1, training={"gradient_bytes": size_bytes}, **REFERENCE
    )
    memory = msgspec.structs.replace(memory, error_share=0.05)
    size = next(line.size_bytes for line in memory.lines if line.part == "gradients")
    [row] = [
        row
        for row in compare_memory(memory, {"total": round(memory.total_bytes + (factor - 1) * size)})
        if row.explains
    ]
    return row


def test_twice_the_gradients_point_to_fp32_where_they_are_planned_in_16_bits():
    row = gap_of_gradients(2, 2.0)
    assert row.part == "gradients"
    assert "gradients kept in fp32 in place of 16 bits" in row.text


@pytest.mark.parametrize("factor", [1.9, 2.0, 2.1])
def test_gradients_that_are_planned_in_fp32_are_not_taken_for_16_bits(factor):
    row = gap_of_gradients(4, factor)
    assert "16 bits" not in row.text
    assert row.part != "gradients"


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


@pytest.mark.parametrize("text", ["80", "total=71.9", "activations=20"])
def test_a_size_without_a_unit_is_asked_for_one(text):
    with pytest.raises(UsageError, match="GiB"):
        parse_measured_memory(text)


def test_sizes_have_units_of_either_kind():
    assert parse_measured_memory("71.9GiB, activations=20GB") == {
        "total": round(71.9 * 2**30),
        "activations": 20 * 10**9,
    }
