"""The scoring is strict: it is held against localisers that know the truth, know nothing, or say something untrue."""

import msgspec
import pytest

from preflight.model.localisation import Culprit, Localisation
from preflight.probe.simulate import Fault, plain_cluster
from tests.fleets.examine import examine
from tests.fleets.fleets import FAMILIES, random_fleet
from tests.fleets.score import kind_of, score
from tests.fleets.tally import EXCLUDED, Tally

FIELDS = ("kind", "ends", "nodes", "other_nodes", "leaf", "slot", "direction", "share", "depth")


def named(fault, **changes):
    """The culprit that is this fault, or one that differs from it."""
    return Culprit(**({field: getattr(fault, field) for field in FIELDS} | changes))


def says(*culprits):
    return lambda ends, shots: Localisation(ends=ends, culprits=culprits, shots=len(shots.a))


def cluster_with(*faults, **more):
    return plain_cluster((6, 6, 6, 6), **({"noise": 0.01, "faults": faults} | more))


NIC = Fault(kind="nic", ends=(11,), depth=0.4)
GPU = Fault(kind="gpu", ends=(11,), depth=0.4)
NODE = Fault(kind="node", nodes=("n03",), depth=0.4)
SLOT = Fault(kind="slot", slot=3, depth=0.4)
UPLINK = Fault(kind="uplink", leaf="leaf1", depth=0.4, direction="sending")
SHARE = Fault(kind="uplink", leaf="leaf1", depth=0.4, share=0.3)
WAY_OUT = Fault(kind="uplink", leaf="leaf1", depth=0.4, slot=2)
PATH = Fault(
    kind="path", nodes=tuple(f"n{i:02}" for i in range(6)), other_nodes=tuple(f"n{i}" for i in range(12, 24)), depth=0.4
)


def outcome(fault, *culprits):
    """(what became of the fault, what each culprit is)."""
    result = score(examine(cluster_with(fault), 1, judge=says(*culprits)))
    return result.faults[0][1], [what for _, what in result.blamed]


@pytest.mark.parametrize("fault", [NIC, GPU, NODE, SLOT, UPLINK, SHARE, WAY_OUT, PATH], ids=kind_of)
def test_a_fault_named_as_it_is_is_exact_and_one_that_is_not_named_is_missed(fault):
    assert outcome(fault, named(fault)) == ("exact", ["exact"])
    assert outcome(fault) == ("missed", [])


@pytest.mark.parametrize("fault", [NIC, GPU, NODE, SLOT, UPLINK, SHARE, WAY_OUT, PATH], ids=kind_of)
def test_the_truth_among_candidates_is_listed_and_blames_nothing(fault):
    open_question = Culprit(kind=None, candidates=(named(fault, share=0.9, leaf="leaf3"), named(fault)))
    assert outcome(fault, open_question) == ("listed", [])
    assert outcome(fault, Culprit(kind=None, candidates=())) == ("missed", [])


@pytest.mark.parametrize(
    ("fault", "changes"),
    [
        (NIC, {"ends": (12,)}),
        (NIC, {"kind": "gpu"}),
        (GPU, {"kind": "nic"}),
        (NIC, {"kind": "node", "nodes": ("n01",), "ends": ()}),
        (GPU, {"kind": "node", "nodes": ("n01",), "ends": ()}),
        (NODE, {"nodes": ("n04",)}),
        (SLOT, {"slot": 4}),
        (UPLINK, {"kind": "node", "nodes": ("n07",), "leaf": None}),
        (PATH, {"kind": "node", "nodes": ("n00",), "other_nodes": ()}),
        (NIC, {"kind": "link", "ends": (12, 20)}),
    ],
)
def test_a_healthy_part_that_is_named_is_innocent_and_the_fault_not_found(fault, changes):
    fate, blamed = outcome(fault, named(fault, **changes))
    assert fate in {"wrong", "missed"}
    assert blamed == ["innocent"]


@pytest.mark.parametrize(
    ("fault", "changes"),
    [
        (NIC, {"direction": "sending"}),
        (NODE, {"direction": "receiving"}),
        (NODE, {"kind": "nic", "nodes": (), "ends": (3 * 8 + 2,)}),
        (SLOT, {"kind": "nic", "slot": None, "ends": (3,)}),
    ],
)
def test_an_ill_part_with_a_wrong_direction_or_too_small_is_not_found_but_guilty(fault, changes):
    fate, blamed = outcome(fault, named(fault, **changes))
    assert fate in {"wrong", "missed"}
    assert blamed == ["guilty"]


@pytest.mark.parametrize(
    ("fault", "changes"),
    [
        (UPLINK, {"direction": "both"}),
        (UPLINK, {"share": 0.5}),
        (SHARE, {"share": None}),
        (WAY_OUT, {"slot": None}),
        (PATH, {"nodes": PATH.nodes[:-1]}),
        (PATH, {"nodes": (*PATH.nodes, "n06")}),
    ],
)
def test_a_set_with_a_wrong_extent_is_not_exact(fault, changes):
    assert outcome(fault, named(fault, **changes)) == ("wrong", ["set"])


def test_members_that_are_in_no_planted_set_are_counted():
    result = score(examine(cluster_with(PATH), 1, judge=says(named(PATH, nodes=(*PATH.nodes, "n06")))))
    assert (result.members, result.wrong_members) == (19, 1)


def test_a_path_is_the_same_from_either_side():
    assert outcome(PATH, named(PATH, nodes=PATH.other_nodes, other_nodes=PATH.nodes)) == ("exact", ["exact"])


def test_a_pair_that_a_fault_of_another_kind_slows_is_a_symptom():
    examined = examine(cluster_with(UPLINK), 1, judge=says())
    slow = next(
        pair for pair in zip(examined.shots.a, examined.shots.b, strict=True) if pair[0] // 48 == 1 != pair[1] // 48
    )
    assert outcome(UPLINK, Culprit(kind="link", ends=slow))[1] == ["symptom"]


def test_what_cannot_be_seen_is_left_out_whatever_the_localiser_says():
    deep, shallow = (Fault(kind="nic", ends=(11,), depth=depth) for depth in (0.6, 0.1))
    node = Fault(kind="node", nodes=("n01",), depth=0.6)
    far = Fault(kind="link", ends=(0, 40), depth=0.5)
    silent = says()
    fates = {
        "hidden": cluster_with(msgspec.structs.replace(deep, depth=0.3), node),
        "below the floor": cluster_with(shallow),
        "not crossed": cluster_with(far),
        "no reference": cluster_with(
            *(msgspec.structs.replace(UPLINK, leaf=f"leaf{i}", direction="both") for i in range(3))
        ),
    }
    for fate, cluster in fates.items():
        assert score(examine(cluster, 1, judge=silent)).faults[0][1] == fate


@pytest.mark.parametrize("seed", range(12))
def test_a_localiser_that_knows_the_truth_of_a_random_fleet_finds_all_that_counts(seed):
    fleet = random_fleet(seed, max_nodes=300)
    truth = [named(fault) for fault in fleet.cluster.faults]
    tally = Tally([score(examine(fleet.cluster, fleet.seed, judge=says(*truth)))])
    assert {fate for _, fate in tally.fates} <= {"exact", *EXCLUDED}
    assert {what for _, what in tally.culprits} <= {"exact"}
    assert tally.wrong_members == tally.innocents == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_gives_the_same_fleet_again(family):
    assert random_fleet(7, family) == random_fleet(7, family) != random_fleet(8, family)
