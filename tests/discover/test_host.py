"""What the operating system tells, from trees as Linux spells them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.discover.host import parse_cpuinfo, parse_ipv6_routes, parse_meminfo, parse_routes, read_host
from preflight.discover.pci import nvidia_gpus_on_bus, pci_bus_id, pci_upstream
from tests.trees import BOOT_ID, Tree


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def nic_of(tree, name):
    return next(nic for nic in read_host(tree.root).nics if nic.name == name)


def test_kernel_cpus_memory_and_numa_nodes_are_read_below_the_root(tree):
    host = read_host(tree.root)
    assert (host.hostname, host.kernel, host.boot_id) == ("cn07", "6.8.0-45-generic", BOOT_ID)
    assert (host.cpu_model, host.num_cpus) == ("Example CPU 9000", 4)
    assert host.memory_bytes == 64 * 2**30
    assert host.numa_nodes == (0, 1)
    assert host.problems == ()


def test_an_ethernet_port_has_its_place_and_rate(tree):
    folder = tree.pci("pci0000:20/0000:20:01.0/0000:21:00.0", numa=1)
    tree.nic("eth0", device=folder, mtu=9000)
    nic = nic_of(tree, "eth0")
    assert (nic.kind, nic.up, nic.mtu_bytes, nic.speed_bytes_per_s) == ("ethernet", True, 9000, 12_500_000_000)
    assert (nic.pci_bus_id, nic.numa_node) == ("0000:21:00.0", 1)
    assert nic.pci_upstream == ("0000:20:01.0", "pci0000:20")


def test_a_port_behind_a_virtio_layer_still_has_its_pci_place(tree):
    folder = tree.pci("pci0000:00/0000:00:03.0")
    tree.nic("eth0", device=f"{folder}/virtio2")
    assert nic_of(tree, "eth0").pci_bus_id == "0000:00:03.0"


def test_an_infiniband_port_is_known_by_its_hardware_type(tree):
    tree.nic("ib0", device=tree.pci("pci0000:20/0000:20:02.0"), hardware_type=32, speed=400000)
    nic = nic_of(tree, "ib0")
    assert (nic.kind, nic.speed_bytes_per_s) == ("infiniband", 50_000_000_000)


@pytest.mark.parametrize("speed", [-1, 0, 2**32 - 1, None])
def test_a_rate_that_the_kernel_does_not_know_is_none(tree, speed):
    tree.nic("eth0", device=tree.pci("pci0000:00/0000:00:03.0"), speed=speed)
    assert nic_of(tree, "eth0").speed_bytes_per_s is None


def test_numa_node_minus_one_is_unknown(tree):
    tree.nic("eth0", device=tree.pci("pci0000:00/0000:00:03.0", numa=-1))
    assert nic_of(tree, "eth0").numa_node is None


@pytest.mark.parametrize(
    ("operstate", "flags", "carrier", "up"),
    [
        ("up", "0x1003", "1", True),
        ("down", "0x1003", "0", False),
        ("lowerlayerdown", "0x1003", "0", False),
        ("unknown", "0x9", "1", True),
        ("unknown", "0x8", None, False),
    ],
)
def test_up_means_that_data_can_pass(tree, operstate, flags, carrier, up):
    tree.nic("eth0", operstate=operstate, flags=flags, carrier=carrier)
    assert nic_of(tree, "eth0").up is up


def test_loopback_bridges_and_the_bonding_file_are_told_apart(tree):
    tree.nic("docker0")
    tree.write("sys/class/net/bonding_masters", "")
    assert [(nic.name, nic.kind) for nic in read_host(tree.root).nics] == [("docker0", "virtual"), ("lo", "loopback")]


def test_interfaces_come_in_numeric_order(tree):
    for name in ("eth10", "eth2"):
        tree.nic(name)
    assert [nic.name for nic in read_host(tree.root).nics] == ["eth2", "eth10", "lo"]


def test_an_empty_tree_leaves_everything_unknown_and_says_what_was_missing(tmp_path):
    host = read_host(tmp_path)
    assert (host.hostname, host.cpu_model, host.num_cpus, host.memory_bytes) == (None, None, None, None)
    assert (host.numa_nodes, host.nics) == (None, None)
    assert [problem.source for problem in host.problems] == ["/proc/cpuinfo", "/proc/meminfo", "/sys/class/net"]


def test_addresses_of_this_machine_are_read_from_its_own_network():
    loopback = next(nic for nic in read_host().nics if nic.kind == "loopback")
    assert "127.0.0.1" in loopback.addresses


def test_arm_without_a_model_name_has_cpus_of_unknown_model():
    assert parse_cpuinfo("processor\t: 0\nBogoMIPS\t: 2000\n\nprocessor\t: 1\n") == (None, 2)


@settings(max_examples=50)
@given(st.text())
def test_no_text_breaks_the_parsers(text):
    parse_cpuinfo(text)
    parse_meminfo(text)
    parse_routes(text)
    parse_ipv6_routes(text)
    pci_bus_id(text)


def test_only_display_devices_of_nvidia_count_as_gpus(tree):
    tree.gpu("pci0000:10/0000:10:01.0/0000:11:00.0")
    tree.gpu("pci0000:10/0000:10:01.0/0000:12:00.0", class_code="0x030000")
    tree.gpu("pci0000:10/0000:10:01.0/0000:13:00.0", class_code="0x068000")  # an NVSwitch
    tree.pci("pci0000:10/0000:10:02.0", vendor="0x1002", class_code="0x030000")
    assert nvidia_gpus_on_bus(tree.root) == ("0000:11:00.0", "0000:12:00.0")


def test_gpus_that_are_held_for_virtual_machines_are_not_this_systems(tree):
    tree.gpu("pci0000:10/0000:10:01.0/0000:11:00.0")
    for place, driver in enumerate(("vfio-pci", "nvidia", "nouveau")):
        at = f"pci0000:10/0000:10:01.0/0000:{0x12 + place:02x}:00.0"
        tree.pci(at, vendor="0x10de", class_code="0x030200", driver=driver)
    assert nvidia_gpus_on_bus(tree.root) == ("0000:11:00.0", "0000:13:00.0", "0000:14:00.0")


def test_without_pci_in_sysfs_the_number_of_gpus_is_unknown(tmp_path):
    assert nvidia_gpus_on_bus(tmp_path) is None


def test_a_device_that_sysfs_does_not_know_has_no_place(tree):
    assert pci_upstream(tree.root, "0000:99:00.0") is None


@pytest.mark.parametrize(
    ("spelled", "normal"),
    [
        ("00000000:1A:00.0", "0000:1a:00.0"),
        ("0000:1a:00.0", "0000:1a:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("FFFFFFFF:FF:FF.0", None),
        ("", None),
        ("GPU-1", None),
    ],
)
def test_pci_ids_are_spelled_as_sysfs_does(spelled, normal):
    assert pci_bus_id(spelled) == normal


ROUTES = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
DEFAULT = "{}\t00000000\t010002C0\t0003\t0\t0\t{}\t00000000\t0\t0\t0\n"
LOCAL = "eth0\t000002C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"


@pytest.mark.parametrize(
    ("lines", "taken"),
    [
        (DEFAULT.format("eth0", 100) + LOCAL, {"eth0"}),
        (DEFAULT.format("eth0", 100) + DEFAULT.format("eth1", 50), {"eth1"}),
        (DEFAULT.format("eth0", 100) + DEFAULT.format("eth1", 100), {"eth0", "eth1"}),
        (LOCAL + "broken\n", set()),
    ],
)
def test_the_default_route_takes_the_interface_with_the_smallest_metric(tree, lines, taken):
    tree.nic("eth0")
    tree.nic("eth1")
    tree.write("proc/1/net/route", ROUTES + lines)
    nics = read_host(tree.root).nics
    assert {nic.name for nic in nics if nic.default_route} == taken
    assert all(nic.default_route is not None for nic in nics)


def test_without_an_older_default_route_that_of_ipv6_counts(tree):
    tree.nic("eth0")
    tree.write("proc/net/route", ROUTES)
    zeros = "0" * 32
    line = f"{zeros} 00 {zeros} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003 {{}}\n"
    tree.write("proc/net/ipv6_route", line.format("eth0") + line.format("lo"))
    assert [nic.name for nic in read_host(tree.root).nics if nic.default_route] == ["eth0"]


def test_without_a_table_of_routes_it_is_unknown_who_carries_the_systems_traffic(tree):
    assert nic_of(tree, "lo").default_route is None


def test_gpus_that_come_by_way_of_windows_are_on_no_bus_that_can_be_counted(tree):
    tree.write("dev/dxg", "")
    assert nvidia_gpus_on_bus(tree.root) is None
