"""How fast and how small `preflight node` is, cold, over eight stand-in GPUs of 18 links; as ratios within one run."""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from preflight.discover.nvml_run import child_command
from tests.nvml_library import build

pytestmark = [pytest.mark.bench, pytest.mark.cc]

ROOT = Path(__file__).parents[2]
BARE = Path(__file__).with_name("bare_nvml.py")
ROUNDS = 21
MAX_RATIO, MAX_MODULES, MAX_MEMORY_KB = 3, 150, 45_000
OURS = ("preflight", "preflight_checks")
# the highest resident size of this very program: what getrusage says of a child begins with its parent's
SHOW_MEMORY = "print('MEMORY', open('/proc/self/status').read().partition('VmHWM:')[2].split()[0], file=sys.stderr)"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """As on a node: compiled modules are kept from run to run, and the driver's library is found."""
    folder = tmp_path_factory.mktemp("bench")
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    library = build(folder / "lib")
    return {**kept, "PYTHONPYCACHEPREFIX": str(folder / "pyc"), "LD_LIBRARY_PATH": str(library)}


def run(environment, *arguments):
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode in {0, 3, 10}, done.stderr
    return done


def seconds(environment, *arguments):
    began = time.perf_counter()
    run(environment, *arguments)
    return time.perf_counter() - began


def test_a_cold_look_at_the_node_takes_at_most_three_times_a_bare_script_that_reads_the_same(
    environment, record_property
):
    node, bare = ("-m", "preflight", "node"), (str(BARE),)
    shown = run(environment, *node).stdout
    assert "GPU-c-7" in shown
    assert "18 of 18" in shown
    assert int(run(environment, *bare).stdout.split()[-1]) > 8 * 18 * 9
    times = [
        (seconds(environment, *node), seconds(environment, *bare)) for _ in range(ROUNDS)
    ]  # both meet a busy moment
    ratio = statistics.median(ours / theirs for ours, theirs in times)
    medians = [1000 * statistics.median(column) for column in zip(*times, strict=True)]
    record_property("ratio", ratio)
    print(f"preflight node / bare script = {ratio:.2f} (medians {medians[0]:.0f} and {medians[1]:.0f} ms of {ROUNDS})")
    assert ratio <= MAX_RATIO


def test_the_command_loads_few_modules_of_others(environment, record_property):
    code = (
        "import sys; from preflight.cli.main import run_command_line; run_command_line(['node']); "
        "print('MODULES', *sys.modules)"
    )
    modules = run(environment, "-c", code).stdout.rpartition("MODULES")[2].split()
    others = [name for name in modules if name.partition(".")[0] not in OURS]
    record_property("modules", len(others))
    print(f"modules outside our own packages: {len(others)} (our own: {len(modules) - len(others)})")
    assert len(others) < MAX_MODULES


def test_neither_the_command_nor_its_child_takes_much_memory(environment, record_property):
    ours = f"import sys; from preflight.cli.main import run_command_line; run_command_line(['node']); {SHOW_MEMORY}"
    executable, flags, (bootstrap, *arguments) = child_command()[0], child_command()[1:4], child_command()[4:]
    assert (executable, flags) == (sys.executable, ("-I", "-S", "-c"))
    # the child leaves by os._exit: shown there
    shown = f"import os, sys; leave = os._exit\ndef show(code):\n    {SHOW_MEMORY}\n    leave(code)\nos._exit = show\n"
    child = (*flags, shown + bootstrap, *arguments)
    sizes_kb = {
        "command": memory_kb(run(environment, "-c", ours)),
        "child": memory_kb(run(environment, *child)),
    }
    record_property("memory_kb", sizes_kb)
    print(f"peak memory: {sizes_kb}")
    assert max(sizes_kb.values()) < MAX_MEMORY_KB


def memory_kb(done):
    return int(done.stderr.rpartition("MEMORY")[2].split()[0])
