"""The controller prolog as a site has it: slurmctld runs the script, resident agents in the nodes' namespaces measure over limited links, munge says who asks."""

import pytest

from preflight.slurm.reason import check_of
from tests.cluster.box import SICK_MBIT
from tests.cluster.slurm import NEEDS, SITE, slurm_cluster
from tests.fleet.runs import PLAN

pytestmark = [*NEEDS, pytest.mark.fabric, pytest.mark.soak]
CONFIG = """
AuthInfo=socket={cluster}/munge/socket,cred_expire=5
SchedulerParameters=sched_interval=2,bf_interval=2
PrologEpilogTimeout=300
"""
MORE = """
controller_budget = "100s"
plans_dir = "{folder}/plans"
[brake]
percent = 100
settle = "0.2s"
jitter = "0s"
"""


@pytest.fixture(scope="module")
def cluster():
    with slurm_cluster(
        nodes=5, gpus=2, prolog_slurmctld="{cluster}/deploy/prolog-slurmctld.sh", config=CONFIG
    ) as cluster:
        cluster.configure(SITE + MORE, "head")
        plans = cluster.place_of("head") / "plans"
        plans.mkdir()
        (plans / "small.toml").write_text(PLAN.format(tp=1, dp=4, nodes=4, per_node=1))
        cluster.start_agents()
        yield cluster
        print(cluster.log("prolog-slurmctld"))


@pytest.fixture(autouse=True)
def afterwards(cluster):
    yield
    cluster.box.heal()  # Slurm waits for nodes that it can't reach
    cluster.reset()


def submit(cluster, plan="small", nodes="n[1-4]"):
    asked = (f"--comment=preflight: plan={plan}", "--gres=gpu:1", "--requeue", "--nodes=4")
    return cluster.sbatch(*asked, *([f"--nodelist={nodes}"] if nodes else []), script="sleep 30")


def test_a_job_on_healthy_nodes_starts(cluster):
    job = submit(cluster)
    cluster.wait_for_job(job, "RUNNING", timeout_s=150)
    assert cluster.drained() == set()
    assert cluster.job(job)["Restarts"] == "0"
    assert f"controller prolog of job {job}" in cluster.log("prolog-slurmctld")
    assert ": go in " in cluster.log("prolog-slurmctld")


def test_a_node_with_a_slow_link_is_drained_and_the_job_runs_on_the_others(cluster):
    cluster.box.limit("n2", SICK_MBIT, "both")
    job = submit(cluster, nodes=None)
    cluster.wait_for(lambda: cluster.job(job).get("Restarts") == "1", "the requeue", 150)
    assert cluster.drained() == {"n2"}
    assert check_of(cluster.node("n2").reason) == "slow_part"
    done = cluster.wait_for_job(job, "RUNNING", timeout_s=150)
    assert done["NodeList"] == "n[1,3-5]"


def test_all_links_slow_drain_nobody(cluster):
    for node in cluster.nodes:
        cluster.box.limit(node, SICK_MBIT, "both")
    job = submit(cluster)
    cluster.wait_for_job(job, "RUNNING", timeout_s=150)
    assert cluster.drained() == set()


def test_a_node_without_an_agent_is_not_drained_and_the_job_starts(cluster):
    cluster.box.cut("n3")
    job = submit(cluster)
    cluster.wait_for_job(job, "RUNNING", timeout_s=200)
    assert cluster.drained() == set()
