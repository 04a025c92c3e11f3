"""Estimated beside measured memory, row by row."""

import statistics

import pytest

from tests.plan.measured_rows import read_rows

pytestmark = pytest.mark.bench


def test_memory_of_published_runs(record_property):
    rows = read_rows()
    print(f"\n{'table':<11}{'run':<58}{'use':<9}{'measured':>9}{'estimate':>9}{'error':>8}   GiB")
    for row in rows:
        measured = "OOM" if row.measured_gib is None else f"{row.measured_gib:.1f}"
        error = "" if row.measured_gib is None else f"{row.error * 100:+.1f} %"
        print(f"{row.table:<11}{row.name:<58}{row.use:<9}{measured:>9}{row.estimated_gib:>9.1f}{error:>8}")
    for use in ("fit", "check"):
        errors = [row.error for row in rows if row.measured_gib is not None and row.use == use]
        mean, worst = statistics.mean(map(abs, errors)), max(map(abs, errors))
        record_property(f"mean_{use}", mean)
        print(
            f"{use}: {len(errors)} rows, mean absolute error {mean * 100:.1f} %, mean {statistics.mean(errors) * 100:+.1f} %, worst {worst * 100:.1f} %"
        )
        assert mean <= 0.08
