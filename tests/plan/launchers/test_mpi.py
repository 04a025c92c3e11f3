"""mpirun places ranks by slot, by node, or by a rankfile."""

import pytest

from preflight.errors import ConfigError
from preflight.model import Placement
from preflight.plan.placement import predict_placement
from tests.builders import make_job


@pytest.fixture
def predict(tmp_path):
    def run(rankfile: str | None = None, names=("a", "b", "c"), gpus_per_node=2, **launch) -> Placement:
        path = tmp_path / "rankfile"
        path.write_text(rankfile or "")
        given = {"launcher": "mpi", "hostfile": str(path) if rankfile is not None else None, **launch}
        job = make_job(nodes=None, gpus_per_node=None, tp=1, launch=given)
        return predict_placement(job, node_names=names, gpus_per_node=gpus_per_node)

    return run


@pytest.mark.parametrize(
    ("distribution", "node_ranks", "method"),
    [
        (None, (0, 0, 1, 1, 2, 2), "mpi by slot (its default)"),
        ("by-slot", (0, 0, 1, 1, 2, 2), "mpi by slot"),
        ("by-node", (0, 1, 2, 0, 1, 2), "mpi by node"),
        ("node", (0, 1, 2, 0, 1, 2), "mpi by node"),
    ],
)
def test_by_slot_fills_nodes_and_by_node_goes_round(predict, distribution, node_ranks, method):
    placement = predict(distribution=distribution)
    assert (placement.node_ranks, placement.method) == (node_ranks, method)


def test_another_distribution_is_refused(predict):
    with pytest.raises(ConfigError, match=r"launch.distribution: 'cyclic' is no distribution of mpirun"):
        predict(distribution="cyclic")


def test_a_rankfile_names_the_host_of_each_rank_in_any_order(predict):
    text = "# ranks\nrank 2=a slot=1:0\nrank 0=c slot=0\nrank 1 = a slot=0-3\nRANK 3=+n2 slot=1\n"
    placement = predict(text)
    assert [(rank.node, rank.local_rank) for rank in placement.ranks] == [("c", 0), ("a", 0), ("a", 1), ("c", 1)]
    assert placement.nodes == ("a", "c")
    assert placement.method == "mpi rankfile: rankfile; without ranks: b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rank 0=a slot=0\nrank 2=b slot=0\nrank 4=b slot=1\n", r"rankfile: rank 1 is missing; the highest is 4"),
        ("rank 1=a slot=0\n", r"rank 0 is missing; the highest is 1"),
        ("rank 0=a slot=0\nrank 1=b slot=0\nrank 0=c slot=0\n", r"line 3: rank 0 is already on line 1"),
        ("rank 0=a slot=0\nrank 1=d slot=0\n", r"line 2: 'd' is no node of the job"),
        ("rank 0=a\nrank 1=a\nrank 2=a\n", r"line 3: one rank too many on 'a', which has 2 GPUs"),
        ("rank 0=+n3 slot=0\n", r"line 1: \+n3 is node 3 counted from 0, but there are 3"),
        ("a slots=8\n", r"line 1: 'a slots=8' is not a rank and its host"),
        ("rank 999999999=a\n", r"rank 0 is missing; the highest is 999999999"),
        ("", "names no rank"),
    ],
)
def test_a_wrong_rankfile_is_refused_with_the_first_fault_named(predict, text, message):
    with pytest.raises(ConfigError, match=message):
        predict(text)
