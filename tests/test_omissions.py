"""What this machine can't test is said, never hidden."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NEEDY = """
import pytest

@pytest.mark.cc
def test_with_a_compiler(): pass

@pytest.mark.debian("gcc", "no-such-program")
def test_with_a_package(): pass

@pytest.mark.gpu
def test_with_a_gpu(): pass

@pytest.mark.soak
def test_for_hours(): pass

def test_with_nothing(): pass
"""


def run_pytest(folder: Path, *options: str, tests: str = NEEDY) -> subprocess.CompletedProcess[str]:
    """Our conftest.py over other tests, where no program is to be found."""
    for name in ("conftest.py", "debian-packages.txt"):
        shutil.copy(HERE / name, folder)
    (folder / "test_needy.py").write_text(tests)
    markers = "".join(f"    {mark}\n" for mark in ("fabric", "cc", "root", "debian", "gpu", "soak", "bench"))
    (folder / "pytest.ini").write_text(
        f"[pytest]\naddopts = -p no:cacheprovider --strict-markers\nmarkers =\n{markers}"
    )
    command = [sys.executable, "-m", "pytest", *options]
    environment = {"PATH": str(folder / "empty")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def no_gpu():
    if Path("/proc/driver/nvidia").exists() or Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")


def test_what_was_left_out_is_listed_at_the_end_with_how_to_get_it(tmp_path, no_gpu):
    done = run_pytest(tmp_path)
    assert done.returncode == 0
    assert "1 passed, 3 skipped, 1 deselected" in done.stdout
    end = done.stdout.partition("left out on this machine")[2]
    assert "1 test needs a C compiler: apt-get install gcc libc6-dev" in end
    assert "1 test needs Debian package gcc: apt-get install gcc" in end
    assert "1 test needs an NVIDIA GPU" in end


def test_several_processes_have_whole_files_each_and_list_what_each_of_them_left_out(tmp_path, no_gpu):
    (tmp_path / "test_also.py").write_text("def test_one(): pass\ndef test_two(): pass\ndef test_three(): pass\n")
    shares = re.search("-n 3 (.*)", (HERE.parent / "Makefile").read_text())[1].split()
    done = run_pytest(tmp_path, "-v", "-n", "2", *shares)
    assert "4 passed, 3 skipped" in done.stdout
    assert "1 test needs a C compiler" in done.stdout.partition("left out on this machine")[2]
    # what a file's tests share is set up once: one process has them all
    ran = set(re.findall(r"\[(gw\d)\] .*(test_\w+\.py)::", done.stdout))
    assert sorted(file for _, file in ran) == ["test_also.py", "test_needy.py"]


def test_under_no_omissions_each_one_is_an_error_but_for_the_gpu(tmp_path, no_gpu):
    done = run_pytest(tmp_path, "--no-omissions")
    assert done.returncode == 1
    assert "1 passed, 1 skipped, 1 deselected, 2 errors" in done.stdout


def test_soak_and_bench_run_only_when_asked_for(tmp_path):
    assert "1 passed, 4 deselected" in run_pytest(tmp_path, "-m", "soak").stdout


def test_a_debian_package_that_ci_would_not_install_is_refused(tmp_path):
    done = run_pytest(tmp_path, tests="import pytest\n@pytest.mark.debian('nowhere')\ndef test_it(): pass\n")
    assert done.returncode == 4
    assert "tests need the Debian package nowhere" in done.stderr + done.stdout
