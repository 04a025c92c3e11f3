"""Builds dist/preflight-VERSION-linux-ARCH.tar.gz: all that a node without network needs, for Python 3.10 to 3.13. `make bundle`.

The archive holds our wheel, the wheels of everything it needs but torch, pip itself, and install.sh. BUNDLE_PYTHONS="3.11" makes a smaller one.
"""

import os
import platform
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PYTHONS = os.environ.get("BUNDLE_PYTHONS", "3.10 3.11 3.12 3.13").split()
# the C libraries that wheels are built against, oldest first; a node's glibc must be at least as new as the wheel's
MANYLINUX = (
    "manylinux1",
    "manylinux2010",
    "manylinux2014",
    "manylinux_2_12",
    "manylinux_2_17",
    "manylinux_2_24",
    "manylinux_2_27",
    "manylinux_2_28",
)


def run(*arguments: str) -> None:
    """Run this Python's pip, or end with a message."""
    if subprocess.run(
        [sys.executable, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check"], check=False, timeout=1800
    ).returncode:
        sys.exit(f"make bundle: pip {arguments[0]} failed: see its message above")


def main() -> None:
    """Collect the wheels, write the archive beside its target, then rename it."""
    arch = platform.machine()
    with tempfile.TemporaryDirectory() as folder:
        wheels = Path(folder, "wheels")
        run("wheel", ".", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels))
        (ours,) = wheels.glob("cluster_preflight-*.whl")
        version = ours.name.split("-")[1]
        for python in PYTHONS:
            platforms = [word for tag in MANYLINUX for word in ("--platform", f"{tag}_{arch}")]
            run(
                "download", str(ours), "pip", "--only-binary=:all:", "--python-version", python,
                "--implementation", "cp", *platforms, "--dest", str(wheels),
            )  # fmt: skip
        target = Path("dist", f"preflight-{version}-linux-{arch}.tar.gz")
        target.parent.mkdir(exist_ok=True)
        beside = target.with_suffix(".part")
        with tarfile.open(beside, "w:gz") as archive:
            top = target.name.removesuffix(".tar.gz")
            archive.add(wheels, f"{top}/wheels")
            archive.add("deploy/bundle/install.sh", f"{top}/install.sh")
            archive.add("deploy/plans", f"{top}/plans")
            archive.add("LICENSE", f"{top}/LICENSE")
        beside.replace(target)
    print(f"{target}: {target.stat().st_size / 1e6:.0f} MB, for Python {', '.join(PYTHONS)} on {arch}")


if __name__ == "__main__":
    main()
