"""NCCL's topology XML: PCI tree, NVLinks, HCAs; the shapes are those of dumps in NCCL's public issues, the machines are made up."""

import pytest

from preflight.discover.snapshots import read_node
from preflight.discover.snapshots.nccl_xml import read_nccl_xml
from preflight.errors import ConfigError
from preflight.formats import parse_xml
from preflight.model.rails import rails

SWITCHED = "".join(
    f'<nvlink target="0000:0{i}:00.0" count="{count}" tclass="0x068000"/>'
    for i, count in ((5, 4), (6, 5), (7, 5), (8, 4))
)


def gpu(bus, dev, links=SWITCHED, rank=None):
    rank = dev if rank is None else rank
    return (
        f'<pci busid="0000:{bus}:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="32.0 GT/s PCIe" link_width="16">'
        f'<gpu dev="{dev}" sm="90" rank="{rank}" gdr="1">{links}</gpu></pci>'
    )


def nic(bus, name, *, speed=400000, port=1, code="0x020700"):
    return (
        f'<pci busid="0000:{bus}:00.0" class="{code}" link_speed="32.0 GT/s PCIe" link_width="16">'
        f'<nic><net name="{name}" dev="0" latency="0" speed="{speed}" port="{port}" guid="0x1" maxconn="131072" gdr="1"/></nic></pci>'
    )


def switch(bus, *inside):
    return f'<pci busid="0000:{bus}:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">{"".join(inside)}</pci>'


def cpu(numa, *inside, host="0x1", affinity="00000000,0000ffff"):
    return f'<cpu host_hash="{host}" numaid="{numa}" affinity="{affinity}" arch="x86_64">{"".join(inside)}</cpu>'


def read(*cpus, product=None):
    node = read_nccl_xml(parse_xml(f'<system version="1">{"".join(cpus)}</system>'.encode(), "f.xml"), "n1", product)
    assert node is not None
    return node


def hgx(**links):
    """Four GPUs, two behind each socket's switches, each with its HCA. `links`: of GPU "gpu3"."""
    return read(
        cpu(0, switch("10", gpu("11", 0), nic("12", "mlx5_0")), switch("20", gpu("21", 1), nic("22", "mlx5_1"))),
        cpu(
            1,
            switch("80", gpu("81", 2), nic("82", "mlx5_2")),
            switch("90", switch("91", gpu("92", 3, links.get("gpu3", SWITCHED))), nic("95", "mlx5_3")),
            nic("a0", "mlx5_st", speed=100000),
        ),
        product="NVIDIA H100 80GB HBM3",
    )


def test_gpus_know_their_place_and_their_numa_node():
    node = hgx()
    assert (node.source, node.tells_health) == ("nccl xml", False)
    assert [g.index for g in node.gpus] == [0, 1, 2, 3]
    assert node.gpus[3].pci_bus_id == "0000:92:00.0"
    assert node.gpus[3].pci_upstream == ("0000:91:00.0", "0000:90:00.0", "numa1")
    assert [g.numa_node for g in node.gpus] == [0, 0, 1, 1]
    assert node.gpus[0].cpus == "0-15"
    assert node.gpus[0].name == "NVIDIA H100 80GB HBM3"
    assert (node.gpus[0].pcie.max_generation, node.gpus[0].pcie.max_width, node.gpus[0].pcie.generation) == (
        5,
        16,
        None,
    )


def test_pairs_have_their_pcie_relation_and_their_nvlinks():
    node = hgx()
    assert {peer.index: peer.ancestor for peer in node.gpus[0].peers} == {1: "NODE", 2: "SYS", 3: "SYS"}
    assert {peer.num_nvlinks for g in node.gpus for peer in g.peers} == {18}
    assert {g.nvlink_domain for g in node.gpus} == {"n1"}


def test_hcas_have_their_rate_and_their_gpu():
    node = hgx()
    assert [hca.name for hca in node.hcas] == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_st"]
    (port,) = node.hcas[0].ports
    assert (port.rate_bytes_per_s, port.link_layer, port.state) == (50_000_000_000, "InfiniBand", None)
    assert node.gpus[3].nics == {"mlx5_0": "SYS", "mlx5_1": "SYS", "mlx5_2": "NODE", "mlx5_3": "PXB", "mlx5_st": "NODE"}
    found = rails(node)
    assert found.own == {0: ("mlx5_0",), 1: ("mlx5_1",), 2: ("mlx5_2",), 3: ("mlx5_3",)}
    assert found.not_rails == {"mlx5_st": "behind no GPU's PCIe switches: NODE at best"}


def test_a_gpu_without_links_among_gpus_with_links_has_none():
    node = hgx(gpu3="")
    assert {peer.num_nvlinks for peer in node.gpus[3].peers} == {0}
    assert [g.nvlink_domain for g in node.gpus] == ["n1", "n1", "n1", "none"]
    assert node.gpus[3].links is None


@pytest.mark.parametrize("target", ["-1", "ffffffff:ffff:ff", "fffffff:ffff:ff", "ffffffff:ff:ff.0", ""])
def test_a_switch_that_the_driver_hides_is_a_switch_and_the_asymmetry_is_told(target):
    hidden = f'<nvlink target="{target}" count="18" tclass="0x068000"/>'
    node = hgx(gpu3=hidden)
    assert {peer.num_nvlinks for peer in node.gpus[3].peers} == {18}
    assert "didn't name the far ends" in node.gpus[3].problems[0].text
    assert node.gpus[0].problems == ()
    all_hidden = read(cpu(0, gpu("11", 0, hidden), gpu("12", 1, hidden)))
    assert [g.problems for g in all_hidden.gpus] == [(), ()]
    assert all_hidden.gpus[0].peers[0].num_nvlinks == 18


def test_direct_links_are_counted_by_their_target():
    def links(*ends):
        return "".join(f'<nvlink target="0000:{bus}:00.0" count="{count}" tclass="0x030200"/>' for bus, count in ends)

    node = read(
        cpu(0, gpu("06", 0, links(("07", 2), ("85", 1))), gpu("07", 1, links(("06", 2)))),
        cpu(1, gpu("85", 2, links(("06", 1)) + '<nvlink target="0004:00:00.0" count="3" tclass="0x068001"/>')),
    )
    assert {(g.index, peer.index): peer.num_nvlinks for g in node.gpus for peer in g.peers} == {
        (0, 1): 2,
        (1, 0): 2,
        (0, 2): 1,
        (2, 0): 1,
        (1, 2): 0,
        (2, 1): 0,
    }
    assert [link.peer_kind for link in node.gpus[2].links] == ["gpu", "cpu", "cpu", "cpu"]


def test_ports_of_one_hca_are_one_and_sockets_are_interfaces():
    two = '<pci busid="0000:31:00.0" class="0x020000"><nic><net name="mlx5_bond_0" speed="200000" port="1"/><net name="mlx5_bond_0" speed="100000" port="2"/></nic></pci>'
    node = read(cpu(0, gpu("11", 0), two))
    (hca,) = node.hcas
    assert [(port.number, port.rate_bytes_per_s, port.link_layer) for port in hca.ports] == [
        (1, 25_000_000_000, "Ethernet"),
        (2, 12_500_000_000, "Ethernet"),
    ]
    sockets = nic("31", "eth0", port=0, speed=10000) + nic("32", "eth1", port=0, speed=25000)
    node = read(cpu(0, gpu("11", 0), sockets, '<nic><net name="lo0" speed="10000" port="0"/></nic>'))
    assert node.hcas is None
    assert [(n.name, n.speed_bytes_per_s, n.pci_bus_id) for n in node.nics] == [
        ("eth0", None, "0000:31:00.0"),
        ("eth1", 3_125_000_000, "0000:32:00.0"),
        ("lo0", None, None),
    ]


def test_without_networks_nothing_is_known_of_hcas():
    node = read(cpu(0, gpu("11", 0)))
    assert (node.hcas, node.nics) == (None, None)
    assert rails(node).unknown_gpus == (0,)


def test_an_unknown_numa_node_leaves_far_pairs_unknown_and_near_ones_known():
    node = read(cpu(-1, switch("10", gpu("11", 0), gpu("12", 1)), gpu("21", 2), affinity="0"))
    assert {peer.index: peer.ancestor for peer in node.gpus[0].peers} == {1: "PIX", 2: None}
    assert (node.gpus[0].numa_node, node.gpus[0].cpus) == (None, None)


def test_of_a_rack_the_host_that_wrote_the_file_is_read():
    node = read(
        cpu(0, gpu("11", 0, rank=4), nic("12", "mlx5_0"), host="0xa"),
        cpu(0, gpu("11", 0, rank=0), gpu("12", 1, rank=1), nic("13", "mlx5_3"), host="0xb"),
    )
    assert [g.index for g in node.gpus] == [0, 1]
    assert [hca.name for hca in node.hcas] == ["mlx5_3"]
    text = "the file holds 2 hosts; the one with the lowest rank is read"
    assert [problem.text for problem in node.problems] == [text]


def test_gpus_without_numbers_of_their_own_are_counted_and_that_is_told():
    node = read(cpu(0, gpu("11", 0), gpu("12", 0)))
    assert [g.index for g in node.gpus] == [0, 1]
    assert node.problems[0].field == "index"


def test_attributes_that_make_no_sense_are_unknown():
    odd = (
        '<pci busid="nonsense" class="" link_speed="fast" link_width="x"><gpu dev="0" rank="x" sm="">'
        '<nvlink target="0000:05:00.0" count="99999999999999999999" tclass=""/><nvlink/></gpu></pci>'
    )
    net = '<pci busid="0000:31:00.0" class="0x0207"><nic><net port="1" speed="-1"/></nic></pci>'
    node = read(f'<cpu numaid="x" affinity="zz">{odd}{net}</cpu>')
    (found,) = node.gpus
    assert (found.pci_bus_id, found.numa_node, found.cpus, found.pcie, found.links) == (None, None, None, None, None)
    assert node.hcas[0].ports[0].rate_bytes_per_s is None


def test_huge_counts_are_bounded():
    node = read(
        cpu(0, gpu("11", 0, '<nvlink target="-1" count="99999999" tclass="0x068000"/>'), affinity="f" * 100_000)
    )
    assert len(node.gpus[0].links) == 64
    assert node.gpus[0].cpus is None


def test_the_file_may_stand_inside_a_log_or_a_fence(tmp_path):
    path = tmp_path / "issue.md"
    path.write_text(
        f'topo.xml:\n```xml\n<system version="1">{cpu(0, gpu("11", 0), gpu("12", 1))}</system>\n```\nwhat is wrong?\n'
    )
    assert [g.pci_bus_id for g in read_node(path, name="n7").gpus] == ["0000:11:00.0", "0000:12:00.0"]
    path.write_text('<?xml version="1.0"?><!DOCTYPE system [<!ENTITY a "b">]><system><cpu>&a;</cpu></system>')
    with pytest.raises(ConfigError, match="document type or entities"):
        read_node(path)
    path.write_text("<system><cpu/></system>")
    with pytest.raises(ConfigError, match="tells of no GPUs"):
        read_node(path)
    path.write_text("<?xml version='1.0'?><html/>")
    with pytest.raises(ConfigError, match="tells of no GPUs"):
        read_node(path)
