"""The arrows and gates of the project, read from the import statements; and limits on size, and calls that we never make."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STAGES = {"discover", "plan", "probe", "judge", "report"}
FOUNDATION = {"model", "formats", "statistics", "errors", "metrics"}
# what each part of the package may import from the package
MAY_IMPORT = {
    **{stage: FOUNDATION | {stage} for stage in STAGES},
    "model": {"model"},
    "errors": set(),
    "metrics": set(),
    "statistics": {"model"},
    "formats": {"model", "errors"},
    "registry": {"model", "errors", "formats"},
    "config": {"model", "errors", "formats"},
    "fleet": FOUNDATION | STAGES | {"fleet", "registry", "config"},
    "slurm": FOUNDATION | STAGES | {"slurm", "registry", "config", "fleet"},
    "cli": FOUNDATION | STAGES | {"fleet", "slurm", "cli", "registry", "config"},
    "__main__": {"cli"},
    "in_job": FOUNDATION | STAGES | {"in_job", "registry"},
    "__init__": {"in_job", "errors"},
}
# of slurm/, what measures over a network; node prolog and health program must not load any of it
DIALLING = ("controller", "scan")
# third-party module -> the only files (or folders) that may import it
GATES = {
    "pynvml": ("preflight/discover/nvml.py",),
    "psutil": ("preflight/discover/host.py",),
    "torch": ("preflight/probe/",),
    "prometheus_client": ("preflight/report/prometheus.py",),
    "aiohttp": ("preflight/fleet/",),
    "tomllib": ("preflight/formats.py",),
    "tomli": ("preflight/formats.py",),
    "yaml": ("preflight/formats.py",),
    "defusedxml": ("preflight/formats.py",),
    "click": ("preflight/cli/",),
    "rich": ("preflight/cli/", "preflight/report/"),
    "jinja2": ("preflight/report/page",),
}
UNGATED = {"msgspec", "numpy"}  # the other third-party modules; a new one needs a place in GATES or here
LATE = {
    "numpy",
    "torch",
    "rich",
    "pynvml",
    "jinja2",
}  # only inside functions, except torch in probe/ (which itself is imported late)
NEVER = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
# what a check may not reach: clock, processes, files, the machine, chance
IMPURE = {"os", "sys", "time", "datetime", "subprocess", "threading", "asyncio", "multiprocessing"} | {
    *("logging", "socket", "random", "secrets", "pathlib", "io", "platform", "urllib", "http", "sqlite3", "importlib")
}
CALLS = {"eval", "exec", "__import__", "torch.load", "tempfile.mktemp"} | {
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "asyncio.create_subprocess_shell")
}
# what agents, coordinators and commands without measurement import of probe/: files by name, folders as a whole
TORCHLESS = ("messages", "process", "__init__")
TORCHLESS_FOLDERS = ("schedule", "simulate", "nccl_tests")
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 60


def imports(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """(module, whether at module level) of each import; those under TYPE_CHECKING don't run and don't count."""
    for node, top in walk(tree, top=True):
        if isinstance(node, ast.Import):
            yield from ((alias.name, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield "." * node.level + (node.module or ""), top
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", top
            yield from (
                (f"{node.module}.{alias.name}", top) for alias in node.names if f"{node.module}.{alias.name}" in CALLS
            )
            if node.module == "preflight":
                yield from ((f"preflight.{alias.name}", top) for alias in node.names)


def walk(node: ast.AST, *, top: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, ast.expr):
            continue  # most of a tree, and nothing is imported in there
        yield child, top
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from walk(child, top=top and not inside)


def faults(path: str, source: str) -> list[str]:
    """Everything that a file does against the architecture."""
    tree = ast.parse(source)
    return [
        *(fault for module, top in imports(tree) for fault in import_faults(path, module, top=top)),
        *call_and_size_faults(tree, source),
    ]


def import_faults(path: str, module: str, *, top: bool) -> Iterator[str]:
    first = module.partition(".")[0]
    if not first:
        yield f"relative import of {module}: say preflight..., so that arrows can be read"
    elif first in {"preflight", "preflight_checks"}:
        yield from arrow_faults(path, module)
        if module.startswith("preflight.fleet") and part_of(path) == "slurm":
            yield from () if Path(path).stem.startswith(DIALLING) and not top else (f"slurm imports {module} here",)
    elif path.startswith("checks/") and first in {*IMPURE, *GATES, *UNGATED}:
        yield f"a check imports {module}"
    yield from library_faults(path, module, top=top)


def arrow_faults(path: str, module: str) -> Iterator[str]:
    part, target = part_of(path), [*module.split("."), "__init__"][1]
    if module.startswith("preflight_checks"):
        if not path.startswith("checks/"):
            yield f"{part} imports a check"
    elif target not in ({"model"} if path.startswith("checks/") else MAY_IMPORT[part]) | {"__init__", "__version__"}:
        yield f"{part} imports {module}"


def library_faults(path: str, module: str, *, top: bool) -> Iterator[str]:
    first = module.partition(".")[0]
    if first not in sys.stdlib_module_names | {"", "preflight", "preflight_checks", *GATES, *UNGATED}:
        yield f"{module} has no place in the list of libraries"
    if first in NEVER or module in CALLS:
        yield f"{module} is never imported"
    if first in GATES and not path.startswith(GATES[first]):
        yield f"{module} outside its gate"
    if path.startswith("preflight/model/") and first in {*GATES, "numpy"}:
        yield f"model imports {module}: it knows msgspec and the standard library"
    in_probe = path.startswith("preflight/probe/") and Path(path).stem not in TORCHLESS
    in_probe = in_probe and Path(path).parent.name not in TORCHLESS_FOLDERS
    if top and first in LATE and not (first == "torch" and in_probe) and path != "preflight/statistics.py":
        yield f"{module} at module level"


def call_and_size_faults(tree: ast.AST, source: str) -> Iterator[str]:
    nodes = list(ast.walk(tree))
    yield from call_faults(nodes)
    yield from size_faults(nodes, source)


def call_faults(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        name = called(node.func)
        pickles = name.endswith(("_object", "_object_list"))  # torch's object collectives
        if pickles or name in CALLS:
            yield f"calls {name}"
        if any(
            k.arg == "shell" and not (isinstance(k.value, ast.Constant) and k.value.value is False)
            for k in node.keywords
        ):
            yield f"{name} with a shell"


def called(function: ast.expr) -> str:
    """The name by which something is called, from the last part on that is not an attribute: f().x.y is .x.y."""
    if isinstance(function, ast.Name):
        return function.id
    return f"{called(function.value)}.{function.attr}" if isinstance(function, ast.Attribute) else ""


def size_faults(nodes: list[ast.AST], source: str) -> Iterator[str]:
    lines = source.count("\n")
    if lines > MAX_FILE_LINES:
        yield f"{lines} lines"
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield f"{node.name} has {length} lines"


def part_of(path: str) -> str:
    """The folder, or the file, right under preflight/ or checks/."""
    return Path(path).with_suffix("").parts[1]


def python_files(*folders: str) -> list[str]:
    return sorted(p.relative_to(ROOT).as_posix() for folder in folders for p in (ROOT / folder).rglob("*.py"))


SOURCES = python_files("preflight", "checks")


@pytest.mark.parametrize("path", SOURCES)
def test_a_file_keeps_to_the_architecture(path):
    assert faults(path, (ROOT / path).read_text()) == []


@pytest.mark.parametrize("path", python_files("deploy", "tests"))
def test_scripts_and_tests_are_short_and_use_no_shell(path):
    source = (ROOT / path).read_text()
    allowed = {"calls exec"} if path.startswith("tests/") else set()  # examples of the documentation are tried
    assert [fault for fault in call_and_size_faults(ast.parse(source), source) if fault not in allowed] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("preflight/plan/x.py", "import json\nfrom preflight.model import Plan\nfrom preflight.plan import layout"),
        ("preflight/plan/x.py", "def f():\n    import numpy as np\n    from preflight.errors import ConfigError"),
        ("preflight/probe/collectives.py", "import torch"),
        (
            "preflight/fleet/x.py",
            "import aiohttp\nfrom preflight.probe import schedule\nfrom preflight.judge import run",
        ),
        ("preflight/cli/x.py", "import click\ndef f():\n    from preflight.fleet import run"),
        ("preflight/slurm/controller_run.py", "def f():\n    from preflight.fleet.run import run"),
        ("preflight/model/x.py", "import re\nimport msgspec\nfrom preflight.model.base import Noun"),
        ("checks/preflight_checks/x.py", "import math\nimport statistics\nfrom preflight.model import Check"),
        ("preflight/fleet/x.py", "import subprocess\nsubprocess.run(['x'], shell=False)"),
        ("preflight/plan/x.py", "x = 1\n" * 400),
    ],
)
def test_what_is_allowed_is_not_a_fault(path, source):
    assert faults(path, source) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("preflight/plan/x.py", "from preflight.probe import schedule"),
        ("preflight/judge/x.py", "import preflight.report.console"),
        ("preflight/discover/x.py", "from preflight import plan"),
        ("preflight/discover/x.py", "from ..plan import layout"),
        ("preflight/discover/x.py", "from preflight.fleet.auth import sign"),
        ("preflight/slurm/prolog.py", "def f():\n    from preflight.fleet.run import run"),
        ("preflight/slurm/controller.py", "from preflight.fleet.run import run"),
        ("preflight/statistics.py", "from preflight.plan import layout"),
        ("preflight/model/x.py", "import click"),
        ("preflight/plan/x.py", "import requests"),
        ("preflight/model/x.py", "from preflight.errors import ConfigError"),
        ("preflight/model/x.py", "def f():\n    import numpy"),
        ("preflight/judge/x.py", "from preflight_checks import CHECKS"),
        ("preflight/fleet/x.py", "from preflight.cli import main"),
        ("checks/preflight_checks/x.py", "from preflight.report import console"),
        ("checks/preflight_checks/x.py", "import time"),
        ("checks/preflight_checks/x.py", "def judge(e):\n    import os"),
        ("preflight/discover/node.py", "def f():\n    import pynvml"),
        ("preflight/fleet/x.py", "import psutil"),
        ("preflight/fleet/x.py", "def f():\n    import torch"),
        ("preflight/probe/schedule/pairs.py", "import torch"),
        ("preflight/cli/x.py", "import aiohttp"),
        ("preflight/cli/x.py", "import tomllib"),
        ("preflight/plan/x.py", "import numpy as np"),
        ("preflight/fleet/x.py", "import pickle"),
        ("preflight/fleet/x.py", "import subprocess\nsubprocess.run('x', shell=True)"),
        ("preflight/fleet/x.py", "from subprocess import getoutput"),
        ("preflight/fleet/x.py", "import os\nos.system('x')"),
        ("preflight/fleet/x.py", "from os import system"),
        ("preflight/fleet/x.py", "eval('1')"),
        ("preflight/fleet/x.py", "from pickle import loads"),
        ("preflight/fleet/x.py", "import rich"),
        ("preflight/fleet/x.py", "import prometheus_client"),
        ("preflight/report/x.py", "import rich"),
        ("preflight/report/x.py", "import yaml"),
        ("checks/preflight_checks/x.py", "import numpy"),
        ("checks/preflight_checks/x.py", "from preflight.errors import ConfigError"),
        ("preflight/probe/x.py", "import torch\ntorch.load('x')"),
        ("preflight/probe/x.py", "dist.all_gather_object([], 1)"),
        ("preflight/plan/x.py", "x = 1\n" * 401),
        ("preflight/plan/x.py", "def f():\n" + "    x = 1\n" * 61),
    ],
)
def test_each_kind_of_fault_is_found(path, source):
    assert faults(path, source)


def test_every_file_of_checks_is_a_check_that_is_registered():
    from preflight_checks import CHECKS

    files = {p.stem for p in (ROOT / "checks" / "preflight_checks").glob("*.py") if p.stem[0] != "_"}
    assert files == {check.name for check in CHECKS}


def test_the_checks_of_nodes_are_those_that_need_neither_plan_nor_measurements():
    from preflight_checks import CHECKS, NODE_CHECKS

    assert [check.name for check in NODE_CHECKS] == [
        check.name for check in CHECKS if set(check.uses) <= {"inventory", "health", "before"}
    ]


def test_the_top_level_holds_what_was_agreed():
    import subprocess

    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    top = {line.split("/")[0] for line in done.stdout.splitlines()}
    assert top == {
        *(".ci", ".gitignore", "CHANGELOG.md", "LICENSE", "Makefile", "README.md", "pyproject.toml"),
        *("checks", "deploy", "preflight", "tests"),
    }
