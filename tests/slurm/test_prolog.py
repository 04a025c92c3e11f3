"""`preflight slurm prolog`, run cold as slurmd runs it: what it says of a node, what it asks of Slurm, and what a broken set-up costs."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from preflight.model import Report, from_json
from preflight.model.finding import Finding, Part, Verdict
from preflight.slurm.verdicts import NodeVerdict, read_verdict, write_verdict
from tests.nvml_library import build
from tests.slurm import prologs

pytestmark = pytest.mark.cc
BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Folders of driver libraries by name: healthy, sick (a row of GPU 7 could not be remapped), hanging."""
    folder = tmp_path_factory.mktemp("libraries")
    defines = {"healthy": (), "sick": ("REMAP_FAILED",), "hanging": ("HANG_INIT",)}
    return {name: build(folder / name, *each) for name, each in defines.items()}


def test_a_healthy_node_is_told_in_report_log_line_and_metrics_without_asking_slurm(tmp_path, libraries):
    config, calls = prologs.site(tmp_path, slurm="enforce = true"), prologs.slurm_programs(tmp_path)
    done = prologs.run("--config", str(config), library=libraries["healthy"])
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("preflight: prolog of job 4711 on n1: go in ")
    assert done.stderr.count("\n") == 1
    assert not calls.exists()
    report = from_json((tmp_path / "state/reports/node-4711.json").read_bytes(), Report)
    assert (report.answer, report.command, report.run_id) == ("go", "slurm prolog", "node-4711")
    assert len(report.evidence.inventory.nodes[0].gpus) == 8
    found = prologs.metrics(tmp_path / "metrics")
    assert found["preflight_run_answer", "go"] == 1
    assert found["preflight_findings", "gpus_answer PASS"] == 1
    assert not any(value for (name, _), value in found.items() if name == "preflight_run_drain")


def test_a_sick_node_is_only_told_of_until_the_site_enforces(tmp_path, libraries):
    config = prologs.site(tmp_path)
    calls = prologs.slurm_programs(tmp_path)
    done = prologs.run("--config", str(config), library=libraries["sick"])
    assert done.returncode == 0
    assert "no-go" in done.stderr
    assert "preflight:row_remap GPU 7" in done.stderr
    assert "update" not in (calls.read_text() if calls.exists() else "")
    assert prologs.metrics(tmp_path / "metrics")["preflight_run_answer", "no-go"] == 1


def test_where_slurm_does_not_answer_a_sick_node_stays_as_it_is(tmp_path, libraries):
    config = prologs.site(tmp_path, slurm="enforce = true")
    calls = prologs.slurm_programs(
        tmp_path, "echo 'slurm_load_node error: Unable to contact slurm controller' >&2; exit 1"
    )
    done = prologs.run("--config", str(config), library=libraries["sick"])
    assert done.returncode == 0
    assert "not drained" in done.stderr
    assert "Unable to contact slurm controller" in done.stderr
    assert calls.read_text()
    assert prologs.metrics(tmp_path / "metrics")["preflight_run_drain", "failed"] == 1


@pytest.mark.soak
def test_a_slurm_that_hangs_keeps_the_job_no_longer_than_the_budget(tmp_path, libraries):
    config = prologs.site(tmp_path, slurm='enforce = true\nbudget = "4s"')
    prologs.slurm_programs(tmp_path, f"echo $$ >>{tmp_path}/pids; exec /bin/sleep 300")
    done = prologs.run("--config", str(config), library=libraries["sick"])
    assert done.returncode == 0
    assert "not drained" in done.stderr
    assert not any(prologs.alive(int(pid)) for pid in (tmp_path / "pids").read_text().split())


def test_a_gpu_of_another_job_is_none_of_this_ones_business(tmp_path, libraries):
    config = prologs.site(tmp_path, slurm="enforce = true")
    calls = prologs.slurm_programs(tmp_path)
    mine = {"SLURM_JOB_GPUS": "0-3", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    done = prologs.run("--config", str(config), library=libraries["sick"], **mine)
    assert done.returncode == 0
    assert not calls.exists()
    report = from_json((tmp_path / "state/reports/node-4711.json").read_bytes(), Report)
    (told,) = [finding for finding in report.findings if finding.check == "row_remap" and finding.blames]
    assert told.verdict is Verdict.WARN
    assert told.observed.endswith("; not a GPU of this job")


@pytest.mark.soak
def test_a_job_whose_gpus_are_named_by_uuid_is_understood(tmp_path, libraries):
    config = prologs.site(tmp_path)
    mine = {"SLURM_JOB_GPUS": "7", "CUDA_VISIBLE_DEVICES": "GPU-c-7"}
    done = prologs.run("--config", str(config), library=libraries["sick"], **mine)
    assert "no-go" in done.stderr


@pytest.mark.parametrize(
    ("slurm", "environ", "looks"),
    [
        ("", {"SLURM_JOB_COMMENT": "preflight: off"}, False),
        pytest.param("", {"SLURM_JOB_EXTRA": "preflight: off"}, False, marks=pytest.mark.soak),
        ("", {"SLURM_JOB_COMMENT": "preflight: offf"}, True),
        ('when = "opt-in"', {}, False),
        ('when = "opt-in"', {"SLURM_JOB_CONSTRAINTS": "preflight"}, True),
        pytest.param('when = "opt-in"', {"SLURM_JOB_COMMENT": "preflight: on"}, True, marks=pytest.mark.soak),
        ('when = "never"', {"SLURM_JOB_COMMENT": "preflight: on"}, False),
    ],
)
def test_site_and_job_say_whether_the_node_is_looked_at(*, tmp_path, libraries, slurm, environ, looks):
    config = prologs.site(tmp_path, slurm=slurm)
    done = prologs.run("--config", str(config), library=libraries["healthy"], **environ)
    assert done.returncode == 0
    assert (tmp_path / "state").exists() is looks
    assert ("directive" in done.stderr) == ("offf" in str(environ))


# --- what breaks, and lets the job start -------------------------------------------------------------------------------


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
    assert "the node was not judged" in done.stderr
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
    done = subprocess.run(
        [sys.executable, "-c", code, "slurm", "prolog", "--config", str(config)],
        env={
            **prologs.JOB,
            "LD_LIBRARY_PATH": str(libraries["sick"]),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        cwd=prologs.ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == (1 if module == "click" else 3)
    if module != "click":
        assert "Traceback" not in done.stderr
        assert list((tmp_path / "metrics").iterdir()) == [] or unknown(tmp_path / "metrics")


# --- the cached verdict --------------------------------------------------------------------------------------------------


def cached(folder, verdict=Verdict.FAIL, **changes):
    bad = Finding(
        check="slow_part",
        subject="n1",
        verdict=Verdict.FAIL,
        observed="12 GB/s to all others",
        expected="40 GB/s",
        remedy="look at the NIC of n1",
        blames=Part(kind="node", name="n1"),
    )
    now_s = time.time()
    facts = {
        "node": "n1",
        "run_id": "scan-7",
        "verdict": verdict,
        "boot_id": BOOT_ID,
        "written_at_s": now_s - 3600,
        "expires_at_s": now_s + 3600,
        "findings": (bad,) if verdict is Verdict.FAIL else (),
    }
    write_verdict(str(folder / "state"), NodeVerdict(**{**facts, **changes}))


def test_what_the_last_sweep_found_counts(tmp_path, libraries):
    config = prologs.site(tmp_path)
    cached(tmp_path)
    done = prologs.run("--config", str(config), library=libraries["healthy"])
    assert done.returncode == 0
    assert "preflight:slow_part" in done.stderr
    assert "fabric]" in done.stderr
    assert prologs.metrics(tmp_path / "metrics")["preflight_run_answer", "no-go"] == 1


@pytest.mark.parametrize(
    "changes", [{"boot_id": "another"}, {"expires_at_s": 1.0}, {"verdict": Verdict.PASS}, {"verdict": Verdict.UNKNOWN}]
)
def test_one_of_another_boot_or_that_has_expired_or_is_no_fail_does_not(tmp_path, libraries, changes):
    config = prologs.site(tmp_path, slurm="enforce = true")
    calls = prologs.slurm_programs(tmp_path)
    cached(tmp_path, **changes)
    done = prologs.run("--config", str(config), library=libraries["healthy"])
    assert done.returncode == 0
    assert ": go in" in done.stderr
    assert not calls.exists()


NODE = "printf 'NodeName=n1 Arch=x86_64\\n   State={state} ThreadsPerCore=1\\n   Partitions=all\\n{reason}\\n'"


def test_one_for_which_the_node_was_drained_is_dropped_once_an_operator_resumed_it(tmp_path, libraries):
    config = prologs.site(tmp_path, slurm="enforce = true")
    prologs.slurm_programs(tmp_path, NODE.format(state="IDLE", reason=""))
    cached(tmp_path, drained=True)
    done = prologs.run("--config", str(config), library=libraries["healthy"])
    assert done.returncode == 0
    assert "was resumed" in done.stderr
    assert read_verdict(str(tmp_path / "state"), "n1", boot_id=BOOT_ID, now_s=time.time()) == (None, "")


def test_but_counts_for_a_job_that_comes_while_the_node_is_still_drained(tmp_path, libraries):
    config = prologs.site(tmp_path, slurm="enforce = true")
    reason = "   Reason=preflight:slow_part node: 12 GB/s [scan-7, fabric] [root@2026-11-30T12:00:00]"
    prologs.slurm_programs(tmp_path, NODE.format(state="MIXED+DRAIN", reason=reason))
    cached(tmp_path, drained=True)
    done = prologs.run("--config", str(config), library=libraries["healthy"])
    assert done.returncode == 10, done.stderr
    assert prologs.metrics(tmp_path / "metrics")["preflight_run_drain", "kept"] == 1


# --- being ended ---------------------------------------------------------------------------------------------------------


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


# --- what it costs -------------------------------------------------------------------------------------------------------


def test_the_prolog_loads_few_modules_and_none_that_is_heavy(tmp_path, libraries):
    config = prologs.site(tmp_path)
    code = (
        "import sys; from preflight.cli.main import run_command_line; run_command_line(sys.argv[1:]); "
        "print('MODULES', *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "slurm", "prolog", "--config", str(config)],
        env={
            **prologs.JOB,
            "LD_LIBRARY_PATH": str(libraries["healthy"]),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        cwd=prologs.ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    modules = done.stdout.rpartition("MODULES")[2].split()
    others = [name for name in modules if name.partition(".")[0] not in ("preflight", "preflight_checks")]
    heavy = {"torch", "numpy", "aiohttp", "rich", "prometheus_client", "asyncio", "tempfile", "shutil", "logging"}
    assert heavy & {name.partition(".")[0] for name in modules} == set()
    assert not any(name.startswith("preflight.fleet") for name in modules)
    assert len(others) <= 150, len(others)


@pytest.mark.soak
def test_the_report_can_be_judged_again(tmp_path, libraries, capsys):
    from preflight.cli.main import run_command_line

    config = prologs.site(tmp_path)
    prologs.run("--config", str(config), library=libraries["healthy"])
    assert run_command_line(["judge", str(tmp_path / "state/reports/node-4711.json"), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["answer"] == "go"
