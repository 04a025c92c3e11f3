"""Versions of software beside the GPU driver, from names and small text files: nothing is loaded or run. And the GPUs' device files."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from preflight.discover.files import is_inside, names_in, read_bytes, read_text

# modules that tell their version in /sys/module; mlx5_core does so only where the vendor's own driver (OFED) replaced the kernel's
_MODULES = ("mlx5_core", "efa", "gdrdrv")
_SYSTEM_FOLDERS = (
    "usr/local/lib",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/cuda/lib64",
)
_NCCL_FILE = re.compile(r"^libnccl\.so\.(2\.[0-9]+\.[0-9]+)$")
_NCCL_PACKAGE = re.compile(r"^nvidia_nccl_cu[0-9]+-(2\.[0-9]+\.[0-9]+)(?:\.post[0-9]+)?\.dist-info$")
_OFED = re.compile(rb"\b(?:MLNX_OFED_LINUX|OFED-internal|DOCA_OFED)-([0-9][0-9.]*-[0-9][0-9.]*)")
_CUDA = re.compile(r'"cuda"\s*:\s*\{[^{}]*"version"\s*:\s*"([0-9][0-9.]*)"|^CUDA Version ([0-9][0-9.]*)')
_DEVICE_FILE = re.compile(r"^nvidia([0-9]{1,4})$")
_MAX_LIBRARY_FOLDERS = 64
_MAX_SCRIPT = 65536


def read_versions(root: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """What is found, by name: "nccl" (that of the loader's path or of the Python environment, before the system's; "nccl (system)" if that is another one),
    "cuda" (the toolkit), "ofed", and kernel modules. `environ`: of the job or this process; empty below a root that is another system's.
    """
    found = {}
    own = _own_nccl(environ)
    system = _first_nccl(root / folder for folder in _SYSTEM_FOLDERS if is_inside(root, root / folder))
    if own or system:
        found["nccl"] = own or system or ""
    if own and system and own != system:
        found["nccl (system)"] = system
    told = {
        "cuda": _cuda(root),
        "ofed": _ofed(root),
        **{module: read_text(root / f"sys/module/{module}/version") for module in _MODULES},
    }
    return found | {name: text for name, text in told.items() if text}


def _own_nccl(environ: Mapping[str, str]) -> str | None:
    """NCCL of the loader's path, else of the Python environment, whose package names the version that its file hides."""
    path = [Path(part) for part in environ.get("LD_LIBRARY_PATH", "").split(":") if part.startswith("/")]
    folders = [folder for folder in path[:_MAX_LIBRARY_FOLDERS] if _has_nccl(folder)]
    if folders:
        return _nccl_of(folders[0])
    return next((version for folder in _python_folders(environ) if (version := _nccl_package(folder))), None)


def _first_nccl(folders: Iterable[Path]) -> str | None:
    """The version in the first folder that holds NCCL."""
    folder = next((folder for folder in folders if _has_nccl(folder)), None)
    return None if folder is None else _nccl_of(folder)


def _has_nccl(folder: Path) -> bool:
    return os.path.lexists(folder / "libnccl.so.2")


def _nccl_of(folder: Path) -> str | None:
    """The version of the libnccl.so.2 there: a link to a file that carries it in its name, or a Python package's file. None: the name doesn't say."""
    try:
        match = _NCCL_FILE.match((folder / "libnccl.so.2").readlink().name)
    except (OSError, ValueError):
        is_package = folder.parts[-3:] == ("nvidia", "nccl", "lib")
        return _nccl_package(folder.parents[2]) if is_package else None
    return match[1] if match else None


def _python_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    prefixes = [environ.get("VIRTUAL_ENV"), environ.get("CONDA_PREFIX"), sys.prefix if environ else None]
    for prefix in dict.fromkeys(prefix for prefix in prefixes if prefix):
        for name in names_in(f"{prefix}/lib") or ():
            if re.fullmatch(r"python3\.[0-9]+", name):
                yield Path(prefix, "lib", name, "site-packages")


def _nccl_package(folder: Path) -> str | None:
    matches = (_NCCL_PACKAGE.match(name) for name in names_in(folder) or ())
    return next((match[1] for match in matches if match), None)


def _cuda(root: Path) -> str | None:
    if not is_inside(root, root / "usr/local/cuda"):
        return None
    for name in ("version.json", "version.txt"):
        match = _CUDA.search(read_text(root / "usr/local/cuda" / name) or "")
        if match:
            return match[1] or match[2]
    return None


def _ofed(root: Path) -> str | None:
    """From the text of the script `ofed_info`, which prints what was written into it when it was made."""
    try:
        match = _OFED.search(read_bytes(root / "usr/bin/ofed_info", _MAX_SCRIPT))
    except OSError:
        return None
    return match[1].decode() if match else None


def read_device_files(root: Path) -> tuple[int, ...] | None:
    """The numbers of /dev/nvidiaN. None if /dev can't be listed."""
    names = names_in(os.fspath(root / "dev"))
    return None if names is None else tuple(int(match[1]) for match in map(_DEVICE_FILE.match, names) if match)


def closed_device_files(root: Path) -> tuple[int, ...]:
    """The numbers of those that this process may not open. Nothing is opened: access(2) asks the device cgroup too (Linux: inode_permission())."""
    minors = read_device_files(root) or ()
    return tuple(minor for minor in minors if not os.access(f"{root}/dev/nvidia{minor}", os.R_OK | os.W_OK))
