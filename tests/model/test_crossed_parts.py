"""Which parts a group's data passes."""

import pytest

from preflight.model.crossed_parts import CrossedParts, crosses
from preflight.model.localisation import Culprit, Ends, Localisation

ENDS = Ends(
    nodes=("n0", "n1", "n2", "n3"),
    node=(0, 0, 1, 1, 2, 2, 3, 3),
    slot=(0, 1) * 4,
    leaves=("leaf0", "leaf0", "leaf1", "leaf1"),
)
INSIDE, SAME_LEAF, OTHER_LEAF = (0, 1), (0, 2), (0, 4)


@pytest.mark.parametrize(
    ("culprit", "crossed"),
    [
        (Culprit(kind="gpu", ends=(0,)), (INSIDE, SAME_LEAF, OTHER_LEAF)),
        (Culprit(kind="gpu", ends=(1,)), (INSIDE,)),
        (Culprit(kind="nic", ends=(0,)), (SAME_LEAF, OTHER_LEAF)),
        (Culprit(kind="link", ends=(0, 2)), (SAME_LEAF,)),
        (Culprit(kind="slot", slot=0), (SAME_LEAF, OTHER_LEAF)),
        (Culprit(kind="slot", slot=1), ()),
        (Culprit(kind="node", nodes=("n0",)), (SAME_LEAF, OTHER_LEAF)),
        (Culprit(kind="node", nodes=("n2",)), (OTHER_LEAF,)),
        (Culprit(kind="class", nodes=("n0", "n1"), fact="driver 570"), (SAME_LEAF, OTHER_LEAF)),
        (Culprit(kind="path", nodes=("n0", "n1"), other_nodes=("n2", "n3")), (OTHER_LEAF,)),
        (Culprit(kind="uplink", leaf="leaf0"), (OTHER_LEAF,)),
        (Culprit(kind="uplink", leaf="leaf0", slot=1), ()),
        (Culprit(kind="leaf", leaf="leaf0"), (SAME_LEAF,)),
        (Culprit(kind="environment"), ()),
        (Culprit(kind=None), ()),
    ],
)
def test_a_group_crosses_what_its_data_passes_and_nothing_else(culprit, crossed):
    assert tuple(ranks for ranks in (INSIDE, SAME_LEAF, OTHER_LEAF) if crosses(culprit, ENDS, ranks)) == crossed


def test_the_deepest_part_that_is_deep_enough_explains_a_group():
    shallow, deep = Culprit(kind="node", nodes=("n0",), depth=0.2), Culprit(kind="nic", ends=(0,), depth=0.5)
    parts = CrossedParts(Localisation(ends=ENDS, culprits=(shallow, deep)), 8)
    assert parts.explaining(OTHER_LEAF, 0.3) == deep
    assert parts.explaining(OTHER_LEAF, 0.9) is None
    assert parts.named_for((2, 4), 0.3) == ""
    assert parts.named_for(OTHER_LEAF, 0.3) == "NIC of n0 GPU 0, 50% slower than its peers"


def test_parts_of_another_kind_of_ends_explain_nothing():
    culprit = Culprit(kind="node", nodes=("n0",), depth=0.5)
    assert CrossedParts(None, 8).explaining(OTHER_LEAF, 0.3) is None
    assert CrossedParts(Localisation(ends=ENDS, culprits=(culprit,)), 16).explaining(OTHER_LEAF, 0.3) is None
