"""What is installed: both packages, their data, and no torch unless asked for."""

import subprocess
import sys
import zipfile
from importlib.metadata import requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            str(ROOT),
            "--no-deps",
            "--no-build-isolation",
            "--quiet",
            "--wheel-dir",
            str(folder),
        ],
        check=True,
        timeout=120,
    )
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as opened:
        yield opened


def test_the_wheel_holds_both_packages_with_their_data_and_nothing_else(wheel):
    names = wheel.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"preflight", "preflight_checks"}
    assert {"preflight/py.typed", "preflight_checks/py.typed", "preflight/profiles/h100-80gb.toml"} <= {
        n.lower() for n in names
    }


def test_the_wheel_offers_the_command_and_the_checks(wheel):
    entries = next(wheel.read(name).decode() for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "preflight = preflight.__main__:main" in entries
    assert "builtin = preflight_checks:CHECKS" in entries


def test_torch_is_asked_for_only_by_the_extra_and_only_as_a_range():
    torch = [line for line in requires("cluster-preflight") if line.startswith("torch")]
    assert [line.replace("'", '"') for line in torch] == ['torch>=2.4; extra == "fabric"']


@pytest.mark.parametrize("script", ["deploy/make/setup.sh", "deploy/bundle/install.sh"])
def test_a_python_that_is_too_old_is_said_clearly(script, tmp_path):
    old = tmp_path / "python-old"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2" && exit 0\nexit 1\n')
    old.chmod(0o755)
    done = subprocess.run(
        ["sh", script],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(old)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    assert "3.10 or newer" in done.stderr
