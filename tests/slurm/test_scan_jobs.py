"""What the scan asks of sbatch, squeue and scancel, with recorded answers of 22.05 in their place (what real Slurm makes of it: test_scan_cluster.py)."""

import os
from pathlib import Path

import pytest

from preflight.config import ScanSite, Site, SlurmSite, read_config
from preflight.errors import ConfigError, SlurmError
from preflight.model import to_json
from preflight.plan.planfile import read_job
from preflight.slurm import scan_jobs
from preflight.slurm.commands import Slurm
from preflight.slurm.scan_files import keep_newest, last_words, make_out, read_report
from preflight.slurm.scan_jobs import Waiting, wants
from preflight.slurm.scan_nodes import Kind
from preflight.slurm.scan_plan import command_of, roots_of, write_plan
from tests.slurm.standin_run import report_of

KIND = Kind("gpu", "gpu:h100:8", "")


@pytest.fixture
def slurm(tmp_path):
    """Slurm's programs, each of which writes down its arguments and answers with the file of its name."""
    for name in ("scontrol", "sbatch", "squeue", "scancel"):
        path = tmp_path / name
        path.write_text(
            f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/{name}.asked\n[ -e {path}.fails ] && cat {path}.fails >&2 && exit 1\nexec cat {path}.says\n'
        )
        path.chmod(0o755)
        (tmp_path / f"{name}.says").touch()
    return Slurm(str(tmp_path))


def asked(tmp_path: Path, name: str) -> list[str]:
    return (tmp_path / f"{name}.asked").read_text().splitlines()


def test_a_job_is_small_exclusive_short_modest_and_bypasses_our_prologs(slurm, tmp_path):
    (tmp_path / "sbatch.says").write_text("4711;cluster\n")
    folder = tmp_path / "a folder; with $(words)"
    folder.mkdir()
    site = ScanSite(qos="scavenger", account="ops", time_limit_s=200)
    job = scan_jobs.submit(slurm, ["n9", "n10"], KIND, site, folder=folder, command=["/opt/preflight", "run", "it's"])
    assert job == "4711"
    words = asked(tmp_path, "sbatch")
    expected = {
        "--parsable",
        "--job-name=preflight-scan",
        "--comment=preflight: off",
        "--nodelist=n[9-10]",
        "--nodes=2",
    }
    expected |= {"--exclusive", "--no-requeue", "--time=4", "--gres=gpu:h100:8", "--qos=scavenger", "--account=ops"}
    assert expected <= set(words)
    assert any(word.startswith("--nice=") for word in words)
    assert any(word.startswith("--deadline=now+") for word in words)
    script = (folder / "job.sh").read_text()
    assert script.endswith("/opt/preflight run 'it'\"'\"'s'\n")
    assert f"exec {tmp_path}/srun --export=ALL --ntasks=2" in script


@pytest.mark.parametrize("name", ["n1,n2", "ALL", "", "n[1-2]", "-w"])
def test_a_name_that_is_not_one_plain_node_goes_into_no_job(slurm, tmp_path, name):
    with pytest.raises(SlurmError):
        scan_jobs.submit(slurm, [name], KIND, ScanSite(), folder=tmp_path, command=["x"])
    assert not (tmp_path / "sbatch.asked").exists()


@pytest.mark.parametrize("said", ["", "Submitted batch job 1", "-1", "1; rm"])
def test_an_answer_of_sbatch_that_is_no_number_is_an_error(slurm, tmp_path, said):
    (tmp_path / "sbatch.says").write_text(said)
    if said == "1; rm":
        assert scan_jobs.submit(slurm, ["n1"], KIND, ScanSite(), folder=tmp_path, command=["x"]) == "1"
    else:
        with pytest.raises(SlurmError):
            scan_jobs.submit(slurm, ["n1"], KIND, ScanSite(), folder=tmp_path, command=["x"])


def test_our_jobs_are_known_by_name_and_user(slurm, tmp_path):
    (tmp_path / "squeue.says").write_text("12|PENDING|\n13|RUNNING|n[1-2]\n14|COMPLETING|n4\n")
    own = scan_jobs.own_jobs(slurm)
    assert {job.id: (job.state, job.nodes) for job in own.values()} == {
        "12": ("PENDING", ()),
        "13": ("RUNNING", ("n1", "n2")),
        "14": ("COMPLETING", ("n4",)),
    }
    assert {f"--user={os.geteuid()}", "--name=preflight-scan"} <= set(asked(tmp_path, "squeue"))


def test_users_jobs_that_could_start_are_waiting_and_others_are_not(slurm, tmp_path):
    (tmp_path / "squeue.says").write_text(
        "1|gpu|4||Resources\n2|gpu,cpu|1-4|n[1-2]|Priority\n3|gpu|1||JobHeldUser\n4|gpu|1||BeginTime\n5|gpu|1||Dependency\n"
        "6|gpu|2||None\n7|gpu|1||ReqNodeNotAvail, UnavailableNodes:n3\n8|gpu|1||AssocGrpGRES\n9|gpu|1||Licenses\nnonsense\n10|gpu|?||(Resources)\n"
    )
    found = {job.id: (job.nodes, job.named) for job in scan_jobs.waiting_jobs(slurm, ["6"])}
    assert found == {"1": (4, ()), "2": (1, ("n1", "n2")), "7": (1, ()), "10": (None, ())}


@pytest.mark.parametrize(
    ("job", "yields"),
    [
        (Waiting("1", ("gpu",), "Resources", 4, ()), True),
        (Waiting("1", ("gpu",), "Resources", 5, ()), False),  # would not start without ours either
        (Waiting("1", ("gpu",), "Resources", None, ()), True),
        (Waiting("1", ("cpu", "gpu"), "Priority", 1, ()), True),
        (Waiting("1", ("cpu",), "Resources", 1, ()), False),
        (Waiting("1", ("gpu",), "Resources", 1, ("n1",)), True),
        (Waiting("1", ("gpu",), "Resources", 1, ("n7",)), False),
    ],
)
def test_a_job_that_could_start_on_our_nodes_wants_them(job, yields):
    assert wants(job, ["n1", "n2"], ["gpu", "all"], 2) is yields


def test_jobs_that_have_ended_by_themselves_are_cancelled_without_complaint(slurm, tmp_path):
    scan_jobs.cancel(slurm, ["3", "12"])
    assert asked(tmp_path, "scancel") == ["12", "3"]
    (tmp_path / "scancel.fails").write_text("scancel: error: Kill job error on job id 3: Invalid job id specified\n")
    scan_jobs.cancel(slurm, ["3"])
    (tmp_path / "scancel.fails").write_text("scancel: error: Kill job error on job id 3: Access/permission denied\n")
    with pytest.raises(SlurmError, match="denied"):
        scan_jobs.cancel(slurm, ["3"])


def test_without_a_plan_of_the_site_all_pairs_and_the_whole_are_measured_with_the_sites_topology(tmp_path):
    topology = tmp_path / "topology.conf"
    topology.write_text(
        "SwitchName=leaf1 Nodes=n[1-2]\nSwitchName=leaf2 Nodes=n3\nSwitchName=spine Switches=leaf[1-2]\nSwitchName=alone Nodes=n4\n"
    )
    site = Site(slurm=SlurmSite(topology=str(topology)))
    (tmp_path / "job").mkdir()
    job = read_job(write_plan(tmp_path / "job", KIND, site))
    assert job.parallel.tp == 1
    assert job.launch.topology == str(tmp_path / "job" / "topology")
    assert job.hardware.backend != "gloo"
    assert read_job(write_plan(tmp_path / "job", Kind("gpu", "", ""), site)).hardware.backend == "gloo"
    assert roots_of(str(topology)) == {"n1": "spine", "n2": "spine", "n3": "spine", "n4": "alone"}
    assert roots_of(None) is None


def test_a_job_runs_the_sites_preflight_and_remembers_how_far_it_came(tmp_path):
    site = Site(scan=ScanSite(command=("/opt/torch/bin/preflight",), budget_s=90))
    words = command_of(tmp_path / "plan.toml", tmp_path / "state.json", site)
    assert words[:3] == ["/opt/torch/bin/preflight", "run", str(tmp_path / "plan.toml")]
    assert words[3:] == ["--budget", "90s", "--out", str(tmp_path), "--state", str(tmp_path / "state.json")]


def test_a_plan_of_the_site_that_can_not_be_read_is_said(tmp_path):
    with pytest.raises(ConfigError, match="can't be read"):
        write_plan(tmp_path, KIND, Site(scan=ScanSite(plan=str(tmp_path / "missing.toml"))))


def test_a_report_on_other_nodes_than_the_jobs_is_not_believed(tmp_path):
    assert read_report(tmp_path, ["n1", "n2"]) is None
    (tmp_path / "report.json").write_bytes(to_json(report_of(("n1", "n2"), [])))
    assert read_report(tmp_path, ["n1", "n2"]) is not None
    with pytest.raises(Exception, match="is about n1"):
        read_report(tmp_path, ["n2", "n3"])
    (tmp_path / "report.json").write_text("{")
    with pytest.raises(ConfigError):
        read_report(tmp_path, ["n1", "n2"])


def test_a_job_without_a_report_says_why_as_far_as_it_can_be_told(tmp_path):
    assert "on a file system that the nodes share" in last_words(tmp_path)
    (tmp_path / "job.log").write_text("one\nsrun: error: no preflight\n\n")
    assert last_words(tmp_path).endswith("srun: error: no preflight")
    (tmp_path / "job.log").write_text("preflight: munge is not there\nsrun: error: task 0\n")
    assert last_words(tmp_path).endswith("preflight: munge is not there")


def test_only_the_newest_folders_of_jobs_are_kept_and_nothing_else_is_touched(tmp_path, monkeypatch):
    monkeypatch.setattr("preflight.slurm.scan_files.KEPT_FOLDERS", 2)
    names = [f"2026010{day}T000000Z-abcdef-0001" for day in range(1, 6)]
    for name in (*names, "mine"):
        (tmp_path / name).mkdir()
    keep_newest(tmp_path, {tmp_path / names[0]})
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([names[0], *names[3:], "mine"])


def test_the_keys_of_the_scan_are_read(tmp_path):
    path = tmp_path / "preflight.toml"
    path.write_text(
        '[scan]\nsweep = "30m"\nage = "72h"\nout = "/shared/scan"\ncommand = ["/opt/bin/preflight"]\nqos = "low"\n'
    )
    path.chmod(0o600)
    scan = read_config(path).scan
    assert (scan.sweep_s, scan.age_s, scan.out, scan.command) == (
        1800,
        3 * 86400,
        "/shared/scan",
        ("/opt/bin/preflight",),
    )


def test_a_job_that_would_be_ended_before_its_budget_is_refused(tmp_path):
    path = tmp_path / "preflight.toml"
    path.write_text('[scan]\nbudget = "5m"\ntime_limit = "4m"\n')
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=r"scan.time_limit: 240 s would end a job before its budget of 300 s"):
        read_config(path)


def test_a_folder_into_which_others_can_lay_reports_and_scripts_is_refused(tmp_path):
    made = tmp_path / "scan"
    make_out(made)
    make_out(made)
    assert made.stat().st_mode & 0o777 == 0o700
    made.chmod(0o1777)
    with pytest.raises(ConfigError, match="others can write to it"):
        make_out(made)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError):
        make_out(tmp_path / "file")


@pytest.mark.root
def test_so_is_one_of_another_user(tmp_path):
    made = tmp_path / "scan"
    made.mkdir(mode=0o700)
    os.chown(made, 1234, 1234)
    with pytest.raises(ConfigError, match="user 1234"):
        make_out(made)
