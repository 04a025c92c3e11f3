"""The classic accident on a real Slurm of four nodes with eight GPUs: ranks dealt one to each node in turn split every tensor-parallel group. It is refused with the flag that mends it."""

import subprocess

import pytest

from preflight.fleet.srun import read_step
from tests.cluster.slurm import NEEDS, slurm_cluster

pytestmark = NEEDS
PLAN = """
[model]
parameters = "8M"
layers = 4
hidden_size = 512
[parallel]
tp = 8
[training]
micro_batches = 8
micro_batch_size = 1
seq_length = 512
[hardware]
gpus_per_node = 8
gpu = "H100-80GB"
[launch]
launcher = "slurm"
"""


@pytest.fixture(scope="module")
def cluster():
    with slurm_cluster() as running:
        (running.folder / "job.toml").write_text(PLAN)
        yield running


def judged(cluster, nodes, distribution) -> "subprocess.CompletedProcess[str]":
    """`preflight plan --ranks` on what `preflight ranks` tells under the job's own flags."""
    flags = (f"-N{nodes}", "--ntasks-per-node=8", "--gres=gpu:8", "-m", distribution)
    ranks = cluster.srun(*flags, "preflight", "ranks", LD_LIBRARY_PATH=str(cluster.place_of("n1") / "nvml"))
    assert len(ranks.splitlines()) == 8 * nodes
    (cluster.folder / "ranks.jsonl").write_text(ranks)
    command = ["preflight", "plan", "job.toml", "--ranks", "ranks.jsonl"]
    return subprocess.run(
        command, cwd=cluster.folder, env=cluster.environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("nodes", [2, pytest.param(4, marks=pytest.mark.soak)])
def test_cyclic_ranks_of_a_plan_with_tp_8_are_refused_with_the_flag_that_mends_it_and_pass_in_blocks(cluster, nodes):
    refused = judged(cluster, nodes, "cyclic")
    assert refused.returncode == 10, refused.stdout + refused.stderr
    assert "FAIL    tp_in_nvlink_domain" in refused.stdout
    remedy = refused.stdout.split("FAIL    tp_in_nvlink_domain")[1].split("remedy")[1][:300]
    assert "-m block" in remedy or "--distribution=block" in remedy, remedy
    passed = judged(cluster, nodes, "block")
    assert passed.returncode == 0, passed.stdout + passed.stderr


def test_what_slurm_says_of_a_step_that_nobody_asked_to_be_dealt_is_no_order_for_the_job(cluster):
    """One task per node is "cyclic" by Slurm's default: believed, it would refuse every job whose groups fill a node."""
    script = "\n".join(
        f"srun --ntasks={2 * tasks} --ntasks-per-node={tasks} sh -c 'test $SLURM_PROCID != 0 || env -0 > step-{tasks}'"
        for tasks in (1, 2)
    )
    job = cluster.sbatch("-N2", "--ntasks-per-node=2", script=script)
    cluster.wait_for_job(job, "COMPLETED")
    said = {}
    for tasks in (1, 2):
        lines = (cluster.folder / f"step-{tasks}").read_text().split("\0")
        variables = dict(line.split("=", 1) for line in lines if "=" in line)
        said[tasks] = (variables["SLURM_DISTRIBUTION"], read_step(variables))
    assert said[1][0] == "cyclic"
    assert said[1][1].deals_nothing
    assert said[2][0] == said[2][1].distribution == "block"
