"""The DeepSpeed launcher takes nodes in the order of its hostfile and rotates local ranks of unequal nodes."""

import pytest

from preflight.errors import ConfigError
from preflight.model import Placement
from preflight.plan.placement import predict_placement
from tests.builders import make_job


@pytest.fixture
def predict(tmp_path):
    def run(text: str | None, names=("a", "b"), gpus_per_node=8, **launch) -> Placement:
        path = tmp_path / "hostfile"
        path.write_text(text or "")
        given = {"launcher": "deepspeed", "hostfile": str(path) if text is not None else None, **launch}
        job = make_job(nodes=None, gpus_per_node=None, tp=1, launch=given)
        return predict_placement(job, node_names=names, gpus_per_node=gpus_per_node)

    return run


def test_the_order_of_the_lines_is_the_order_of_the_ranks(predict):
    placement = predict("# all\nb slots=2\n\na  slots=2\n")
    assert placement.nodes == ("b", "a")
    assert placement.node_ranks == (0, 0, 1, 1)
    assert placement.local_ranks == (0, 1, 0, 1)
    assert (placement.method, placement.doubt) == ("deepspeed: the lines of hostfile", None)


def test_local_ranks_of_unequal_nodes_are_rotated(predict):
    placement = predict("a slots=4\nb slots=8\n")
    assert placement.node_ranks == (0,) * 4 + (1,) * 8
    assert placement.local_ranks == (0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3)


def test_a_node_without_a_line_has_no_ranks(predict):
    placement = predict("b slots=1\n")
    assert placement.nodes == ("b",)
    assert placement.method == "deepspeed: the lines of hostfile; without ranks: a"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a slots=2\na slots=2\n", r"hostfile: line 2: 'a' is already on line 1"),
        ("a slots=2\nc slots=2\n", r"line 2: 'c' is no node of the job"),
        ("a 8\n", r"line 1: 'a 8' is not a host and its slots"),
        ("a slots=0\n", r"is not a host and its slots"),
        ("a slots=9\n", r"line 1: 9 ranks on a, which has 8 GPUs"),
        ("rank 0=a slot=1\n", r"is not a host and its slots"),
        ("", "names no host"),
    ],
)
def test_a_wrong_hostfile_is_refused_by_line(predict, text, message):
    with pytest.raises(ConfigError, match=message):
        predict(text)


def test_counts_that_contradict_the_hostfile_are_refused(predict):
    assert predict("b slots=2\na slots=4\n", tasks_per_node="4,2").nodes == ("b", "a")
    with pytest.raises(ConfigError, match=r"launch.tasks_per_node: 2 on a, but the hostfile gives it 4"):
        predict("b slots=2\na slots=4\n", tasks_per_node="2,4")


def test_without_a_hostfile_the_order_is_doubtful(predict):
    placement = predict(None)
    assert placement.nodes == ("a", "b")
    assert "the order of the lines of DeepSpeed's hostfile decides" in (placement.doubt or "")
    assert predict(None, names=("a",)).doubt is None
