"""Incidents of HCAs and their networks, as far as one node tells them: ports, addresses, partition keys, counters, rails."""

import shutil
from dataclasses import replace

import pytest

from preflight.model import Gid, Hca, Inventory, Nic, Verdict
from tests.config_spaces import config_space
from tests.incidents.boxes import BOXES, changed, healthy, with_gpus
from tests.incidents.live import discovered, judged, kinds, plant
from tests.trees import Tree

GBIT = 10**9 // 8
H100 = "HGX H100"
POLLING = {"state": "1: DOWN", "physical": "2: Polling", "rate": "10 Gb/sec (4X SDR)"}


def with_hca(node, index, **facts):
    """The node with the port of one HCA changed."""
    hcas = list(node.hcas)
    hcas[index] = changed(hcas[index], ports=(changed(hcas[index].ports[0], **facts),))
    return changed(node, hcas=tuple(hcas))


def renamed(node, name):
    own = {index: {"uuid": f"GPU-{name}-{index}"} for index in range(len(node.gpus))}
    return with_gpus(changed(node, name=name, hostname=name, boot_id=name), own)


def test_a_polling_port_is_named_with_its_count_and_not_for_its_placeholder_rate(tmp_path, monkeypatch):
    """leptonai/gpud pull requests 482 and 752: seven of eight Active at 400, the eighth Down, Polling, "10 Gb/s"."""
    box, tree = BOXES[H100](), Tree(tmp_path / "root")
    plant(tree, box)
    folder = next((tmp_path / "root/sys/devices").rglob("infiniband/mlx5_5"))
    shutil.rmtree(folder / "ports/1")
    tree.port(str(folder.relative_to(tree.root)), **POLLING)
    found = judged(discovered(box, tmp_path, monkeypatch, tree=tree))
    assert found.answer == "no-go"
    assert found.failed == {"hca_ports": {"node1 mlx5_5"}}
    assert found.blamed == {("nic", "node1 mlx5_5")}
    said = found.said("hca_ports")
    for words in ("state down", "physical state Polling", "sees no partner", "7 of 8 ports up"):
        assert words in said
    assert "10 Gbit" not in said


def test_a_listing_that_stops_half_way_keeps_what_it_has(tmp_path, monkeypatch):
    """The same: eight ports at 200 as expected, then the listing ends because device mlx5_8 doesn't exist."""
    box, tree = replace(BOXES[H100](), rate="200 Gb/sec (4X HDR)"), Tree(tmp_path / "root")
    plant(tree, box)
    (tree.root / "sys/class/infiniband/mlx5_8").symlink_to("../../devices/gone/infiniband/mlx5_8")
    found = judged(discovered(box, tmp_path, monkeypatch, tree=tree))
    assert found.text(Verdict.FAIL) == []
    assert found.answer == "go", found.text(Verdict.UNKNOWN)
    verdicts = [finding.verdict for finding in found.of("hca_ports")]
    assert verdicts == [Verdict.WARN, Verdict.PASS]
    assert "mlx5_8" in found.said("hca_ports")
    assert "8 of 8 ports up: 8 x 200 Gbit/s" in found.said("hca_ports")


def test_an_empty_listing_is_not_healthy():
    """leptonai/gpud pull request 308: nothing listed; a site that needs eight says so. Where listing failed it is unknown."""
    from preflight.model import Rule

    empty = changed(healthy(H100), hcas=())
    rules = {"hca_ports": Rule(limits={"ports_needed": 8.0})}
    found = judged(empty, rules=rules)
    assert found.failed == {"hca_ports": {"node1"}}
    assert "PASS" not in judged(empty).said("hca_ports")
    unread = judged(changed(healthy(H100), hcas=None))
    assert unread.answer == "undecided"
    assert unread.text(Verdict.FAIL) == []


def test_ports_that_are_not_needed_may_be_down():
    """leptonai/gpud issue 989: twelve ports, four down, eight needed."""
    node = healthy(H100)
    spare = tuple(
        Hca(
            name=f"mlx5_{i}",
            driver="mlx5_core",
            ports=(changed(node.hcas[0].ports[0], state="down", physical_state="Polling", rate_bytes_per_s=None),),
        )
        for i in range(8, 12)
    )
    gpus = {i: {"nics": lambda nics: {**nics, **{card.name: "SYS" for card in spare}}} for i in range(8)}
    found = judged(with_gpus(changed(node, hcas=(*node.hcas, *spare)), gpus))
    assert found.answer == "go", found.text(Verdict.FAIL, Verdict.UNKNOWN)
    assert "4 other HCAs are not the job's" in found.said("hca_ports")


@pytest.mark.parametrize("gbit", [400, 800])
def test_the_rate_of_a_port_is_not_guessed_from_the_gpu(gbit):
    """leptonai/gpud issues 371 and 383: GB200 machines have 400 or 800."""
    node = healthy("GB200 tray")
    for index in range(4):
        node = with_hca(node, index, rate_bytes_per_s=gbit * GBIT)
    found = judged(node)
    assert found.answer == "go"
    assert f"4 x {gbit} Gbit/s" in found.said("hca_ports")


def test_counters_at_their_ceilings_are_not_fresh_events():
    """leptonai/gpud issue 943: link_downed 255, port_xmit_discards 65535, port_xmit_wait 4294967295."""
    full = {"link_downed": 255, "port_xmit_discards": 65535, "port_xmit_wait": 4294967295, "symbol_error": 0}
    node = with_hca(healthy(H100), 3, counters=full)
    found = judged(node)
    assert found.answer == "go"
    assert [finding.verdict for finding in found.of("hca_errors")] == [Verdict.UNKNOWN, Verdict.PASS]
    assert "mlx5_3 port 1 link_downed" in found.said("hca_errors")
    later = changed(node, taken_at_s=(node.taken_at_s or 0.0) + 60)
    grown = judged(later, before=Inventory(nodes=(node,)))
    assert grown.answer == "go"
    assert "at their ceilings" in grown.said("counter_growth")
    assert not [finding for finding in grown.findings if finding.blames]


def test_a_port_that_waits_for_acknowledgements_warns():
    """byteps issue 179, NVIDIA/nccl issues 378 and 306: RoCE without flow control, local_ack_timeout_err 2705."""
    counters = {"local_ack_timeout_err": 2705, "link_downed": 0}
    found = judged(with_hca(healthy(H100), 6, counters=counters))
    assert found.answer == "go"
    said = found.said("hca_errors")
    assert "mlx5_6" in said
    assert "local_ack_timeout_err 2705" in said
    assert found.blamed == set()


LINK_LOCAL = Gid(index=1, address="fe80::ba3f:d2ff:feaa:1", kind="RoCE v2", interface="eth2")
ROUTED = Gid(index=3, address="::ffff:10.0.0.1", kind="RoCE v2", interface="eth2")
OLD = Gid(index=4, address="::ffff:10.0.0.1", kind="RoCE v1", interface="eth2")


def roce(*gids, setting=None, name="node1"):
    """All HCAs with Ethernet ports that have these addresses."""
    from preflight.model import Setting

    node = healthy(H100)
    for index in range(8):
        facts = {"link_layer": "Ethernet", "gids": gids, "mtu_bytes": 4200, "interface": "eth2", "pkeys": None}
        node = with_hca(node, index, **facts)
    settings = () if setting is None else (Setting(name="NCCL_IB_GID_INDEX", value=setting, origin="environment"),)
    return renamed(changed(node, settings=settings), name)


@pytest.mark.parametrize(
    ("setting", "verdict", "words"),
    [
        (None, Verdict.PASS, "Ethernet"),
        ("3", Verdict.PASS, "Ethernet"),
        ("1", Verdict.WARN, "link-local"),
        ("4", Verdict.WARN, "RoCE v1"),
        ("9", Verdict.FAIL, "is empty"),
    ],
)
def test_an_index_of_the_address_table_is_looked_up(setting, verdict, words):
    """NVIDIA/nccl issues 769, 426 and 1510: 1 is link-local and times out, 3 routes, 4 is RoCE v1."""
    found = judged(roce(LINK_LOCAL, ROUTED, OLD, setting=setting))
    said = found.of("hca_addressing")
    assert min(finding.verdict.rank for finding in said) == verdict.rank
    assert words in found.said("hca_addressing")
    assert kinds(found.blamed) <= {"environment"}


def test_an_index_has_to_mean_the_same_on_each_node():
    """pytorch/pytorch issue 81628, nccl issue 1510: index 3 is a routed address here and nothing there."""
    nodes = [roce(LINK_LOCAL, ROUTED, setting="3", name=f"node{i}") for i in (1, 2)]
    odd = roce(LINK_LOCAL, changed(ROUTED, index=5), setting="3", name="node3")
    found = judged(*nodes, odd)
    assert found.answer == "no-go"
    assert kinds(found.blamed) == {"environment"}
    said = found.said("nic_uniform")
    assert "node3" in said


def test_only_a_link_local_address_is_worth_a_look():
    found = judged(roce(LINK_LOCAL))
    assert found.answer == "go"
    assert "no RoCE v2 address that can be routed" in found.said("hca_addressing")


def test_partition_keys_on_another_index_are_said():
    """NVIDIA/nccl issue 1323, azure-docs issue 69185: the job's key is at index 1."""
    found = judged(with_hca(healthy(H100), 0, pkeys=(0, 0x8001)))
    assert found.answer == "go"
    assert "NCCL_IB_PKEY" in found.said("hca_addressing")
    limited = judged(with_hca(healthy(H100), 0, pkeys=(0x7FFF, 0x0001)))
    assert limited.blamed == {("nic", "node1 mlx5_0")}
    # azurehpc-health-checks issue 152: all keys 0x8001 and all rates right: nothing that a single node could show
    assert judged(with_hca(healthy(H100), 0, pkeys=(0x8001,))).answer == "go"


def test_an_interface_that_reaches_only_its_own_node_is_no_way_for_a_job(tmp_path, monkeypatch):
    """aws-samples/aws-do-eks issue 54: sockets over pod-id-link0 with 169.254.170.x hang."""
    node = discovered(replace(BOXES[H100](), environ={"NCCL_SOCKET_IFNAME": "pod-id-link0"}), tmp_path, monkeypatch)
    nics = (*node.nics, Nic(name="pod-id-link0", kind="virtual", up=True, addresses=("169.254.170.23", "fd00:ec2::23")))
    node = changed(node, nics=nics)
    found = judged(node, renamed(node, "node2"))
    assert found.answer == "no-go"
    assert kinds(found.blamed) == {"environment"}
    assert "pod-id-link0" in found.said("nccl_settings")
    assert "link-local" in found.said("nccl_settings")
    assert judged(node).answer == "go"


def test_cards_for_storage_are_told_from_those_of_the_gpus(tmp_path, monkeypatch):
    """NVIDIA/NVSentinel issue 1221: place, NUMA node, link layer and default route tell them apart. Both storage ports are down, and no job needs them."""
    box, tree = BOXES[H100](), Tree(tmp_path / "root")
    plant(tree, box)
    for number, socket in ((8, 0), (9, 1)):
        at = f"pci0000:{0xA0 + number:02x}/0000:{0xA0 + number:02x}:01.0/0000:{0xB0 + number:02x}:00.0"
        card = tree.pci(at, numa=socket, driver="mlx5_core", config=config_space(max_read_request=512))
        tree.port(tree.hca(f"mlx5_{number}", card), layer="Ethernet", **POLLING)
    found = judged(discovered(box, tmp_path, monkeypatch, tree=tree))
    assert found.answer == "go", found.text(Verdict.FAIL, Verdict.UNKNOWN)
    assert "nobody's: mlx5_8, mlx5_9" in found.said("nic_affinity")
    assert "8 of 8 ports up" in found.said("hca_ports")


def test_efa_beside_two_other_cards_is_no_fault():
    """aws-samples/aws-do-eks issue 63: eight EFA and two mlx5 in one folder. What the provider then lists, only a run can tell."""
    node = healthy(H100)
    hcas = tuple(
        changed(
            hca,
            name=f"efa_{i}",
            driver="efa",
            ports=(changed(hca.ports[0], link_layer=None, lid=None, sm_lid=None, pkeys=None),),
        )
        for i, hca in enumerate(node.hcas)
    )
    near = {i: {"nics": lambda nics: {name.replace("mlx5", "efa"): at for name, at in nics.items()}} for i in range(8)}
    others = tuple(Hca(name=f"mlx5_{i}", driver="mlx5_core", ports=node.hcas[0].ports) for i in range(2))
    far = {i: {"nics": lambda nics: {**nics, "mlx5_0": "SYS", "mlx5_1": "SYS"}} for i in range(8)}
    found = judged(with_gpus(with_gpus(changed(node, hcas=(*hcas, *others)), near), far))
    assert found.answer == "go", found.text(Verdict.FAIL, Verdict.UNKNOWN)
    assert "GPU 3: efa_3" in found.said("nic_affinity")


def test_far_ends_that_the_driver_hides_are_links_all_the_same(tmp_path, monkeypatch):
    """NVIDIA/nccl issue 1519: a cloud machine shows ffffff as the target of 18 links."""
    from tests.fakes import HIDDEN_FAR_END, FakeLink

    box = BOXES["virtual machine with eight H100"]()
    hidden = (FakeLink(far_kind=255, far_id=HIDDEN_FAR_END),) * 18
    node = discovered(replace(box, gpus=[replace(gpu, links=hidden) for gpu in box.gpus]), tmp_path, monkeypatch)
    found = judged(node)
    assert found.answer == "go", found.text(Verdict.FAIL, Verdict.UNKNOWN)
    assert "18 links active on each" in found.said("nvlink_links")


def test_read_requests_that_an_update_has_reset_are_found(tmp_path, monkeypatch):
    """NVIDIA/nccl-tests issue 152: slow between nodes until a PCI setting of the card was raised; it is per card, and updates reset it."""
    node = healthy(H100)
    hcas = tuple(changed(hca, max_read_request_bytes=128 if hca.name == "mlx5_2" else 4096) for hca in node.hcas)
    found = judged(changed(node, hcas=hcas))
    assert found.answer == "go"
    assert "mlx5_2: Max_Read_Request_Size 128 bytes" in found.said("hca_read_request")
    assert found.blamed == set()


def test_without_a_module_or_dmabuf_memory_is_copied_through_the_host():
    """NVIDIA/nccl issues 595, 489 and 465: 3 to 6 GB/s over 200 Gbit/s."""
    node = healthy(H100)
    bare = changed(node, gpu_direct=changed(node.gpu_direct, peermem="none", dmabuf=False, open_driver=False))
    found = judged(bare)
    assert found.answer == "go"
    assert "no peer-memory module is loaded, and no dmabuf" in found.said("gpu_direct")
    assert kinds(found.suspected) == {"environment"}
