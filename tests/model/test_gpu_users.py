"""Who in the plan uses a GPU."""

from preflight.model import Verdict
from preflight.model.gpu_users import NOBODY_KNOWS, ranks_on, users_of
from tests.builders import make_inventory, make_plan, uuids_of

CLUSTER = make_inventory(2)
FIRST, SECOND = CLUSTER.nodes
BOTH = make_plan(tp=4, dp=4, pp=1, nodes=2, node_names=["node0", "node1"], gpu_uuids=uuids_of(CLUSTER))


def gpus(node, *indices):
    return [gpu for gpu in node.gpus if gpu.index in indices]


def test_ranks_and_groups_of_a_gpu():
    users = users_of(BOTH, SECOND, gpus(SECOND, 5))
    assert users.ranks == (13,)
    assert users.groups == ("tp3", "dp1")
    assert users.text() == "; used by tp3, dp1"
    assert users.lowered(Verdict.FAIL) is Verdict.FAIL


def test_a_fault_between_two_gpus_concerns_groups_that_have_both():
    assert users_of(BOTH, FIRST, gpus(FIRST, 0, 1), together=True).groups == ("tp0",)
    apart = users_of(BOTH, FIRST, gpus(FIRST, 0, 5), together=True)
    assert (apart.known, apart.ranks) == (True, ())


def test_an_unused_gpu_lowers_a_fault_to_a_warning_and_nothing_else():
    plan = make_plan(
        tp=4, dp=1, pp=1, nodes=1, gpus_per_node=4, node_names=["node0"], gpu_uuids={"node0": ["GPU-node0-0", "GPU-node0-1", "GPU-node0-2", "GPU-node0-3"]}
    )  # fmt: skip
    unused = users_of(plan, FIRST, gpus(FIRST, 7))
    assert unused.text() == "; no rank of the plan uses it"
    assert unused.lowered(Verdict.FAIL) is Verdict.WARN
    assert unused.lowered(Verdict.UNKNOWN) is Verdict.UNKNOWN
    assert users_of(plan, SECOND, gpus(SECOND, 0)).lowered(Verdict.FAIL) is Verdict.WARN


def test_what_is_not_known_excuses_nobody():
    anonymous = make_plan(tp=4, dp=4, pp=1, nodes=2, node_names=["node0", "node1"])
    predicted = make_plan(tp=4, dp=4, pp=1, nodes=2, node_names=["a", "b"])  # names that nobody has seen
    for plan in (None, anonymous, predicted):
        users = users_of(plan, FIRST, gpus(FIRST, 0))
        assert users == NOBODY_KNOWS
        assert users.lowered(Verdict.FAIL) is Verdict.FAIL
        assert users.text() == ""


def test_ranks_on_a_node():
    assert ranks_on(BOTH, SECOND) == tuple(range(8, 16))
    assert ranks_on(make_plan(nodes=1, tp=8, dp=1, pp=1, node_names=["other"]), FIRST) == ()
