"""`preflight scan` as a command: its exit codes, what it prints, and what it does where there is no Slurm."""

import os
import subprocess
import sys

import pytest

from preflight.cli.scan import _exit_code, _text
from preflight.model import Verdict
from preflight.model.history import NodeVerdict
from preflight.slurm.scan_nouns import Swept
from preflight.slurm.state import StateFolder


def swept(*answers: str | None, **changes: object) -> Swept:
    jobs = tuple((("n1", "n2"), "measured" if answer else "no report", answer) for answer in answers)
    return Swept(**{"sweep": "s", "jobs": jobs, **changes})


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (swept("go", "go"), 0),
        (swept("go", "no-go", None), 10),
        (swept("go", "undecided"), 3),
        (swept(), 3),
        (swept(None), 3),
        (swept("go", problem="interrupted"), 3),
        (swept("go", lost=1), 3),
        (swept("no-go", problem="interrupted"), 10),
    ],
)
def test_the_exit_code_is_go_only_if_something_was_measured_and_all_of_it_is_well(result, code):
    assert _exit_code(result) == code


def test_what_is_printed_names_jobs_suspects_coverage_and_an_early_end():
    bad = NodeVerdict(node="n2", verdict=Verdict.FAIL, at_s=0, run_id="r", text="preflight:slow_part node: slow")
    good = NodeVerdict(node="n1", verdict=Verdict.PASS, at_s=0, run_id="r")
    text = _text(swept("no-go", verdicts=(good, bad), drained=("n2",), coverage=0.25, problem="interrupted"), dry=False)
    assert text.splitlines() == [
        "n[1-2]: measured, no-go",
        "FAIL n2: preflight:slow_part node: slow",
        "PASS n1",
        "drained n2",
        "25 % of the pairs of nodes were measured lately",
        "ended early: interrupted",
    ]
    assert "nothing to measure" in _text(swept(), dry=False)


def scan(tmp_path, config: str, *options: str) -> "subprocess.CompletedProcess[str]":
    path = tmp_path / "preflight.toml"
    path.write_text(config.replace("FOLDER", str(tmp_path)))
    path.chmod(0o600)
    return subprocess.run(
        [sys.executable, "-m", "preflight", "scan", *options],
        env={**os.environ, "PREFLIGHT_CONFIG": str(path)},
        capture_output=True,
        text=True,
        timeout=120,  # far below the jitter that one test sets
        check=False,
    )


NO_SLURM = '[slurm]\nstate_dir = "FOLDER/state"\nbin_dir = "FOLDER/nowhere"\n'


def test_where_there_is_no_slurm_it_says_so_and_decides_nothing(tmp_path):
    done = scan(tmp_path, NO_SLURM, "--once")
    assert done.returncode == 3
    assert "no scontrol in" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_plan_that_is_none_is_refused_before_anything_is_asked(tmp_path):
    (tmp_path / "plan.toml").write_text("[modell]\n")
    done = scan(tmp_path, NO_SLURM, "--plan", str(tmp_path / "plan.toml"))
    assert done.returncode == 78
    assert "did you mean 'model'" in done.stderr or "modell" in done.stderr


def test_a_second_sweep_is_refused_at_once(tmp_path):
    with StateFolder(str(tmp_path / "state")) as folder, folder.lock("scan.lock") as alone:
        assert alone
        done = scan(tmp_path, NO_SLURM + '[scan]\njitter = "10m"\n')
        assert done.returncode == 3
        assert "another sweep is under way" in done.stderr
