"""From the launcher's variables of one process to the placement of all, or a refusal that says what does not fit."""

import time

import msgspec
import pytest

from preflight.errors import ConfigError
from preflight.model import Launch
from preflight.plan.derived import Seat, derive_placement
from tests.builders import make_job

JOB = make_job(tp=4, dp=2, nodes=None, gpus_per_node=None)
STEP = {"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}


def derive(environ, rank, local_rank, name, *, size=8, job=JOB):
    return derive_placement(job, environ, Seat(rank, size, local_rank, (name,)))


def test_a_slurm_step_tells_its_nodes_counts_and_distribution():
    block = derive({**STEP, "SLURM_PROCID": "5"}, 5, 1, "n2")
    assert (block.nodes, block.node_ranks) == (("n1", "n2"), (0, 0, 0, 0, 1, 1, 1, 1))
    cyclic = derive({**STEP, "SLURM_PROCID": "5", "SLURM_DISTRIBUTION": "cyclic"}, 5, 2, "n2.cluster.org")
    assert cyclic.node_ranks == (0, 1) * 4
    plane = derive(
        {**STEP, "SLURM_PROCID": "2", "SLURM_DISTRIBUTION": "plane", "SLURM_DIST_PLANESIZE": "2"}, 2, 0, "n2"
    )
    assert plane.node_ranks == (0, 0, 1, 1) * 2


def test_the_step_counts_and_not_what_the_plan_file_says_of_the_launch():
    job = msgspec.structs.replace(JOB, launch=Launch(launcher="mpi", hosts=("x", "y")))
    assert derive({**STEP, "SLURM_PROCID": "0"}, 0, 0, "n1", job=job).nodes == ("n1", "n2")


def test_torchrun_numbers_nodes_without_naming_them():
    environ = {"GROUP_RANK": "1", "LOCAL_WORLD_SIZE": "4", "SLURM_PROCID": "1", **STEP}
    placement = derive(environ, 5, 1, "n7")
    assert placement.nodes == ("node0", "n7")
    assert placement.node_ranks == (0, 0, 0, 0, 1, 1, 1, 1)


def test_what_the_launcher_does_not_tell_the_plan_file_does():
    job = make_job(
        tp=4, dp=2, nodes=2, gpus_per_node=4, launch={"launcher": "mpi", "distribution": "by-node", "hosts": ("a", "b")}
    )
    assert derive({"OMPI_COMM_WORLD_RANK": "1"}, 1, 0, "b", job=job).node_ranks == (0, 1) * 4


@pytest.mark.parametrize(
    ("environ", "seat", "words"),
    [
        ({**STEP, "SLURM_PROCID": "5"}, (5, 1, "n1"), "rank 5 runs on n1, but belongs on n2"),
        ({**STEP, "SLURM_PROCID": "5"}, (5, 0, "n2"), "rank 5 has local rank 0, but 1 by slurm"),
        ({**STEP, "SLURM_PROCID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, (1, 1, "n1"), "4 ranks by slurm"),
        ({**STEP, "SLURM_PROCID": "1", "SLURM_STEP_NODELIST": "n[1-"}, (1, 1, "n1"), "can't be read"),
        ({**STEP, "SLURM_PROCID": "1", "SLURM_STEP_TASKS_PER_NODE": "many"}, (1, 1, "n1"), "can't be read"),
        ({**STEP, "SLURM_PROCID": "1", "SLURM_STEP_NODELIST": "n1,n1"}, (1, 1, "n1"), "'n1' is there 2 times"),
        ({"GROUP_RANK": "1", "LOCAL_WORLD_SIZE": "3"}, (5, 1, "x"), "unequal numbers of workers"),
        ({"GROUP_RANK": "0", "LOCAL_WORLD_SIZE": "4"}, (5, 1, "x"), "unequal numbers of workers"),
        ({"GROUP_RANK": "one", "LOCAL_WORLD_SIZE": "4"}, (5, 1, "x"), "GROUP_RANK: 'one' is no number"),
        ({}, (5, 1, "x"), "hardware.gpus_per_node: is missing"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(environ, seat, words):
    with pytest.raises(ConfigError) as caught:
        derive(environ, *seat)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "size", "hardware"),
    [
        ({"GROUP_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, 999_999_999, {}),
        ({"RANK": "0"}, 999_999_999, {"gpus_per_node": 8}),
        ({"RANK": "0"}, 8, {"nodes": 2**20, "gpus_per_node": 1024}),
        (
            {"SLURM_PROCID": "0", "SLURM_STEP_NODELIST": "n[1-90000]", "SLURM_STEP_TASKS_PER_NODE": "4096(x90000)"},
            8,
            {},
        ),
    ],
)
def test_numbers_far_above_any_cluster_are_refused_before_anything_is_laid_out(environ, size, hardware):
    job = make_job(tp=4, dp=2, **{"nodes": None, "gpus_per_node": None, **hardware})
    began = time.perf_counter()
    with pytest.raises(ConfigError, match="the most we lay out"):
        derive(environ, 0, 0, "n1", size=size, job=job)
    assert time.perf_counter() - began < 2
