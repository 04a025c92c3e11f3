"""`preflight slurm prolog`, run cold as slurmd runs it: what it says of a node, what it asks of Slurm, and what it loads."""

import json
import time
from pathlib import Path

import pytest

from preflight.cli.main import run_command_line
from preflight.model import Report, from_json
from preflight.model.finding import Finding, Part, Verdict
from preflight.slurm.verdicts import NodeVerdict, read_verdict, write_verdict
from tests.slurm import prologs

pytestmark = pytest.mark.cc
BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Folders of driver libraries by name."""
    return prologs.libraries(tmp_path_factory.mktemp("libraries"))


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


def test_what_the_last_sweep_found_counts_and_can_be_read_in_the_report(tmp_path, libraries, capsys):
    config = prologs.site(tmp_path)
    cached(tmp_path)
    done = prologs.run("--config", str(config), library=libraries["healthy"])
    assert done.returncode == 0
    assert "preflight:slow_part" in done.stderr
    assert "fabric]" in done.stderr
    found = prologs.metrics(tmp_path / "metrics")
    assert found["preflight_run_answer", "no-go"] == found["preflight_findings", "cached_verdict FAIL"] == 1
    assert run_command_line(["judge", str(tmp_path / "state/reports/node-4711.json")]) == 10
    told = capsys.readouterr()
    assert "slow_part: 12 GB/s to all others (1.0 h ago, scan-7)" in " ".join(told.out.split())
    assert "differ" not in told.err


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


@pytest.mark.soak
def test_where_slurm_does_not_answer_it_neither_counts_nor_is_forgotten(tmp_path, libraries):
    config = prologs.site(tmp_path, slurm="enforce = true")
    prologs.slurm_programs(tmp_path)
    cached(tmp_path, drained=True)
    done = prologs.run("--config", str(config), library=libraries["healthy"])
    assert done.returncode == 0
    assert "can't be found out" in done.stderr
    assert read_verdict(str(tmp_path / "state"), "n1", boot_id=BOOT_ID, now_s=time.time())[0] is not None


def test_but_counts_for_a_job_that_comes_while_the_node_is_still_drained(tmp_path, libraries):
    config = prologs.site(tmp_path, slurm="enforce = true")
    reason = "   Reason=preflight:slow_part node: 12 GB/s [scan-7, fabric] [root@2026-11-30T12:00:00]"
    prologs.slurm_programs(tmp_path, NODE.format(state="MIXED+DRAIN", reason=reason))
    cached(tmp_path, drained=True)
    done = prologs.run("--config", str(config), library=libraries["healthy"])
    assert done.returncode == 10, done.stderr
    assert prologs.metrics(tmp_path / "metrics")["preflight_run_drain", "kept"] == 1


# --- what it costs -------------------------------------------------------------------------------------------------------


def test_the_prolog_loads_few_modules_and_none_that_is_heavy(tmp_path, libraries):
    config = prologs.site(tmp_path)
    code = (
        "import sys; from preflight.cli.main import run_command_line; run_command_line(sys.argv[1:]); "
        "print('MODULES', *sys.modules)"
    )
    done = prologs.run_code(code, config, libraries["healthy"])
    modules = done.stdout.rpartition("MODULES")[2].split()
    others = [name for name in modules if name.partition(".")[0] not in ("preflight", "preflight_checks")]
    heavy = {"torch", "numpy", "aiohttp", "rich", "prometheus_client", "asyncio", "tempfile", "shutil", "logging"}
    assert heavy & {name.partition(".")[0] for name in modules} == set()
    assert not any(name.startswith("preflight.fleet") for name in modules)
    assert len(others) <= 150, len(others)


@pytest.mark.soak
def test_the_report_can_be_judged_again(tmp_path, libraries, capsys):
    config = prologs.site(tmp_path)
    prologs.run("--config", str(config), library=libraries["healthy"])
    assert run_command_line(["judge", str(tmp_path / "state/reports/node-4711.json"), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["answer"] == "go"
