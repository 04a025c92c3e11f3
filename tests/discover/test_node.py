"""One node put together: what is said of GPUs that no driver serves, and the facts that only the node knows."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.discover.assemble import explain_gpus
from preflight.discover.node import discover_node
from preflight.discover.nvlink import nvlink_domains
from preflight.discover.nvml_reading import NvmlReading
from preflight.discover.topology import build_topology
from preflight.model import Gpu, GpuPeer, GpuProcess, Inventory, Link, Node, PcieLink, from_json, to_json
from tests.builders import make_inventory, make_node
from tests.machines import hgx
from tests.trees import Tree

NO_DRIVER = NvmlReading(no_driver=True, note="NVML Shared Library Not Found (NVML 12)")


def test_this_machine_can_be_discovered_and_its_snapshot_round_trips():
    node = discover_node(name="here")
    assert node.name == "here"
    assert node.num_cpus
    assert node.memory_bytes
    assert any(nic.kind == "loopback" for nic in node.nics)
    assert node.gpus or node.gpu_note
    assert from_json(to_json(node), Node) == node


@pytest.fixture
def no_library():
    """A machine with a driver would answer for itself."""
    if discover_node().gpu_note != "no NVIDIA driver":
        pytest.skip("this machine has an NVIDIA driver")


@pytest.mark.usefixtures("no_library")
def test_devices_on_the_bus_without_a_driver_leave_the_gpus_unknown(tmp_path):
    tree = Tree(tmp_path)
    for bus in (1, 2):
        tree.gpu(f"pci0000:10/0000:10:0{bus}.0/0000:1{bus}:00.0")
    node = discover_node(root=tree.root)
    assert node.name == "cn07"
    assert node.gpus is None
    assert node.gpu_note.startswith("2 NVIDIA devices on the PCI bus, but no working driver")
    assert node.problems


@pytest.mark.usefixtures("no_library")
def test_a_node_without_nvidia_devices_and_driver_has_no_gpus_and_no_problem(tmp_path):
    node = discover_node(root=Tree(tmp_path).root)
    assert (node.gpus, node.gpu_note, node.problems) == ((), "no NVIDIA driver", ())


@pytest.mark.parametrize(
    ("reading", "on_bus", "driver_folder", "known", "words"),
    [
        (NO_DRIVER, (), False, True, "no NVIDIA driver"),
        (NO_DRIVER, None, False, True, "no NVIDIA driver"),
        (NO_DRIVER, None, True, False, "an NVIDIA driver is loaded"),
        (NO_DRIVER, (), True, True, "no NVIDIA GPU on the PCI bus"),
        (NO_DRIVER, ("0000:01:00.0",), False, False, "1 NVIDIA device on the PCI bus, but no working driver"),
        (NvmlReading(gpus=()), (), True, True, "shows no GPU"),
        (NvmlReading(gpus=()), ("0000:01:00.0",), True, False, "the driver shows none"),
        (NvmlReading(note="NVML did not answer"), (), False, False, "did not answer"),
    ],
)
def test_no_gpus_is_said_only_where_nothing_speaks_against_it(reading, on_bus, driver_folder, known, words):
    gpus, note = explain_gpus(reading, on_bus, driver_folder=driver_folder)
    assert gpus == (() if known else None)
    assert words in note


def chain(*, broken_at=None):
    """Four GPUs wired in a line by direct links; `broken_at` cuts the line after that GPU."""
    gpus = []
    for i in range(4):
        peers = [
            GpuPeer(index=j, num_nvlinks=int(abs(i - j) == 1 and min(i, j) != broken_at)) for j in range(4) if j != i
        ]
        gpus.append(Gpu(index=i, links=(Link(index=0, active=True),), peers=tuple(peers)))
    return gpus


def test_gpus_joined_by_way_of_others_are_one_domain():
    assert nvlink_domains("n1", chain()) == dict.fromkeys(range(4), "n1")


def test_a_cut_makes_two_domains_with_names_of_their_own():
    assert nvlink_domains("n1", chain(broken_at=1)) == {0: "n1:gpu0", 1: "n1:gpu0", 2: "n1:gpu2", 3: "n1:gpu2"}


@settings(max_examples=50)
@given(
    st.integers(2, 6).flatmap(
        lambda n: st.tuples(st.just(n), st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))))
    )
)
def test_joined_gpus_always_share_a_domain_and_none_is_left_without_a_word(case):
    count, wired = case
    joined = {frozenset(pair) for pair in wired if pair[0] != pair[1]}
    gpus = [
        Gpu(
            index=i,
            links=(Link(index=0, active=True),),
            peers=tuple(GpuPeer(index=j, num_nvlinks=int(frozenset((i, j)) in joined)) for j in range(count) if j != i),
        )
        for i in range(count)
    ]
    domains = nvlink_domains("n1", gpus)
    assert all(domains[a] == domains[b] != "none" for a, b in (tuple(pair) for pair in joined))
    lonely = set(range(count)) - set().union(*joined)
    assert all(domains[i] == "none" for i in lonely)


def test_topology_lists_the_gpus_of_each_domain_across_nodes():
    inventory = make_inventory(nodes=2, gpus=2, domains=["rack.1", "rack.1"])
    assert build_topology(inventory).nvlink_domains == {
        "rack.1": ("GPU-node0-0", "GPU-node0-1", "GPU-node1-0", "GPU-node1-1")
    }
    assert build_topology(inventory).rails is None
    assert build_topology(inventory).switches is None


def test_topology_of_unknown_gpus_is_unknown_and_of_no_gpus_empty():
    assert build_topology(Inventory(nodes=(make_node(gpus=None),))).nvlink_domains is None
    assert build_topology(Inventory(nodes=(make_node(gpus=0),))).nvlink_domains == {}
    assert build_topology(Inventory(nodes=())).nvlink_domains is None


def test_gpus_that_reach_no_other_are_in_no_domain():
    assert build_topology(Inventory(nodes=(make_node(gpus=2, domain="none"),))).nvlink_domains == {}
    # a domain that is unknown is another matter: nothing is known then
    assert build_topology(Inventory(nodes=(make_node(gpus=2, domain=None),))).nvlink_domains is None


class Answering:
    """An NVML child that has answered."""

    reading = NvmlReading()

    def __init__(self, deadline_s):
        pass

    def result(self):
        return self.reading

    def close(self):
        pass


@pytest.fixture
def answering(monkeypatch):
    def answer(**reading):
        monkeypatch.setattr("preflight.discover.node.NvmlRun", Answering)
        monkeypatch.setattr(Answering, "reading", NvmlReading(**reading))

    return answer


def on_bus(count, **facts):
    """GPUs as NVML tells of them, at the places of the recorded machine."""
    return tuple(
        Gpu(index=i, uuid=f"GPU-{i}", name="NVIDIA H100 80GB HBM3", pci_bus_id=f"0000:{0x40 + i:02x}:00.0", **facts)
        for i in range(count)
    )


def test_gpus_get_their_places_and_cards_from_the_system(tmp_path, answering):
    tree = Tree(tmp_path)
    hgx(tree)
    gpu_5 = "sys/devices/pci0000:15/0000:15:01.0/0000:25:00.0/0000:25:01.0/0000:45:00.0"
    tree.write(f"{gpu_5}/local_cpulist", "48-95,144-191\n")
    answering(gpus=on_bus(8), confidential_compute=False)
    node = discover_node(root=tree.root)
    gpu = node.gpus[5]
    assert (gpu.numa_node, gpu.cpus) == (1, "48-95,144-191")
    assert gpu.pci_upstream == ("0000:25:01.0", "0000:25:00.0", "0000:15:01.0", "pci0000:15")
    assert [name for name, relation in gpu.nics.items() if relation == "PIX"] == ["mlx5_5"]
    assert node.confidential_compute is False
    assert node.gpus_on_bus == tuple(gpu.pci_bus_id for gpu in node.gpus)
    assert node.problems == ()
    assert from_json(to_json(node), Node) == node


def test_what_nvml_says_of_a_place_stays_where_sysfs_is_silent(tmp_path, answering):
    answering(gpus=on_bus(1, numa_node=1, cpus="0-3"))
    (gpu,) = discover_node("n1", root=tmp_path).gpus
    assert (gpu.numa_node, gpu.cpus, gpu.pci_upstream, gpu.nics) == (1, "0-3", None, {})


def test_a_card_counts_no_more_lanes_than_its_slot_has(tmp_path, answering):
    tree = Tree(tmp_path)
    tree.pci("pci0000:10/0000:10:01.0", vendor="0x1000", class_code="0x060400", speed="16.0 GT/s PCIe", width=4)
    tree.gpu("pci0000:10/0000:10:01.0/0000:40:00.0")
    tree.gpu("pci0000:11/0000:11:01.0/0000:41:00.0")  # a slot that tells nothing
    shown = PcieLink(width=4, max_width=16)
    answering(gpus=on_bus(2, pcie=shown))
    first, second = discover_node(root=tree.root).gpus
    assert (first.pcie.max_width, second.pcie.max_width) == (4, 16)


def test_a_gpu_that_the_driver_lost_is_counted_on_the_bus_and_named_dead(tmp_path, answering):
    tree = Tree(tmp_path)
    hgx(tree, dead=(7,))
    answering(gpus=on_bus(7))
    node = discover_node(root=tree.root)
    assert (len(node.gpus_on_bus), node.dead_on_bus) == (8, ("0000:47:00.0",))
    assert [problem.field for problem in node.problems] == ["gpus"]
    assert "8 NVIDIA GPUs on the PCI bus, 7 shown by the driver" in node.problems[0].text


def test_processes_on_gpus_are_named(tmp_path, answering):
    tree = Tree(tmp_path)
    hgx(tree)
    tree.write("proc/4711/comm", "python3\n")
    answering(gpus=on_bus(1, processes=(GpuProcess(pid=4711),)))
    (process,) = discover_node(root=tree.root).gpus[0].processes
    assert process.name == "python3"


def test_a_job_s_mask_is_resolved_on_the_gpus_that_were_found(tmp_path, answering):
    answering(gpus=on_bus(8))
    node = discover_node("n1", root=tmp_path, environ={"CUDA_VISIBLE_DEVICES": "GPU-2,GPU-5"})
    assert node.mask.gpu_uuids == ("GPU-2", "GPU-5")


def test_a_driver_that_hangs_leaves_the_rest_of_the_node(tmp_path, answering):
    tree = Tree(tmp_path)
    hgx(tree)
    answering(note="NVML did not answer within 20 s: the driver hangs (see the kernel log)")
    node = discover_node(root=tree.root)
    assert (node.gpus, node.gpu_note[:19]) == (None, "NVML did not answer")
    assert (len(node.hcas), len(node.gpus_on_bus)) == (8, 8)
