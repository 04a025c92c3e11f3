"""torchrun orders nodes by its rendezvous; Kubernetes by completion index, unless c10d does."""

import pytest

from preflight.model import Placement
from preflight.plan.placement import predict_placement
from tests.builders import make_job

GPUS = [f"gpu-{i}" for i in range(1, 12)]
AS_TEXT = ("gpu-1", "gpu-10", "gpu-11", *(f"gpu-{i}" for i in range(2, 10)))


def predict(names, gpus_per_node=2, *, launcher="torchrun", names_known=True, **launch) -> Placement:
    job = make_job(nodes=None, gpus_per_node=None, tp=1, launch={"launcher": launcher, **launch})
    return predict_placement(job, node_names=names, gpus_per_node=gpus_per_node, names_known=names_known)


def test_c10d_sorts_nodes_as_text():
    placement = predict(GPUS, rendezvous="c10d")
    assert placement.nodes == AS_TEXT
    assert (placement.method, placement.doubt) == ("torchrun c10d: nodes sorted as text", None)
    assert placement.ranks[2].node == "gpu-10"


def test_c10d_ignores_the_order_of_the_allocation():
    assert predict(["b", "c", "a"], rendezvous="c10d").nodes == ("a", "b", "c")


def test_static_takes_the_nodes_in_the_order_of_their_node_rank():
    placement = predict(GPUS, rendezvous="static")
    assert placement.nodes == tuple(GPUS)
    assert placement.doubt is None


def test_ranks_are_the_running_sum_of_worker_counts():
    placement = predict(["n1", "n2", "n3"], 8, rendezvous="static", tasks_per_node="7,8,8")
    first = [placement.node_ranks.index(node) for node in range(3)]
    assert first == [0, 7, 15]
    # tp 8: every group after the first node begins inside a node
    assert [placement.nodes_of(range(start, start + 8)) for start in (0, 8)] == [("n1", "n2"), ("n2", "n3")]


def test_worker_counts_follow_their_node_when_nodes_are_sorted():
    placement = predict(["n2", "n10"], 4, rendezvous="c10d", tasks_per_node="1,3")
    assert placement.nodes == ("n10", "n2")
    assert placement.node_ranks == (0, 0, 0, 1)


def test_an_unsaid_rendezvous_is_static_with_a_doubt_where_it_matters():
    placement = predict(GPUS)
    assert placement.nodes == tuple(GPUS)
    assert placement.method == "torchrun static (its default): nodes in the order given"
    assert "c10d would order the nodes otherwise" in (placement.doubt or "")
    assert predict(["n01", "n02"]).doubt is None


@pytest.mark.parametrize("launcher", ["torchrun", "kubernetes"])
def test_the_order_of_unknown_names_is_not_known(launcher):
    placement = predict(["node0", "node1"], launcher=launcher, rendezvous="c10d", names_known=False)
    assert placement.method == f"{launcher} c10d: order of nodes not known"
    assert "write hosts under [launch]" in (placement.doubt or "")
    assert predict(["node0"], launcher=launcher, rendezvous="c10d", names_known=False).doubt is None


def test_short_names_that_a_domain_would_reorder_are_doubtful():
    assert predict(["n-1", "n-1-a"], rendezvous="c10d").nodes == ("n-1", "n-1-a")
    assert "fully qualified" in (predict(["n-1", "n-1-a"], rendezvous="c10d").doubt or "")
    whole = predict(["n-1.site", "n-1-a.site"], rendezvous="c10d")
    assert (whole.nodes, whole.doubt) == (("n-1-a.site", "n-1.site"), None)


def test_pods_are_numbered_by_completion_index():
    pods = [f"job-{i}" for i in range(12)]
    placement = predict(pods, launcher="kubernetes")
    assert placement.nodes == tuple(pods)
    assert placement.method == "kubernetes: nodes by completion index"
    assert predict(pods, launcher="kubernetes", rendezvous="static").nodes == tuple(pods)


def test_from_eleven_pods_on_c10d_breaks_the_index_order():
    ten, twelve = ([f"pod-{i}" for i in range(n)] for n in (10, 12))
    assert predict(ten, launcher="kubernetes", rendezvous="c10d").nodes == tuple(ten)
    names = predict(twelve, launcher="kubernetes", rendezvous="c10d").nodes
    assert names[:5] == ("pod-0", "pod-1", "pod-10", "pod-11", "pod-2")
