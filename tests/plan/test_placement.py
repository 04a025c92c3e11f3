"""Ranks are predicted where the job's launcher will put them."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.errors import ConfigError
from preflight.model import Placement
from preflight.plan.placement import launch_gpus_per_node, launch_hosts, predict_placement
from tests.builders import make_job, make_plan

GPUS16 = [f"gpu-{i}" for i in range(1, 17)]


def predict(names, gpus_per_node=8, *, gpu_uuids=None, **launch) -> Placement:
    job = make_job(nodes=None, gpus_per_node=None, launch=launch, tp=1)
    return predict_placement(job, node_names=names, gpus_per_node=gpus_per_node, gpu_uuids=gpu_uuids)


def touched(plan, axis: str) -> set[int]:
    """How many nodes the groups of an axis touch, each number once."""
    return {len(plan.placement.nodes_of(group)) for group in plan.groups[axis]}


@pytest.mark.parametrize(
    ("distribution", "tp", "dp", "pp"),
    [(None, 1, 2, 4), ("block", 1, 2, 4), ("cyclic", 8, 1, 1), ("plane=4", 2, 2, 2)],
)
def test_a_distribution_decides_how_many_nodes_each_group_touches(distribution, tp, dp, pp):
    plan = make_plan(launch={"launcher": "slurm", "distribution": distribution})
    assert [touched(plan, axis) for axis in ("tp", "dp", "pp")] == [{tp}, {dp}, {pp}]


def test_names_sorted_as_text_spread_groups_over_leaves():
    leaf = {name: i // 4 for i, name in enumerate(GPUS16)}

    def leaves(rendezvous: str, axis: str) -> list[int]:
        launch = {"launcher": "torchrun", "rendezvous": rendezvous, "hosts": tuple(GPUS16)}
        plan = make_plan(nodes=16, launch=launch, tp=8, pp=4, dp=4)
        return sorted(len({leaf[node] for node in plan.placement.nodes_of(group)}) for group in plan.groups[axis])

    assert [set(leaves("static", axis)) for axis in ("tp", "dp", "pp")] == [{1}, {1}, {4}]
    assert set(leaves("c10d", "tp")) == {1}
    assert leaves("c10d", "dp") == [1] * 8 + [2] * 24
    assert set(leaves("c10d", "pp")) == {3, 4}


def test_without_a_launcher_consecutive_ranks_fill_a_node():
    placement = predict(["a", "b"], 4)
    assert (placement.method, placement.doubt) == ("block", None)
    assert placement.node_ranks == (0, 0, 0, 0, 1, 1, 1, 1)
    assert placement.local_ranks == (0, 1, 2, 3, 0, 1, 2, 3)


def test_gpus_follow_node_and_local_rank():
    uuids = {"a": ["a0", "a1"], "b": ["b0"]}
    placement = predict(["a", "b", "c"], 2, gpu_uuids=uuids, launcher="slurm", distribution="cyclic")
    assert placement.gpu_uuids == ("a0", "b0", None, "a1", None, None)
    assert predict(["a"], 2, gpu_uuids={"z": ["z0"]}).gpu_uuids is None


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        ({"distribution": "cyclic"}, "launch.distribution: means nothing without a launcher"),
        ({"launcher": "torchrun", "distribution": "block"}, "distribution: means nothing with launcher torchrun"),
        ({"launcher": "torchrun", "hostfile": "h"}, "hostfile: means nothing with launcher torchrun"),
        ({"launcher": "slurm", "rendezvous": "c10d"}, "rendezvous: means nothing with launcher slurm"),
    ],
)
def test_a_key_of_another_launcher_is_refused(launch, message):
    with pytest.raises(ConfigError, match=message) as caught:
        predict(["a"], 2, **launch)
    assert "write launcher = " in caught.value.remedy


@pytest.mark.parametrize(
    "launch", [{}, {"launcher": "torchrun"}, {"launcher": "kubernetes"}, {"launcher": "slurm", "distribution": "block"}]
)
def test_every_launcher_takes_uneven_counts(launch):
    placement = predict(["a", "b", "c", "d"], 2, tasks_per_node="2(x3),1", **launch)
    assert placement.node_ranks == (0, 0, 1, 1, 2, 2, 3)
    assert placement.local_ranks == (0, 1, 0, 1, 0, 1, 0)


LAUNCHES = st.one_of(
    st.builds(
        dict, launcher=st.just("slurm"), distribution=st.sampled_from([None, "block", "cyclic", "plane=2", "plane=3"])
    ),
    st.builds(dict, launcher=st.just("torchrun"), rendezvous=st.sampled_from([None, "c10d", "static"])),
    st.builds(dict, launcher=st.just("mpi"), distribution=st.sampled_from([None, "by-slot", "by-node"])),
    st.sampled_from([{}, {"launcher": "kubernetes"}, {"launcher": "deepspeed"}]),
)


@settings(max_examples=60)
@given(launch=LAUNCHES, counts=st.lists(st.integers(1, 6), min_size=1, max_size=12))
def test_every_rank_is_placed_once_and_every_node_gets_its_count(launch, counts):
    names = [f"n{i}" for i in range(len(counts))]
    text = ",".join(f"{count}(x1)" for count in counts)
    placement = predict(names, 6, tasks_per_node=text, **launch)
    places = list(zip(placement.node_ranks, placement.local_ranks, strict=True))
    assert len(set(places)) == len(places) == sum(counts)
    expected = dict(zip(names, counts, strict=True))
    for node, name in enumerate(placement.nodes):
        # local ranks are 0, 1, ... on each node, whatever the order
        assert sorted(local for at, local in places if at == node) == list(range(expected[name]))


@pytest.mark.parametrize("launch", [{}, {"launcher": "slurm", "distribution": "cyclic"}, {"launcher": "deepspeed"}])
def test_the_largest_jobs_take_a_moment(launch):
    names = [f"n{i:05d}" for i in range(16384)]
    predict(names[:4], 8, **launch)  # imports are not what is measured
    began = time.perf_counter()
    placement = predict(names, 8, **launch)
    assert time.perf_counter() - began < 1  # some 20 ms, on a machine that does nothing else
    assert len(placement.node_ranks) == 131072


def test_launch_names_the_hosts_where_nobody_else_does(tmp_path):
    def hosts(content: str | None = None, **launch):
        path = tmp_path / "hosts"
        path.write_text(content or "")
        given = launch | ({"hostfile": str(path)} if content else {})
        return launch_hosts(make_job(launch=given))

    assert hosts() is None
    assert hosts(launcher="torchrun", hosts=("b", "a")) == ("b", "a")
    assert hosts("b slots=2\na slots=4\n", launcher="deepspeed") == ("b", "a")
    assert hosts("n10\nn2\nn10\n", launcher="slurm") == ("n2", "n10")
    assert hosts("rank 1=n2\nrank 0=n10\n", launcher="mpi") == ("n2", "n10")
    assert hosts("rank 0=+n1\n", launcher="mpi") is None
    assert hosts("n1\n", launcher="torchrun") is None


def test_launch_tells_the_ranks_of_a_node_where_nobody_else_does(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("a slots=2\nb slots=4\n")
    assert launch_gpus_per_node(make_job(launch={"launcher": "deepspeed", "hostfile": str(path)})) == 4
    assert launch_gpus_per_node(make_job(launch={"tasks_per_node": "2(x3),1"})) == 2
    assert launch_gpus_per_node(make_job()) is None
    with pytest.raises(ConfigError, match=r"launch.tasks_per_node: 'x' is not a number of ranks"):
        launch_gpus_per_node(make_job(launch={"tasks_per_node": "x"}))


def test_a_plan_takes_nodes_and_gpus_from_the_file_of_its_launcher(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("a slots=4\nb slots=4\n")
    plan = make_plan(
        nodes=None, gpus_per_node=None, tp=4, dp=2, launch={"launcher": "deepspeed", "hostfile": str(path)}
    )
    assert (plan.placement.nodes, plan.world_size) == (("a", "b"), 8)


def test_discovered_nodes_are_put_in_the_order_of_the_allocation():
    plan = make_plan(nodes=None, gpus_per_node=2, tp=2, node_names=["a", "b"], launch={"hosts": ("b", "a")})
    assert plan.placement.nodes == ("b", "a")
