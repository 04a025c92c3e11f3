"""The prolog path starts fast: heavy modules are not imported before they are needed."""

import subprocess
import sys

import pytest

HEAVY = {"torch", "numpy", "aiohttp", "rich", "prometheus_client"}


def modules_after(*arguments: str) -> set[str]:
    """Top-level modules in memory when a command has ended."""
    code = (
        "import sys\nfrom preflight.cli.main import run_command_line\n"
        f"run_command_line({list(arguments)!r})\n"
        "print('MODULES', *sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.rpartition("MODULES")[2].split())


@pytest.mark.parametrize(
    "arguments", [["--help"], ["node"], ["topology"], ["checks", "list"], ["checks", "explain", "reachable"]]
)
def test_the_command_imports_nothing_heavy(arguments):
    assert modules_after(*arguments) & HEAVY == set()


def test_help_imports_neither_nouns_nor_discovery():
    assert modules_after("--help") & {*HEAVY, "msgspec", "psutil", "pynvml", "asyncio"} == set()


@pytest.mark.parametrize("arguments", [["plan", "deploy/plans/demo.toml"], ["agent"], ["run"]])
def test_only_workers_import_torch(arguments):
    assert "torch" not in modules_after(*arguments)
