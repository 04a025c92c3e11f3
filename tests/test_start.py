"""The prolog path starts fast: heavy modules are not imported before they are needed."""

import subprocess
import sys

import pytest

HEAVY = {"torch", "numpy", "aiohttp", "rich", "prometheus_client"}


def top(modules: set[str]) -> set[str]:
    """Their top-level packages."""
    return {name.partition(".")[0] for name in modules}


def modules_after(*arguments: str) -> set[str]:
    """The modules that are in memory when a command has ended and were not there before it."""
    code = (
        "import sys\nbefore = set(sys.modules)\nfrom preflight.cli.main import run_command_line\n"
        f"run_command_line({list(arguments)!r})\n"
        "print('MODULES', *sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.rpartition("MODULES")[2].split())


@pytest.mark.parametrize(
    "arguments", [["--help"], ["node"], ["topology"], ["checks", "list"], ["checks", "explain", "reachable"]]
)
def test_the_command_imports_nothing_heavy(arguments):
    assert top(modules_after(*arguments)) & HEAVY == set()


def test_help_imports_click_and_the_command_table_and_nothing_else():
    modules = modules_after("--help")
    assert top(modules) - sys.stdlib_module_names == {"click", "preflight"}
    ours = {name for name in modules if name.startswith("preflight")}
    assert ours == {"preflight", "preflight.cli", "preflight.cli.lazy", "preflight.cli.main", "preflight.errors"}
    assert "asyncio" not in modules


@pytest.mark.parametrize("arguments", [["plan", "deploy/plans/demo.toml"], ["agent"], ["run"]])
def test_only_workers_import_torch(arguments):
    assert "torch" not in top(modules_after(*arguments))
