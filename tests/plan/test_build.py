"""A plan is built from what the plan file says and what was discovered, which may not contradict each other."""

import pytest

from preflight.errors import ConfigError
from preflight.model import Rank
from preflight.plan.build import build_plan
from tests.builders import make_inventory, make_job, make_plan, uuids_of


def test_consecutive_ranks_fill_a_node():
    placement = make_plan().placement
    assert (placement.source, placement.method) == ("predicted", "block")
    assert placement.ranks[13] == Rank(rank=13, node="node1", node_rank=1, local_rank=5)
    assert [len(placement.nodes_of(tuple(range(first, first + 8)))) for first in range(0, 64, 8)] == [1] * 8


def test_discovered_nodes_keep_their_names_order_and_gpus():
    inventory = make_inventory(2, 4)
    job = make_job(nodes=None, gpus_per_node=None, tp=4)
    plan = build_plan(job, node_names=["b", "node0"], gpus_per_node=4, gpu_uuids=uuids_of(inventory))
    assert [rank.node for rank in plan.placement.ranks] == ["b"] * 4 + ["node0"] * 4
    assert plan.placement.ranks[5].gpu_uuid == "GPU-node0-1"
    assert plan.placement.ranks[0].gpu_uuid is None


def test_hardware_may_be_left_out_when_it_was_discovered():
    plan = build_plan(make_job(nodes=None, gpus_per_node=None, tp=4), node_names=["a", "b"], gpus_per_node=4)
    assert (plan.world_size, plan.degrees["dp"]) == (8, 2)


@pytest.mark.parametrize(
    ("claimed", "found", "message"),
    [
        ({"nodes": 8}, {"node_names": ["n1", "n2"]}, r"hardware.nodes: 8, but 2 found \(n\[1-2\]\)"),
        (
            {"gpus_per_node": 8},
            {"node_names": ["a"], "gpus_per_node": 4},
            "hardware.gpus_per_node: 8, but 4 found per node",
        ),
    ],
)
def test_a_contradiction_is_refused_with_both_values(claimed, found, message):
    facts = {"node_names": None, "gpus_per_node": None, **found}
    with pytest.raises(ConfigError, match=message):
        build_plan(make_job(**{"nodes": None, "gpus_per_node": None, **claimed, "tp": 1}), **facts)


def test_hardware_that_nobody_knows_is_asked_for():
    with pytest.raises(ConfigError, match=r"hardware.nodes: is missing(.|\n)*write nodes = "):
        build_plan(make_job(nodes=None))
    with pytest.raises(ConfigError, match=r"hardware.gpus_per_node: is missing"):
        build_plan(make_job(gpus_per_node=None))


def test_a_cluster_without_nodes_or_ranks_is_refused():
    with pytest.raises(ConfigError, match="0 found, at least 1 is needed"):
        build_plan(make_job(nodes=None), node_names=[])
    with pytest.raises(ConfigError, match="0 found per node, at least 1 is needed"):
        build_plan(make_job(gpus_per_node=None), gpus_per_node=0)


def test_two_nodes_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="two nodes call themselves 'a'"):
        build_plan(make_job(nodes=None), node_names=["a", "a"])


def test_the_plan_keeps_order_and_degrees():
    plan = make_plan(tp=2, pp=4, ep=4, etp=1)
    assert plan.order == ("tp", "cp", "ep", "dp", "pp")
    assert plan.degrees == {"tp": 2, "cp": 1, "ep": 4, "etp": 1, "edp": 4, "dp": 8, "pp": 4}
