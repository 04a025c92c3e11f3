"""RDMA devices from trees as Linux spells them: InfiniBand, RoCE, EFA; ports that are down, cards that vanish, tables with holes."""

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.discover.files import ask_line
from preflight.discover.ib_port import parse_gid, parse_rate
from preflight.discover.infiniband import read_hcas
from preflight.model import PcieLink
from tests.config_spaces import config_space
from tests.trees import Tree

CX7 = "pci0000:{bus}/0000:{bus}:01.0/0000:{card}:00.0"


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def add_card(tree, number, **pci):
    """A 400 Gb/s card on a switch port of its own."""
    given = {
        "numa": number // 4,
        "speed": "32.0 GT/s PCIe",
        "width": 16,
        "driver": "mlx5_core",
        "config": config_space(max_read_request=4096),
    }
    path = CX7.format(bus=f"{0x10 + number:02x}", card=f"{0x30 + number:02x}")
    return tree.hca(f"mlx5_{number}", tree.pci(path, **{**given, **pci}))


def only_hca(tree):
    (hca,), problems = read_hcas(tree.root)
    assert problems == ()
    return hca


def only_port(tree):
    (port,) = only_hca(tree).ports
    return port


def test_a_node_with_eight_infiniband_cards_is_read_whole(tree):
    for number in range(8):
        tree.port(add_card(tree, number), counters={"symbol_error": "0", "port_xmit_data": "123456789012"})
    hcas, problems = read_hcas(tree.root)
    assert problems == ()
    assert [hca.name for hca in hcas] == [f"mlx5_{number}" for number in range(8)]
    hca = hcas[5]
    assert (hca.driver, hca.pci_bus_id, hca.numa_node) == ("mlx5_core", "0000:35:00.0", 1)
    assert hca.pci_upstream == ("0000:15:01.0", "pci0000:15")
    assert hca.pcie == PcieLink(generation=5, width=16, max_generation=5, max_width=16, device_max_generation=5)
    assert (hca.firmware_version, hca.board_id, hca.node_guid) == ("28.39.1002", "MT_0000000838", "b83f:d203:00aa:0001")
    assert hca.max_read_request_bytes == 4096
    (port,) = hca.ports
    assert (port.number, port.state, port.physical_state, port.up) == (1, "active", "LinkUp", True)
    assert (port.rate_bytes_per_s, port.width, port.link_layer) == (50_000_000_000, 4, "InfiniBand")
    assert (port.lid, port.sm_lid) == (0x1B, 1)
    assert [(gid.index, gid.address, gid.kind) for gid in port.gids] == [(0, "fe80::b83f:d203:aa:1", "IB")]
    assert port.pkeys == (0xFFFF, 0x8001)
    assert port.counters == {"symbol_error": 0, "port_xmit_data": 123456789012}


@pytest.mark.parametrize(
    ("text", "guid"),
    [("b83f:d203:00aa:0000\n", "b83f:d203:00aa:0000"), ("0000:0000:0000:0000\n", None), (None, None)],
)
def test_functions_of_one_card_are_told_by_its_system_image_guid(tree, text, guid):
    folder = add_card(tree, 0)
    tree.port(folder)
    if text is not None:
        tree.write(f"{folder}/sys_image_guid", text)
    assert only_hca(tree).card_guid == guid


def test_the_rate_and_width_of_a_port_that_polls_are_placeholders_and_left_out(tree):
    """A port without a partner prints 10 Gb/s (leptonai/gpud pull requests 482 and 752)."""
    tree.port(add_card(tree, 0), state="1: DOWN", physical="2: Polling", rate="10 Gb/sec (4X SDR)")
    port = only_port(tree)
    assert (port.state, port.physical_state, port.up) == ("down", "Polling", False)
    assert (port.rate_bytes_per_s, port.width) == (None, None)


def test_a_port_that_waits_for_its_subnet_manager_has_a_link_and_its_rate(tree):
    tree.port(add_card(tree, 0), state="2: INIT", sm_lid="0x0", lid="0xffff")
    port = only_port(tree)
    assert (port.state, port.physical_state, port.up) == ("init", "LinkUp", False)
    assert (port.rate_bytes_per_s, port.lid, port.sm_lid) == (50_000_000_000, 0xFFFF, 0)


def test_a_roce_port_has_its_interface_its_addresses_and_their_holes(tree):
    hca = add_card(tree, 0)
    tree.nic("eth2", device="sys/devices/" + CX7.format(bus="10", card="30"), mtu=9000, port=0)
    tree.port(
        hca,
        layer="Ethernet",
        lid="0x0",
        sm_lid="0x0",
        gids={
            0: ("fe80:0000:0000:0000:ba3f:d2ff:feaa:0001", "IB/RoCE v1", "eth2"),
            1: ("fe80:0000:0000:0000:ba3f:d2ff:feaa:0001", "RoCE v2", "eth2"),
            # 2 was taken away: nccl issue 394 tells of tables that change while a job runs
            3: ("0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2", "eth2"),
            4: ("fe80:0000:0000:0000:0000:0000:0000:0000", "RoCE v2", ""),
        },
        counters={"link_downed": "2"},
        hw_counters={"out_of_sequence": "7", "lifespan": "10"},
    )
    port = only_port(tree)
    assert (port.link_layer, port.lid, port.sm_lid) == ("Ethernet", None, None)
    assert (port.interface, port.mtu_bytes) == ("eth2", 9000)
    assert [(gid.index, gid.address, gid.kind, gid.interface) for gid in port.gids] == [
        (0, "fe80::ba3f:d2ff:feaa:1", "RoCE v1", "eth2"),
        (1, "fe80::ba3f:d2ff:feaa:1", "RoCE v2", "eth2"),
        (3, "::ffff:10.0.0.1", "RoCE v2", "eth2"),
    ]
    assert port.counters == {"link_downed": 2, "out_of_sequence": 7}


def test_the_ports_of_a_bond_are_one_device_over_the_bonds_interface(tree):
    device = tree.pci(CX7.format(bus="10", card="30"), driver="mlx5_core")
    for port in (0, 1):
        tree.nic(f"eth{port}", device=device, port=port)
    tree.nic("bond0", mtu=4200)
    tree.port(
        tree.hca("mlx5_bond_0", device),
        layer="Ethernet",
        rate="200 Gb/sec (4X HDR)",
        gids={1: ("fe80:0000:0000:0000:ba3f:d2ff:feaa:0001", "RoCE v2", "bond0")},
    )
    hca = only_hca(tree)
    assert (hca.name, hca.ports[0].interface, hca.ports[0].mtu_bytes) == ("mlx5_bond_0", "bond0", 4200)


def test_an_infiniband_port_finds_its_interface_by_port_number(tree):
    device = tree.pci(CX7.format(bus="10", card="30"), driver="mlx5_core")
    hca = tree.hca("mlx5_0", device)
    for number in (1, 2):
        tree.nic(f"ib{number}", device=device, hardware_type=32, port=number - 1, mtu=4092)
        tree.port(hca, number)
    assert [(port.number, port.interface, port.mtu_bytes) for port in only_hca(tree).ports] == [
        (1, "ib1", 4092),
        (2, "ib2", 4092),
    ]


def test_efa_devices_have_ports_but_nothing_of_infiniband(tree):
    """Its driver prints 4X EDR for every card (efa_query_port of Linux), so that rate is not known."""
    device = tree.pci("pci0000:50/0000:50:01.0/0000:51:00.0", vendor="0x1d0f", driver="efa", numa=0)
    tree.port(
        tree.hca("rdmap81s0", device, firmware="0.0.0.0", board=""),
        rate="100 Gb/sec (4X EDR)",
        layer="Unspecified",
        lid="0x0",
        sm_lid="0x0",
        gids={0: ("fe80:0000:0000:0000:0cff:1aff:fe2b:0001", "IB/RoCE v1", "")},
        hw_counters={"rdma_read_bytes": "5", "rx_drops": "0", "lifespan": "10"},
    )
    hca = only_hca(tree)
    assert (hca.driver, hca.board_id, hca.is_virtual_function) == ("efa", None, None)
    (port,) = hca.ports
    assert (port.state, port.up, port.link_layer, port.rate_bytes_per_s) == ("active", True, None, None)
    assert (port.lid, port.sm_lid, port.gids[0].kind) == (None, None, None)
    assert port.counters == {"rdma_read_bytes": 5, "rx_drops": 0}


def test_a_newer_efa_driver_is_believed(tree):
    device = tree.pci("pci0000:50/0000:50:01.0/0000:51:00.0", vendor="0x1d0f", driver="efa")
    tree.port(tree.hca("rdmap81s0", device), rate="200 Gb/sec (4X HDR)", layer="Unspecified")
    assert only_port(tree).rate_bytes_per_s == 25_000_000_000


@pytest.mark.parametrize(
    ("files", "links", "virtual"),
    [
        ({"sriov_totalvfs": "16"}, (), False),
        ({}, ("physfn",), True),
        ({"device": "0x101e"}, (), True),  # in a guest: no physfn, but the id of a ConnectX virtual function
        ({"device": "0x1021"}, (), False),
        ({}, (), None),
    ],
)
def test_shares_of_a_card_are_told_from_cards(tree, files, links, virtual):
    device = tree.pci(CX7.format(bus="10", card="30"))
    for file, text in files.items():
        tree.write(f"{device}/{file}", f"{text}\n")
    for link in links:
        tree.link(f"{device}/{link}", tree.pci(CX7.format(bus="11", card="31")))
    tree.port(tree.hca("mlx5_0", device))
    assert only_hca(tree).is_virtual_function is virtual


def test_a_card_in_a_narrow_slot_is_measured_by_the_slot(tree):
    hca = add_card(tree, 0)
    tree.write("sys/devices/pci0000:10/0000:10:01.0/max_link_width", "8\n")
    tree.write("sys/devices/" + CX7.format(bus="10", card="30") + "/current_link_width", "8\n")
    tree.port(hca)
    pcie = only_hca(tree).pcie
    assert (pcie.width, pcie.max_width, pcie.device_max_generation) == (8, 8, 5)


@pytest.mark.parametrize(("now", "at_most"), [(16, 16), (8, None)])
def test_without_a_slot_in_sight_only_a_card_at_its_best_tells_what_its_slot_can(tree, now, at_most):
    device = tree.pci("pci0000:00/0000:00:06.0", speed="32.0 GT/s PCIe", width=16)
    tree.write(f"{device}/current_link_width", f"{now}\n")
    tree.port(tree.hca("mlx5_0", device))
    pcie = only_hca(tree).pcie
    assert (pcie.width, pcie.max_width, pcie.max_generation) == (now, at_most, 5)


def test_a_device_that_vanishes_while_it_is_listed_costs_itself_only(tree):
    for number in range(8):
        tree.port(add_card(tree, number), rate="200 Gb/sec (4X HDR)")
    (tree.root / "sys/class/infiniband/mlx5_8").symlink_to("../../devices/pci0000:77/0000:77:00.0/infiniband/mlx5_8")
    hcas, problems = read_hcas(tree.root)
    assert [port.up for hca in hcas[:8] for port in hca.ports] == [True] * 8
    assert (hcas[8].name, hcas[8].ports) == ("mlx5_8", None)
    assert [(problem.source, problem.field) for problem in problems] == [("/sys/class/infiniband/mlx5_8", "hcas")]
    assert "not there" in problems[0].text


def test_a_device_without_ports_to_list_says_so_and_keeps_the_rest(tree):
    hca = add_card(tree, 0)
    (tree.root / hca / "ports").rmdir()
    (found,), problems = read_hcas(tree.root)
    assert (found.firmware_version, found.ports) == ("28.39.1002", None)
    assert "ports" in problems[0].text


def test_a_port_that_does_not_tell_its_state_is_unknown_and_said(tree):
    hca = add_card(tree, 0)
    tree.port(hca)
    (tree.root / hca / "ports/1/state").unlink()
    (found,), problems = read_hcas(tree.root)
    assert (found.ports[0].state, found.ports[0].up, found.ports[0].rate_bytes_per_s) == (None, None, None)
    assert found.ports[0].lid == 0x1B
    assert "state" in problems[0].text


def test_what_a_user_may_not_read_is_a_problem_of_that_fact(tree):
    hca = add_card(tree, 0, config=config_space(size=64))
    tree.port(hca)
    (found,), problems = read_hcas(tree.root)
    assert found.max_read_request_bytes is None
    assert found.ports[0].up
    assert [(problem.field, problem.not_allowed) for problem in problems] == [("max_read_request_bytes", True)]


def test_what_a_user_may_not_read_of_eight_cards_is_said_once(tree):
    for number in range(8):
        tree.port(add_card(tree, number, config=config_space(size=64)))
    hcas, (problem,) = read_hcas(tree.root)
    assert len(hcas) == 8
    assert problem.text.startswith("mlx5_0, mlx5_1, ")
    assert problem.not_allowed


def test_a_card_that_answers_nothing_is_no_question_of_permission(tree):
    tree.port(add_card(tree, 0, config=b"\xff" * 4096))
    (found,), problems = read_hcas(tree.root)
    assert found.max_read_request_bytes is None
    assert [(problem.field, problem.not_allowed) for problem in problems] == [("max_read_request_bytes", False)]
    assert "answers nothing" in problems[0].text


def test_a_file_that_is_a_folder_is_noted_once_and_the_rest_is_read(tree):
    hca = add_card(tree, 0)
    tree.port(hca, counters={"link_downed": "3"})
    for name in ("fw_ver", "board_id"):
        (tree.root / hca / name).unlink()
        (tree.root / hca / name).mkdir()
    (found,), problems = read_hcas(tree.root)
    assert (found.firmware_version, found.board_id, found.ports[0].counters) == (None, None, {"link_downed": 3})
    assert len(problems) == 1
    assert "fw_ver: Is a directory" in problems[0].text


def test_a_pipe_in_a_recorded_tree_does_not_stop_the_reading(tree):
    hca = add_card(tree, 0)
    tree.port(hca)
    (tree.root / hca / "fw_ver").unlink()
    os.mkfifo(tree.root / hca / "fw_ver")
    assert only_hca(tree).firmware_version is None


def test_counters_that_a_card_does_not_have_are_absent(tree):
    tree.port(add_card(tree, 0), counters={"port_rcv_data": "N/A (no PMA)", "link_downed": "0"})
    assert only_port(tree).counters == {"link_downed": 0}


def test_devices_in_software_sit_on_no_bus(tree):
    tree.port(tree.hca("rxe0", "sys/devices/virtual/rxe0"), layer="Ethernet")
    hca = only_hca(tree)
    assert (hca.pci_bus_id, hca.driver, hca.pcie, hca.is_virtual_function) == (None, None, None, None)


def test_sysfs_without_the_class_means_no_devices(tree):
    assert tuple(read_hcas(tree.root)) == ((), ())
    tree.folder("sys/class/infiniband")
    assert tuple(read_hcas(tree.root)) == ((), ())


def test_without_sysfs_the_devices_are_unknown(tmp_path):
    hcas, problems = read_hcas(tmp_path)
    assert hcas is None
    assert [problem.field for problem in problems] == ["hcas"]


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("400 Gb/sec (4X NDR)", (50_000_000_000, 4)),
        ("2.5 Gb/sec (1X SDR)", (312_500_000, 1)),
        ("800 Gb/sec (4X XDR)", (100_000_000_000, 4)),
        ("", (None, None)),
        (None, (None, None)),
        ("-1 Gb/sec (4X)", (None, None)),
    ],
)
def test_rates_are_bytes_per_second_of_one_direction(text, rate):
    assert parse_rate(text) == rate


@given(st.text())
def test_no_text_breaks_the_parsers(text):
    parse_rate(text)
    parse_gid(text)


@pytest.mark.parametrize(("number", "told"), [(errno.EINVAL, 0), (errno.EOPNOTSUPP, 0), (524, 0), (errno.EIO, 1)])
def test_a_counter_that_a_card_refuses_is_one_that_it_does_not_have_but_a_fault_is_said(
    tree, monkeypatch, number, told
):
    def read(path):
        if "counters/" in path:
            raise OSError(number, "refused")
        return ask_line(path)

    tree.port(add_card(tree, 0), counters={"link_downed": "0", "symbol_error": "0"})
    monkeypatch.setattr("preflight.discover.folder.ask_line", read)
    (hca,), problems = read_hcas(tree.root)
    assert (hca.ports[0].counters, hca.ports[0].up, len(problems)) == ({}, True, told)
