"""What breaks around `preflight slurm prolog`, and that it lets the job start and leaves nothing behind: configurations, installations, folders, drivers, signals."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm import prologs

pytestmark = pytest.mark.cc


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Folders of driver libraries by name."""
    return prologs.libraries(tmp_path_factory.mktemp("libraries"))


def unknown(folder):
    """That the metrics say: one UNKNOWN, nothing decided, nothing drained."""
    found = prologs.metrics(folder)
    bad = {
        labels
        for (name, labels), value in found.items()
        if name == "preflight_findings" and "UNKNOWN" in labels and value
    }
    drains = [value for (name, _), value in found.items() if name == "preflight_run_drain"]
    return found["preflight_run_answer", "undecided"] == 1 and len(bad) == 1 and not any(drains)


@pytest.mark.parametrize(
    "text",
    [
        "[slurm]\nbudgets = 3\n",
        "not toml",
        *(
            pytest.param(text, marks=pytest.mark.soak)
            for text in ("[slurm]\nbudget = -1\n", "[slurmd]\n", "[brake]\nnodes = 0\n", "[slurm]\n" * 2)
        ),
    ],
)
def test_a_broken_configuration_lets_the_job_start(tmp_path, libraries, text):
    (tmp_path / "metrics").mkdir()
    config = tmp_path / "preflight.toml"
    config.write_text(text)
    metrics = ("--textfile-dir", str(tmp_path / "metrics"))
    done = prologs.run("--config", str(config), *metrics, library=libraries["sick"])
    assert done.returncode == 78
    assert "nothing was decided" in done.stderr
    assert "Traceback" not in done.stderr
    assert unknown(tmp_path / "metrics")


def test_of_a_configuration_with_one_wrong_key_the_metrics_folder_is_still_read(tmp_path, libraries):
    config = prologs.site(tmp_path, slurm="budgets = 3")
    assert prologs.run("--config", str(config), library=libraries["sick"]).returncode == 78
    assert unknown(tmp_path / "metrics")


def test_but_not_of_one_that_others_can_write(tmp_path, libraries):
    config = prologs.site(tmp_path)
    config.chmod(0o666)
    assert prologs.run("--config", str(config), library=libraries["sick"]).returncode == 78
    assert list((tmp_path / "metrics").iterdir()) == []


@pytest.mark.soak
def test_a_configuration_that_is_named_and_missing_is_a_fault(tmp_path, libraries):
    done = prologs.run("--config", str(tmp_path / "gone.toml"), library=libraries["sick"])
    assert done.returncode == 78


def test_a_missing_library_of_the_driver_is_no_healthy_node(tmp_path):
    config = prologs.site(tmp_path, slurm="enforce = true")
    calls = prologs.slurm_programs(tmp_path)
    done = prologs.run("--config", str(config), library=tmp_path)
    assert done.returncode == 3
    assert "undecided" in done.stderr
    assert unknown(tmp_path / "metrics")
    assert not calls.exists()


def test_a_hanging_driver_lets_the_job_start_and_its_reader_is_gone(tmp_path, libraries):
    config = prologs.site(tmp_path, slurm='enforce = true\nbudget = "4s"')
    calls = prologs.slurm_programs(tmp_path)
    done = prologs.run("--config", str(config), library=libraries["hanging"])
    assert done.returncode == 3
    assert "NVML did not answer" in done.stderr
    assert unknown(tmp_path / "metrics")
    assert not calls.exists()


def test_a_budget_that_is_too_short_for_anything_is_kept(tmp_path, libraries):
    config = prologs.site(tmp_path, slurm='budget = "10ms"')
    done = prologs.run("--config", str(config), library=libraries["sick"])
    assert done.returncode == 3
    assert "its time was over" in done.stderr
    assert unknown(tmp_path / "metrics")


@pytest.mark.parametrize("what", ["file", "link", "open"])
def test_a_state_folder_that_can_not_be_used_costs_the_report_alone(tmp_path, libraries, what):
    config = prologs.site(tmp_path, slurm="enforce = true")
    state = tmp_path / "state"
    if what == "file":
        state.write_text("")
    elif what == "link":
        state.symlink_to(tmp_path)
    else:
        state.mkdir()
        state.chmod(0o777)
    done = prologs.run("--config", str(config), library=libraries["healthy"])
    assert done.returncode == 3
    assert unknown(tmp_path / "metrics")
    assert "slurm_prolog" in done.stderr


@pytest.mark.soak
def test_metrics_that_can_not_be_written_cost_nothing_else(tmp_path, libraries):
    config = prologs.site(tmp_path)
    (tmp_path / "metrics").rmdir()
    done = prologs.run("--config", str(config), library=libraries["healthy"])
    assert done.returncode == 0
    assert "metrics can't be written" in done.stderr


@pytest.mark.parametrize("module", ["msgspec", "click", "preflight.judge.run", "preflight.slurm.look"])
def test_a_broken_installation_decides_nothing(tmp_path, libraries, module):
    """Neither 0 nor 10, so that the script tells it; and where preflight itself still runs, one UNKNOWN."""
    config = prologs.site(tmp_path, slurm="enforce = true")
    code = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from preflight.cli.main import run_command_line; sys.exit(run_command_line(sys.argv[1:]))"
    )
    done = prologs.run_code(code, config, libraries["sick"])
    assert done.returncode == (1 if module == "click" else 3)
    if module != "click":
        assert "Traceback" not in done.stderr
        assert list((tmp_path / "metrics").iterdir()) == [] or unknown(tmp_path / "metrics")


def children(pid):
    done = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(each) for each in done.stdout.split()]


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        *(pytest.param(n, marks=pytest.mark.soak) for n in (signal.SIGINT, signal.SIGHUP)),
        signal.SIGKILL,
    ],
)
def test_a_prolog_that_is_ended_leaves_no_child_no_lock_and_no_file(tmp_path, libraries, number):
    config = prologs.site(tmp_path, slurm='enforce = true\nbudget = "60s"')
    environ = {**prologs.JOB, "LD_LIBRARY_PATH": str(libraries["hanging"])}
    command = [sys.executable, "-m", "preflight", "slurm", "prolog", "--config", str(config)]
    with subprocess.Popen(command, env=environ, cwd=prologs.ROOT, stderr=subprocess.PIPE, text=True) as running:
        prologs.wait_until(lambda: children(running.pid), "the driver is being asked")
        (reader,) = children(running.pid)
        prologs.wait_until(lambda: "nvml_child" in (Path("/proc") / str(reader) / "cmdline").read_text(), "its reader")
        prologs.wait_until(lambda: hangs(reader), "the driver hangs")
        running.send_signal(number)
        code = running.wait(60)
        assert code == (-9 if number == signal.SIGKILL else 3)
        prologs.wait_until(lambda: not prologs.alive(reader), "the reader is gone")
    left = [
        path.name
        for folder in (tmp_path / "state", tmp_path / "metrics")
        for path in folder.rglob("*")
        if path.is_file()
    ]
    assert left == ([] if number == signal.SIGKILL else ["preflight-slurm-prolog-n1.prom"])


def hangs(pid):
    """Whether it waits in the library."""
    return "libnvidia-ml" in (Path("/proc") / str(pid) / "maps").read_text() and prologs.of_group(pid, states="S") == [
        pid
    ]
