"""The controller prolog on a real Slurm whose nodes' resident agents measure limited links: a node is drained only if it is to blame, and a job always ends up running, held with a reason, or on other nodes."""

import json
import signal

import pytest

from tests.cluster.box import SICK_MBIT
from tests.cluster.slurm import NEEDS, SITE, slurm_cluster

pytestmark = [*NEEDS, pytest.mark.fabric, pytest.mark.soak]
PLAN = """
[model]
parameters = "8M"
layers = 4
hidden_size = 512
[parallel]
tp = 1
[training]
micro_batches = 8
micro_batch_size = 1
seq_length = 512
[hardware]
gpus_per_node = 1
backend = "gloo"
"""
BUDGET_S = 150  # a quiet machine needs a third of it
LONG_S = 3 * BUDGET_S
JOB = ("--gres=gpu:1", "--comment=preflight: plan=small")
CONFIG = (
    SITE
    + f'plans_dir = "{{cluster}}/plans"\ntopology = "{{cluster}}/topology.conf"\ncontroller_budget = "{BUDGET_S}s"\n'
)


@pytest.fixture(scope="module")
def running():
    with slurm_cluster(prolog_slurmctld="{cluster}/deploy/prolog-slurmctld.sh") as cluster:
        (cluster.folder / "plans").mkdir()
        (cluster.folder / "plans" / "small.toml").write_text(PLAN)
        cluster.configure(CONFIG)
        cluster.start_agents()
        yield cluster


@pytest.fixture
def cluster(running):
    running.reset()
    running.configure(CONFIG)
    running.box.heal()
    return running


def told(cluster) -> str:
    return (cluster.folder / "prolog-slurmctld.log").read_text()


def untouched(cluster, *names):
    for name in names or cluster.nodes:
        node = cluster.node(name)
        assert "drain" not in node.states, (name, node)
        assert node.reason is None, (name, node)


def started(cluster, job, *, restarts=0):
    """The job has run to its end; what Slurm says of it."""
    state = cluster.wait_for_job(job, "COMPLETED", timeout_s=LONG_S)
    assert state["Restarts"] == str(restarts), told(cluster)
    return state


@pytest.mark.parametrize(
    ("sick", "direction"), [("n1", "sending"), ("n2", "both"), ("n3", "receiving"), ("n4", "both"), ("n4", "sending")]
)
def test_only_the_node_with_the_slow_link_is_drained_and_the_job_runs_on_the_others(cluster, sick, direction):
    cluster.box.limit(sick, SICK_MBIT, direction)
    job = cluster.sbatch("-N3-4", *JOB, script="echo started on $SLURM_JOB_NUM_NODES")
    started(cluster, job, restarts=1)
    assert cluster.drained() == {sick}, told(cluster)
    assert cluster.node(sick).reason.startswith("preflight:slow_part node: slow ")
    assert direction == "both" or f"slow {direction}" in cluster.node(sick).reason
    untouched(cluster, *(set(cluster.nodes) - {sick}))
    assert cluster.output(job) == "started on 3\n"


def test_where_all_nodes_are_slow_alike_nothing_is_drained(cluster):
    for name in cluster.nodes:
        cluster.box.limit(name, SICK_MBIT / 2, "both")
    job = cluster.sbatch("-N4", *JOB)
    started(cluster, job)
    untouched(cluster)


def test_a_slow_uplink_drains_nothing_and_the_job_starts_with_a_warning(cluster):
    cluster.box.limit_uplink(1, SICK_MBIT / 2)
    job = cluster.sbatch("-N4", *JOB)
    started(cluster, job)
    untouched(cluster)
    assert "Warning of preflight - slow_part n[1-2] to n[3-4]" in cluster.job(job)["AdminComment"]


def test_a_slow_uplink_holds_the_job_with_the_reason_where_the_site_wants_that(cluster):
    cluster.configure(CONFIG.replace("enforce", 'nobody_guilty = "hold"\nenforce'), "head")
    cluster.box.limit_uplink(1, SICK_MBIT / 2)
    job = cluster.sbatch("-N4", *JOB)
    cluster.wait_for(lambda: cluster.job(job)["Priority"] == "0", "the job held", LONG_S)
    cluster.wait_for(lambda: "Held" in cluster.job(job)["Comment"], "the reason in its comment", LONG_S)
    comment = cluster.job(job)["Comment"]
    assert comment.startswith("preflight: plan=small; Held by preflight - slow_part n[1-2] to n[3-4]")
    untouched(cluster)


def test_where_the_site_names_no_topology_a_slow_link_drains_nobody(cluster):
    cluster.configure(CONFIG.replace('topology = "{cluster}/topology.conf"\n', ""), "head")
    cluster.box.limit("n2", SICK_MBIT, "both")
    started(cluster, cluster.sbatch("-N4", *JOB))
    untouched(cluster)


def test_a_node_without_an_agent_is_not_drained_and_the_job_starts(cluster):
    cluster.box.cut("n3")
    cluster.wait_for_job(cluster.sbatch("-N4", *JOB), "RUNNING", "COMPLETED", timeout_s=LONG_S)
    assert cluster.drained() == set()


def test_two_jobs_at_once_are_both_measured_and_start(cluster):
    jobs = [cluster.sbatch("-N2", *JOB) for _ in range(2)]
    for job in jobs:
        started(cluster, job)
    untouched(cluster)
    records = [json.loads(path.read_text()) for path in (cluster.place_of("head") / "state/jobs").glob("record-*")]
    assert {record["exit_code"] for record in records if record["job"] in jobs} == {0}


def test_a_job_is_not_requeued_for_ever_where_slurm_ends_the_prolog_early(cluster):
    cluster.set_conf("PrologEpilogTimeout", "15")
    try:
        job = cluster.sbatch("-N4", *JOB)
        state = cluster.wait_for_job(job, "COMPLETED", timeout_s=LONG_S)
        assert int(state["Restarts"]) <= 1, told(cluster)
        untouched(cluster)
    finally:
        cluster.set_conf("PrologEpilogTimeout", "300")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_controller_that_is_restarted_meanwhile_leaves_nothing_and_the_job_starts(cluster, number):
    saved, name = cluster.folder / "state" / "job_state", f"restarted-{number.name}"
    job = cluster.sbatch("-N4", "--hold", "-J", name, *JOB)
    known = name.encode()
    cluster.wait_for(lambda: saved.exists() and known in saved.read_bytes(), "the job saved, else Slurm loses it")
    cluster.run("scontrol", "release", str(job))
    cluster.wait_for(
        lambda: any("python" in words for words in cluster.processes("head").values()), "the prolog at work"
    )
    before = set(cluster.processes("head"))
    cluster.restart_slurmctld(number)
    cluster.wait_for(lambda: not before & set(cluster.processes("head")), "the first prolog's end")
    if cluster.job(job)["Priority"] == "0":  # Slurm was killed before it had saved the release
        cluster.run("scontrol", "release", str(job))
    state = cluster.wait_for_job(job, "COMPLETED", timeout_s=LONG_S)
    assert int(state["Restarts"]) <= 1, told(cluster)
    untouched(cluster)
