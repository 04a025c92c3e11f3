"""Healthy machines of every kind, discovered as live ones are, under all checks of `preflight node`: nothing is blamed, as root and as an ordinary user.

What each may warn of is listed here; anything else that is said of a healthy machine is a false alarm.
"""

from dataclasses import replace

import pytest

from preflight.model import Gpu, Inventory, Problem, Settings, Verdict
from tests.config_spaces import config_space
from tests.incidents.boxes import BOXES, changed, healthy, with_gpus
from tests.incidents.live import Box, discovered, judged, plant
from tests.trees import Tree

GONE = Problem(source="nvmlDeviceGetHandleByIndex", text="GPU is lost (NVML 15)")
MIG_WARNS = {"mig_mode", "settings_uniform"}  # a slice-wise GPU beside whole ones: someone should look before a job
WARNINGS = {
    "H100 with one in MIG mode": MIG_WARNS,
    # the bits have to stay on there, and peer traffic is redirected all the same
    "virtual machine with eight H100": {"pcie_acs"},
    # two products on one node: no fault, and a group that mixes them is slow
    "two T4 and two L40S": {"node_uniform", "settings_uniform"},
    # no profile: only compared with peers
    "one GH200": {"product_known"},
    "virtual machine with A10G": {"product_known"},
    # the bits of the root ports redirect what the two cards send each other
    "workstation with two RTX A6000": {"pcie_acs"},
    # the driver allows shares of cards no peer access: slower, and the way it is
    "virtual GPUs": {"product_known", "p2p_access"},
}
# the host's log can't be read in a container
UNKNOWN = {"container with two of eight H100": {"xid", "nvswitch_errors"}}
# the kernel log and the PCI configuration space are root's
USERS_UNKNOWN = {"xid", "nvswitch_errors", "pcie_acs", "hca_read_request"}


@pytest.mark.parametrize("name", list(BOXES))
def test_a_healthy_machine_gets_no_finding_but_the_warnings_it_deserves(name):
    found = judged(healthy(name))
    assert found.answer == "go", found.text(Verdict.FAIL, Verdict.UNKNOWN)
    assert found.text(Verdict.FAIL) == []
    assert {finding.check for finding in found.with_verdict(Verdict.UNKNOWN)} == UNKNOWN.get(name, set())
    assert {finding.check for finding in found.with_verdict(Verdict.WARN)} == WARNINGS.get(name, set())
    assert {kind for kind, _ in found.suspected} <= {"environment"}  # settings; never a part


@pytest.mark.parametrize("name", list(BOXES))
def test_what_an_ordinary_user_may_not_read_is_unknown_and_stops_no_job(name, tmp_path, monkeypatch):
    found = judged(discovered(replace(BOXES[name](), user=True), tmp_path, monkeypatch))
    assert found.answer == "go", found.text(Verdict.FAIL, Verdict.UNKNOWN)
    assert found.text(Verdict.FAIL) == []
    unknown = found.with_verdict(Verdict.UNKNOWN)
    assert {finding.check for finding in unknown} <= USERS_UNKNOWN
    assert "xid" in {finding.check for finding in unknown}  # nothing passes for what was not read
    assert all(finding.need == "advisory" and finding.remedy and finding.blames is None for finding in unknown)


@pytest.mark.parametrize("name", list(BOXES))
def test_a_healthy_machine_compared_with_itself_a_minute_later_has_no_growth(name):
    node = healthy(name)
    later = changed(node, taken_at_s=(node.taken_at_s or 0.0) + 60.0)
    found = judged(later, before=Inventory(nodes=(node,)))
    assert found.answer == "go"
    assert {finding.verdict for finding in found.of("counter_growth")} <= {Verdict.PASS, Verdict.SKIP}


def test_ethernet_cards_with_routed_addresses_and_large_frames_are_right(tmp_path, monkeypatch):
    """RoCE in the place of InfiniBand, index 3 of each address table being the routed RoCE v2 one."""
    box, tree = replace(BOXES["HGX H100"](), cards=False), Tree(tmp_path / "root")
    plant(tree, box)
    for place, socket in enumerate(box.sockets):
        local, mapped = "fe80:0000:0000:0000:b83f:d2ff:fe00:0001", f"0000:0000:0000:0000:0000:ffff:0a00:000{place}"
        gids = {0: (local, "IB/RoCE v1", "eth9"), 1: (local, "RoCE v2", "eth9"), 3: (mapped, "RoCE v2", "eth9")}
        port = f"pci0000:{0x10 + place:02x}/0000:{0x10 + place:02x}:01.0/0000:{0x20 + place:02x}:00.0/0000:{0x20 + place:02x}:02.0"
        tree.pci(port, vendor="0x1000", class_code="0x060400", config=config_space(acs=0))
        config = config_space(max_read_request=4096)
        card = tree.pci(f"{port}/0000:{0x60 + place:02x}:00.0", numa=socket, driver="mlx5_core", config=config)
        tree.port(tree.hca(f"mlx5_{place}", card), layer="Ethernet", gids=gids, counters={"link_downed": "0"})
        tree.nic(f"eth{place + 1}", device=card, mtu=9000, port=0, speed=400000)
    found = judged(discovered(box, tmp_path, monkeypatch, tree=tree))
    assert found.text(Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN) == []
    assert "GPU 7: mlx5_7" in found.said("nic_affinity")
    assert "Ethernet" in found.said("hca_addressing")


def test_four_shares_of_a_cloud_network_for_each_gpu_are_its_rails(tmp_path, monkeypatch):
    """EFA: no InfiniBand addresses, no counters of its kind, four devices behind each GPU's switch, in a virtual machine."""
    box, tree = replace(BOXES["HGX H100"](), cards=False, virtual=True), Tree(tmp_path / "root")
    plant(tree, box)
    for place, socket in enumerate(box.sockets):
        for share in range(4):
            number = 4 * place + share
            port = f"pci0000:{0x10 + place:02x}/0000:{0x10 + place:02x}:01.0/0000:{0x20 + place:02x}:00.0/0000:{0x20 + place:02x}:{2 + share:02x}.0"
            tree.pci(port, vendor="0x1000", class_code="0x060400", config=config_space(acs=0))
            config = config_space(max_read_request=512)
            card = tree.pci(f"{port}/0000:{0xA0 + number:02x}:00.0", numa=socket, driver="efa", config=config)
            folder = tree.hca(f"rdmap{number}", card)
            facts = {"lid": "0x0", "sm_lid": "0x0", "hw_counters": {"rx_drops": "0"}}
            tree.port(folder, layer="Unspecified", rate="100 Gb/sec (4X EDR)", **facts)  # that driver's placeholder
    found = judged(discovered(box, tmp_path, monkeypatch, tree=tree))
    assert found.text(Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN) == []
    assert "GPU 7: rdmap28 rdmap29 rdmap30 rdmap31" in found.said("nic_affinity")
    assert "32 of 32 ports up: 32 x an unknown rate" in found.said("hca_ports")


def renamed(node, name):
    """The same machine once more, under another name and with other GPUs."""
    own = {index: {"uuid": f"GPU-{name}-{index}"} for index in range(len(node.gpus))}
    return with_gpus(changed(node, name=name, hostname=name, boot_id=f"boot of {name}"), own)


@pytest.mark.parametrize("name", list(BOXES))
def test_a_fleet_of_equal_machines_is_alike_in_everything(name):
    alone = judged(healthy(name))
    fleet = judged(*(renamed(healthy(name), f"node{i}") for i in range(4)))
    assert fleet.answer == "go", fleet.text(Verdict.FAIL, Verdict.UNKNOWN)
    for verdict in (Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN):
        assert {one.check for one in fleet.with_verdict(verdict)} == {one.check for one in alone.with_verdict(verdict)}


def test_machines_of_all_kinds_side_by_side_blame_nobody():
    """A mixed partition is no fault: what differs is told by class, and nothing that holds for one product is asked of another."""
    names = [name for name in BOXES if "virtual" not in name]
    found = judged(*(renamed(healthy(name), f"node{index}") for index, name in enumerate(names)))
    assert found.text(Verdict.FAIL) == []
    assert found.answer == "go", found.text(Verdict.UNKNOWN)
    assert {one.blames.confidence for one in found.findings if one.blames and one.blames.kind != "environment"} <= {
        "possible"
    }


def test_a_fleet_of_boards_with_and_without_switches_is_told_by_product():
    """What most nodes of a run have is no measure for those of another product."""
    fleet = [renamed(healthy("HGX A100"), f"node{i}") for i in range(3)]
    found = judged(*fleet, renamed(healthy("board of four A100"), "node9"))
    assert found.text(Verdict.FAIL) == []
    assert found.answer == "go"


def test_a_machine_without_gpus_is_no_sick_one(tmp_path, monkeypatch):
    """Nothing is asked of GPUs that nobody expects."""
    node = discovered(Box([], (), cards=False), tmp_path, monkeypatch)
    found = judged(node)
    assert node.gpus == ()
    assert found.answer == "go"
    assert found.text(Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN) == []


@pytest.mark.parametrize("name", ["HGX H100", "GB200 tray", "container with two of eight H100", "virtual GPUs"])
def test_where_a_run_on_cpus_is_meant_nothing_of_gpus_weighs(name):
    """Even if they are all lost."""
    node = healthy(name)
    lost = tuple(Gpu(index=gpu.index, problems=(GONE,)) for gpu in node.gpus)
    found = judged(changed(node, gpus=lost), settings=Settings(cpu_declared=True))
    assert found.text(Verdict.FAIL) == []
    assert found.answer == "go", found.text(Verdict.UNKNOWN)
