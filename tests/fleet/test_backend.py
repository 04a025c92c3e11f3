"""Which backend is probed with: GPUs if they are there, CPUs only if somebody meant it."""

import pytest

from preflight.errors import ConfigError
from preflight.fleet.backend import choose_backend
from preflight.model import Node
from tests.builders import make_gpu, make_job, make_node


def choose(nodes, *, asked=None, option=None, per_node=2, share_machine=False):
    return choose_backend(make_job(backend=asked), option, nodes, per_node, share_machine=share_machine)


def nodes_with(*gpus: int | None) -> list:
    return [make_node(f"node{i}", gpus=count) for i, count in enumerate(gpus)]


def test_gpus_that_are_there_are_used_in_the_order_of_the_driver():
    choice = choose(nodes_with(2, 2))
    assert (choice.backend, choice.cpu_declared) == ("nccl", False)
    assert choice.gpus == {"node0": ("GPU-node0-0", "GPU-node0-1"), "node1": ("GPU-node1-0", "GPU-node1-1")}


@pytest.mark.parametrize("gpus", [0, None])
def test_cpus_are_probed_without_having_been_declared_when_gpus_are_merely_missing(gpus):
    choice = choose(nodes_with(gpus, gpus))
    assert (choice.backend, choice.cpu_declared) == ("gloo", False)
    assert "does not count as healthy" in choice.reason


@pytest.mark.parametrize(("asked", "option"), [("gloo", None), (None, "gloo"), ("nccl", "gloo")])
def test_gloo_that_is_asked_for_uses_no_gpu_and_is_declared(asked, option):
    choice = choose(nodes_with(2), asked=asked, option=option)
    assert (choice.backend, choice.cpu_declared) == ("gloo", True)
    assert choice.gpus == {"node0": (None, None)}


def test_auto_takes_gpus_where_they_are_and_declares_cpus_where_there_is_none():
    assert choose(nodes_with(2, 2), asked="auto").backend == "nccl"
    choice = choose(nodes_with(0, 0), asked="auto")
    assert (choice.backend, choice.cpu_declared) == ("gloo", True)


def test_auto_does_not_hide_that_one_node_of_several_has_lost_its_gpus():
    choice = choose(nodes_with(2, 0), asked="auto")
    assert choice.backend == "nccl"
    assert choice.gpus["node1"] == (None, None)


def test_nccl_that_is_asked_for_without_any_gpu_is_refused_with_what_to_do():
    with pytest.raises(ConfigError, match=r'hardware\.backend: NCCL was asked for.*\n.*backend = "gloo" probes CPUs'):
        choose(nodes_with(0, None), asked="nccl")
    with pytest.raises(ConfigError):
        choose(nodes_with(0), asked="gloo", option="nccl")


def test_agents_that_share_a_machine_share_its_gpus_without_overlap():
    choice = choose(nodes_with(4, 4), share_machine=True)
    assert choice.gpus == {"node0": ("GPU-node0-0", "GPU-node0-1"), "node1": ("GPU-node1-2", "GPU-node1-3")}


def test_auto_on_one_machine_with_too_few_gpus_probes_cpus():
    assert choose(nodes_with(3, 3), asked="auto", share_machine=True).backend == "gloo"


def test_gpus_in_mig_mode_and_gpus_without_a_uuid_take_no_part():
    gpus = (make_gpu("n", 0, mig_enabled=True), make_gpu("n", 1, uuid=None), make_gpu("n", 2))
    assert choose([Node(name="n", gpus=gpus)]).gpus == {"n": ("GPU-n-2", None)}


def test_ranks_get_the_gpus_that_the_job_shows_them_in_its_order():
    job = make_job(launch={"visible_devices": "3,1,-1,0"})
    choice = choose_backend(job, None, nodes_with(4, 4), 3, share_machine=False)
    assert choice.gpus["node0"] == ("GPU-node0-3", "GPU-node0-1", None)


def test_ranks_get_the_gpus_that_slurm_gave_the_job_on_each_node_and_no_others():
    job = make_job(launch={"node_gpus": {"node0": (2, 3), "node1": (0, 9)}})
    choice = choose_backend(job, None, nodes_with(4, 4, 4), 2, share_machine=False)
    assert choice.gpus["node0"] == ("GPU-node0-2", "GPU-node0-3")
    assert choice.gpus["node1"] == ("GPU-node1-0", None)
    assert choice.gpus["node2"] == (None, None)
