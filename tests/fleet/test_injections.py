"""Random faults in local runs: kind x phase x victim. Each run ends in time, names the victim, leaves nothing behind, and blames nobody else."""

from pathlib import Path

import pytest

from tests.fleet.injections import BUDGET_S, NODES, PER_NODE, Injection, inject, random_injections, verify
from tests.fleet.runs import Run

pytestmark = [pytest.mark.fabric, pytest.mark.timeout(300)]

# what test_survival doesn't do
ONE_OF_EACH = [
    pytest.param(Injection("worker", "pause", "early", 2, 1.0), marks=pytest.mark.soak),
    Injection("agent", "stop", "middle", 1, 2.0),
    pytest.param(Injection("store", "stop", "early", 0, 1.2), marks=pytest.mark.soak),
    pytest.param(Injection("coordinator", "full disk", "early", 0, 0.1), marks=pytest.mark.soak),
]


def carry_out(injection: Injection, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = folder / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    run = Run(folder, "--local", f"{NODES}x{PER_NODE}", "--budget", f"{BUDGET_S}s", nodes=NODES, per_node=PER_NODE)
    try:
        happened = inject(run, injection)
        verify(run, injection, happened=happened, scratch=scratch)
    finally:
        run.kill_all()


@pytest.mark.parametrize("injection", ONE_OF_EACH, ids=str)
def test_one_fault_of_each_kind(tmp_path, monkeypatch, injection):
    carry_out(injection, tmp_path, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("injection", random_injections(100, seed=20_25), ids=str)
def test_a_hundred_random_faults(tmp_path, monkeypatch, injection):
    carry_out(injection, tmp_path, monkeypatch)
