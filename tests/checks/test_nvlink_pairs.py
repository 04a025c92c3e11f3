"""nvlink_pairs: the matrix of a node against the layouts of its product."""

import pytest

from preflight.model import Fabric, Finding, GpuPeer, Node, Platform, Problem, Settings, Verdict
from preflight_checks.nvlink_pairs import judge
from tests.builders import make_plan, uuids_of
from tests.checks.nvlink_nodes import H100, changed, evidence, links, node_with
from tests.checks.topologies import (
    A100_PCIE,
    A100_SXM,
    BY_NAME,
    CUBE,
    H100_NVL,
    LOST_GPU_2,
    NO_NVLINK,
    V100_SXM2,
    WORKSTATION,
    every,
    node_of,
)

V100 = "Tesla V100-SXM2-16GB"
A6000 = "NVIDIA RTX A6000"
UNHEARD_OF = ("B900", "X1")  # no profile exists


def numbers(matrix: list[list[str]]) -> list[list[int | None]]:
    return [[int(cell[2:]) if cell.startswith("NV") else 0 for cell in row] for row in matrix]


def judged(matrix: list[list[str]], *, product: str = H100, profile=None, links_each=18, **others) -> list[Finding]:
    node = node_with(*[links(links_each)] * len(matrix), product=product, pairs=numbers(matrix))
    profiles = {} if product in UNHEARD_OF else None if profile is None else {product: profile}
    return list(judge(evidence(node, profiles=profiles, **others)))


def with_pairs(matrix: list[list[str]], **labels: str) -> list[list[str]]:
    """`g0_1="NV17"` changes that pair."""
    rows = [list(row) for row in matrix]
    for pair, label in labels.items():
        a, b = map(int, pair.removeprefix("g").split("_"))
        rows[a][b] = rows[b][a] = label
    return rows


def test_a_whole_board_passes_and_says_what_is_expected():
    (finding,) = judged(every(8, "NV18"))
    assert (finding.verdict, finding.subject) == (Verdict.PASS, "node0")
    assert finding.observed == "8 GPUs: NV18 on all 28 pairs"
    assert finding.expected.startswith("18 NVLinks between any two GPUs")


def test_one_gpu_outside_the_fabric_is_blamed_alone():
    """vllm-project/vllm issue 16336."""
    (finding,) = judged(LOST_GPU_2)
    assert (finding.verdict, finding.subject) == (Verdict.FAIL, "node0 GPU 2 (GPU-node0-2)")
    assert finding.observed == "NVLink to 0 of 7 peers, the others to 6 of 6 among themselves"
    assert finding.blames is not None
    assert (finding.blames.kind, finding.blames.confidence) == ("gpu", "certain")
    assert "fabric registration" in finding.remedy


def test_a_gpu_with_a_link_too_few_to_every_peer_is_blamed_alone():
    matrix = with_pairs(every(8, "NV18"), **{f"g{min(5, i)}_{max(5, i)}": "NV17" for i in range(8) if i != 5})
    (finding,) = judged(matrix)
    assert finding.subject.startswith("node0 GPU 5")
    assert "17 of 18 NVLinks to each of its 7 peers" in finding.observed


def test_one_pair_that_falls_short_is_a_fault_between_two_gpus():
    (finding,) = judged(with_pairs(every(4, "NV6"), g0_3="NV5"))
    assert finding.blames is not None
    assert (finding.blames.kind, finding.blames.name) == ("link", "node0 GPU 0 - GPU 3")
    assert finding.observed == "5 of 6 NVLinks between them; 5 other pairs are whole"


def test_two_pairs_that_share_a_gpu_point_at_that_gpu_without_certainty():
    (finding,) = judged(with_pairs(every(4, "NV6"), g0_3="NV5", g1_3="NV4"))
    assert finding.subject.startswith("node0 GPU 3")
    assert finding.blames is not None
    assert finding.blames.confidence == "likely"


def test_three_pairs_in_a_ring_are_named_one_by_one():
    findings = judged(with_pairs(every(8, "NV18"), g0_1="NV17", g1_2="NV17", g0_2="NV17"))
    assert [f.subject for f in findings] == ["node0 GPU 0 - GPU 1", "node0 GPU 0 - GPU 2", "node0 GPU 1 - GPU 2"]


def test_a_dead_fabric_blames_the_node_and_no_gpu():
    (finding,) = judged(every(8, "SYS"))
    assert finding.verdict is Verdict.FAIL
    assert finding.observed == "0 of 18 NVLinks on every pair (28)"
    assert finding.blames is not None
    assert finding.blames.kind == "node"


def test_a_virtual_machine_that_was_given_gpus_without_switches_is_no_fault_of_its_own():
    """NVIDIA/nccl-tests issue 260."""
    given = node_with(links(0), links(0), pairs=numbers(every(2, "SYS")))
    (finding,) = judge(evidence(changed(given, platform=Platform(virtual_machine="kvm"))))
    assert (finding.verdict, finding.blames) == (Verdict.WARN, None)
    assert "hypervisor" in finding.remedy
    assert {f.verdict for f in judge(evidence(given))} == {Verdict.FAIL}


def test_more_links_than_the_profile_knows_are_no_fault_of_the_machine():
    (finding,) = judged(every(8, "NV18"), product="NVIDIA A100-SXM4-40GB", profile=A100_SXM)
    assert (finding.verdict, finding.blames) == (Verdict.WARN, None)


def test_part_of_a_board_in_a_virtual_machine_is_whole():
    assert [f.verdict for f in judged(every(4, "NV18"))] == [Verdict.PASS]


def test_two_boards_of_four_in_one_node_are_whole_and_a_sick_one_is_found():
    two = [["X" if a == b else "NV4" if a // 4 == b // 4 else "SYS" for b in range(8)] for a in range(8)]
    product = "NVIDIA A100-SXM4-40GB"
    assert [f.verdict for f in judged(two, product=product, profile=A100_SXM)] == [Verdict.PASS]
    (finding,) = judged(with_pairs(two, g4_5="NV3"), product=product, profile=A100_SXM)
    assert (finding.verdict, finding.subject) == (Verdict.FAIL, "node0 GPU 4 - GPU 5")


def test_a_cube_mesh_is_whole_and_a_lost_link_is_between_its_two_ends():
    assert [f.verdict for f in judged(CUBE, product=V100, profile=V100_SXM2)] == [Verdict.PASS]
    (finding,) = judged(with_pairs(CUBE, g0_1="NV1"), product=V100, profile=V100_SXM2)
    assert (finding.verdict, finding.subject) == (Verdict.FAIL, "node0 GPU 0 - GPU 1")
    gone = with_pairs(CUBE, g0_4="SYS", g4_5="SYS", g4_6="SYS", g4_7="SYS")
    (finding,) = judged(gone, product=V100, profile=V100_SXM2)
    assert finding.subject.startswith("node0 GPU 4")
    assert "0 of 6 NVLinks; the far ends are missing on GPUs 0, 5, 6, 7" in finding.observed


def test_a_board_that_the_profile_does_not_know_passes_with_all_links_of_the_product():
    mesh = every(4, "NV2")
    assert [f.verdict for f in judged(mesh, product=V100, profile=V100_SXM2)] == [Verdict.PASS]
    short = numbers(with_pairs(mesh, g0_1="NV1"))
    node = node_with(*[links(6, inactive=(5,))] * 2, *[links(6)] * 2, product=V100, pairs=short)
    (finding,) = judge(evidence(node, profiles={V100: V100_SXM2}))
    assert finding.verdict is Verdict.UNKNOWN
    assert "no layout of the profile fits" in finding.observed


def test_part_of_a_cube_mesh_passes_if_every_link_is_active():
    """A job that was given four of eight GPUs sees these only."""
    four = [row[:4] for row in CUBE[:4]]
    (finding,) = judged(four, product=V100, profile=V100_SXM2, links_each=6)
    assert finding.verdict is Verdict.PASS
    assert "part of a board" in finding.observed


def test_bridged_cards_pass_and_a_bridge_with_partial_contact_fails():
    pairs = [["X" if a == b else "NV12" if a // 2 == b // 2 else "SYS" for b in range(4)] for a in range(4)]
    (finding,) = judged(pairs, product="NVIDIA H100 NVL", profile=H100_NVL)
    assert finding.verdict is Verdict.PASS
    assert "NV12 on GPUs 0-1 and 2-3" in finding.observed
    (finding,) = judged(every(2, "NV3"), product=A6000, profile=WORKSTATION)
    assert (finding.verdict, finding.observed) == (Verdict.FAIL, "3 of 4 NVLinks of the bridge")


def test_one_bridge_among_eight_cards_may_be_meant_so():
    pairs = with_pairs(every(8, "SYS"), g0_1="NV12")
    (finding,) = judged(pairs, product="NVIDIA A100 80GB PCIe", profile=A100_PCIE)
    assert (finding.verdict, finding.blames) == (Verdict.WARN, None)


def test_three_cards_with_one_bridge_are_whole():
    pairs = with_pairs(every(3, "SYS"), g0_1="NV4")
    assert [f.verdict for f in judged(pairs, product=A6000, profile=WORKSTATION)] == [Verdict.PASS]


def test_without_a_profile_one_gpu_unlike_all_others_is_found_and_the_finding_says_so():
    (finding,) = judged(LOST_GPU_2, product="B900")
    assert finding.verdict is Verdict.FAIL
    assert "no profile exists for B900" in finding.expected
    assert finding.blames is not None
    assert finding.blames.confidence == "likely"


def test_without_a_profile_a_single_pair_is_unknown_unless_every_link_is_active():
    node = node_with(*[links(12, inactive=range(4, 12))] * 2, product="X1", pairs=numbers(every(2, "NV4")))
    assert [f.verdict for f in judge(evidence(node, profiles={}))] == [Verdict.UNKNOWN]
    assert [f.verdict for f in judged(every(2, "NV3"), product="X1")] == [Verdict.PASS]


def test_without_a_profile_a_bridge_with_an_odd_number_of_links_has_partial_contact():
    """NVIDIA/nccl issue 557, whose text doesn't name the product."""
    machine = BY_NAME["2gpu-bridge-nv3-partial"]._replace(product=None, profile=None)
    (finding,) = judge(evidence(node_of(machine), profiles={}))
    assert (finding.verdict, finding.subject) == (Verdict.FAIL, "node0 GPU 0 - GPU 1")
    assert finding.observed.startswith("3 NVLinks between the only two GPUs")
    assert finding.blames is not None
    assert finding.blames.confidence == "likely"


def test_without_a_profile_a_card_without_bridge_is_not_blamed():
    pairs = with_pairs(every(3, "SYS"), g0_1="NV4")
    node = node_with(*[links(4, inactive=(3,))] * 3, product="X1", pairs=numbers(pairs))
    assert [f.verdict for f in judge(evidence(node, profiles={}))] == [Verdict.UNKNOWN]


def test_without_a_profile_other_nodes_are_the_measure():
    whole = [
        node_with(*[links(4)] * 2, product="X1", name=f"node{i}", pairs=numbers(every(2, "NV4"))) for i in range(3)
    ]
    short = node_with(*[links(4, inactive=(0,))] * 2, product="X1", name="node3", pairs=numbers(every(2, "NV3")))
    findings = list(judge(evidence(*whole, short, profiles={})))
    assert [(f.subject, f.verdict) for f in findings] == [
        ("node0", Verdict.PASS),
        ("node1", Verdict.PASS),
        ("node2", Verdict.PASS),
        ("node3 GPU 0 - GPU 1", Verdict.FAIL),
    ]
    assert "no profile exists for X1" in findings[3].expected


def test_products_in_one_node_are_judged_apart():
    """A workstation of four SXM modules has a card for the display beside them."""
    node = node_with(
        *[links(12)] * 4,
        (),
        product="NVIDIA A100-SXM4-40GB",
        pairs=numbers(with_pairs(every(5, "NV4"), **{f"g{i}_4": "SYS" for i in range(4)})),
    )
    gpus = node.gpus or ()
    mixed = changed(node, gpus=(*gpus[:4], changed(gpus[4], name="NVIDIA T1000")))
    findings = list(judge(evidence(mixed, profiles={"NVIDIA A100-SXM4-40GB": A100_SXM})))
    assert [f.verdict for f in findings] == [Verdict.PASS, Verdict.PASS]


def test_pairs_that_nobody_tells_are_unknown_with_the_reason():
    node = node_with(*[links(18)] * 2)
    problem = Problem(source="nvmlDeviceGetP2PStatus", text="Unknown Error", field="peers")
    asked = changed(node, gpus=tuple(changed(gpu, problems=(problem,)) for gpu in node.gpus or ()))
    (finding,) = judge(evidence(asked))
    assert finding.verdict is Verdict.UNKNOWN
    assert "Unknown Error" in finding.observed


def test_why_a_text_tells_nothing_is_said():
    machine = BY_NAME["pcie-8gpu-phb"]
    problem = Problem(
        source="nvidia-smi topo", text="neither command nor legend tells which view this is", field="peers"
    )
    node = node_of(machine, problems=(problem,))
    untold = changed(node, gpus=tuple(changed(gpu, peers=()) for gpu in node.gpus or ()))
    (finding,) = judge(evidence(untold))
    assert finding.verdict is Verdict.UNKNOWN
    assert finding.observed == "NVLinks of all 28 pairs unknown: neither command nor legend tells which view this is"


def test_a_pair_that_is_unknown_keeps_the_board_from_passing():
    rows = numbers(every(8, "NV18"))
    rows[0][1] = rows[1][0] = None
    (finding,) = judge(evidence(node_with(*[links(18)] * 8, pairs=rows)))
    assert finding.verdict is Verdict.UNKNOWN
    assert "1 of 28 pairs unknown: 0-1" in finding.observed


def test_where_one_end_tells_its_word_counts():
    node = node_with(*[links(18)] * 2, pairs=numbers(every(2, "NV18")))
    first, second = node.gpus or ()
    one_sided = changed(node, gpus=(first, changed(second, peers=(GpuPeer(index=0),))))
    assert [f.verdict for f in judge(evidence(one_sided))] == [Verdict.PASS]


def test_a_text_without_nvlink_of_an_sxm_product_is_unknown():
    machine = BY_NAME["h100-sxm-4gpu-4nic-nv6"]._replace(pairs=every(4, "SYS"))
    (finding,) = judge(evidence(node_of(machine)))
    assert finding.verdict is Verdict.UNKNOWN
    assert "dead fabric" in finding.observed


def test_the_view_that_hides_nvlink_is_unknown_where_there_may_be_some():
    hidden = node_of(BY_NAME["h100-sxm-4gpu-4nic-nv6"]._replace(pairs=every(4, "SYS")), source="topo -mp")
    (finding,) = judge(evidence(hidden))
    assert finding.verdict is Verdict.UNKNOWN
    assert "-mp" in finding.observed
    cards = node_of(BY_NAME["t4-4gpu"], source="topo -mp")
    assert [f.verdict for f in judge(evidence(cards, profiles={"Tesla T4": NO_NVLINK}))] == [Verdict.PASS]


def test_while_the_fabric_is_being_set_up_nothing_is_blamed():
    node = node_with(*[links(18)] * 8, pairs=numbers(every(8, "SYS")))
    waiting = changed(node, gpus=tuple(changed(gpu, fabric=Fabric(state="in progress")) for gpu in node.gpus or ()))
    (finding,) = judge(evidence(waiting))
    assert finding.verdict is Verdict.UNKNOWN
    assert "in progress" in finding.observed


def test_with_a_plan_a_group_on_other_gpus_is_spared():
    node = node_with(*[links(18)] * 8, pairs=numbers(LOST_GPU_2))
    inventory = evidence(node).inventory
    assert inventory is not None
    all_eight = uuids_of(inventory)
    plan = make_plan(tp=4, dp=2, pp=1, nodes=1, node_names=["node0"], gpu_uuids=all_eight)
    (bad,) = judge(evidence(node, plan=plan))
    assert bad.verdict is Verdict.FAIL
    assert "used by tp0, dp2" in bad.observed
    upper = make_plan(
        tp=4, dp=1, pp=1, nodes=1, gpus_per_node=4, node_names=["node0"], gpu_uuids={"node0": all_eight["node0"][4:]}
    )
    (mild,) = judge(evidence(node, plan=upper))
    assert mild.verdict is Verdict.WARN


@pytest.mark.parametrize("changes", [{"gpus": ()}, {"gpus": None}])
def test_nodes_without_gpus_yield_nothing(changes):
    assert list(judge(evidence(changed(node_with(), **changes)))) == []


def test_nothing_is_said_where_a_run_without_gpus_is_meant():
    assert judged(LOST_GPU_2, settings=Settings(cpu_declared=True)) == []


def test_gpus_in_mig_mode_are_left_out():
    node = node_with(*[links(18)] * 8, pairs=numbers(LOST_GPU_2))
    gpus = tuple(changed(gpu, mig_enabled=gpu.index == 2) for gpu in node.gpus or ())
    assert [f.verdict for f in judge(evidence(changed(node, gpus=gpus)))] == [Verdict.PASS]


def test_a_product_without_nvlink_that_shows_some_has_the_wrong_profile():
    (finding,) = judged(every(2, "NV4"), product="Tesla T4", profile=NO_NVLINK)
    assert (finding.verdict, finding.blames) == (Verdict.WARN, None)
    node: Node = node_with((), (), product="Tesla T4", pairs=numbers(every(2, "SYS")))
    assert [f.verdict for f in judge(evidence(node, profiles={"Tesla T4": NO_NVLINK}))] == [Verdict.PASS]


def test_of_two_gpus_on_switches_the_one_with_fewer_active_links_is_blamed():
    node = node_with(links(18), links(18, inactive=(4,)), pairs=[[0, 17], [17, 0]])
    (finding,) = judge(evidence(node))
    assert (finding.verdict, finding.blames.kind, finding.blames.confidence) == (Verdict.FAIL, "gpu", "likely")
    assert finding.subject == "node0 GPU 1 (GPU-node0-1)"
    assert finding.observed == "17 of its NVLinks active, 18 on the other GPU"


def test_a_file_that_lists_active_links_only_does_not_say_that_all_are_active():
    node = node_with(links(18), links(17), product="B900", pairs=[[0, 17], [17, 0]], source="nccl xml")
    (finding,) = judge(evidence(node, profiles={}))
    assert finding.verdict is Verdict.UNKNOWN
    assert "active links differ: GPU 0 has 18, GPU 1 has 17" in finding.observed


def test_a_text_that_says_one_thing_in_one_row_and_another_in_the_other_is_unknown_and_blames_nothing():
    for product in ("B900", H100):
        node = node_with((), (), product=product, pairs=[[0, 18], [0, 0]], source="topo")
        (finding,) = judge(evidence(node))
        assert finding.verdict is Verdict.UNKNOWN
        assert finding.blames is None
        assert "contradicts itself" in finding.observed
