"""pcie_acs: no bridge redirects traffic between parts that talk to each other over PCIe."""

import pytest

from preflight.model import (
    Evidence,
    Failure,
    Finding,
    GpuPeer,
    Hca,
    Inventory,
    Iommu,
    Measurement,
    Node,
    PciBridge,
    Platform,
    Problem,
    Settings,
    Verdict,
)
from preflight_checks.pcie_acs import decoded, judge
from tests.builders import make_gpu, make_measurement, make_node, make_plan, make_probe, uuids_of
from tests.checks.nvlink_nodes import changed

ALL = 0x001D
METAL, VIRTUAL = Platform(virtual_machine="none"), Platform(virtual_machine="kvm")


def two_cards(
    control: int | None = 0,
    *,
    readable: bool = True,
    links: int = 0,
    ancestor="PHB",
    p2p: str | None = None,
    hcas=(),
    **changes,
) -> Node:
    """Two RTX 5880 behind root ports of one host bridge each (NVIDIA/nccl issue 2079), with this ACS register on the ports above them."""
    above = (("0000:00:03.1", "pci0000:00"), ("0000:00:03.2", "pci0000:00"))
    told = {"read": p2p, "write": p2p} if p2p else {}
    gpus = tuple(
        make_gpu(
            "node0",
            index,
            name="NVIDIA RTX 5880 Ada Generation",
            pci_upstream=above[index],
            peers=(GpuPeer(index=1 - index, num_nvlinks=links, ancestor=ancestor, p2p=told),),
        )
        for index in range(2)
    )
    bridges = tuple(
        PciBridge(bus_id=bus_id, acs_readable=readable, acs_control=control if readable else None)
        for bus_id in ("0000:00:03.1", "0000:00:03.2")
    )
    far_off = PciBridge(bus_id="0000:e0:01.1", acs_readable=True, acs_control=ALL)
    facts = {
        "platform": METAL,
        "iommu": Iommu(mode="off", source="cmdline"),
        "pci_bridges": (*bridges, far_off),
        "hcas": hcas,
    }
    return changed(make_node("node0"), gpus=gpus, **{**facts, **changes})


def judged(node: Node, *measurements: Measurement, **others) -> list[Finding]:
    inventory = Inventory(nodes=(node,))
    plan = None
    if measurements:
        plan = make_plan(
            tp=2, dp=1, pp=1, nodes=1, gpus_per_node=2, gpu=None, node_names=["node0"], gpu_uuids=uuids_of(inventory)
        )
    return list(judge(Evidence(inventory=inventory, plan=plan, measurements=measurements or None, **others)))


def hung(kind="timed_out") -> Measurement:
    return Measurement(probe=make_probe((0, 1)), failure=Failure(kind=kind, text="no answer within 20 s"))


def test_the_register_is_decoded():
    assert decoded(0x001D) == "SrcValid+, ReqRedir+, CmpltRedir+, UpstreamFwd+"
    assert decoded(0x007F) == "SrcValid+, TransBlk+, ReqRedir+, CmpltRedir+, UpstreamFwd+, EgressCtrl+, DirectTrans+"
    assert decoded(0) == ""


def test_bridges_that_do_not_redirect_pass_and_others_do_not_matter():
    for control in (0, None):
        (finding,) = judged(two_cards(control))
        assert finding.verdict is Verdict.PASS
        assert finding.observed == "1 way over PCIe, no bridge redirects; IOMMU off"


def test_a_pair_that_hangs_below_redirecting_bridges_fails_and_names_them():
    """NVIDIA/nccl issue 2079."""
    (finding,) = judged(two_cards(ALL), hung())
    assert (finding.verdict, finding.subject) == (Verdict.FAIL, "node0 GPU 0 - GPU 1")
    assert "0x001d (SrcValid+, ReqRedir+, CmpltRedir+, UpstreamFwd+) on 0000:00:03.1, 0000:00:03.2" in finding.observed
    assert "hung (no answer within 20 s)" in finding.observed
    assert "0000:e0:01.1" not in finding.observed
    assert finding.blames is not None
    assert (finding.blames.kind, finding.blames.confidence) == ("path", "likely")
    assert "0000:00:03.1, 0000:00:03.2" in finding.blames.name
    assert "setpci" in finding.remedy
    assert finding.evidence == (hung().probe.key,)


def test_wrong_data_counts_as_much_as_a_hang():
    (finding,) = judged(two_cards(ALL), hung("wrong_data"))
    assert finding.verdict is Verdict.FAIL
    assert "gave wrong data" in finding.observed


def test_without_a_measurement_it_is_worth_a_look():
    (finding,) = judged(two_cards(ALL))
    assert (finding.verdict, finding.blames) == (Verdict.WARN, None)
    assert "ACS redirects peer traffic of GPU 0 - GPU 1" in finding.observed


def test_a_pair_that_works_is_not_failed_by_its_bridges():
    assert [f.verdict for f in judged(two_cards(ALL), make_measurement((0, 1)))] == [Verdict.WARN]
    assert [f.verdict for f in judged(two_cards(ALL), hung(), make_measurement((0, 1)))] == [Verdict.WARN]


def test_a_hang_below_bridges_that_do_not_redirect_is_somebody_elses_fault():
    assert Verdict.FAIL not in {f.verdict for f in judged(two_cards(0), hung())}


def test_a_budget_that_ended_proves_nothing():
    assert [f.verdict for f in judged(two_cards(ALL), hung("not_run"))] == [Verdict.WARN]


def test_the_source_check_alone_is_worth_a_look():
    """NVIDIA/nccl issue 606."""
    (finding,) = judged(two_cards(0x0001))
    assert finding.verdict is Verdict.WARN
    assert "SrcValid+" in finding.observed


def test_in_a_virtual_machine_it_is_a_warning_at_most():
    for measurements in ((), (hung(),)):
        (finding,) = judged(two_cards(ALL, platform=VIRTUAL), *measurements)
        assert (finding.verdict, finding.blames) == (Verdict.WARN, None)
        assert "ATS" in finding.observed


def test_a_translating_iommu_is_worth_a_look_on_bare_metal_only():
    translated = Iommu(mode="translated", source="/sys/class/iommu")
    (finding,) = judged(two_cards(0, iommu=translated))
    assert finding.verdict is Verdict.WARN
    assert "iommu=pt" in finding.remedy
    assert [f.verdict for f in judged(two_cards(0, iommu=translated, platform=VIRTUAL))] == [Verdict.PASS]
    assert [f.verdict for f in judged(two_cards(0, iommu=Iommu(mode="passthrough")))] == [Verdict.PASS]


def test_what_only_root_may_read_is_unknown_with_the_reason():
    problem = Problem(
        source="PCI configuration space", text="Permission denied: only root may read it", field="pci_bridges"
    )
    (finding,) = judged(two_cards(readable=False, problems=(problem,)))
    assert finding.verdict is Verdict.UNKNOWN
    assert "Permission denied" in finding.observed
    assert [f.verdict for f in judged(two_cards(pci_bridges=None))] == [Verdict.UNKNOWN]
    assert [f.verdict for f in judged(two_cards(0, iommu=None))] == [Verdict.UNKNOWN]


def test_where_places_are_unknown_every_bridge_may_be_meant():
    node = two_cards(0)
    lost = changed(node, gpus=tuple(changed(gpu, pci_upstream=None) for gpu in node.gpus or ()))
    (finding,) = judged(lost)
    assert finding.verdict is Verdict.WARN
    assert "0000:e0:01.1" in finding.observed


@pytest.mark.parametrize("changes", [{"links": 4}, {"ancestor": "SYS"}, {"p2p": "gpu"}])
def test_gpus_that_do_not_talk_over_pcie_directly_are_not_judged(changes):
    assert judged(two_cards(ALL, **changes)) == []


def test_the_way_from_a_gpu_to_its_hca_counts():
    hca = Hca(name="mlx5_0", pci_upstream=("0000:00:03.1", "pci0000:00"))
    node = two_cards(ALL, links=4, hcas=(hca,))
    near = changed(
        node,
        gpus=tuple(
            changed(gpu, pci_upstream=("0000:01:00.0", "0000:00:03.1", "pci0000:00")) for gpu in node.gpus or ()
        ),
        pci_bridges=(PciBridge(bus_id="0000:01:00.0", acs_readable=True, acs_control=ALL),),
    )
    (finding,) = judged(near)
    assert finding.verdict is Verdict.WARN
    assert "GPU 0 - mlx5_0" in finding.observed


def test_nothing_is_said_without_gpus_or_where_none_are_meant():
    assert judged(make_node("node0", gpus=0)) == []
    assert judged(make_node("node0", gpus=None)) == []
    assert judged(two_cards(ALL), settings=Settings(cpu_declared=True)) == []
