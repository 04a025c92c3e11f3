"""How long the node prolog keeps a job, cold, on a healthy node of eight stand-in GPUs: beside a Python that does nothing, beside a bare script that only reads the GPUs, and through the shell script that Slurm runs.

LBNL NHC would be the one to compare with: neither Debian nor PyPI has it, so that it can't be measured here.
"""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.nvml_library import build
from tests.slurm import prologs

pytestmark = [pytest.mark.bench, pytest.mark.cc]

BARE = Path(__file__).with_name("bare_nvml.py")
ROUNDS = 21
MAX_RATIO = 4  # of the bare script: report, metrics, log line, configuration and the checks are on top of it
MAX_SECONDS = 8.0  # the default budget, of which a healthy node should take a small part


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with configuration, library and the site's script."""
    folder = tmp_path_factory.mktemp("bench")
    build(folder / "lib")
    prologs.site(folder, slurm="enforce = true")
    program = prologs.program(folder, f'exec {sys.executable} -m preflight "$@" --config {folder}/preflight.toml')
    prologs.script(folder, PREFLIGHT=program)
    return folder


def seconds(place, *command):
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ and command[0] == sys.executable}
    environment = {
        **kept,
        **prologs.JOB,
        "LD_LIBRARY_PATH": str(place / "lib"),
        "PYTHONPATH": os.pathsep.join((str(prologs.ROOT), str(prologs.ROOT / "checks"))),
        "PYTHONPYCACHEPREFIX": str(place / "pyc"),
    }
    began = time.perf_counter()
    done = subprocess.run(
        command, env=environment, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
    )
    took_s = time.perf_counter() - began
    assert done.returncode == 0, done.stderr
    return took_s


def test_a_cold_prolog_takes_at_most_four_times_a_bare_script_that_reads_the_same_gpus(place, record_property):
    config = ("--config", str(place / "preflight.toml"))
    commands = {
        "python -c pass": (sys.executable, "-c", "pass"),
        "bare script": (sys.executable, str(BARE)),
        "preflight slurm prolog": (sys.executable, "-m", "preflight", "slurm", "prolog", *config),
        "deploy/slurm/prolog.sh": (str(place / "prolog.sh"),),
    }
    for command in commands.values():  # compiled modules are kept from run to run, as on a node
        seconds(place, *command)
    rounds = [{name: seconds(place, *command) for name, command in commands.items()} for _ in range(ROUNDS)]
    assert "go in" in (place / "log").read_text()
    medians = {name: statistics.median(each[name] for each in rounds) for name in commands}
    ratio = statistics.median(each["preflight slurm prolog"] / each["bare script"] for each in rounds)
    record_property("ratio", ratio)
    shown = ", ".join(f"{name} {1000 * value:.0f} ms" for name, value in medians.items())
    print(f"medians of {ROUNDS}: {shown}; preflight slurm prolog / bare script = {ratio:.2f}")
    assert ratio <= MAX_RATIO
    assert medians["deploy/slurm/prolog.sh"] < MAX_SECONDS
