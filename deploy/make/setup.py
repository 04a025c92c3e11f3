"""Makes .venv: this package with what its tests need, and torch if that costs no surprise. Standard library only.

torch, in this order: one that the chosen Python already has; the CPU build where there is no GPU; otherwise a question (on a terminal), or going on without
it. TORCH, TORCH_INDEX and PYTHON in the environment decide, see the Makefile; what was decided stays until it is decided anew.
"""

import hashlib
import importlib.util
import os
import shutil
import site
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

VENV = Path(".venv")
STAMP = (
    VENV / "preflight-setup"
)  # key=value lines; written last, so that a set-up that was cut short is not taken for a whole one
CPU_TORCH = "torch==2.13.0+cpu"  # a local version: it resolves to the CPU build or not at all
# The peer that groups of ranks are tested against. Without its dependencies: the one of them that counts is torch, which is decided on its own.
MEGATRON = "megatron-core==0.16.1"
HOW_TO_GET_TORCH = """  Without torch everything but probing works. To get it:
    make setup TORCH=cuda           the build with CUDA, several GB
    make setup TORCH_INDEX=URL      from a package index of your choice (one with CPU builds, say)
    make setup PYTHON=/path/python  a Python that has it"""


def main() -> None:
    """Set up, unless nothing has changed since the last time. A changed pyproject.toml alone keeps the environment."""
    before = read_stamp()
    wanted = decisions(before)
    if before == wanted:
        return
    STAMP.unlink(missing_ok=True)
    if {**before, "pyproject": ""} == {**wanted, "pyproject": ""}:
        print("pyproject.toml has changed: bringing .venv up to date", flush=True)
        install("-e", ".[dev]")
    else:
        create(wanted["torch"], wanted["torch_index"])
    get_megatron()
    STAMP.write_text("".join(f"{key}={value}\n" for key, value in wanted.items()))


def read_stamp() -> dict[str, str]:
    """What the environment was made from; {} where there is none, or only part of one."""
    try:
        return dict(line.split("=", 1) for line in STAMP.read_text().splitlines())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}


def decisions(before: dict[str, str]) -> dict[str, str]:
    """What the environment is to be made from. TORCH and TORCH_INDEX count as before where neither is given."""
    torch, torch_index = os.environ.get("TORCH", ""), os.environ.get("TORCH_INDEX", "")
    if not torch and not torch_index:
        torch, torch_index = before.get("torch", ""), before.get("torch_index", "")
    if torch not in {"", "none", "cuda"}:
        sys.exit(f"make setup: TORCH={torch}: expected none (go on without torch) or cuda (the build with CUDA)")
    return {
        "python": sys.executable,
        "version": " ".join(sys.version.split()),
        "folder": str(Path.cwd()),
        "torch": torch,
        "torch_index": torch_index,
        "pyproject": hashlib.sha256(Path("pyproject.toml").read_bytes()).hexdigest(),
    }


def create(torch: str, torch_index: str) -> None:
    """A new environment in place of what is there."""
    print(f"setting up .venv with Python {sys.version.split()[0]} ({sys.executable})", flush=True)
    inherited = None if torch or torch_index else installed_torch()
    try:
        venv.EnvBuilder(system_site_packages=inherited is not None, clear=True, symlinks=True, with_pip=True).create(
            VENV
        )
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"make setup: {sys.executable} could not make a virtual environment with pip in it: {error}\n"
            "  On Debian and Ubuntu: apt-get install python3-venv. Or name another Python: make setup PYTHON=/path/to/python3"
        )
    if inherited and sys.prefix != sys.base_prefix:
        # an environment made from a virtual environment sees the Python below both, not the one in between
        own = Path(sysconfig.get_path("purelib", vars={"base": str(VENV), "platbase": str(VENV)}))
        folders = [*site.getsitepackages(), str(inherited.parent)]
        (own / "preflight_inherited.pth").write_text("".join(f"{folder}\n" for folder in dict.fromkeys(folders)))
    install("-e", ".[dev]")
    if inherited:
        print(f"using the torch that is there: {inherited}", flush=True)
    elif torch == "none" and not torch_index:
        print(f"going on without torch, as asked for\n{HOW_TO_GET_TORCH}", flush=True)
    else:
        get_torch(torch, torch_index)


def installed_torch() -> Path | None:
    """The folder of the torch that this Python has, None if it has none. Not imported: that takes seconds."""
    found = importlib.util.find_spec("torch")
    return Path(found.origin).parent if found and found.origin else None


def pip(*arguments: str, quiet: bool = False) -> int:
    """The exit code of the environment's pip; its messages are shown, unless a failure is an answer too."""
    command = [str(VENV / "bin" / "python"), "-m", "pip", *arguments]
    return subprocess.run(command, check=False, timeout=3600, stderr=subprocess.DEVNULL if quiet else None).returncode


def install(*packages: str) -> None:
    """Install or end with a message."""
    if pip("install", "--quiet", "--disable-pip-version-check", *packages) != 0:
        sys.exit(
            f"make setup: pip could not install {' '.join(packages)}: see its message above.\n"
            "  Behind a proxy or with an index of your own, configure pip (pip config, PIP_INDEX_URL); then run make again."
        )


def get_torch(torch: str, torch_index: str) -> None:
    """Install torch, or say how to get it and go on."""
    if torch_index:
        print(f"installing torch from {torch_index}", flush=True)
        install("--index-url", torch_index, "torch")
        return
    if torch == "cuda":
        print("installing torch with CUDA: several GB", flush=True)
        install("torch")
        return
    if not has_gpu():
        print(f"looking for the CPU build of torch ({CPU_TORCH}: about 200 MB to load, 1.1 GB on disk)", flush=True)
        if pip("install", "--quiet", "--disable-pip-version-check", "--dry-run", CPU_TORCH, quiet=True) == 0:
            install(CPU_TORCH)
            return
        print("pip finds no such build for this Python on the package index that it is set up for", flush=True)
    print("what pip would load otherwise is torch with CUDA: several GB", flush=True)
    if wants_cuda():
        install("torch")
        return
    print(f"going on without torch\n{HOW_TO_GET_TORCH}", flush=True)


def get_megatron() -> None:
    """The peer of our tests of groups (a few MB), where this Python and package index have it; the tests say what is left out."""
    if pip("install", "--quiet", "--disable-pip-version-check", "--no-deps", MEGATRON, quiet=True) != 0:
        print(f"going on without {MEGATRON}: pip finds no build of it for this Python; only tests use it", flush=True)


def wants_cuda() -> bool:
    """Whether the person at the terminal says yes; False where there is none."""
    if not sys.stdin.isatty():
        return False
    try:
        return input("load it? [y/N] ").strip().lower() in {"y", "yes"}
    except EOFError:
        return False


def has_gpu() -> bool:
    """Whether an NVIDIA driver is there."""
    return (
        Path("/proc/driver/nvidia").exists()
        or Path("/dev/nvidiactl").exists()
        or shutil.which("nvidia-smi") is not None
    )


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("make setup: interrupted; run it again to go on")
    except (OSError, subprocess.TimeoutExpired) as error:
        sys.exit(f"make setup: {error}")
