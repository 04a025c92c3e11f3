"""Ports that are up and can't be reached, and read requests that are small."""

import pytest
from msgspec.structs import replace

from preflight.model import Gid, Setting, Verdict
from preflight_checks import hca_addressing, hca_read_request
from tests.builders import make_gpu, make_node
from tests.checks.nodes_found import findings_of, make_hca, make_port, only, verdicts

V4 = Gid(index=3, address="::ffff:10.0.0.1", kind="RoCE v2", interface="eth2")
LOCAL = Gid(index=1, address="fe80::1", kind="RoCE v2", interface="eth2")
OLD = Gid(index=2, address="::ffff:10.0.0.1", kind="RoCE v1", interface="eth2")
ROCE = make_port(link_layer="Ethernet", pkeys=(0xFFFF,), gids=(LOCAL, OLD, V4), interface="eth2", mtu_bytes=9000)


def node(*hcas, name="n1", **changes):
    near = {hca.name: "PIX" for hca in hcas}
    return replace(make_node(name, **changes), gpus=(make_gpu(name, 0, nics=near),), hcas=hcas)


def index(value, origin="environment"):
    return (Setting(name="NCCL_IB_GID_INDEX", value=value, origin=origin),)


@pytest.mark.parametrize("port", [make_port(), ROCE, make_port(pkeys=(0x8001, 0x7FFF))])
def test_healthy_ports_of_either_kind_pass(port):
    assert only(hca_addressing.CHECK, node(make_hca(port=port))).verdict is Verdict.PASS


def test_a_limited_member_of_every_partition_reaches_no_other_one():
    finding = only(hca_addressing.CHECK, node(make_hca(port=make_port(pkeys=(0x7FFF, 0x0001)))))
    assert (finding.verdict, finding.blames.name) == (Verdict.FAIL, "n1 mlx5_0")
    assert "0x7fff" in finding.observed


def test_a_partition_key_that_is_not_at_index_0_is_a_warning():
    """NVIDIA/nccl issue 1323."""
    finding = only(hca_addressing.CHECK, node(make_hca(port=make_port(pkeys=(0, 0x8001)))))
    assert finding.verdict is Verdict.WARN
    assert "NCCL_IB_PKEY" in finding.remedy


def test_a_gid_index_is_looked_up_in_the_table_and_a_bad_one_is_the_environments_fault():
    hca = make_hca(port=ROCE)
    assert only(hca_addressing.CHECK, node(hca, settings=index("3"))).verdict is Verdict.PASS
    empty = only(hca_addressing.CHECK, node(hca, settings=index("7", "/etc/nccl.conf")))
    assert (empty.verdict, empty.blames.kind) == (Verdict.FAIL, "environment")
    assert "/etc/nccl.conf" in empty.observed
    for bad, word in (("1", "link-local"), ("2", "RoCE v1")):
        finding = only(hca_addressing.CHECK, node(hca, settings=index(bad)))
        assert finding.verdict is Verdict.WARN
        assert word in finding.observed


def test_a_port_with_link_local_addresses_only_is_a_warning():
    finding = only(hca_addressing.CHECK, node(make_hca(port=replace(ROCE, gids=(LOCAL,)))))
    assert finding.verdict is Verdict.WARN
    assert "fe80::1" in finding.observed


@pytest.mark.parametrize(
    ("address", "verdict"),
    [
        ("fe80::1", Verdict.WARN),
        ("FEBF::1", Verdict.WARN),
        ("::ffff:169.254.3.4", Verdict.WARN),
        ("0000:0000:0000:0000:0000:ffff:a9fe:0304", Verdict.WARN),
        ("::ffff:169.25.3.4", Verdict.PASS),
        ("fec0::1", Verdict.PASS),
        ("2001:db8::fe80", Verdict.PASS),
    ],
)
def test_link_local_addresses_are_told_in_every_spelling(address, verdict):
    gids = (Gid(index=0, address=address, kind="RoCE v2", interface="eth2"),)
    assert only(hca_addressing.CHECK, node(make_hca(port=replace(ROCE, gids=gids)))).verdict is verdict


def test_a_small_mtu_is_said_for_roce_and_never_for_infiniband():
    assert only(hca_addressing.CHECK, node(make_hca(port=replace(ROCE, mtu_bytes=1500)))).verdict is Verdict.WARN
    assert only(hca_addressing.CHECK, node(make_hca(port=make_port(mtu_bytes=2044)))).verdict is Verdict.PASS


def test_tables_that_could_not_be_read_are_unknown_and_blame_nothing():
    for port in (make_port(pkeys=None), replace(ROCE, gids=None)):
        finding = only(hca_addressing.CHECK, node(make_hca(port=port)))
        assert (finding.verdict, finding.blames, finding.need) == (Verdict.UNKNOWN, None, "advisory")


def test_ports_that_are_down_and_devices_of_other_kinds_are_left_alone():
    down = make_hca(port=make_port(state="down", pkeys=()))
    efa = make_hca("rdmap0", driver="efa", port=make_port(link_layer=None, pkeys=None))
    assert only(hca_addressing.CHECK, node(down)).verdict is Verdict.SKIP
    assert only(hca_addressing.CHECK, node(efa)).verdict is Verdict.PASS
    assert only(hca_addressing.CHECK, make_node("n1", hcas=())).verdict is Verdict.SKIP


def cards(*sizes):
    return tuple(make_hca(f"mlx5_{i}", max_read_request_bytes=size) for i, size in enumerate(sizes))


def test_equal_read_requests_pass_whatever_their_size():
    assert only(hca_read_request.CHECK, node(*cards(512, 512))).verdict is Verdict.PASS
    assert only(hca_read_request.CHECK, node(*cards(4096, 4096))).verdict is Verdict.PASS


def test_a_card_that_reads_in_smaller_requests_than_most_is_named():
    finding = only(hca_read_request.CHECK, node(*cards(4096, 4096, 512)))
    assert (finding.verdict, finding.blames.name) == (Verdict.WARN, "n1 mlx5_2")
    nodes = [node(*cards(4096, 4096), name=f"n{i}") for i in range(3)]
    findings = findings_of(hca_read_request.CHECK, *nodes, node(*cards(512, 512), name="n9"))
    assert {f.subject for f in findings if f.verdict is Verdict.WARN} == {"n9 mlx5_0", "n9 mlx5_1"}


def test_less_than_the_default_is_a_warning_even_if_all_are_alike():
    assert verdicts(findings_of(hca_read_request.CHECK, node(*cards(256, 256)))) == [Verdict.WARN] * 2


def test_an_ordinary_user_sees_unknown_and_shares_of_a_card_are_not_judged():
    assert only(hca_read_request.CHECK, node(*cards(None, None))).verdict is Verdict.UNKNOWN
    share = make_hca("mlx5_9", is_virtual_function=True, max_read_request_bytes=128)
    assert only(hca_read_request.CHECK, node(share)).verdict is Verdict.SKIP
