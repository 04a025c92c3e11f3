"""The archive's install.sh: no network, and an environment's own torch and numpy stay as they are."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import distribution
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
INSTALL = ROOT / "deploy" / "bundle" / "install.sh"


def write_wheel(folder: Path, name: str, version: str) -> None:
    """A distribution with one empty module."""
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{module}.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "".join(f"{n},,\n" for n in wheel.namelist()))


def pack_again(folder: Path, name: str) -> None:
    """The wheel of an installed pure distribution, with its bytecode beside each module: pip runs from the wheel, many times."""
    installed = distribution(name)
    path = folder / f"{name.replace('-', '_')}-{installed.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file in installed.files:
            if not file.as_posix().startswith("..") and "__pycache__" not in file.parts:
                wheel.write(file.locate(), file.as_posix())
                if file.suffix == ".py" and Path(compiled := cache_from_source(str(file.locate()))).exists():
                    wheel.write(compiled, f"{file.as_posix()}c")


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    """As `make bundle` packs it, with empty modules in place of the libraries that --version does not import, and a torch that nobody asked for."""
    folder = tmp_path_factory.mktemp("archive")
    shutil.copy(INSTALL, folder)
    wheels = folder / "wheels"
    command = [sys.executable, "-m", "pip", "wheel", ROOT, "--no-deps", "--no-build-isolation", "-q", "-w", wheels]
    subprocess.run(command, check=True, timeout=120)
    pack_again(wheels, "pip")
    pack_again(wheels, "click")
    for line in distribution("cluster-preflight").requires:
        requirement = Requirement(line)
        marker = str(requirement.marker)
        if requirement.name != "click" and ("extra" not in marker or 'extra == "import"' in marker):
            write_wheel(wheels, requirement.name, "99.0")
    write_wheel(wheels, "torch", "99.0")
    return folder


def make_environment(folder: Path, **versions: str) -> Path:
    """A virtual environment that already has some distributions; gives its python."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    python = folder / "bin" / "python"
    packages = packages_of(folder)
    for name, version in versions.items():
        write_wheel(folder, name, version)
        with zipfile.ZipFile(next(folder.glob(f"{name}-*.whl"))) as wheel:
            wheel.extractall(packages)
    return python


def packages_of(environment: Path) -> Path:
    return next(environment.glob("lib/python3*/site-packages"))


def install(archive: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run install.sh with no index in reach, and pip's own settings left out."""
    environment = {"PATH": os.defpath, "HOME": str(archive), "PIP_CONFIG_FILE": os.devnull, "PIP_COMPILE": "0"}
    command = ["sh", archive / "install.sh", *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def installed_in(environment: Path) -> set[str]:
    return {path.name.removesuffix(".dist-info") for path in packages_of(environment).glob("*.dist-info")}


def test_into_a_job_environment_its_torch_and_numpy_stay_and_the_rest_arrives(archive, tmp_path):
    python = make_environment(tmp_path / "job", torch="2.5.1", numpy="1.26.4")
    done = install(archive, "--into-current-environment", "--python", str(python))
    assert done.returncode == 0, done.stderr
    assert "no torch" not in done.stdout
    assert {"torch-2.5.1", "numpy-1.26.4", "aiohttp-99.0", "pyyaml-99.0"} <= {
        name.lower() for name in installed_in(tmp_path / "job")
    }
    assert not {"torch-99.0", "numpy-99.0"} & installed_in(tmp_path / "job")
    # and once more, as after a change of preflight without a change of its version
    stale = packages_of(tmp_path / "job") / "preflight" / "py.typed"
    stale.write_text("stale")
    assert install(archive, "--into-current-environment", "--python", str(python)).returncode == 0
    assert stale.read_text() == ""


def test_an_environment_whose_numpy_is_too_old_is_left_as_it_was(archive, tmp_path):
    python = make_environment(tmp_path / "job", torch="2.5.1", numpy="1.21.0")
    done = install(archive, "--into-current-environment", "--python", str(python))
    assert done.returncode != 0
    assert "numpy" in done.stderr
    assert "nothing was installed" in done.stderr
    assert installed_in(tmp_path / "job") == {"torch-2.5.1", "numpy-1.21.0"}


def test_into_an_environment_of_its_own_without_torch_and_says_how_to_probe(archive, tmp_path):
    done = install(archive, "--prefix", str(tmp_path / "own"), "--python", sys.executable)
    assert done.returncode == 0, done.stderr
    assert "--into-current-environment" in done.stdout
    assert not any(name.startswith("torch") for name in installed_in(tmp_path / "own"))
    command = [tmp_path / "own" / "bin" / "preflight", "--version"]
    assert "preflight" in subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_a_folder_with_other_things_in_it_is_not_overwritten(archive, tmp_path):
    (tmp_path / "precious").write_text("keep me")
    done = install(archive, "--prefix", str(tmp_path), "--python", sys.executable)
    assert done.returncode != 0
    assert "would be overwritten" in done.stderr
    assert (tmp_path / "precious").read_text() == "keep me"


def test_an_archive_that_is_not_whole_is_refused(tmp_path):
    shutil.copy(INSTALL, tmp_path)
    done = install(tmp_path, "--prefix", str(tmp_path / "own"), "--python", sys.executable)
    assert done.returncode != 0
    assert "unpack the whole archive" in done.stderr


@pytest.mark.skipif(
    any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv")), reason="a container is an environment"
)
def test_a_python_of_the_system_is_not_installed_into_unasked(archive, tmp_path):
    python = tmp_path / "python3"  # new enough, in no environment, and unable to install anything
    python.write_text('#!/bin/sh\ncase "$*" in *version_info*) exit 0 ;; esac\nexit 1\n')
    python.chmod(0o755)
    done = install(archive, "--into-current-environment", "--python", str(python))
    assert done.returncode != 0
    assert "belongs to no container, conda or virtual environment" in done.stderr
