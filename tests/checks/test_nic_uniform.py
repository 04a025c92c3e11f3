"""nic_uniform: HCAs, ports, firmware and address tables of the nodes, and who differs."""

import pytest
from msgspec.structs import replace

from preflight.model import Evidence, Gid, Hca, Inventory, Nic, Node, Port, Setting, Verdict
from preflight_checks.nic_uniform import judge
from tests.builders import make_node

LINK = 50 * 10**9  # 400 Gb/s


def hca(name: str, *, gids: tuple[Gid, ...] | None = None, layer="InfiniBand", **changes) -> Hca:
    port = Port(number=1, state="active", physical_state="LinkUp", rate_bytes_per_s=LINK, link_layer=layer, gids=gids)
    return Hca(name=name, **{"firmware_version": "28.39.1002", "board_id": "MT_0838", "ports": (port,), **changes})


def node(name: str, *hcas: Hca, **changes) -> Node:
    return replace(make_node(name), hcas=hcas, **changes)


def judged(*nodes):
    return list(judge(Evidence(inventory=Inventory(nodes=nodes))))


def of(findings, subject):
    [finding] = [f for f in findings if f.subject == subject]
    return finding


def not_passed(findings):
    return [f for f in findings if f.verdict is not Verdict.PASS]


def eight(**changes):
    return tuple(hca(f"mlx5_{i}", **changes) for i in range(8))


def test_equal_nodes_pass():
    findings = judged(*(node(f"n{i}", *eight()) for i in range(3)))
    assert not_passed(findings) == []
    assert of(findings, "ports with a link").observed == "8 x 400 Gbit/s InfiniBand on 3 nodes"
    assert of(findings, "number of HCAs").observed == "8 on 3 nodes"


def test_a_node_with_fewer_hcas_or_other_names_is_named():
    findings = judged(node("n0", *eight()), node("n1", *eight()), node("n2", *eight()[:7]))
    assert of(findings, "number of HCAs").observed == "8 on n[0-1]; 7 on n2"
    assert "mlx5_[0-7] on n[0-1]" in of(findings, "HCA names").observed
    assert all(f.verdict is Verdict.WARN for f in not_passed(findings))


def test_other_firmware_is_named_by_board():
    findings = judged(
        *(node(f"n{i}", hca("mlx5_0", firmware_version="28.35" if i == 2 else "28.39")) for i in range(4))
    )
    assert of(findings, "HCA firmware").observed == "MT_0838: 28.39 on n[0-1,3]; MT_0838: 28.35 on n2"


def test_virtual_functions_and_ports_without_a_link_are_left_out():
    down = hca("mlx5_9", ports=(Port(number=1, state="down", physical_state="Polling", rate_bytes_per_s=1),))
    virtual = hca("mlx5_20", is_virtual_function=True)
    findings = judged(node("n0", *eight(), virtual), node("n1", *eight()))
    assert not_passed(findings) == []
    assert (
        of(judged(node("n0", *eight(), down), node("n1", *eight(), down)), "ports with a link").verdict is Verdict.PASS
    )


def test_interface_names_and_mtu_of_real_interfaces_are_compared():
    def nics(*names):
        return (*(Nic(name=n, up=True, pci_bus_id="0000:01:00.0") for n in names), Nic(name="veth7", up=True))

    findings = judged(replace(make_node("n0"), nics=nics("eth0")), replace(make_node("n1"), nics=nics("ens1f0")))
    assert of(findings, "interfaces with a link").observed == "eth0 on n0; ens1f0 on n1"


def test_hcas_that_cannot_be_read_are_said_to_be_unknown():
    findings = judged(node("n0", *eight()), node("n1", *eight()), replace(make_node("n2"), hcas=None))
    assert of(findings, "number of HCAs").observed == "8 on 2 nodes; unknown on n2"
    assert not_passed(findings) == []


def test_machines_without_hcas_say_nothing():
    assert judged(node("n0"), node("n1")) == []
    assert judged(replace(make_node("n0"), hcas=None), replace(make_node("n1"), hcas=None)) == []


ROUTABLE = Gid(index=3, address="::ffff:10.0.0.1", kind="RoCE v2")
OLD = Gid(index=3, address="::ffff:10.0.0.1", kind="RoCE v1")
LINK_LOCAL = Gid(index=3, address="fe80::1", kind="RoCE v2")
INDEX = (Setting(name="NCCL_IB_GID_INDEX", value="3", origin="environment"),)


def roce(name, *gids, settings=INDEX):
    return node(name, hca("mlx5_0", gids=gids, layer="Ethernet"), settings=settings)


def test_an_index_that_means_the_same_routable_address_everywhere_passes():
    findings = judged(roce("n0", ROUTABLE), roce("n1", ROUTABLE))
    assert of(findings, "NCCL_IB_GID_INDEX").observed == "index 3 is RoCE v2 over IPv4 on 2 nodes"


@pytest.mark.parametrize(
    ("gids", "words"), [((OLD,), "RoCE v1 over IPv4"), ((LINK_LOCAL,), "link-local"), ((), "no address")]
)
def test_an_index_that_means_something_else_on_one_node_fails_and_blames_the_setting(gids, words):
    finding = of(judged(roce("n0", ROUTABLE), roce("n1", ROUTABLE), roce("n2", *gids)), "NCCL_IB_GID_INDEX")
    assert finding.verdict is Verdict.FAIL
    assert "RoCE v2 over IPv4 on n[0-1]" in finding.observed
    assert f"{words} on n2" in finding.observed
    assert (finding.blames.kind, finding.blames.name) == ("environment", "NCCL_IB_GID_INDEX on n2")


def test_a_port_that_nccl_may_not_use_is_only_a_warning():
    storage = hca("mlx5_1", gids=(OLD,), layer="Ethernet")
    two = node("n1", hca("mlx5_0", gids=(ROUTABLE,), layer="Ethernet"), storage, settings=INDEX)
    assert of(judged(roce("n0", ROUTABLE), two), "NCCL_IB_GID_INDEX").verdict is Verdict.WARN


def test_without_a_set_index_nccl_finds_it_and_nothing_is_compared():
    findings = judged(roce("n0", ROUTABLE, settings=()), roce("n1", OLD, settings=()))
    assert "NCCL_IB_GID_INDEX" not in {f.subject for f in findings}


def test_topology_texts_are_compared_by_number_and_by_names_where_they_tell_names():
    def text(name, *names, source="topo"):
        return Node(name=name, source=source, hcas=tuple(Hca(name=hca) for hca in names))

    findings = judged(text("n0", "mlx5_0", "mlx5_1"), text("n1", "NIC0", "NIC1"), text("n2", "mlx5_0"))
    assert of(findings, "number of HCAs").observed == "2 on n[0-1]; 1 on n2"
    assert "NIC" not in of(findings, "HCA names").observed
    # an NCCL topology lists what one communicator uses
    findings = judged(text("n0", "mlx5_0", "mlx5_1"), text("n1", "mlx5_0", source="nccl xml"))
    assert not_passed(findings) == []
