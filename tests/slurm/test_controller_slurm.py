"""The controller prolog before real jobs of a real Slurm: what is drained, requeued, held and told. The measuring is simulated; what Slurm does with the outcome is not."""

import contextlib
import subprocess
import threading

import msgspec
import pytest

from preflight.fleet.simulated import simulated_world
from preflight.probe.simulate import Fault, plain_cluster
from preflight.slurm.controller import run_controller
from preflight.slurm.controller_act import HELD, REQUEUED, WARNED, commented
from preflight.slurm.controller_record import Records
from preflight.slurm.reason import check_of
from tests.cluster.slurm import NEEDS, slurm_cluster

pytestmark = NEEDS
NODES = ("n1", "n2", "n3", "n4")
# what slurmctld runs: leaves its variables for the test, and ends with the code that the test gives
WAIT = """#!/bin/sh
mark=$SLURM_JOB_ID-$SLURM_JOB_RESTART_COUNT
/usr/bin/env -0 >{folder}/new-$mark
/bin/mv {folder}/new-$mark {folder}/env-$mark
looks=0
while [ ! -s {folder}/code-$mark ] && [ $looks -lt 1200 ]; do /bin/sleep 0.05; looks=$((looks + 1)); done
read code <{folder}/code-$mark
exit "$code"
"""
SITE = """
[slurm]
enforce = {enforce}
state_dir = "{state}"
textfile_dir = "{metrics}"
nobody_guilty = "{nobody}"
requeues = {requeues}
[brake]
percent = 100
settle = "0.1s"
jitter = "0s"
[agent]
port = 1
"""


@pytest.fixture(scope="module")
def cluster():
    config = "AuthInfo=socket={cluster}/munge/socket,cred_expire=5\nSchedulerParameters=sched_interval=2,bf_interval=2\nPrologEpilogTimeout=90\n"
    with slurm_cluster(namespaces=False, prolog_slurmctld="{cluster}/wait", config=config) as cluster:
        script = cluster.folder / "wait"
        script.write_text(WAIT.format(folder=cluster.folder))
        script.chmod(0o755)
        yield cluster


class Site:
    """The controller's set-up, and its prolog run as slurmctld would run it."""

    def __init__(self, cluster, folder, monkeypatch):
        self.cluster, self.folder = cluster, folder
        monkeypatch.setenv("SLURM_CONF", str(cluster.folder / "slurm.conf"))
        (folder / "metrics").mkdir()
        self.configure()

    def configure(self, *, enforce=True, nobody="hold", requeues=2):
        told = {"enforce": str(enforce).lower(), "nobody": nobody, "requeues": requeues}
        state, metrics = self.folder / "state", self.folder / "metrics"
        (self.folder / "site.toml").write_text(SITE.format(state=state, metrics=metrics, **told))

    def variables(self, job, restart=0):
        """What slurmctld told the prolog of this start of the job, as soon as it is run."""
        path = self.cluster.folder / f"env-{job}-{restart}"
        self.cluster.wait_for(path.exists, f"the prolog of job {job}, restart {restart}")
        return dict(text.split("=", 1) for text in path.read_text().split("\0") if "=" in text)

    def prolog(self, job, *faults, restart=0, agents=True):
        """The exit code of preflight before this start of the job, nodes and links as planted; `agents` False: nobody listens."""
        modelled = msgspec.structs.replace(plain_cluster((4,), faults=faults, noise=0.01), nodes=NODES)
        world = simulated_world(modelled, 0, "c.toml")[0] if agents else None
        config = str(self.folder / "site.toml")
        return run_controller(self.variables(job, restart), config=config, world=world)

    def end(self, job, code, restart=0):
        """Let slurmctld's own prolog end with this code."""
        (self.cluster.folder / f"code-{job}-{restart}").write_text(f"{code}\n")

    def metric(self, name):
        text = next((self.folder / "metrics").iterdir()).read_text()
        return [line for line in text.splitlines() if line.startswith(name) and line.endswith(" 1.0")]


@pytest.fixture
def site(cluster, tmp_path, monkeypatch):
    tmp_path.chmod(0o755)
    yield Site(cluster, tmp_path, monkeypatch)
    for path in cluster.folder.glob("env-*"):
        (cluster.folder / path.name.replace("env", "code")).write_text("0\n")
    cluster.reset()


SLOW = Fault(kind="node", nodes=("n2",), depth=0.4)


def submit(cluster, *options, nodes=3, gpus=8):
    return cluster.sbatch(f"--nodes={nodes}", f"--gres=gpu:{gpus}", "--requeue", *options, script="sleep 60")


def test_a_slow_node_is_drained_and_the_job_runs_on_the_others(cluster, site, capfd):
    job = submit(cluster)
    assert site.prolog(job, SLOW) == 10
    assert cluster.drained() == {"n2"}
    reason = cluster.node("n2").reason
    assert check_of(reason) == "slow_part"
    assert f"[controller-{job}, fabric]" in reason
    assert (site.folder / "state" / "reports" / f"controller-{job}.json").exists()
    assert site.metric("preflight_run_drain") == [
        line for line in site.metric("preflight_run_drain") if 'result="drained"' in line
    ]
    assert "seen again: slow_part on n2" in capfd.readouterr().err

    # slurmctld was stopped before it heard of it, and starts the prolog once more: nothing is measured or drained again
    assert site.prolog(job, agents=False) == 10
    assert "decided before" in capfd.readouterr().err

    site.end(job, 10)
    assert "n2" not in site.variables(job, restart=1)["SLURM_JOB_NODELIST"]
    assert site.prolog(job, restart=1) == 0
    site.end(job, 0, restart=1)
    assert cluster.wait_for_job(job, "RUNNING")["NodeList"] == "n[1,3-4]"
    assert REQUEUED in cluster.job(job)["AdminComment"]


@pytest.mark.soak
def test_a_drain_that_was_done_but_not_recorded_is_found_done(cluster, site):
    job = submit(cluster)
    assert site.prolog(job, SLOW) == 10
    with Records(str(site.folder / "state")) as records:
        record = records.read(job, 0)
        records.keep(msgspec.structs.replace(record, exit_code=None))
    assert site.prolog(job, agents=False) == 10


@pytest.mark.soak
def test_a_foreign_reason_is_kept_and_the_job_starts(cluster, site):
    job = submit(cluster)
    site.variables(job)
    cluster.run("scontrol", "update", "nodename=n2", "state=drain", "reason=ours: fan broken")
    assert site.prolog(job, SLOW) == 0
    assert cluster.node("n2").reason == "ours: fan broken"
    assert cluster.drained() == {"n2"}


@pytest.mark.soak
def test_nothing_is_changed_until_the_site_enforces(cluster, site, capfd):
    site.configure(enforce=False)
    job = submit(cluster)
    assert site.prolog(job, SLOW) == 0
    assert cluster.drained() == set()
    assert cluster.job(job)["JobState"] == "CONFIGURING"
    assert "would drain n2 (enforce is off)" in capfd.readouterr().err


@pytest.mark.soak
def test_a_job_is_never_requeued_for_ever(cluster, site):
    site.configure(requeues=0)
    job = submit(cluster)
    assert site.prolog(job, SLOW) == 0
    assert cluster.drained() == {"n2"}
    assert cluster.job(job)["JobState"] == "PENDING"
    assert "slow_part node" in cluster.job(job)["Comment"]
    site.end(job, 0)
    assert cluster.job(job)["Priority"] == "0"
    site.configure(requeues=0, nobody="warn")
    cluster.run("scontrol", "update", "nodename=n2", "state=resume")
    cluster.run("scontrol", "release", str(job))
    site.variables(job, restart=1)
    assert site.prolog(job, SLOW, restart=1) == 0
    assert cluster.job(job)["JobState"] == "CONFIGURING"


def test_a_plan_that_no_node_is_guilty_of_holds_the_job_and_keeps_the_users_comment(cluster, site):
    job = submit(cluster, "--comment=mine; preflight: tp=16; and more", nodes=2)
    site.variables(job)
    assert site.prolog(job) == 0
    assert cluster.drained() == set()
    told = cluster.run("scontrol", "show", "job", str(job))
    assert "JobState=PENDING" in told
    assert f"Comment=mine; preflight: tp=16; and more; {HELD}tp_in_nvlink_domain tp0" in told
    assert "lower tp from 16 to 8" in told


@pytest.mark.soak
def test_a_job_of_srun_cannot_be_held_and_is_told_on_its_terminal(cluster, site):
    said = []
    words = ("srun", "--time=1", "-N2", "--gres=gpu:8", "--comment=preflight: tp=16", "hostname")

    def start():
        with contextlib.suppress(subprocess.CalledProcessError):
            done = subprocess.run(
                words, env=cluster.environment, capture_output=True, text=True, timeout=90, check=False
            )
            said.append((done.returncode, done.stderr))

    running = threading.Thread(target=start)
    running.start()
    cluster.wait_for(lambda: cluster.run("squeue", "-h", "-o", "%i").strip(), "the job")
    job = int(cluster.run("squeue", "-h", "-o", "%i"))
    assert site.prolog(job) == 0
    site.end(job, 0)
    running.join(90)
    assert said[0][0] == 0
    assert f"{WARNED}tp_in_nvlink_domain" in said[0][1]


@pytest.mark.soak
def test_a_plan_that_does_not_fit_the_job_is_told_to_its_owner_and_the_job_starts(cluster, site):
    job = submit(cluster, "--comment=preflight: tp=16", nodes=3)
    assert site.prolog(job) == 0
    assert cluster.job(job)["JobState"] == "CONFIGURING"
    told = cluster.run("scontrol", "show", "job", str(job))
    assert f"AdminComment={WARNED}the jobs comment: parallel: tp 16" in told
    assert site.metric("preflight_findings") == [
        line for line in site.metric("preflight_findings") if "UNKNOWN" in line
    ]


def test_agents_that_do_not_answer_let_the_job_start(cluster, site, capfd):
    job = submit(cluster)
    assert site.prolog(job, agents=False) == 0
    assert cluster.drained() == set()
    assert cluster.job(job)["JobState"] == "CONFIGURING"
    assert 'answer="undecided"' in site.metric("preflight_run_answer")[0]
    assert "the job starts" in capfd.readouterr().err


@pytest.mark.soak
def test_a_job_that_was_cancelled_meanwhile_drains_nobody(cluster, site, monkeypatch):
    from preflight.slurm import controller_run

    run, job = controller_run._run, submit(cluster)

    def cancelled(*arguments, **named):
        report = run(*arguments, **named)
        cluster.run("scancel", str(job))
        return report

    monkeypatch.setattr(controller_run, "_run", cancelled)
    assert site.prolog(job, SLOW) == 0
    assert cluster.drained() == set()


@pytest.mark.soak
def test_a_node_that_other_jobs_share_is_not_drained_for_a_slow_link(cluster, site, capfd):
    other = submit(cluster, "--ntasks-per-node=2", "--nodelist=n2", nodes=1, gpus=4)
    site.variables(other)
    site.end(other, 0)
    cluster.wait_for_job(other, "RUNNING")
    job = submit(cluster, "--ntasks-per-node=4", "--nodelist=n1,n2,n3", gpus=4)
    assert site.variables(job)["SLURM_JOB_NODELIST"] == "n[1-3]"
    assert site.prolog(job, SLOW) == 0
    assert cluster.drained() == set()
    assert cluster.job(job)["JobState"] == "CONFIGURING"
    assert "other jobs run there" in capfd.readouterr().err


def test_a_job_that_asks_to_be_left_alone_is_started_at_once(cluster, site, capfd):
    job = submit(cluster, "--comment=preflight: off")
    assert site.prolog(job, SLOW, agents=False) == 0
    assert not (site.folder / "state").exists()
    assert capfd.readouterr().err == ""


@pytest.mark.soak
@pytest.mark.parametrize("broken", ["config", "state", "plan", "scontrol"])
def test_faults_of_the_set_up_let_the_job_start_and_are_told(cluster, site, capfd, broken):
    job = submit(cluster, "--comment=preflight: plan=missing" if broken == "plan" else "--comment=x")
    text = (site.folder / "site.toml").read_text()
    if broken == "config":
        (site.folder / "site.toml").write_text(text + "[slurm]\n")
    elif broken == "state":
        (site.folder / "state").write_text("a file")
    elif broken == "scontrol":
        (site.folder / "site.toml").write_text(text.replace("[slurm]", f'[slurm]\nbin_dir = "{site.folder}"'))
    assert site.prolog(job, SLOW) == 0
    assert cluster.drained() == set()
    assert cluster.job(job)["JobState"] == "CONFIGURING"
    assert "the job starts" in capfd.readouterr().err


@pytest.mark.soak
def test_a_time_out_of_slurm_that_leaves_no_time_is_seen_before_anything_is_measured(cluster, site, capfd):
    conf = cluster.folder / "slurm.conf"
    text = conf.read_text()
    job = submit(cluster)
    site.variables(job)
    try:
        conf.write_text(text.replace("PrologEpilogTimeout=90", "PrologEpilogTimeout=40"))
        cluster.run("scontrol", "reconfigure")
        assert site.prolog(job, SLOW) == 0
    finally:
        conf.write_text(text)
        cluster.run("scontrol", "reconfigure")
    assert (
        "Slurm's time-out of prologs is 40 s, too short to measure anything: set it to 420 or more"
        in capfd.readouterr().err
    )
    assert cluster.drained() == set()


def test_our_words_behind_a_comment_replace_earlier_ones_of_ours():
    assert commented("", f"{HELD}x") == f"{HELD}x"
    assert commented("mine", f"{HELD}x") == f"mine; {HELD}x"
    assert commented(f"mine; {HELD}x", f"{WARNED}y") == f"mine; {WARNED}y"
    assert commented(f"{HELD}x", f"{HELD}y") == f"{HELD}y"
    assert commented("caf\u00e9", f"{HELD}y") is None
    assert commented("x" * 990, f"{HELD}y") is None
