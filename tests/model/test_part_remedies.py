"""A remedy can be followed: it leaves out only what is at fault, and points only at what is there."""

import re

import pytest

from preflight.model.counters import PORT_COUNTERS
from preflight.model.localisation import Culprit, Ends
from preflight.model.part_remedies import RISING, Around, remedy_of
from preflight_checks import CHECKS

ENDS = Ends(nodes=("n0", "n1", "n2", "n3"), node=(0, 0, 1, 1, 2, 2, 3, 3), slot=(0, 1) * 4, leaves=("a", "a", "b", "b"))
SINGLE = Ends(nodes=("n0", "n1"), node=(0, 1), slot=(0, 0))
LOGS = Ends(nodes=("n0", "n1"), node=(0, 1), slot=(0, 0), whole_nodes=True)
NCCL, GLOO = Around(cards={3: ("mlx5_3",)}), Around(nccl=False)
HALVES = {"nodes": ("n0", "n1"), "other_nodes": ("n2", "n3")}
RANK = Culprit(kind=None, candidates=(Culprit(kind="gpu", ends=(3,)), Culprit(kind="nic", ends=(3,))))
PARTS = [
    Culprit(kind="gpu", ends=(3,)),
    Culprit(kind="nic", ends=(3,)),
    Culprit(kind="node", nodes=("n1",)),
    Culprit(kind="slot", slot=1),
    Culprit(kind="link", ends=(0, 2)),
    Culprit(kind="link", ends=(0, 1)),
    Culprit(kind="leaf", leaf="a", nodes=("n0", "n1")),
    Culprit(kind="uplink", leaf="a", nodes=("n0", "n1")),
    Culprit(kind="uplink", leaf="a", slot=1, nodes=("n0", "n1")),
    Culprit(kind="uplink", leaf="a", nodes=("n0", "n1"), ends=(0, 2), share=0.25),
    Culprit(kind="path", **HALVES),
    Culprit(kind="class", fact="driver 550", nodes=("n0",)),
    Culprit(kind="class", fact="driver 550", **HALVES),
    Culprit(kind="environment"),
    RANK,
]
WAYS = ("both", "sending", "receiving")


def told(culprit, way="both", around=NCCL, ends=ENDS):
    import msgspec

    return remedy_of(msgspec.structs.replace(culprit, direction=way), ends, around)


@pytest.mark.parametrize("around", [NCCL, GLOO])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("culprit", PARTS)
def test_a_remedy_names_no_check_counter_gpu_or_node_that_is_not_there(culprit, way, around):
    remedy = told(culprit, way, around)
    assert remedy
    words = set(re.findall(r"[a-z0-9]+(?:_[a-z0-9]+)+", remedy))
    assert words <= {check.name for check in CHECKS} | set(PORT_COUNTERS) | {"mlx5_3"}
    assert set(re.findall(r"\bn\d\b", remedy)) <= set(ENDS.nodes)
    assert {int(slot) for slot in re.findall(r"(?:GPU|slot) (\d)", remedy)} <= set(ENDS.slot)
    if around is GLOO:
        assert not set(PORT_COUNTERS) & words
        assert not re.search(r"NCCL|GPUDirect|NVLink", remedy) or culprit.kind == "link"


@pytest.mark.parametrize("culprit", PARTS)
def test_a_node_is_left_out_only_where_it_or_its_part_is_at_fault(culprit):
    remedy = told(culprit)
    own = culprit.kind in {"gpu", "nic", "node", None}
    assert ("leave n1 out of the job" in remedy) == own
    if culprit.kind in {"slot", "leaf", "uplink", "path", "environment"}:
        assert re.search(r"no (single )?node", remedy)


def test_a_nic_is_named_with_its_card_and_the_end_of_the_cable_that_counts():
    nic = Culprit(kind="nic", ends=(3,))
    own, far = "its own port, which counts what arrives damaged", "the switch port at the other end of its cable"
    assert "the NIC of its GPU 1 (mlx5_3): both ends of its cable" in told(nic)
    assert far in told(nic, "sending")
    assert own not in told(nic, "sending")
    assert own in told(nic, "receiving")
    assert far not in told(nic, "receiving")
    assert RISING in told(nic, "receiving")
    assert "ethtool" in told(nic, "receiving", GLOO)
    assert "NICs of its GPU 1 (mlx5_[3-4])" in told(nic, around=Around(cards={3: ("mlx5_3", "mlx5_4")}))
    assert "the NIC of its GPU 1:" in told(nic, around=Around())


def test_an_uplink_is_looked_at_on_the_side_that_counts_and_a_share_of_it_one_by_one():
    whole = Culprit(kind="uplink", leaf="a")
    assert "far ends of the uplinks of a" in told(whole, "sending")
    assert "a's own ends of its uplinks" in told(whole, "receiving")
    assert "count how many uplinks of a are up" in told(whole)
    assert "a that slot 1 is cabled to" in told(Culprit(kind="uplink", leaf="a", slot=1))
    part = told(Culprit(kind="uplink", leaf="a", share=0.25))
    assert "25% of what crosses is slow, so some of the uplinks are" in part
    assert "take them out of the routes" in part


def test_a_path_is_told_with_its_direction_and_the_larger_set_is_where_the_job_fits():
    path = Culprit(kind="path", nodes=("n0",), other_nodes=("n1", "n2", "n3"))
    assert "between n0 and n[1-3]" in told(path)
    assert "from n0 to n[1-3]" in told(path, "sending")
    assert "to n0 from n[1-3]" in told(path, "receiving")
    assert told(path).endswith("one set, n[1-3]")


def test_a_link_inside_a_node_is_no_matter_of_switches():
    assert "nvlink_pairs" in told(Culprit(kind="link", ends=(0, 1)))
    assert "switch" not in told(Culprit(kind="link", ends=(0, 1)))
    assert "from n0 GPU 0 to n1 GPU 0" in told(Culprit(kind="link", ends=(0, 2)), "sending")


def test_logs_of_whole_nodes_name_no_gpu():
    assert "GPU 0" not in told(Culprit(kind="link", ends=(0, 1)), ends=LOGS)
    assert "leave n1 out" in told(Culprit(kind="node", nodes=("n1",)), ends=LOGS)


def test_what_would_tell_gpu_from_nic_is_what_the_node_has():
    assert "pairs inside the node and copies from its host (gpu_speed) tell" in told(RANK)
    alone = Culprit(kind=None, candidates=(Culprit(kind="gpu", ends=(1,)), Culprit(kind="nic", ends=(1,))))
    assert "pairs inside" not in told(alone, ends=SINGLE)
    assert "run again" not in told(alone, around=GLOO, ends=SINGLE)


def test_what_cannot_be_is_no_remedy():
    for culprit in (Culprit(kind="gpu"), Culprit(kind="nic"), Culprit(kind="link"), Culprit(kind=None)):
        assert remedy_of(culprit, ENDS, NCCL) == ""
