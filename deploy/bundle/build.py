"""Builds dist/preflight-VERSION-linux-ARCH.tar.gz: all that a node without network needs, for Python 3.10 to 3.13. `make bundle`.

The archive holds our wheel, the wheels of everything it needs but torch, pip itself, and install.sh. BUNDLE_PYTHONS="3.11" makes a smaller one.
"""

import email
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def download(wheels: Path, python: str, *packages: str) -> None:
    """Wheels of these packages, and of what they need, for another version of Python."""
    platforms = [word for tag in MANYLINUX for word in ("--platform", f"{tag}_{platform.machine()}")]
    target = ("--only-binary=:all:", "--python-version", python, "--implementation", "cp", *platforms)
    run("download", *packages, *target, "--find-links", str(wheels), "--dest", str(wheels))


def missing_for(wheels: Path, python: str) -> list[str]:
    """What the collected wheels need on that Python and isn't there: pip evaluates "python_version < ..." for the Python that it runs in."""
    names = {canonicalize_name(wheel.name.split("-")[0]) for wheel in wheels.glob("*.whl")}
    environment = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    needed = set()
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            lines = email.message_from_bytes(archive.read(metadata)).get_all("Requires-Dist") or []
        for requirement in map(Requirement, lines):
            wanted = requirement.marker is None or requirement.marker.evaluate(environment)
            if wanted and canonicalize_name(requirement.name) not in names:
                needed.add(f"{requirement.name}{requirement.specifier}")
    return sorted(needed)


def main() -> None:
    """Collect the wheels, write the archive beside its target, then rename it."""
    arch = platform.machine()
    with tempfile.TemporaryDirectory() as folder:
        wheels = Path(folder, "wheels")
        run("wheel", ".", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels))
        (ours,) = wheels.glob("cluster_preflight-*.whl")
        version = ours.name.split("-")[1]
        for python in PYTHONS:
            download(wheels, python, f"{ours}[import]", "pip")
            while missing := missing_for(wheels, python):
                download(wheels, python, *missing)
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
