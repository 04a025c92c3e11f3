"""Why deploy/slurm/README.md asks for BatchStartTimeout beside a controller prolog: real Slurm counts it from the allocation, and a node that registers before the script runs has "lost" the job."""

import pytest

from tests.cluster.slurm import NEEDS, slurm_cluster

pytestmark = [*NEEDS, pytest.mark.soak]


@pytest.fixture(scope="module")
def cluster():
    with slurm_cluster(nodes=2, gpus=0, prolog="/bin/sleep 12", prolog_slurmctld="/bin/sleep 22") as running:
        yield running


@pytest.mark.parametrize(
    ("timeout_s", "restarts"), [("10", "1"), ("420", "0")], ids=["Slurm's default", "as our page says"]
)
def test_a_node_that_registers_after_a_long_controller_prolog_costs_a_requeue_unless_slurm_waits_as_long(
    cluster, timeout_s, restarts
):
    cluster.set_conf("BatchStartTimeout", timeout_s)
    job = cluster.sbatch("-N1", script="echo started")
    cluster.wait_for_job(job, "RUNNING")
    cluster.run("scontrol", "reconfigure")
    assert cluster.wait_for_job(job, "COMPLETED", timeout_s=180)["Restarts"] == restarts
    assert not cluster.drained()
