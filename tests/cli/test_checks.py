"""`preflight checks`: every installed check is listed and explained, cheaply."""

import subprocess
import sys

import pytest

from preflight.cli.main import run_command_line
from preflight.registry import load_checks
from preflight_checks import CHECKS


def test_list_shows_name_claim_and_distribution_of_every_check(capsys):
    assert run_command_line(["checks", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(load_checks())
    for line, check in zip(lines, load_checks(), strict=True):
        assert line.startswith(check.name)
        assert check.claim in line
        assert line.endswith("cluster-preflight")


@pytest.mark.parametrize("check", load_checks(), ids=lambda check: check.name)
def test_explain_tells_claim_reason_limits_and_need(capsys, check):
    assert run_command_line(["checks", "explain", check.name]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert check.claim in text
    assert check.why in text
    assert check.need in text
    assert all(f"{name} = {value:g}" in text for name, value in check.limits.items())


def test_an_unknown_check_is_wrong_usage_with_the_nearest_name(capsys):
    assert run_command_line(["checks", "explain", "gpu_cuont"]) == 64
    assert "did you mean gpu_count?" in capsys.readouterr().err


def test_nothing_heavy_is_imported():
    code = (
        "import sys; from preflight.cli.main import run_command_line; run_command_line(['checks', 'list']); "
        "print([m for m in ('torch', 'numpy', 'aiohttp', 'rich', 'prometheus_client', 'importlib.metadata')"
        " if m in sys.modules], file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "gpu_count" in run.stdout
    assert run.stderr.strip() == "[]"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_every_check_of_ours_explains_claim_reason_source_and_remedy(check, capsys):
    for text in (check.claim, check.why, check.source, check.remedy):
        assert len(text) > 20
    assert check.claim.endswith(".")
    assert run_command_line(["checks", "explain", check.name]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {label}" in out for label in ("claim", "why", "source", "remedy", "uses", "need", "limits"))
    assert set(check.limits) <= set(out.split())
