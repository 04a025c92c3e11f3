"""`preflight topology`: the matrix, its words, and nodes without GPUs."""

import json

import msgspec
import pytest

from preflight.cli.main import run_command_line
from preflight.cli.topology import describe, gpu_label, nic_affinity
from preflight.discover.nvlink import nvlink_domains
from preflight.discover.nvml import read_gpus
from preflight.model import Gpu, GpuPeer, Nic, Node, to_json
from tests.fakes import FakeNvml, a100_pcie_bridged, h100_sxm
from tests.trees import Tree


def node_of(monkeypatch, gpus, *, ancestor=50, **facts):
    FakeNvml(gpus, ancestor=ancestor).install(monkeypatch)
    reading = read_gpus()
    domains = nvlink_domains("n1", reading.gpus)
    joined = tuple(msgspec.structs.replace(gpu, nvlink_domain=domains[gpu.index]) for gpu in reading.gpus)
    return Node(name="n1", gpus=joined, **facts)


def row_of(node, index):
    lines = [line.split() for line in describe(node)]
    start = next(number for number, line in enumerate(lines) if line[:2] == ["GPU", "GPU0"])
    return lines[start + 1 + index]


def test_an_hgx_board_shows_nv18_everywhere(monkeypatch):
    node = node_of(monkeypatch, h100_sxm())
    assert row_of(node, 2)[:9] == ["2", "NV18", "NV18", "X", "NV18", "NV18", "NV18", "NV18", "NV18"]
    assert "a path over # NVLinks" in "\n".join(describe(node))


def test_bridged_pairs_show_nvlink_inside_and_the_pcie_path_outside(monkeypatch):
    node = node_of(monkeypatch, a100_pcie_bridged(), ancestor=40)
    assert row_of(node, 0)[:5] == ["0", "X", "NV12", "NODE", "NODE"]


def test_a_pair_whose_nvlinks_are_unknown_is_not_called_a_pcie_pair():
    gpu = Gpu(index=0, peers=(GpuPeer(index=1, num_nvlinks=None, ancestor="PIX"),))
    assert gpu_label(gpu, Gpu(index=1)) == "?"


ROOT = "pci0000:10"
GPU = Gpu(index=0, pci_upstream=("0000:12:00.0", "0000:11:00.0", "0000:10:01.0", ROOT), numa_node=0)


@pytest.mark.parametrize(
    ("upstream", "numa", "word"),
    [
        (("0000:12:01.0", "0000:11:00.0", "0000:10:01.0", ROOT), 0, "PIX"),
        (("0000:12:00.0", "0000:11:00.0", "0000:10:01.0", ROOT), 0, "PIX"),
        (("0000:15:00.0", "0000:14:00.0", "0000:12:02.0", "0000:11:00.0", "0000:10:01.0", ROOT), 0, "PXB"),
        (("0000:10:02.0", ROOT), 0, "PHB"),
        (("0000:20:01.0", "pci0000:20"), 0, "NODE"),
        (("0000:20:01.0", "pci0000:20"), 1, "SYS"),
        (("0000:20:01.0", "pci0000:20"), None, None),
        (None, 0, None),
    ],
)
def test_a_nic_is_as_close_as_the_bridges_it_shares_with_the_gpu(upstream, numa, word):
    nic = Nic(name="ib0", pci_bus_id="0000:20:00.0", pci_upstream=upstream, numa_node=numa)
    assert nic_affinity(Node(name="n1", numa_nodes=(0, 1)), GPU, nic) == word


def test_with_a_single_numa_node_the_kernels_silence_is_no_riddle():
    nic = Nic(name="ib0", pci_bus_id="0000:20:00.0", pci_upstream=("0000:20:01.0", "pci0000:20"))
    assert nic_affinity(Node(name="n1", numa_nodes=(0,)), GPU, nic) == "NODE"


def test_only_interfaces_on_a_bus_are_columns(monkeypatch):
    nics = (Nic(name="ib0", pci_bus_id="0000:20:00.0"), Nic(name="lo", kind="loopback"))
    header = row_of(node_of(monkeypatch, h100_sxm(2), nics=nics), -1)
    assert header == ["GPU", "GPU0", "GPU1", "ib0", "NUMA", "NVLinks", "domain"]


def test_a_node_without_gpus_says_so_and_shows_the_rest(tmp_path, capsys):
    tree = Tree(tmp_path)
    tree.nic("ib0", device=tree.pci("pci0000:20/0000:20:02.0"), hardware_type=32)
    assert run_command_line(["topology", "--root", str(tree.root)]) == 0
    text = capsys.readouterr().out
    assert "NUMA      nodes 0-1" in text
    assert "ib0" in text
    if "NVML" not in text:
        assert "no GPUs on this node" in text


def test_json_holds_matrix_domains_and_the_node(tmp_path, monkeypatch, capsys):
    snapshot = tmp_path / "node.json"
    snapshot.write_bytes(to_json(node_of(monkeypatch, a100_pcie_bridged(), ancestor=40)))
    assert run_command_line(["topology", "--from", str(snapshot), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "preflight.topology/1"
    assert document["columns"] == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert document["matrix"]["GPU2"] == ["NODE", "NODE", "X", "NV12"]
    assert document["topology"]["nvlink_domains"]["n1:gpu2"] == ["GPU-a100-2", "GPU-a100-3"]
    assert document["node"]["name"] == "n1"
