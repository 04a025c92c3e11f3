"""nvlink_links: every GPU has all NVLinks of its board active."""

import pytest

from preflight.model import Fabric, Finding, Node, Platform, Problem, Settings, Verdict
from preflight_checks.nvlink_links import judge
from tests.builders import make_plan, uuids_of
from tests.checks.nvlink_nodes import H100, V100, changed, evidence, links, node_with
from tests.checks.topologies import A100_PCIE, H100_NVL, NO_NVLINK, V100_SXM2, WORKSTATION

MESH = {V100: V100_SXM2}


def judged(*nodes: Node, **others) -> list[Finding]:
    return list(judge(evidence(*nodes, **others)))


def cube(**of_gpu_3) -> Node:
    whole = links(6, peer_kind="gpu", gb_per_s=25.781)
    return node_with(
        *[links(6, peer_kind="gpu", gb_per_s=25.781, **of_gpu_3) if i == 3 else whole for i in range(8)], product=V100
    )


def test_a_whole_board_passes_as_one_line():
    (finding,) = judged(node_with(*[links(18)] * 8))
    assert finding.verdict is Verdict.PASS
    assert finding.observed == "8 GPUs: 18 links active on each"


def test_two_of_six_links_of_one_gpu_are_named_and_the_ends_disagree():
    """Azure/azhpc-diagnostics issue 73."""
    (finding,) = judged(cube(inactive=(3, 5)), profiles=MESH)
    assert (finding.verdict, finding.subject) == (Verdict.FAIL, "node0 GPU 3 (GPU-node0-3)")
    assert finding.observed.startswith("4 of 6 links active, links 3 and 5 inactive")
    assert "the two ends disagree" in finding.observed
    assert finding.blames is not None
    assert finding.blames.name == "node0 GPU 3 (GPU-node0-3)"
    assert "6 links active" in finding.expected
    assert finding.remedy


def test_where_the_far_ends_are_inactive_too_the_gpu_in_the_middle_is_blamed_alone():
    bad = {3: (3, 5), 0: (1,), 2: (2,)}
    node = node_with(*[links(6, inactive=bad.get(i, ()), peer_kind="gpu") for i in range(8)], product=V100)
    (finding,) = judged(node, profiles=MESH)
    assert finding.subject.startswith("node0 GPU 3")
    assert "the far ends, on GPUs 0, 2, are inactive too" in finding.observed


def test_behind_a_switch_no_far_end_on_another_gpu_is_expected():
    (finding,) = judged(node_with(links(18, inactive=(3, 5)), *[links(18)] * 3))
    assert finding.observed == "16 of 18 links active, links 3 and 5 inactive"


def test_one_link_down_at_both_ends_blames_the_way_between_them():
    node = node_with(*[links(6, inactive=(1,) if i in (4, 5) else (), peer_kind="gpu") for i in range(8)], product=V100)
    (finding,) = judged(node, profiles=MESH)
    assert finding.blames is not None
    assert (finding.blames.kind, finding.blames.name) == ("link", "node0 GPU 4 - GPU 5")


def test_up_but_closed_to_traffic_is_not_active():
    (finding,) = judged(node_with(links(18, closed=(7,)), *[links(18)] * 7))
    assert finding.verdict is Verdict.FAIL
    assert finding.observed == "17 of 18 links active, link 7 up but closed to traffic"


def test_sleeping_links_are_active():
    asleep = tuple(changed(link, state="sleep") for link in links(18))
    assert [f.verdict for f in judged(node_with(*[asleep] * 8))] == [Verdict.PASS]


def test_a_board_whose_gpus_all_lack_links_alike_blames_no_single_gpu():
    (finding,) = judged(node_with(*[links(18, inactive=range(18))] * 8))
    assert finding.verdict is Verdict.FAIL
    assert "on each of 8 GPUs: 0 of 18 links active" in finding.observed
    assert finding.blames is not None
    assert (finding.blames.kind, finding.blames.confidence) == ("node", "likely")


def test_cards_without_a_bridge_are_no_fault():
    """NVIDIA/NVSentinel issue 1481: all 12 links of an A100 PCIe are there, and inactive."""
    product = "NVIDIA A100 80GB PCIe"
    node = node_with(*[links(12, inactive=range(12))] * 4, product=product)
    assert [f.verdict for f in judged(node, profiles={product: A100_PCIE})] == [Verdict.PASS]


def test_a_bridge_that_joins_one_of_two_pairs_only_is_a_fault_of_the_other_pair():
    product = "NVIDIA H100 NVL"
    dead, whole = links(12, inactive=range(12)), links(12, peer_kind="gpu")
    (finding,) = judged(node_with(dead, dead, whole, whole, product=product), profiles={product: H100_NVL})
    assert (finding.verdict, finding.subject) == (Verdict.FAIL, "node0 GPU 0 - GPU 1")


def test_one_bridge_among_many_cards_without_is_only_worth_a_look():
    product = "NVIDIA A100 80GB PCIe"
    dead, whole = links(12, inactive=range(12)), links(12, peer_kind="gpu")
    (finding,) = judged(node_with(*[dead] * 6, whole, whole, product=product), profiles={product: A100_PCIE})
    assert (finding.verdict, finding.blames) == (Verdict.WARN, None)


def test_a_card_left_over_without_a_partner_is_no_fault():
    product = "NVIDIA RTX A6000"
    whole, dead = links(4, peer_kind="gpu"), links(4, inactive=range(4))
    node = node_with(whole, whole, dead, product=product)
    assert [f.verdict for f in judged(node, profiles={product: WORKSTATION})] == [Verdict.PASS]


def test_a_bridge_with_partial_contact_fails():
    product = "NVIDIA RTX A6000"
    part = links(4, inactive=(2,), peer_kind="gpu")
    findings = judged(node_with(part, part, product=product), profiles={product: WORKSTATION})
    assert {f.verdict for f in findings} == {Verdict.FAIL}
    assert "3 of 4 links active" in findings[0].observed


def test_an_unknown_product_is_compared_with_its_peers_on_all_nodes():
    nodes = [node_with(*[links(18)] * 4, product="B900", name=f"node{i}") for i in range(2)]
    sick = node_with(links(18, inactive=(4,)), *[links(18)] * 3, product="B900", name="node2")
    findings = judged(*nodes, sick, profiles={})
    (bad,) = [f for f in findings if f.verdict is Verdict.FAIL]
    assert bad.subject.startswith("node2 GPU 0")
    assert "no profile exists" in bad.expected
    assert bad.blames is not None
    assert bad.blames.confidence == "likely"


def test_a_card_of_an_unknown_product_without_links_is_worth_a_look():
    whole, dead = links(4, peer_kind="gpu"), links(4, inactive=range(4))
    (finding,) = judged(node_with(whole, whole, dead, product="X1"), profiles={})
    assert (finding.verdict, finding.blames) == (Verdict.WARN, None)


def test_an_unknown_product_with_nothing_to_compare_is_unknown():
    (finding,) = judged(node_with(links(4, inactive=(3,)), product="X1"), profiles={})
    assert finding.verdict is Verdict.UNKNOWN
    assert "no profile exists for X1" in finding.observed


def test_a_product_without_nvlink_is_skipped():
    assert [f.verdict for f in judged(node_with((), (), product="Tesla T4"), profiles={"Tesla T4": NO_NVLINK})] == [
        Verdict.SKIP
    ]
    assert [f.verdict for f in judged(node_with((), (), product="X1"), profiles={})] == [Verdict.SKIP]


def test_links_that_may_not_be_read_are_unknown_with_the_reason():
    node = node_with(*[links(18)] * 7, None)
    problem = Problem(source="nvmlDeviceGetFieldValues", text="Insufficient Permissions", field="links")
    gpus = (*(node.gpus or ())[:7], changed((node.gpus or ())[7], problems=(problem,)))
    findings = judged(changed(node, gpus=gpus))
    assert [f.verdict for f in findings] == [Verdict.UNKNOWN, Verdict.PASS]
    assert "Insufficient Permissions" in findings[0].observed


def test_the_state_of_a_link_that_is_unknown_is_neither_fault_nor_pass():
    findings = judged(node_with(links(18, unknown=(2,)), *[links(18)] * 7))
    assert [f.verdict for f in findings] == [Verdict.UNKNOWN]
    assert "17 links active, the state of 1 unknown" in findings[0].observed


def test_a_virtual_machine_with_one_gpu_has_nobody_to_talk_to():
    assert [f.verdict for f in judged(node_with(links(18, inactive=range(18))))] == [Verdict.SKIP]
    assert [f.verdict for f in judged(node_with(links(18, inactive=(3,))))] == [Verdict.FAIL]


def test_links_that_wait_for_the_registration_are_unknown():
    """NVIDIA/gpu-driver-container issue 909."""
    node = node_with(*[links(18, inactive=range(18))] * 8)
    gpus = tuple(changed(gpu, fabric=Fabric(state="in progress")) for gpu in node.gpus)
    (finding,) = judged(changed(node, gpus=gpus))
    assert (finding.verdict, finding.blames) == (Verdict.UNKNOWN, None)
    assert "fabric registration is in progress" in finding.observed


def test_a_virtual_machine_that_was_given_gpus_without_switches_blames_none_of_them():
    """NVIDIA/nccl-tests issue 260."""
    node = node_with(*[links(18, inactive=range(18))] * 2, platform=Platform(virtual_machine="kvm"))
    (finding,) = judged(node)
    assert (finding.verdict, finding.blames) == (Verdict.WARN, None)
    assert "hypervisor" in finding.remedy
    metal = changed(node, platform=Platform(virtual_machine="none"))
    assert {f.verdict for f in judged(metal)} == {Verdict.FAIL}


def test_with_a_plan_only_groups_that_use_the_gpu_suffer():
    node = node_with(*[links(18, inactive=(1,)) if i == 2 else links(18) for i in range(8)])
    inventory = evidence(node).inventory
    assert inventory is not None
    four = {"node0": uuids_of(inventory)["node0"][4:]}
    used = make_plan(tp=4, dp=2, pp=1, nodes=1, node_names=["node0"], gpu_uuids=uuids_of(inventory))
    spared = make_plan(tp=4, dp=1, pp=1, nodes=1, gpus_per_node=4, node_names=["node0"], gpu_uuids=four)
    (bad,) = judged(node, plan=used)
    assert bad.verdict is Verdict.FAIL
    assert "used by tp0" in bad.observed
    (mild,) = judged(node, plan=spared)
    assert mild.verdict is Verdict.WARN
    assert "no rank of the plan uses it" in mild.observed


@pytest.mark.parametrize("node", [node_with(), node_with(name="node1", product=H100)])
def test_nodes_without_gpus_yield_nothing(node: Node):
    assert judged(node) == []


def test_nothing_is_said_where_a_run_without_gpus_is_meant():
    assert judged(node_with(*[links(18, inactive=(1,))] * 8), settings=Settings(cpu_declared=True)) == []
