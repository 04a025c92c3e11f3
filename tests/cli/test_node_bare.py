"""`preflight node` where a system gives little: no environment, no /sys, a root that can't be written to. Over a compiled stand-in of eight GPUs."""

import shutil
import subprocess
import sys

import pytest

from tests.nvml_library import build

pytestmark = pytest.mark.cc

NODE = (sys.executable, "-m", "preflight", "node")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("nvml") / "lib")


def run(library, *command, **more):
    environment = {"LD_LIBRARY_PATH": str(library)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False, **more)
    assert "Traceback" not in done.stderr
    return done


def in_own_mounts(library, change, *arguments):
    """The command after `change`, in a mount namespace of its own; skipped where this root may not make one."""
    unshare, shell = shutil.which("unshare"), shutil.which("sh")
    if unshare is None or subprocess.run([unshare, "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace can be made here")
    script = f'mount --make-rprivate / && {change} || exit 99; exec "$@"'
    search = "PATH=/usr/sbin:/usr/bin:/sbin:/bin; "
    done = run(library, unshare, "-m", shell, "-c", search + script, "sh", *NODE, *arguments)
    if done.returncode == 99:
        pytest.skip("nothing can be mounted here")
    return done


def test_without_any_environment_and_path_the_gpus_are_still_judged(library):
    done = run(library, *NODE)
    assert done.returncode in (0, 3)
    assert "8 GPUs answer" in done.stdout


@pytest.mark.root
def test_without_sys_what_it_would_have_told_is_unknown_and_the_rest_stays(library):
    done = in_own_mounts(library, "mount -t tmpfs none /sys")
    assert done.returncode == 3
    assert "8 GPUs answer" in done.stdout
    assert "UNKNOWN hca_ports" in done.stdout
    assert "FAIL" not in done.stdout


@pytest.mark.root
def test_a_root_that_cannot_be_written_to_costs_the_snapshot_only(library, tmp_path):
    read_only = "mount -o remount,bind,ro /"
    snapshot = tmp_path / "node.json"
    done = in_own_mounts(library, f"{read_only} && ! touch {tmp_path}/x 2>/dev/null", "--save", str(snapshot))
    assert done.returncode == 3
    assert "8 GPUs answer" in done.stdout
    assert "can't be written: Read-only file system" in done.stderr
    assert not snapshot.exists()
