"""On real Slurm: a node's agent sees the jobs of its own node, whatever their steps are, and knows whose a process is."""

import json
import sys
from collections.abc import Iterator

import pytest

from tests.cluster.slurm import NEEDS, SlurmCluster, slurm_cluster

pytestmark = [*NEEDS, pytest.mark.soak]

LOOK = """
import asyncio, json, sys
from preflight.discover.job_steps import job_of
from preflight.fleet.clocks import ClockReader
from preflight.fleet.tenants import Tenants
why = {job or "none": asyncio.run(Tenants((), job).before(ClockReader(), 10)) for job in (None, *sys.argv[1:2])}
print(json.dumps({**why, "job": [job_of(int(pid)) for pid in sys.argv[2:]]}))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), nodes=2, gpus=1) as made:
        yield made


def look(cluster: SlurmCluster, node: str, *words: str) -> dict:
    """What an agent of that node would find."""
    assert cluster.box
    return json.loads(cluster.box.inside(node, sys.executable, "-c", LOOK, *words))


def test_a_batch_job_and_its_steps_are_in_the_way_on_their_node_alone_and_not_in_their_own(cluster):
    script = "sleep 120 & echo $! $$; srun -n1 --overlap sh -c 'echo $$; exec sleep 120'"
    job = cluster.sbatch("-w", "n1", "-N1", "-n1", script=script)
    cluster.wait_for(lambda: len(cluster.output(job).split()) == 3, "the job and its step at work")
    pids = cluster.output(job).split()
    found = look(cluster, "n1", str(job), *pids)
    assert found["none"].startswith(f"job {job} of Slurm runs on this node (slurmstepd ")
    assert found[str(job)] is None
    assert found["job"] == [str(job)] * 3
    assert look(cluster, "n2")["none"] is None
    cluster.run("scancel", str(job))
    cluster.wait_for(lambda: look(cluster, "n1")["none"] is None, "a node without jobs")
