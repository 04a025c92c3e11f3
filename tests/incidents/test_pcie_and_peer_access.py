"""Incidents of PCIe: bridges that redirect, links that lost lanes, and peer access that is not there or is slower than without."""

from dataclasses import replace

from preflight.model import Failure, Finding, Measurement, PciBridge, Platform, Power, Verdict
from tests.builders import make_plan, make_probe
from tests.incidents.boxes import BOXES, changed, healthy, rtx_4090, with_gpus
from tests.incidents.live import discovered, judge_file, judged, kinds

ADA = "NVIDIA RTX 5880 Ada Generation"
REDIRECTING = (
    "00:03.1",
    "00:03.2",
    "00:03.3",
    "00:03.4",
    "20:01.1",
    "20:01.2",
    "20:01.3",
    "22:01.0",
    "22:02.0",
    "22:03.0",
)


def two_cards(*, acs=0x001D, virtual="none"):
    """Two RTX 5880 Ada below one host bridge, at 41:00.0 and 61:00.0, and bridges that redirect."""
    node = healthy("L40S")
    gpus = []
    for index, place in enumerate(("0000:41:00.0", "0000:61:00.0")):
        peers = tuple(changed(peer, ancestor="PHB", num_nvlinks=0) for peer in node.gpus[index].peers if peer.index < 2)
        gpus.append(
            changed(
                node.gpus[index],
                name=ADA,
                uuid=f"GPU-ada-{index}",
                pci_bus_id=place,
                pci_upstream=(f"0000:{(0x22, 0x00)[index]:02x}:{('01.0', '03.1')[index]}", "pci0000:00"),
                peers=peers,
                nics={},
                power=Power(limit_w=285.0, default_limit_w=285.0, enforced_limit_w=285.0),
            )
        )
    bridges = tuple(PciBridge(bus_id=f"0000:{bus_id}", acs_readable=True, acs_control=acs) for bus_id in REDIRECTING)
    return changed(
        node,
        gpus=tuple(gpus),
        gpus_on_bus=("0000:41:00.0", "0000:61:00.0"),
        device_files=(0, 1),
        pci_bridges=bridges,
        hcas=(),
        nics=(),
        platform=Platform(virtual_machine=virtual, container="none"),
    )


def hung(node):
    """The probe of the pair was cut off."""
    plan = make_plan(
        tp=2,
        pp=1,
        dp=1,
        nodes=1,
        gpus_per_node=2,
        gpu=None,
        backend="nccl",
        node_names=["node1"],
        gpu_uuids={"node1": [gpu.uuid for gpu in node.gpus]},
    )
    failed = Measurement(probe=make_probe((0, 1)), failure=Failure(kind="timed_out", text="cut off after 20 s"))
    return {"plan": plan, "measurements": (failed,)}


def acs(found) -> Finding:
    return min(found.of("pcie_acs"), key=lambda finding: finding.verdict.rank)


def test_acs_on_bare_metal_is_named_by_bridge_and_bit():
    """NVIDIA/nccl issue 2079: 0x001d on ten bridges; peer-to-peer hangs, NCCL_P2P_DISABLE=1 finishes. Without a probe it is worth a look, with a hung one a fault."""
    node = two_cards()
    quiet = judged(node)
    assert quiet.answer == "go"
    finding = acs(quiet)
    assert finding.verdict is Verdict.WARN
    assert "0x001d (SrcValid+, ReqRedir+, CmpltRedir+, UpstreamFwd+)" in finding.observed
    assert "0000:00:03.1, 0000:22:01.0" in finding.observed
    loud = judged(node, **hung(node))
    assert loud.answer == "no-go"
    assert kinds(loud.blamed) == {"path"}
    assert "the probe hung (cut off after 20 s)" in acs(loud).observed
    assert "setpci" in acs(loud).remedy


def test_in_a_virtual_machine_the_same_bits_have_to_stay():
    """The same trap: ATS needs them there."""
    node = two_cards(virtual="kvm")
    for facts in ({}, hung(node)):
        found = judged(node, **facts)
        assert found.answer == "go"
        assert acs(found).verdict is Verdict.WARN
        assert "has to stay on (ATS)" in acs(found).observed


def test_the_source_check_alone_is_a_warning():
    """NVIDIA/nccl issue 606: only SrcValid+, all other bits off, and still a hang."""
    found = judged(two_cards(acs=0x0001))
    assert found.answer == "go"
    assert acs(found).verdict is Verdict.WARN
    assert "SrcValid+" in acs(found).observed
    assert acs(judged(two_cards(acs=0))).verdict is Verdict.PASS


def test_the_registers_are_decoded_from_the_configuration_space(tmp_path, monkeypatch):
    """The same bits as root reads them from sysfs, between GPUs and their cards (nccl issue 304: on the ports of a PLX switch)."""
    node = discovered(replace(BOXES["HGX H100"](), acs=0x001D), tmp_path, monkeypatch)
    found = judged(node)
    assert found.answer == "go"
    assert "GPU 0 - mlx5_0" in acs(found).observed
    assert "ReqRedir+, CmpltRedir+, UpstreamFwd+" in acs(found).observed


def test_no_peer_access_between_sockets_is_normal():
    """NVIDIA/nccl issue 257."""
    node = healthy("L40S")
    far = {
        index: {
            "peers": lambda peers: tuple(
                changed(peer, p2p={"read": "chipset", "write": "chipset"}) if peer.ancestor == "SYS" else peer
                for peer in peers
            )
        }
        for index in range(8)
    }
    found = judged(with_gpus(node, far))
    assert found.answer == "go"
    assert {finding.verdict for finding in found.of("p2p_access")} == {Verdict.PASS}


def test_letters_of_the_peer_to_peer_table_are_read(tmp_path, capsys):
    """noonghunna/club-3090 issue 1098 and siblings: tables say GNS, CNS, TNS, DR; a driver's registry key is a setting."""
    topo = "\tGPU0\tGPU1\nGPU0\tX\tPHB\nGPU1\tPHB\tX\n"
    for letters, verdict, words in (("GNS", "PASS", "(GNS)"), ("DR", "WARN", "registry key (DR)")):
        table = f"\n$ nvidia-smi topo -p2p rw\n \tGPU0\tGPU1\n GPU0\tX\t{letters}\n GPU1\t{letters}\tX\n"
        (tmp_path / "topo.txt").write_text(topo + table)
        code, found = judge_file(tmp_path / "topo.txt", capsys, "--product", "NVIDIA GeForce RTX 4090")
        assert code == 0
        assert [finding.verdict.value for finding in found.of("p2p_access")] == [verdict]
        assert words in found.said("p2p_access")
        assert kinds(found.suspected) <= {"environment"}


def test_peer_access_on_a_consumer_card_may_be_slower_than_without(tmp_path, monkeypatch):
    """NVIDIA/nccl issue 814: 9.9 GB/s peer to peer, 22 by way of host memory."""
    node = discovered(replace(rtx_4090(), p2p={}), tmp_path, monkeypatch)
    found = judged(node)
    assert found.answer == "go"
    assert {finding.verdict for finding in found.of("p2p_access")} == {Verdict.WARN}
    assert "slower than by way of host memory" in found.said("p2p_access")


def test_a_virtual_machine_s_placeholder_is_no_broken_link():
    """NVIDIA/nccl issues 1205, 749 and 1303: 2.5 GT/s x1 at the root port of a virtual machine."""
    found = judged(healthy("virtual machine with eight H100"))
    assert found.text(Verdict.FAIL) == []
    assert {finding.verdict for finding in found.of("pcie_link")} <= {Verdict.SKIP, Verdict.PASS}


def test_x8_on_a_card_of_x16_is_found():
    """tenstorrent/tt-smi issue 67: the vendor's tool said x16, lspci was right."""
    node = healthy("L40S")
    narrow = with_gpus(node, {6: {"pcie": lambda pcie: changed(pcie, width=8)}})
    found = judged(narrow)
    assert found.answer == "no-go"
    assert found.blamed == {("gpu", "node1 GPU 6 (GPU-l40s-6)")}
    assert "x8 of x16" in found.said("pcie_link")
