"""How fast the command line starts, as ratios within one run."""

import statistics
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.bench


def seconds(*command: str) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def test_help_takes_at_most_three_times_an_import_of_click(record_property):
    python = sys.executable
    ratios = []
    for _ in range(15):  # alternating, so that a busy moment hits both
        click = seconds(python, "-c", "import click")
        ratios.append(seconds(python, "-m", "preflight", "--help") / click)
    ratio = statistics.median(ratios)
    record_property("ratio", ratio)
    print(f"preflight --help / import click = {ratio:.2f} (median of {len(ratios)})")
    assert ratio <= 3
