"""nic_affinity: every GPU has an HCA within reach. The real machines are in test_topologies.py."""

from preflight.model import Evidence, Finding, Hca, Inventory, Node, Platform, Problem, Settings, Verdict
from preflight_checks.nic_affinity import judge
from tests.builders import make_node
from tests.checks.nvlink_nodes import changed
from tests.checks.topologies import BY_NAME, columns, every, node_of


def judged(node: Node, **others) -> list[Finding]:
    return list(judge(Evidence(inventory=Inventory(nodes=(node,)), **others)))


def cards(nics: str, number: int = 4) -> Node:
    """PCIe cards with one NIC column."""
    return node_of(
        BY_NAME["t4-4gpu"]._replace(pairs=every(number, "SYS"), nics=columns("NIC0", nics), numa="- " * number)
    )


def test_the_map_of_rails_is_said():
    (finding,) = judged(node_of(BY_NAME["h100-sxm-4gpu-4nic-nv6"]))
    assert finding.verdict is Verdict.PASS
    assert finding.observed == "rails: GPU 0: NIC0, GPU 1: NIC1, GPU 2: NIC2, GPU 3: NIC3"


def test_cards_need_an_hca_on_their_socket_at_least():
    (finding,) = judged(cards("NODE / NODE / PHB / NODE"))
    assert finding.verdict is Verdict.PASS
    assert "on the CPU socket" in finding.observed
    (finding,) = judged(cards("SYS / SYS / PIX / NODE"))
    assert finding.verdict is Verdict.WARN
    assert finding.observed.startswith("no HCA on the CPU socket of GPUs 0, 1, and no NVLink to a GPU that has one")
    assert finding.blames is None
    assert "GPUs 0, 1" in finding.remedy


def test_a_virtual_machine_without_switches_tells_nothing():
    node = node_of(BY_NAME["h100-8gpu-2nic-phb"])
    gpus = tuple(changed(gpu, pci_upstream=(f"pci{gpu.index:04x}:00",)) for gpu in node.gpus)
    guest = changed(node, gpus=gpus, platform=Platform(virtual_machine="microsoft"))
    (finding,) = judged(guest)
    assert finding.verdict is Verdict.UNKNOWN
    assert "NCCL_TOPO_FILE" in finding.remedy
    (finding,) = judged(changed(guest, platform=Platform(virtual_machine="none")))
    assert finding.verdict is Verdict.WARN


def test_joined_gpus_need_one_behind_a_pcie_switch():
    (finding,) = judged(node_of(BY_NAME["h100-8gpu-2nic-phb"]))
    assert finding.verdict is Verdict.WARN
    assert finding.observed == "no GPU has an HCA behind its own PCIe switches; no HCA on the CPU socket of GPUs 0-3"


def test_a_node_without_hcas_is_skipped():
    assert [f.verdict for f in judged(changed(make_node("node0"), hcas=()))] == [Verdict.SKIP]


def test_hcas_that_could_not_be_read_are_unknown_with_the_reason():
    problem = Problem(source="nvidia-smi topo -m", text="76 NICs found, only 56 shown", field="hcas")
    (finding,) = judged(changed(make_node("node0"), hcas=None, problems=(problem,)))
    assert finding.verdict is Verdict.UNKNOWN
    assert "76 NICs found" in finding.observed


def test_distances_that_are_unknown_are_not_far():
    node = changed(make_node("node0"), hcas=(Hca(name="mlx5_0"),))
    (finding,) = judged(node)
    assert finding.verdict is Verdict.UNKNOWN
    assert "GPUs 0-7" in finding.observed


def test_hcas_whose_gpus_are_unknown_are_not_called_nobodys():
    (finding,) = judged(node_of(BY_NAME["dgx2-v100-16gpu-10nic"]))
    assert "nobody's" not in finding.observed
    assert "GPUs 5-15 reach one over NVLink" in finding.observed
    assert "unknown whose: mlx5_3, mlx5_4" in finding.observed


def test_nothing_is_said_without_gpus_or_where_none_are_meant():
    assert judged(make_node("node0", gpus=0)) == []
    assert judged(make_node("node0", gpus=None)) == []
    assert judged(cards("SYS / SYS / SYS / SYS"), settings=Settings(cpu_declared=True)) == []
