"""Slurm's distributions, as real srun deals them (test_real_slurm.py compares)."""

import pytest

from preflight.errors import ConfigError
from preflight.model import Placement, Topology
from preflight.plan.placement import predict_placement
from tests.builders import make_job

NODES = ("n1", "n2", "n3", "n10")
UNEVEN = "4,4,2,4"


def predict(names=NODES, gpus_per_node=4, *, topology=None, **launch) -> Placement:
    job = make_job(nodes=None, gpus_per_node=None, tp=1, launch={"launcher": "slurm", **launch})
    return predict_placement(job, node_names=names, gpus_per_node=gpus_per_node, topology=topology)


def dealt(placement: Placement) -> str:
    """The node's number of each rank: "1 1 2 2"."""
    return " ".join(placement.nodes[node][1:] for node in placement.node_ranks)


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [
        (None, "1 1 1 1 2 2 2 2 3 3 10 10 10 10"),
        ("*", "1 1 1 1 2 2 2 2 3 3 10 10 10 10"),
        ("block", "1 1 1 1 2 2 2 2 3 3 10 10 10 10"),
        ("block:cyclic", "1 1 1 1 2 2 2 2 3 3 10 10 10 10"),
        ("Block,Pack", "1 1 1 1 2 2 2 2 3 3 10 10 10 10"),
        ("cyclic", "1 2 3 10 1 2 3 10 1 2 10 1 2 10"),
        ("cyclic:block:fcyclic,NoPack", "1 2 3 10 1 2 3 10 1 2 10 1 2 10"),
        ("plane=2", "1 1 2 2 3 3 10 10 1 1 2 2 10 10"),
        ("plane=3", "1 1 1 2 2 2 3 3 10 10 10 1 2 10"),
        ("plane=8", "1 1 1 1 2 2 2 2 3 3 10 10 10 10"),
    ],
)
def test_tasks_are_dealt_to_nodes_by_the_distribution(distribution, expected):
    assert dealt(predict(distribution=distribution, tasks_per_node=UNEVEN)) == expected


def test_the_method_says_which_distribution_it_is():
    assert predict(distribution="cyclic").method == "slurm cyclic"
    assert predict(distribution="plane=2").method == "slurm plane=2"
    assert predict().method == "slurm block (default: more tasks than nodes)"
    assert predict(tasks_per_node="1").method == "slurm cyclic (default: no more tasks than nodes)"


def test_hosts_in_an_order_that_slurm_hardly_has_are_said_to_be_so():
    assert "hosts as given" in predict(("n10", "n2"), hosts=("n10", "n2"), distribution="block").method
    assert predict(("n2", "n10"), hosts=("n2", "n10"), distribution="block").method == "slurm block"


def test_partly_filled_nodes_follow_their_counts():
    # an exclusive allocation of 4, 4, 2, 4 CPUs and 8 tasks: even by default, 4, 2, 1, 1 with Pack
    assert dealt(predict(tasks_per_node="2(x4)")) == "1 1 2 2 3 3 10 10"
    assert dealt(predict(distribution="block,pack", tasks_per_node="4,2,1(x2)")) == "1 1 1 1 2 2 3 10"


@pytest.mark.parametrize(
    ("distribution", "message"),
    [
        ("plane", "'plane' has no plane size"),
        ("plane=0", "'plane=0' is no distribution of Slurm"),
        ("by-node", "'by-node' is no distribution of Slurm"),
        ("block,tight", "is no distribution of Slurm"),
        ("arbitrary", "launch.hostfile: is missing, and distribution is arbitrary"),
    ],
)
def test_another_distribution_is_refused(distribution, message):
    with pytest.raises(ConfigError, match=message):
        predict(distribution=distribution)


@pytest.fixture
def hostfile(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "hosts.txt"
        path.write_text(text)
        return str(path)

    return write


def test_an_arbitrary_hostfile_names_the_node_of_each_rank(hostfile):
    placement = predict(distribution="arbitrary", hostfile=hostfile("n3\nn1\nn2\nn1\nn3\n"))
    assert dealt(placement) == "3 1 2 1 3"
    assert placement.local_ranks == (0, 0, 0, 1, 1)
    assert placement.nodes == ("n1", "n2", "n3")
    assert placement.method == "slurm arbitrary: hosts.txt; without ranks: n10"


@pytest.mark.parametrize("distribution", [None, "cyclic", "block"])
def test_a_hostfile_overrides_any_other_method(hostfile, distribution):
    assert dealt(predict(distribution=distribution, hostfile=hostfile("n2\nn1\n"))) == "2 1"


def test_a_hostfile_may_repeat_and_list_hosts(hostfile):
    text = "# comment\n\nn10*2\nn[1-2]\nn3 # third\nn1,n2\n"
    assert dealt(predict(hostfile=hostfile(text))) == "10 10 1 2 3 1 2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n1\nn9\n", r"hosts.txt: line 2: 'n9' is no node of the job(.|\n)*n\[1-3,10\]"),
        ("n1 n2\n", r"line 1: 'n1 n2' is not a host"),
        ("n1*x\n", r"line 1: 'n1\*x' is not a host"),
        ("n1\n" * 5, r"line 5: one rank too many on 'n1', which has 4 GPUs"),
        ("n[1-1000000]*9\n", r"line 1: 'n\[1-1000000\]\*9' is not a host"),
        ("n[1-1000000]\n" * 2, r"line 2: is rank 1048576 or more"),
        ("# nothing\n", "names no host"),
    ],
)
def test_a_wrong_hostfile_is_refused_by_line(hostfile, text, message):
    with pytest.raises(ConfigError, match=message):
        predict(hostfile=hostfile(text))


def test_a_hostfile_does_not_go_with_a_segment(hostfile):
    with pytest.raises(ConfigError, match=r"launch.segment: 2, but an arbitrary distribution"):
        predict(hostfile=hostfile("n1\n"), segment=2)


def tree(*leaves: tuple[str, ...]) -> Topology:
    return Topology(switches={node: (f"leaf{i}", "spine") for i, leaf in enumerate(leaves) for node in leaf})


def blocks(*members: tuple[str, ...]) -> Topology:
    return Topology(node_domains={node: f"block{i}" for i, block in enumerate(members) for node in block})


APART = tree(("n1", "n3"), ("n2", "n10"))


def test_since_26_05_nodes_without_a_method_follow_topology_order():
    old, new = (predict(slurm_version=version, topology=APART) for version in ("25.11", "26.05.1"))
    assert (old.nodes, old.doubt) == (NODES, None)
    assert new.nodes == ("n1", "n3", "n2", "n10")
    assert new.method == "slurm block (default: more tasks than nodes), nodes in topology order"
    assert "CR_NO_DIST_TOPO_BLOCK" in (new.doubt or "")


def test_blocks_give_a_topology_order_too():
    placement = predict(slurm_version="26.05", topology=blocks(("n1", "n10"), ("n2", "n3")), tasks_per_node="4,4,2,1")
    assert placement.nodes == ("n1", "n10", "n2", "n3")
    assert dealt(placement) == "1 1 1 1 10 2 2 2 2 3 3"  # each node keeps its own count


def test_a_method_keeps_the_order_of_the_node_list():
    placement = predict(slurm_version="26.05", topology=APART, distribution="block")
    assert (placement.nodes, placement.doubt) == (NODES, None)


def test_where_both_orders_agree_nothing_is_doubtful():
    placement = predict(slurm_version="26.05", topology=tree(("n1", "n2"), ("n3", "n10")))
    assert (placement.nodes, placement.doubt) == (NODES, None)
    assert predict(topology=tree(("n1", "n2"), ("n3", "n10"))).doubt is None


def test_an_order_that_can_not_be_known_is_said_to_be_so():
    assert "no file tells the topology of all" in (predict(slurm_version="26.05").doubt or "")
    assert "no file tells" in (predict(slurm_version="26.05", topology=tree(("n1", "n2"))).doubt or "")
    assert "write slurm_version or distribution" in (predict(topology=APART).doubt or "")
    assert predict().doubt is None


def test_a_version_that_is_none_is_refused():
    with pytest.raises(ConfigError, match=r"launch.slurm_version: 'new' is no version of Slurm"):
        predict(slurm_version="new")


def test_a_segment_divides_the_nodes_and_each_block():
    assert "the blocks of the nodes are not known" in predict(segment=2).method
    good = predict(segment=2, topology=blocks(("n1", "n2"), ("n3", "n10")))
    assert good.method.endswith(", segment 2: each block holds whole segments")
    interleaved = predict(segment=2, topology=blocks(("n1", "n3"), ("n2", "n10")))
    assert interleaved.method.endswith("; 2 of 2 runs of 2 nodes lie in several blocks")


def test_a_segment_that_slurm_could_not_give_is_refused():
    with pytest.raises(ConfigError, match=r"launch.segment: 3 does not divide the 4 nodes"):
        predict(segment=3)
    with pytest.raises(ConfigError, match=r"2, but 3 of the nodes are in block 'block0'"):
        predict(segment=2, topology=blocks(("n1", "n2", "n3"), ("n10",)))
