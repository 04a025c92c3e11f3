"""The node prolog on a real Slurm of four nodes with eight GPUs each: what it drains, what it lets run, and that it leaves nothing behind."""

import os
import re
import signal

import pytest

from tests.cluster.slurm import NEEDS, SITE, slurm_cluster

pytestmark = NEEDS
ALL = ("-N4", "--gres=gpu:8", "--exclusive")


@pytest.fixture(scope="module")
def running():
    with slurm_cluster(prolog="{cluster}/deploy/prolog.sh") as cluster:
        yield cluster


@pytest.fixture
def cluster(running):
    """Healthy and idle, enforcing, with empty state folders and no metrics."""
    running.reset()
    running.configure(SITE)
    for name in running.nodes:
        for path in running.place_of(name).glob("metrics/*"):
            path.unlink()
    return running


def metrics(cluster, name) -> str:
    return "".join(path.read_text() for path in sorted(cluster.place_of(name).glob("metrics/*.prom")))


def unknowns(cluster, name) -> int:
    """How many UNKNOWN findings the node's metrics tell."""
    lines = re.findall(r'^preflight_findings\{.*verdict="UNKNOWN".*\} (\d+)', metrics(cluster, name), re.MULTILINE)
    return sum(map(int, lines))


def untouched(cluster, *names):
    for name in names or cluster.nodes:
        node = cluster.node(name)
        assert "drain" not in node.states, (name, node)
        assert node.reason is None, (name, node)


def requeued_and_held(cluster, job):
    cluster.wait_for(lambda: cluster.job(job)["Priority"] == "0", "the job requeued and held")
    assert cluster.job(job)["Restarts"] == "1"


def test_a_job_on_healthy_nodes_starts(cluster, capsys):
    job = cluster.sbatch(*ALL, script="echo started")
    cluster.wait_for_job(job, "COMPLETED")
    assert cluster.output(job) == "started\n"
    untouched(cluster)
    pattern = r"^preflight_run_duration_seconds\{.*\} (\S+)"
    seconds = [re.findall(pattern, metrics(cluster, name), re.MULTILINE) for name in cluster.nodes]
    with capsys.disabled():
        told = ", ".join(f"{float(found):.2f}" for (found,) in seconds)
        print(f"\nprolog of a healthy node, four at once on this machine: {told} s, from Python's start on")


def test_a_node_with_a_sick_gpu_is_drained_with_our_reason_and_the_job_runs_on_the_others(cluster):
    cluster.set_gpus("n2", "sick")
    job = cluster.sbatch("-N3", "--gres=gpu:8", script="echo started on $SLURM_JOB_NODELIST")
    requeued_and_held(cluster, job)
    node = cluster.node("n2")
    assert "drain" in node.states
    assert node.reason.startswith("preflight:row_remap GPU 7"), node
    untouched(cluster, "n1", "n3", "n4")
    cluster.run("scontrol", "release", str(job))
    cluster.wait_for_job(job, "COMPLETED")
    assert cluster.output(job) == "started on n[1,3-4]\n"
    untouched(cluster, "n1", "n3", "n4")


BROKEN = {
    "a broken configuration": lambda cluster: cluster.configure(SITE + "[slurm", "n2"),
    "an unwritable state folder": lambda cluster: cluster.configure(
        SITE.replace("{folder}/state", "{folder}/preflight.toml/state"), "n2"
    ),
    "a hanging driver": lambda cluster: (
        cluster.configure(SITE + 'budget = "5s"\n', "n2"),
        cluster.set_gpus("n2", "hanging"),
    ),
    "no driver library": lambda cluster: cluster.set_gpus("n2", "missing"),
    "a broken installation": lambda cluster: (
        (cluster.place_of("n2") / "msgspec.py").write_text("raise ImportError('half installed')"),
        cluster.before("n2", f"export PYTHONPATH={cluster.place_of('n2')}"),
    ),
}


@pytest.mark.parametrize(
    "what", [what if what == "a hanging driver" else pytest.param(what, marks=pytest.mark.soak) for what in BROKEN]
)
def test_a_fault_of_the_set_up_lets_the_job_start_and_drains_nothing(cluster, what):
    BROKEN[what](cluster)
    job = cluster.sbatch(*ALL, script="echo started")
    cluster.wait_for_job(job, "COMPLETED")
    assert cluster.output(job) == "started\n"
    untouched(cluster)
    assert unknowns(cluster, "n2") == 1
    assert unknowns(cluster, "n1") == 0


@pytest.mark.soak
def test_four_sick_nodes_at_the_same_moment_lose_no_more_than_the_brake_allows_and_the_job_runs(cluster):
    for name in cluster.nodes:
        cluster.set_gpus(name, "sick")
    job = cluster.sbatch("-N3-4", "--gres=gpu:8", script="echo started on $SLURM_JOB_NUM_NODES")
    cluster.wait_for(lambda: _stands(cluster, job), "an end")
    drained = cluster.drained()
    assert len(drained) <= 1
    for name in drained:
        assert cluster.node(name).reason.startswith("preflight:row_remap")
    untouched(cluster, *(set(cluster.nodes) - drained))
    if drained:
        requeued_and_held(cluster, job)
        cluster.run("scontrol", "release", str(job))
    cluster.wait_for_job(job, "COMPLETED")
    assert cluster.output(job) == f"started on {4 - len(drained)}\n"
    assert cluster.drained() == drained


@pytest.mark.soak
def test_where_the_brake_holds_already_sick_nodes_are_left_and_the_job_starts_at_once(cluster):
    reason = "preflight:row_remap GPU 7: failed [node-1, local]"
    cluster.run("scontrol", "update", "nodename=n1", "state=drain", f"reason={reason}")
    for name in cluster.nodes:
        cluster.set_gpus(name, "sick")
    job = cluster.sbatch("-N3", "--gres=gpu:8", script="echo started")
    assert cluster.wait_for_job(job, "COMPLETED")["Restarts"] == "0"
    assert cluster.drained() == {"n1"}
    untouched(cluster, "n2", "n3", "n4")
    assert 'preflight_run_drain{result="braked",command="slurm prolog",node="n2"} 1.0' in metrics(cluster, "n2")


@pytest.mark.soak
def test_until_the_site_enforces_a_sick_node_is_only_told_of(cluster):
    cluster.configure(SITE.replace("enforce = true\n", ""))
    cluster.set_gpus("n2", "sick")
    job = cluster.sbatch(*ALL, script="echo started")
    assert cluster.wait_for_job(job, "COMPLETED")["Restarts"] == "0"
    untouched(cluster)
    assert 'preflight_run_drain{result="would-drain",command="slurm prolog",node="n2"} 1.0' in metrics(cluster, "n2")


@pytest.mark.soak
def test_a_sick_gpu_that_the_job_does_not_have_drains_nothing(cluster):
    cluster.set_gpus("n2", "sick")  # its last GPU
    job = cluster.sbatch("-N1", "-w", "n2", "--gres=gpu:4", script="echo started on GPUs $SLURM_JOB_GPUS")
    assert cluster.wait_for_job(job, "COMPLETED")["Restarts"] == "0"
    untouched(cluster)


@pytest.mark.soak
@pytest.mark.parametrize(
    "comment",
    [
        "preflight: plan=../../../etc/passwd",
        "$(touch {cluster}/hurt)`touch {cluster}/hurt`; touch {cluster}/hurt",
        "preflight: " + "tp=8, " * 150,
        "a\nb\tpreflight: tp=99999999999999999999",
        '"; reason=x state=down',
        "preflight: off",
    ],
)
def test_whatever_a_user_writes_into_a_comment_the_job_starts_and_nothing_is_drained(cluster, comment):
    told = comment.replace("{cluster}", str(cluster.folder))
    job = cluster.sbatch("-N2", "--gres=gpu:8", f"--comment={told}", "-J", told[:60], script="echo started")
    assert cluster.wait_for_job(job, "COMPLETED")["Restarts"] == "0"
    untouched(cluster)
    assert not (cluster.folder / "hurt").exists()


def _stands(cluster, job) -> bool:
    told = cluster.job(job)
    return told["Priority"] == "0" or told["JobState"] == "COMPLETED"


def test_a_reason_of_somebody_else_is_kept(cluster):
    cluster.set_gpus("n2", "sick")
    go = cluster.place_of("n2") / "go"
    cluster.before("n2", f"while [ ! -e {go} ]; do /bin/sleep 0.1; done")
    job = cluster.sbatch("-N2", "-w", "n[1-2]", "--gres=gpu:8")
    cluster.wait_for(lambda: cluster.processes("n2"), "the prolog under way")
    cluster.run("scontrol", "update", "nodename=n2", "state=drain", "reason=fan is loud, Ann")
    go.touch()
    cluster.wait_for(lambda: not cluster.processes("n2"), "the prolog's end")
    cluster.wait_for(lambda: _stands(cluster, job), "an end")
    assert cluster.node("n2").reason == "fan is loud, Ann"
    untouched(cluster, "n1", "n3", "n4")


STOPS = {
    "preflight killed": ("-m preflight slurm prolog", signal.SIGKILL),
    "preflight ended": ("-m preflight slurm prolog", signal.SIGTERM),
    "preflight interrupted": ("-m preflight slurm prolog", signal.SIGINT),
    "the script ended": ("/prolog.sh", signal.SIGTERM),
    "the script killed": ("/prolog.sh", signal.SIGKILL),
    "everything killed": ("", signal.SIGKILL),
}


@pytest.mark.parametrize(
    "what", [what if what == "preflight killed" else pytest.param(what, marks=pytest.mark.soak) for what in STOPS]
)
def test_a_prolog_that_is_interrupted_or_killed_leaves_no_process_and_no_lock(cluster, what):
    word, number = STOPS[what]
    cluster.set_gpus("n2", "hanging")
    job = cluster.sbatch("-N2", "-w", "n[1-2]", "--gres=gpu:8", script="echo started")
    cluster.wait_for(
        lambda: any("nvml" in words for words in cluster.processes("n2").values()), "the driver being asked"
    )
    for pid, words in cluster.processes("n2").items():
        if word in words:
            os.kill(pid, number)
    cluster.wait_for(lambda: not cluster.processes("n2"), "all processes ended")
    assert [
        path
        for path in cluster.place_of("n2").rglob("*")
        if "tmp" in path.name or "lock" in path.name or "new" in path.name
    ] == []
    assert "preflight" not in (cluster.node("n2").reason or "")
    if word.startswith("-m"):  # the script is still there to say so, and the job starts
        cluster.wait_for_job(job, "COMPLETED")
        assert unknowns(cluster, "n2") == 1
        untouched(cluster)
    cluster.reset()
    cluster.srun("-N2", "-w", "n[1-2]", "--gres=gpu:8", "true")
