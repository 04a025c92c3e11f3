"""What a part is called: one name for subjects and blame, one phrase for sentences, everywhere the same."""

import pytest

from preflight.model.localisation import Culprit, Ends
from preflight.model.part_names import is_one_end, part_name, part_phrase

ENDS = Ends(nodes=("n0", "n1", "n2", "n3"), node=(0, 0, 1, 1, 2, 2, 3, 3), slot=(0, 1) * 4, leaves=("a", "a", "b", "b"))
NODES = Ends(nodes=("n0", "n1"), node=(0, 1), slot=(0, 0), whole_nodes=True)
BOTH = (Culprit(kind="gpu", ends=(3,)), Culprit(kind="nic", ends=(3,)))
HALVES = {"nodes": ("n0", "n1"), "other_nodes": ("n2", "n3")}


@pytest.mark.parametrize(
    ("culprit", "name", "phrase"),
    [
        (Culprit(kind="gpu", ends=(3,)), "n1 GPU 1", "n1 GPU 1"),
        (Culprit(kind="nic", ends=(3,), direction="receiving"), "NIC of n1 GPU 1", "NIC of n1 GPU 1, receiving"),
        (Culprit(kind="link", ends=(0, 2)), "n0 GPU 0 to n1 GPU 0", "link n0 GPU 0 to n1 GPU 0"),
        (Culprit(kind="slot", slot=1), "slot 1", "slot 1 of all nodes"),
        (Culprit(kind="rail", slot=1), "rail 1", "rail 1"),
        (Culprit(kind="rail"), "rail", "rail"),
        (Culprit(kind="node", nodes=("n2",), direction="sending"), "n2", "node n2, sending"),
        (Culprit(kind="leaf", leaf="a", slot=1), "a, slot 1", "leaf a, slot 1"),
        (Culprit(kind="leaf", leaf="Leaf7"), "Leaf7", "Leaf7"),
        (Culprit(kind="uplink", leaf="a", slot=1), "uplink of a, slot 1", "uplink of a, slot 1"),
        (
            Culprit(kind="uplink", leaf="a", share=0.25),
            "uplink of a, in part",
            "uplink of a, in part (25% of what crosses it)",
        ),
        (Culprit(kind="path", **HALVES), "n[0-1] to n[2-3]", "path n[0-1] to n[2-3]"),
        (Culprit(kind="class", fact="driver 550", nodes=("n0",)), "driver 550", "nodes with driver 550 (n0)"),
        (Culprit(kind="class", fact="driver 550", **HALVES), "driver 550", "driver 550: n[0-1] to n[2-3]"),
        (Culprit(kind="class", **HALVES), "n[0-1] to n[2-3]", "class n[0-1] to n[2-3]"),
        (Culprit(kind="node", nodes=("node3",)), "node3", "node3"),
        (Culprit(kind="environment"), "environment", "environment"),
        (Culprit(kind="switch", nodes=("n0",)), "n0", "switch n0"),
        (Culprit(kind="plan"), "plan", "plan"),
        (Culprit(kind=None, candidates=BOTH), "n1 GPU 1", "n1 GPU 1"),
        (Culprit(kind=None), "not identifiable", "not identifiable"),
    ],
)
def test_each_kind_of_part_has_a_name_and_a_phrase(culprit, name, phrase):
    assert (part_name(culprit, ENDS), part_phrase(culprit, ENDS)) == (name, phrase)


def test_an_end_that_is_a_whole_node_has_no_gpu_in_its_name():
    assert part_phrase(Culprit(kind="link", ends=(0, 1)), NODES) == "link n0 to n1"


def test_a_question_is_about_one_end_only_where_every_answer_is_on_its_own_way():
    assert is_one_end(Culprit(kind=None, candidates=BOTH))
    assert not is_one_end(Culprit(kind=None, candidates=(*BOTH, Culprit(kind="nic", ends=(4,)))))
    assert not is_one_end(Culprit(kind=None, candidates=(Culprit(kind="uplink", leaf="a", ends=(3,)),)))
    assert not is_one_end(Culprit(kind=None))
    assert not is_one_end(BOTH[0])


def test_many_nodes_fill_a_subject_and_not_a_sentence():
    names = tuple(f"rack{i * 7}-node" for i in range(64))
    many = Culprit(kind="path", nodes=names, other_nodes=("n0",))
    assert len(part_name(many, ENDS)) > 160 > len(part_phrase(many, ENDS)) - len("path ") - 3
