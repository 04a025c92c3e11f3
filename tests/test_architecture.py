"""The arrows and gates of the project, read from the import statements; and limits on size, and calls that we never make."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STAGES = {"discover", "plan", "probe", "judge", "report"}
FOUNDATION = {"model", "formats", "statistics", "errors"}
# what each part of the package may import from the package
MAY_IMPORT = {
    **{stage: FOUNDATION | {stage} for stage in STAGES},
    "model": {"model"},
    "errors": set(),
    "statistics": {"model"},
    "formats": {"model", "errors"},
    "registry": {"model", "errors", "formats"},
    "config": {"model", "errors", "formats"},
    "fleet": FOUNDATION | STAGES | {"fleet", "registry", "config"},
    "slurm": FOUNDATION | STAGES | {"slurm", "registry", "config"},
    "cli": FOUNDATION | STAGES | {"fleet", "slurm", "cli", "registry", "config"},
    "__main__": {"cli"},
    "__init__": set(),
}
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
}
LATE = {
    "numpy",
    "torch",
    "rich",
    "pynvml",
}  # only inside functions, except torch in probe/ (which itself is imported late)
NEVER = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
IMPURE = {
    "os",
    "sys",
    "time",
    "subprocess",
    "logging",
    "socket",
    "random",
    "datetime",
    "pathlib",
    "threading",
    "asyncio",
    "io",
}
TORCHLESS = ("schedule", "messages", "process", "__init__")  # files of probe/ that agents and coordinators import
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 60


def imports(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """(module, whether at module level) of each import; those under TYPE_CHECKING don't run and don't count."""
    for node, top in walk(tree, top=True):
        if isinstance(node, ast.Import):
            yield from ((alias.name, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", top
            if node.module == "preflight":
                yield from ((f"preflight.{alias.name}", top) for alias in node.names)


def walk(node: ast.AST, *, top: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield child, top
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from walk(child, top=top and not inside)


def faults(path: str, source: str) -> list[str]:
    """Everything that a file does against the architecture."""
    tree = ast.parse(source)
    return [
        *(fault for module, top in imports(tree) for fault in import_faults(path, module, top=top)),
        *call_faults(tree),
        *size_faults(tree, source),
    ]


def import_faults(path: str, module: str, *, top: bool) -> Iterator[str]:
    first, part = module.partition(".")[0], part_of(path)
    if first == "preflight":
        target = [*module.split("."), "__init__"][1]
        allowed = {"model"} if path.startswith("checks/") else MAY_IMPORT[part]
        if target not in allowed | {"__init__", "__version__"}:
            yield f"{part} imports {module}"
    if first == "preflight_checks" and not path.startswith("checks/"):
        yield f"{part} imports a check"
    if path.startswith("checks/") and first in IMPURE:
        yield f"a check imports {module}"
    if path.startswith("checks/") and first in {*GATES, "numpy", "msgspec"}:
        yield f"a check imports {module}"
    if first in GATES and not path.startswith(GATES[first]):
        yield f"{module} outside its gate"
    if part == "model" and first in {*GATES, "numpy"}:
        yield f"model imports {module}"
    in_probe = path.startswith("preflight/probe/") and Path(path).stem not in TORCHLESS
    if top and first in LATE and not (first == "torch" and in_probe) and path != "preflight/statistics.py":
        yield f"{module} at module level"
    if first in NEVER:
        yield f"{module} is never imported"


def call_faults(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        pickles = name.endswith(("_object", "_object_list"))  # torch's object collectives
        if pickles or name in {"eval", "exec", "os.system", "os.popen", "torch.load", "tempfile.mktemp"}:
            yield f"calls {name}"
        if any(
            k.arg == "shell" and not (isinstance(k.value, ast.Constant) and k.value.value is False)
            for k in node.keywords
        ):
            yield f"{name} with a shell"


def size_faults(tree: ast.AST, source: str) -> Iterator[str]:
    lines = source.count("\n")
    if lines > MAX_FILE_LINES:
        yield f"{lines} lines"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield f"{node.name} has {length} lines"


def part_of(path: str) -> str:
    parts = Path(path).with_suffix("").parts
    return parts[1]


SOURCES = sorted(
    p.relative_to(ROOT).as_posix() for folder in ("preflight", "checks") for p in (ROOT / folder).rglob("*.py")
)


@pytest.mark.parametrize("path", SOURCES)
def test_a_file_keeps_to_the_architecture(path):
    assert faults(path, (ROOT / path).read_text()) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("preflight/plan/x.py", "from preflight.probe import schedule"),
        ("preflight/judge/x.py", "import preflight.report.console"),
        ("preflight/discover/x.py", "from preflight import plan"),
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
        ("preflight/probe/schedule.py", "import torch"),
        ("preflight/cli/x.py", "import aiohttp"),
        ("preflight/cli/x.py", "import tomllib"),
        ("preflight/plan/x.py", "import numpy as np"),
        ("preflight/fleet/x.py", "import pickle"),
        ("preflight/fleet/x.py", "import subprocess\nsubprocess.run('x', shell=True)"),
        ("preflight/fleet/x.py", "eval('1')"),
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

    files = {p.stem for p in (ROOT / "checks" / "preflight_checks").glob("*.py")} - {"__init__"}
    assert files == {check.name for check in CHECKS}


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
