"""Makes .venv: this package with what its tests need, and torch if that costs no surprise. Standard library only.

torch, in this order: one that the chosen Python already has; the CPU build where there is no GPU; otherwise a question (on a terminal), or going on without
it. Settings come from the environment, see the Makefile.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

VENV = Path(".venv")
STAMP = VENV / "preflight-setup"
CPU_TORCH = "torch==2.13.0+cpu"  # a local version: it resolves to the CPU build or not at all
HOW_TO_GET_TORCH = """  Without torch everything but probing works. To get it:
    make setup TORCH=cuda           the build with CUDA, several GB
    make setup TORCH_INDEX=URL      from a package index of your choice (one with CPU builds, say)
    make setup PYTHON=/path/python  a Python that has it"""


def main() -> None:
    """Set up, unless nothing has changed since the last time."""
    wanted = fingerprint()
    if STAMP.exists() and STAMP.read_text() == wanted:
        return
    inherited = importable(sys.executable, "torch")
    print(f"setting up .venv with Python {sys.version.split()[0]} ({sys.executable})", flush=True)
    STAMP.unlink(missing_ok=True)
    venv.EnvBuilder(system_site_packages=inherited, clear=True, with_pip=True).create(VENV)
    install("-e", ".[dev]")
    if inherited:
        print(f"using the torch that {sys.executable} has", flush=True)
    elif os.environ.get("TORCH") == "none":
        print(f"going on without torch, as asked for\n{HOW_TO_GET_TORCH}", flush=True)
    else:
        get_torch()
    STAMP.write_text(wanted)


def fingerprint() -> str:
    """What the environment depends on."""
    parts = [Path("pyproject.toml").read_bytes(), sys.version.encode(), str(Path.cwd()).encode()]
    parts += [f"{name}={os.environ.get(name, '')}".encode() for name in ("TORCH", "TORCH_INDEX", "PYTHON")]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def importable(python: str, module: str) -> bool:
    """Whether that Python has the module, without importing it."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", code], check=False, timeout=60).returncode == 0


def pip(*arguments: str) -> int:
    """The exit code of the environment's pip."""
    command = [str(VENV / "bin" / "python"), "-m", "pip", *arguments]
    return subprocess.run(command, check=False, timeout=3600).returncode


def install(*packages: str) -> None:
    """Install or end with a message."""
    if pip("install", "--quiet", "--disable-pip-version-check", *packages) != 0:
        sys.exit(
            f"make setup: pip could not install {' '.join(packages)}: see its message above.\n"
            "  Behind a proxy or with an index of your own, configure pip (pip config, PIP_INDEX_URL); then run make again."
        )


def get_torch() -> None:
    """Install torch, or say how to get it and go on."""
    index = os.environ.get("TORCH_INDEX")
    if index:
        print(f"installing torch from {index}", flush=True)
        install("--index-url", index, "torch")
        return
    if os.environ.get("TORCH") == "cuda":
        print("installing torch with CUDA: several GB", flush=True)
        install("torch")
        return
    if not has_gpu():
        print(f"looking for the CPU build of torch ({CPU_TORCH}: about 200 MB to load, 1.1 GB on disk)", flush=True)
        if pip("install", "--quiet", "--disable-pip-version-check", "--dry-run", CPU_TORCH) == 0:
            install(CPU_TORCH)
            return
        print("the package index that pip is set up for has no such build", flush=True)
    print("what pip would load otherwise is torch with CUDA: several GB", flush=True)
    if sys.stdin.isatty() and input("load it? [y/N] ").strip().lower() in {"y", "yes"}:
        install("torch")
        return
    print(f"going on without torch\n{HOW_TO_GET_TORCH}", flush=True)


def has_gpu() -> bool:
    """Whether an NVIDIA driver is there."""
    return Path("/proc/driver/nvidia").exists() or shutil.which("nvidia-smi") is not None


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("make setup: interrupted; run it again to go on")
    except (OSError, subprocess.TimeoutExpired) as error:
        sys.exit(f"make setup: {error}")
